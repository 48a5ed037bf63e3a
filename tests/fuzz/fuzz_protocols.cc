// Reads bodies of other vendors' protocols and messages of agents. Nothing may crash, and accepted
// bodies hold a conversation, but for those that ask Ollama for nothing.
#include <boost/json/value.hpp>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json_parse.h"
#include "server/protocols/anthropic_request.h"
#include "server/protocols/mcp.h"
#include "server/protocols/ollama_request.h"
#include "server/protocols/responses_request.h"

using namespace quire;

namespace {

void check(const std::optional<JsonError>& error, const QueryBody& query, bool may_be_empty) {
  if (may_be_empty && query.messages.empty()) return;
  if (!error && query.prompts.empty() &&
      (query.messages.empty() || query.messages.size() != query.message_index.size() ||
       query.sampling.max_tokens < 1))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 5 == 0) {
    McpServer server(
        [](const std::string&, const boost::json::object&, const McpServer::Reply& done) {
          done(Status::unimplemented("no service"));
        },
        "0");
    int calls = 0;
    server.handle(text, [&](const std::optional<std::string>& reply) {
      if (reply && !parse_json(*reply, JsonLimits{64}).ok()) std::abort();
      ++calls;
    });
    if (calls != 1) std::abort();
    return 0;
  }
  const auto value = parse_json(text);
  if (!value.ok()) return 0;
  if (data[0] % 5 == 1) {
    AnthropicBody body;
    const auto error = read_anthropic(*value, data[0] % 2 == 0, 8, body);
    check(error, body.query, false);
  } else if (data[0] % 5 == 2) {
    ResponsesBody body;
    const auto error = read_responses(*value, body);
    check(error, body.query, false);
  } else if (data[0] % 5 == 3) {
    QueryBody body;
    const auto error = read_ollama_chat(*value, body);
    check(error, body, true);
  } else {
    QueryBody body;
    const auto error = read_ollama_generate(*value, body);
    check(error, body, true);
    OllamaEmbed embed;
    (void)read_ollama_embed(*value, embed);
    (void)read_ollama_embeddings(*value, embed);
    std::string model;
    (void)read_ollama_show(*value, model);
    OllamaPull pull;
    (void)read_ollama_pull(*value, pull);
  }
  return 0;
}
