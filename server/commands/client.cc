#include "server/commands/client.h"

#include <CLI/CLI.hpp>

#include "base/json_parse.h"
#include "server/commands/environment_option.h"
#include "server/support/affinity.h"

namespace quire {
namespace json = boost::json;

void add_client_flags(CLI::App& command, ClientFlags& flags) {
  default_from_environment(
      command.add_option("--server", flags.server, "Address of the service, http:// or https://"),
      flags.server, "QUIRE_SERVER")
      ->capture_default_str();
  default_from_environment(command.add_option("--key", flags.key, "API key"), flags.key,
                           "QUIRE_API_KEY");
  command.add_option("--namespace", flags.ns, "Namespace (default: the key's first)");
  default_from_environment(
      command.add_option("--ca-file", flags.ca_file,
                         "Authorities to trust where the service speaks https (PEM)"),
      flags.ca_file, "QUIRE_CA_FILE")
      ->check(CLI::ExistingFile);
}

Status error_of(const HttpResponse& response) {
  std::string message = "HTTP " + std::to_string(response.status);
  std::string param;
  if (response.content_type.starts_with("text/plain")) message += ": " + response.body;
  if (const auto body = parse_json(response.body); body.ok() && body->is_object()) {
    const auto& o = body->as_object();
    if (const auto* detail = o.if_contains("detail"); detail && detail->is_string())
      message = std::string(detail->as_string());
    if (const auto* error = o.if_contains("error"); error && error->is_object()) {
      const auto& e = error->as_object();
      if (const auto* code = e.if_contains("code"); code && code->is_string())
        message += " [" + std::string(code->as_string()) + "]";
      if (const auto* p = e.if_contains("param"); p && p->is_string())
        param = std::string(p->as_string());
    }
  }
  if (response.status == 401) message += "; give a key with --key or QUIRE_API_KEY";
  // What is refused now may be taken later.
  const bool passes = response.status == 429 || response.status == 503;
  const Code code = response.status == 404 ? Code::kNotFound
                    : passes               ? Code::kUnavailable
                                           : Code::kFailedPrecondition;
  return Status(code, message, param);
}

void add_affinity(const ClientFlags& flags, std::span<const std::string> document_ids,
                  ClientRequest& request) {
  const std::string affinity = affinity_of(flags.ns.empty() ? "default" : flags.ns, document_ids);
  if (!affinity.empty()) request.headers.emplace_back(kAffinityHeader, affinity);
}

Result<HttpResponse> client_call(const ClientFlags& flags, ClientRequest request,
                                 const std::function<bool(std::string_view)>& on_piece) {
  QUIRE_ASSIGN_OR_RETURN(auto address, parse_server_url(flags.server));
  address.ca_file = flags.ca_file;
  if (!flags.key.empty()) request.headers.emplace_back("Authorization", "Bearer " + flags.key);
  if (!flags.ns.empty()) request.headers.emplace_back("X-Namespace", flags.ns);
  QUIRE_ASSIGN_OR_RETURN(auto response, http_call(address, request, on_piece));
  if (response.status >= 400) return error_of(response);
  return response;
}

std::string printable(std::string_view text, bool lines) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (c == '\r') {  // before a line end, which may come with the next piece, or alone
      if (!lines) out += ' ';
    } else if (c == '\n' || c == '\t') {
      out += lines ? text[i] : ' ';
    } else if (c < 0x20 || c == 0x7F) {
      out += kReplacement;
    } else if (c == 0xC2 && next >= 0x80 && next <= 0x9F) {  // U+0080 to U+009F
      out += kReplacement;
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

Result<json::value> client_json(const ClientFlags& flags, ClientRequest request) {
  QUIRE_ASSIGN_OR_RETURN(const auto response, client_call(flags, std::move(request)));
  auto value = parse_json(response.body);
  if (!value.ok()) return value.status().with_context("the server's reply");
  return value;
}

}  // namespace quire
