// A conversation with a running service in a terminal: questions, commands that begin with a
// slash, and answers with their sources. Without a terminal every line of standard input is a
// question.
#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "server/commands/ask/answer.h"
#include "server/commands/ask/explain.h"
#include "server/commands/ask/line_reader.h"
#include "server/commands/commands.h"
#include "server/commands/files/interrupt.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr const char* kHelp =
    "  /use a.pdf, b.md   ask these documents only\n"
    "  /all               let the service take the best of all documents\n"
    "  /none              ask without documents\n"
    "  /documents         list the documents of the service\n"
    "  /why               what the last answer was made of, and what took how long\n"
    "  /clear             forget the conversation\n"
    "  /exit              leave (also Ctrl-D)\n"
    "\"\"\" begins a question of several lines, and ends it. Ctrl-C ends an answer. Arrow keys "
    "edit\n"
    "a line and bring earlier ones back; Ctrl-R searches them.\n";

struct ChatFlags {
  ClientFlags client;
  QuestionFlags asked;
};

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// Returns the parts between commas, without spaces around them.
std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto comma = text.find(',');
    if (const auto part = trimmed(text.substr(0, comma)); !part.empty()) out.emplace_back(part);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return out;
}

class Chat {
 public:
  explicit Chat(const ChatFlags& flags)
      : flags_(flags), terminal_(lines_.terminal()), asked_(flags.asked) {}

  int run() {
    ClientRequest request;
    request.target = "/v1/info";
    const auto info = client_json(flags_.client, std::move(request));
    if (!info.ok()) return complain(info.status());
    if (terminal_) greet(info->as_object());
    std::string question;
    while (read_question(question)) {
      const std::string_view text = trimmed(question);
      if (text.empty()) continue;
      if (text.front() == '/') {
        if (text == "/exit" || text == "/quit" || text == "/bye") break;
        command(text);
      } else {
        ask(std::string(text));
      }
    }
    if (terminal_) std::fputs("\n", stderr);
    return failed_ && !terminal_ ? 1 : 0;
  }

 private:
  void greet(const json::object& info) {
    const auto& model = info.at("model").as_object();
    const auto& meta = model.at("meta").as_object();
    std::fprintf(stderr, "%s (%s, %.3g M parameters, window of %s tokens) at %s. /help for help.\n",
                 member_text(model, "id").c_str(), member_text(meta, "type").c_str(),
                 meta.at("parameters").to_number<double>() / 1e6,
                 member_text(model, "max_model_len").c_str(), flags_.client.server.c_str());
  }

  /// Reads a line, or lines between two """. Returns false at the end of the input.
  bool read_question(std::string& out) {
    constexpr std::string_view kQuotes = "\"\"\"";
    if (!lines_.read(">>> ", out)) return false;
    if (!trimmed(out).starts_with(kQuotes)) return true;
    out = std::string(trimmed(out).substr(kQuotes.size()));
    std::string line;
    while (!trimmed(out).ends_with(kQuotes)) {
      if (!lines_.read("... ", line)) return true;
      out += "\n" + line;
    }
    const auto end = out.rfind(kQuotes);
    out.resize(end);
    return true;
  }

  void command(std::string_view text) {
    const auto space = text.find(' ');
    const std::string_view name = text.substr(0, space);
    const std::string_view rest = space == std::string_view::npos ? std::string_view()
                                                                  : trimmed(text.substr(space));
    if (name == "/help" || name == "/?") {
      std::fputs(kHelp, stderr);
    } else if (name == "/use") {
      use(split_at_commas(rest));
    } else if (name == "/all") {
      asked_.documents.clear();
      asked_.no_documents = false;
      std::fputs("The service takes the best of all documents.\n", stderr);
    } else if (name == "/none") {
      asked_.documents.clear();
      asked_.no_documents = true;
      std::fputs("No documents.\n", stderr);
    } else if (name == "/documents") {
      list_documents();
    } else if (name == "/why") {
      why();
    } else if (name == "/clear") {
      messages_.clear();
      std::fputs("The conversation is forgotten.\n", stderr);
    } else {
      std::fprintf(stderr, "There is no command %s; /help lists them.\n",
                   std::string(name).c_str());
    }
  }

