#include "server/commands/ask/answer.h"

#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/json_parse.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;

std::string check_finite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : "'" + text + "' is no number";
}

void add_question_flags(CLI::App& command, QuestionFlags& flags) {
  command
      .add_option(
          "-d,--document", flags.documents,
          "Document ids, in prompt order (repeat, or separate by commas); none: the service "
          "takes the best ones")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag("--no-documents", flags.no_documents, "Ask without any document")
      ->excludes("--document");
  command.add_option("--model", flags.model,
                     "Which of the service's models answers ('quire admin models' lists them)");
  command.add_option("-s,--strategy", flags.strategy,
                     "How cached documents are used (see /v1/info); else as the service's "
                     "policy.strategy says");
  command.add_option("--max-tokens", flags.max_tokens, "Longest answer")->capture_default_str();
  command.add_option("--temperature", flags.temperature, "0: the likeliest token")
      ->check(check_finite)
      ->capture_default_str();
  command.add_option("--system", flags.system, "System message");
  command.add_option("--citation", flags.citation,
                     "Show the citations in the answer, for example \" [{n}]\" or \" ({title})\"; "
                     "the answer then comes at once");
}

json::object question_body(const QuestionFlags& flags) {
  json::object o;
  json::array ids;
  for (const auto& id : flags.documents) ids.emplace_back(id);
  if (!ids.empty() || flags.no_documents) o["document_ids"] = std::move(ids);
  if (!flags.model.empty()) o["model"] = flags.model;
  o["max_tokens"] = flags.max_tokens;
  o["temperature"] = flags.temperature;
  if (!flags.system.empty()) o["system"] = flags.system;
  if (!flags.strategy.empty()) o["cache"] = json::object{{"strategy", flags.strategy}};
  if (!flags.citation.empty()) o["prompt"] = json::object{{"citation", flags.citation}};
  return o;
}

Result<json::object> stream_answer(const ClientFlags& flags, json::object body,
                                   const std::function<bool()>& stopped) {
  body["stream"] = true;
  // A mark follows the sentence that it belongs to, and is known only at the end.
  const bool at_end = body.contains("prompt");
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/query";
  request.content_type = "application/json";
  request.body = to_text(body);
  std::vector<std::string> ids;
  if (const auto* named = body.if_contains("document_ids"); named && named->is_array())
    for (const auto& id : named->as_array()) ids.emplace_back(id.as_string());
  add_affinity(flags, ids, request);
  request.stopped = stopped;
  SseReader reader;
  std::string text;
  Result<json::object> answer = Status::io("the server ended the answer early");
  const auto on_event = [&](const std::string& name, const std::string& data) {
    const auto value = parse_json(data);
    if (!value.ok() || !value->is_object()) return true;
    const auto& o = value->as_object();
    if (name == "delta") {
      text += o.at("text").as_string();
      if (at_end) return true;
      std::fputs(printable(o.at("text").as_string(), true).c_str(), stdout);
      std::fflush(stdout);
    } else if (name == "done") {
      if (at_end) std::fputs(printable(member_text(o, "cited_answer"), true).c_str(), stdout);
      std::fputs("\n", stdout);
      std::fflush(stdout);
      json::object done = o;
      done["answer"] = text;
      answer = std::move(done);
      return false;
    } else if (name == "error") {
      answer = Status::precondition(std::string(o.at("detail").as_string()));
      return false;
    }
    return true;
  };
  const auto reply = client_call(flags, std::move(request), [&](std::string_view piece) {
    return !(stopped && stopped()) && reader.feed(piece, on_event);
  });
  if (!reply.ok()) return reply.status();
  if (!answer.ok() && stopped && stopped()) return json::object();
  return answer;
}

void print_citations(const json::object& done) {
  if (member_text(done, "finish_reason") == "length")
    std::fprintf(stderr, "the answer was cut off; --max-tokens allows a longer one\n");
  if (const auto* list = done.if_contains("unsupported"); list && list->is_array()) {
    const std::size_t sentences = list->as_array().size();
    if (sentences > 0)
      std::fprintf(stderr, "no support found in the documents for %zu sentence%s\n", sentences,
                   sentences == 1 ? "" : "s");
  }
  for (const auto& item : done.at("citations").as_array()) {
    const auto& c = item.as_object();
    const auto& id = c.at("document_id");
    std::string where = (id.is_string() ? std::string(id.as_string()) : "inline") + place_text(c);
    if (const auto* confidence = c.if_contains("confidence"))
      where += " (" + std::to_string(std::lround(100 * confidence->to_number<double>())) +
               " % sure)";
    std::fprintf(stderr, "[%s] %s: %s\n", std::string(c.at("id").as_string()).c_str(),
                 printable(where, false).c_str(),
                 printable(c.at("quote").as_string(), false).c_str());
  }
}

std::string place_text(const json::object& text) {
  std::string out;
  if (const auto* page = text.if_contains("page")) {
    const auto* last = text.if_contains("last_page");
    const bool several = last && *last != *page;
    out += several ? ", pages " + to_text(*page) + "-" + to_text(*last)
                   : ", page " + to_text(*page);
  }
  if (const auto* heading = text.if_contains("heading"))
    out += ", " + std::string(heading->as_string());
  return out;
}

std::string member_text(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  if (!v) return "-";
  return v->is_string() ? std::string(v->as_string()) : to_text(*v);
}

}  // namespace quire
