#include <algorithm>
#include <boost/json.hpp>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/index.h"
#include "cachestore/format/key.h"
#include "ingest/ingest_service.h"
#include "server/handlers/common.h"
#include "server/protocols/anthropic_request.h"
#include "server/protocols/chat_run.h"
#include "server/protocols/protocols.h"
#include "server/reply/cache_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Ids of documents that this request has cached itself.
using NewDocuments = std::set<std::string>;

/// Usage as the protocol counts it: the three kinds of input tokens exclude each other.
json::object usage_of(const QueryRecord& r, const NewDocuments& made, std::int64_t output) {
  // What this request put into the cache was computed for it, although it is read from there.
  std::int64_t created = r.stats.written_tokens;
  for (const PlannedContext& c : r.plan.contexts)
    if (made.contains(c.document_id)) created += c.cut ? c.cut->uncut_tokens : c.num_tokens;
  const std::int64_t total = r.plan.prompt_tokens;
  created = std::min(created, total);
  std::int64_t read = r.plan.fates.cached();
  for (const PlannedContext& c : r.plan.contexts)
    if (made.contains(c.document_id) && c.cached) read -= c.num_tokens;
  read = std::clamp<std::int64_t>(read, 0, total - created);
  return {{"input_tokens", total - created - read},
          {"cache_creation_input_tokens", created},
          {"cache_read_input_tokens", read},
          {"output_tokens", output}};
}

class AnthropicReply final : public ReplyWriter {
 public:
  AnthropicReply(const Generation& g, NewDocuments made)
      : call_(g.call),
        record_(g.records.front()),
        stream_(g.body.stream),
        stop_sequences_(g.body.sampling.stop),
        made_(std::move(made)) {}

  void planned(std::size_t) override {
    std::lock_guard lock(mu_);
    if (!stream_ || failed_) return;
    call_->start_events({{"X-Cache", std::string(cache_header(record_->plan))}});
    started_ = true;
    json::object message = head();
    message["content"] = json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage_of(*record_, made_, 0);
    (void)send("message_start", {{"message", std::move(message)}});
  }

  bool text(std::size_t, std::string_view text, std::vector<TokenLogprobs>) override {
    std::lock_guard lock(mu_);
    if (!stream_) return true;
    if (failed_) return false;
    if (open_ != Open::kText) {
      close_block();
      open_block(Open::kText, {{"type", "text"}, {"text", ""}});
    }
    return send("content_block_delta",
                {{"index", block_}, {"delta", {{"type", "text_delta"}, {"text", text}}}});
  }

  bool tool_call(std::size_t, const ToolDelta& delta, std::vector<TokenLogprobs>) override {
    std::lock_guard lock(mu_);
    if (!stream_) return true;
    if (failed_) return false;
    if (delta.begins) {
      close_block();
      return open_block(Open::kTool, {{"type", "tool_use"},
                                      {"id", delta.call->id},
                                      {"name", delta.call->name},
                                      {"input", json::object()}});
    }
    return send("content_block_delta",
                {{"index", block_},
                 {"delta", {{"type", "input_json_delta"}, {"partial_json", delta.arguments}}}});
  }

  void finished(std::size_t, const Status& status) override {
    std::lock_guard lock(mu_);
    if (!status.ok()) return fail(answer_problem(status, *record_, *call_->model().engine));
    const QueryRecord& r = *record_;
    const json::object usage = usage_of(r, made_, r.stats.completion_tokens);
    json::value sequence;
    if (stopped_by_sequence()) sequence = r.stats.stop_text;
    if (stream_) {
      close_block();
      (void)send(
          "message_delta",
          {{"delta", {{"stop_reason", reason()}, {"stop_sequence", sequence}}}, {"usage", usage}});
      (void)send("message_stop", {});
      return call_->end_events();
    }
    json::array content;
    if (!r.answer.empty() || r.tool_calls.empty())
      content.push_back(json::object{{"type", "text"}, {"text", r.answer}});
    for (const ToolCall& call : r.tool_calls)
      content.push_back(json::object{{"type", "tool_use"},
                                     {"id", call.id},
                                     {"name", call.name},
                                     {"input", arguments_object(call.arguments)}});
    json::object message = head();
    message["content"] = std::move(content);
    message["stop_reason"] = reason();
    message["stop_sequence"] = sequence;
    message["usage"] = usage;
    call_->reply_json(200, message, {{"X-Cache", std::string(cache_header(r.plan))}});
  }

 private:
  enum class Open : unsigned char { kNothing, kText, kTool };