  void use(std::vector<std::string> ids) {
    if (ids.empty()) {
      std::fputs("/use needs ids of documents; /documents lists them.\n", stderr);
      return;
    }
    for (const std::string& id : ids) {
      ClientRequest request;
      request.target = "/v1/documents/" + percent_encode(id);
      if (const auto found = client_call(flags_.client, std::move(request)); !found.ok()) {
        std::fprintf(stderr, "%s: %s\n", id.c_str(), found.status().message().c_str());
        return;
      }
    }
    std::fprintf(stderr, "%zu document%s in every question.\n", ids.size(),
                 ids.size() == 1 ? "" : "s");
    asked_.documents = std::move(ids);
    asked_.no_documents = false;
  }

  void list_documents() {
    ClientRequest request;
    request.target = "/v1/documents?limit=100";
    const auto reply = client_json(flags_.client, std::move(request));
    if (!reply.ok()) {
      std::fprintf(stderr, "%s\n", reply.status().message().c_str());
      return;
    }
    const auto& o = reply->as_object();
    for (const auto& item : o.at("data").as_array()) {
      const auto& d = item.as_object();
      std::fprintf(stderr, "%8s tokens  %s\n", member_text(d, "tokens").c_str(),
                   member_text(d, "id").c_str());
    }
    if (o.at("data").as_array().empty())
      std::fputs("There are none; 'quire ingest FOLDER' adds some.\n", stderr);
    if (const auto* more = o.if_contains("has_more"); more && more->is_bool() && more->as_bool())
      std::fputs("... and more: quire documents list\n", stderr);
  }

  void why() {
    if (last_id_.empty()) {
      std::fputs("Nothing was asked yet.\n", stderr);
      return;
    }
    const auto text = explain_query(flags_.client, last_id_);
    std::fputs(text.ok() ? text->c_str() : (text.status().message() + "\n").c_str(), stderr);
  }

  void ask(std::string question) {
    messages_.push_back(json::object{{"role", "user"}, {"content", std::move(question)}});
    const Interrupt interrupt;
    json::object body = question_body(asked_);
    body["messages"] = messages_;
    const auto done = stream_answer(flags_.client, std::move(body),
                                    [&] { return interrupt.requested(); });
    if (!done.ok() || done->empty()) {
      // A question without an answer would break the turns of the conversation.
      messages_.pop_back();
      failed_ = !done.ok() || failed_;
      std::fprintf(stderr, "%s\n", done.ok() ? "\n(stopped)" : done.status().message().c_str());
      return;
    }
    const auto& answer = done->at("answer").as_string();
    messages_.push_back(json::object{{"role", "assistant"}, {"content", answer}});
    last_id_ = member_text(*done, "id");
    print_citations(*done);
    if (terminal_) print_summary(*done);
  }

  static void print_summary(const json::object& done) {
    const auto& usage = done.at("usage").as_object();
    const auto& fates = usage.at("cache_details").as_object();
    const auto& timings = done.at("timings").as_object();
    std::fprintf(stderr, "(%s of %s prompt tokens reused, first token after %.0f ms; /why)\n",
                 member_text(fates, "reused_tokens").c_str(),
                 member_text(usage, "prompt_tokens").c_str(),
                 timings.at("ttft_ms").to_number<double>());
  }

  const ChatFlags& flags_;
  LineReader lines_;
  const bool terminal_;
  QuestionFlags asked_;  ///< as the commands have changed it
  bool failed_ = false;
  json::array messages_;
  std::string last_id_;
};

}  // namespace

void add_chat_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ChatFlags>();
  auto* c = app.add_subcommand(
      "chat",
      "Talk with a running service about its documents, in a terminal.\nAnswers go to standard "
      "output, sources and everything else to standard error. Without a terminal every line of "
      "standard input is a question of one conversation");
  flags->asked.max_tokens = 512;
  add_question_flags(*c, flags->asked);
  add_client_flags(*c, flags->client);
  c->callback([flags, &run] { run = [flags] { return Chat(*flags).run(); }; });
}

}  // namespace quire