  json::object head() const {
    return {{"id", "msg_" + record_->id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", record_->model}};
  }
  /// The model's prompt format has stop texts of its own, which end the turn.
  bool stopped_by_sequence() const {
    return std::ranges::find(stop_sequences_, record_->stats.stop_text) != stop_sequences_.end();
  }
  std::string_view reason() const {
    if (stopped_by_sequence()) return "stop_sequence";
    if (record_->finish_reason == "tool_calls") return "tool_use";
    return record_->finish_reason == "length" ? "max_tokens" : "end_turn";
  }
  bool send(std::string_view type, json::object members) {
    json::object o{{"type", type}};
    for (auto& [name, value] : members) o[name] = std::move(value);
    return call_->event(type, o);
  }
  bool open_block(Open kind, json::object block) {
    open_ = kind;
    return send("content_block_start", {{"index", ++block_}, {"content_block", std::move(block)}});
  }
  void close_block() {
    if (open_ != Open::kNothing) (void)send("content_block_stop", {{"index", block_}});
    open_ = Open::kNothing;
  }
  void fail(const Problem& problem) {
    failed_ = true;
    if (!started_) return call_->fail(problem);
    call_->add_log("error_code", problem.code);
    (void)call_->event("error", anthropic_error(problem, call_->request_id));
    call_->end_events();
  }

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const bool stream_;
  const std::vector<std::string> stop_sequences_;
  const NewDocuments made_;
  std::mutex mu_;
  Open open_ = Open::kNothing;             // guarded by mu_
  std::int64_t block_ = -1;                // guarded by mu_: the open or last block
  bool started_ = false, failed_ = false;  // guarded by mu_
};

/// The id of a cached document block: the same text has the same one, whoever sends it.
std::string id_of(const AnthropicDocument& d) {
  return "block-" +
         sha256(std::to_string(d.title.size()) + "\n" + d.title + d.text).hex().substr(0, 32);
}

/// Puts the documents into the query: those with cache_control as documents of the store, which are
/// cached if they are not yet, the others as they are. False: the call was failed.
bool place_documents(Call& call, AnthropicBody& body, NewDocuments& made) {
  const bool may_write = call.key == nullptr || call.key->allows(Scope::kWrite);
  for (AnthropicDocument& d : body.documents) {
    QueryBody& q = body.query;
    if (!d.ttl_seconds || !may_write) {
      q.documents.push_back(
          {std::move(d.title), std::move(d.text), q.document_ids.size(), std::move(d.param)});
      continue;
    }
    const std::string id = id_of(d);
    if (std::find(q.document_ids.begin(), q.document_ids.end(), id) != q.document_ids.end())
      continue;
    const auto known = call.services.ingest->documents().get(call.ns, id);
    if (!known.ok() || known->status == DocumentStatus::kFailed) {
      DocumentInput input;
      input.id = id;
      input.title = std::move(d.title);
      input.text = std::move(d.text);
      BatchOptions options;
      options.ttl_seconds = d.ttl_seconds;
      options.ttl_anchor = TtlAnchor::kLastUsed;
      std::vector<DocumentInput> inputs;
      inputs.push_back(std::move(input));
      const auto job = call.services.ingest->submit(call.ns, std::move(inputs), options);
      if (!job.ok()) {
        call.fail(ingest_problem(job.status()));
        return false;
      }
      made.insert(id);
    }
    q.document_params.push_back(std::move(d.param));
    q.document_ids.push_back(id);
  }
  return true;
}

/// Returns the refusal of a body. The package's runner of tools asks the service to keep the
/// conversation, and sends it itself where these details say that the service does not.
Problem refusal(const JsonError& error) {
  Problem p = problem_of(error);
  if (error.path == "thread")
    p.extra["details"] = json::object{{"error_code", "thread_unsupported_request"},
                                      {"unsupported", json::array{json::value("thread")}}};
  return p;
}

/// Reads the body. Nothing: the call was failed.
std::optional<AnthropicBody> read(Call& call, bool count) {
  const auto parsed = body_json(call);
  if (!parsed) return std::nullopt;
  AnthropicBody body;
  peek_model(call, named_model(*parsed));
  body.query = chat_query(call);
  if (const auto error = read_anthropic(*parsed, count, query_defaults(call).max_documents, body)) {
    call.fail(refusal(*error));
    return std::nullopt;
  }
  return body;
}

}  // namespace

namespace handlers {

void anthropic_messages(std::shared_ptr<Call> call) {
  auto body = read(*call, false);
  if (!body) return;
  NewDocuments made;
  if (!place_documents(*call, *body, made)) return;
  run_chat(std::move(call), std::move(body->query),
           [made](const Generation& g) { return std::make_shared<AnthropicReply>(g, made); });
}

void anthropic_count_tokens(std::shared_ptr<Call> call) {
  auto body = read(*call, true);
  if (!body) return;
  for (AnthropicDocument& d : body->documents)
    body->query.documents.push_back({std::move(d.title), std::move(d.text), 0, std::move(d.param)});
  count_prompt(std::move(call), std::move(body->query), [](Call& counted, std::int64_t tokens) {
    counted.reply_json(200, json::object{{"input_tokens", tokens}});
  });
}

}  // namespace handlers
}  // namespace quire
