#include <algorithm>
#include <boost/json.hpp>
#include <mutex>
#include <utility>
#include <vector>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/files/files.h"
#include "server/handlers/prompt.h"
#include "server/protocols/chat_run.h"
#include "server/protocols/protocols.h"
#include "server/protocols/responses_request.h"
#include "server/reply/cache_reply.h"
#include "server/reply/document_reply.h"
#include "server/support/request_id.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Writes a response as a whole, or as numbered events. Output items are the search for files, if
/// it was asked for, the text, if there is some, and the calls of functions.
class ResponsesReply final : public ReplyWriter {
 public:
  ResponsesReply(const Generation& g, json::object echoed, bool searches)
      : call_(g.call),
        record_(g.records.front()),
        stream_(g.body.stream),
        parallel_(!g.body.tools || g.body.tools->parallel),
        echoed_(std::move(echoed)),
        message_id_(make_id("msg_")) {
    if (!searches) return;
    items_.push_back({.id = make_id("fs_")});
    items_.back().query = question_text(g.body);
    items_.back().searches = true;
  }

  void planned(std::size_t) override {
    std::lock_guard lock(mu_);
    if (!stream_ || failed_) return;
    call_->start_events({{"X-Cache", std::string(cache_header(record_->plan))}});
    started_ = true;
    (void)send("response.created", {{"response", response("in_progress", {})}});
    (void)send("response.in_progress", {{"response", response("in_progress", {})}});
    if (!items_.empty()) report_search();
  }

  bool text(std::size_t, std::string_view text, std::vector<TokenLogprobs>) override {
    std::lock_guard lock(mu_);
    if (failed_) return false;
    if (open_ != Open::kText) {
      close_item();
      open_text();
    }
    items_.back().text += text;
    if (!stream_) return true;
    return send("response.output_text.delta", {{"item_id", items_.back().id},
                                               {"output_index", index()},
                                               {"content_index", 0},
                                               {"delta", text},
                                               {"logprobs", json::array()}});
  }

  bool tool_call(std::size_t, const ToolDelta& delta, std::vector<TokenLogprobs>) override {
    std::lock_guard lock(mu_);
    if (failed_) return false;
    if (delta.begins) {
      close_item();
      open_ = Open::kCall;
      items_.push_back({.id = make_id("fc_"), .call_id = delta.call->id, .name = delta.call->name});
      return !stream_ ||
             send("response.output_item.added",
                  {{"output_index", index()}, {"item", item(items_.back(), "in_progress")}});
    }
    items_.back().text += delta.arguments;
    return !stream_ ||
           send("response.function_call_arguments.delta", {{"item_id", items_.back().id},
                                                           {"output_index", index()},
                                                           {"delta", delta.arguments}});
  }

  void finished(std::size_t, const Status& status) override {
    std::lock_guard lock(mu_);
    if (!status.ok()) return fail(answer_problem(status, *record_, *call_->model().engine));
    if (items_.empty() || items_.back().searches) open_text();
    cite();
    const bool whole = record_->finish_reason != "length";
    close_item(whole ? "completed" : "incomplete");
    json::array output;
    // Only what was being written when the answer ended is cut.
    for (const Item& i : items_)
      output.push_back(item(i, whole || &i != &items_.back() ? "completed" : "incomplete"));
    json::object body = response(whole ? "completed" : "incomplete", std::move(output));
    if (stream_) {
      (void)send(whole ? "response.completed" : "response.incomplete",
                 {{"response", std::move(body)}});
      return call_->end_events();
    }
    call_->reply_json(200, body, {{"X-Cache", std::string(cache_header(record_->plan))}});
  }

 private:
  enum class Open : unsigned char { kNothing, kText, kCall };
  struct Item {
    std::string id, call_id = {}, name = {};  ///< name: a call; else the text
    std::string text = {};                    ///< the text, or the arguments
    std::string query = {};                   ///< what files were searched for
    bool searches = false;                    ///< the item is that search
    json::array annotations = {};             ///< of the text
  };

  std::size_t index() const { return items_.size() - 1; }

  static json::object part(const Item& i) {
    return {{"type", "output_text"},
            {"text", i.text},
            {"annotations", i.annotations},
            {"logprobs", json::array()}};
  }
  static json::object item(const Item& i, std::string_view status) {
    if (i.searches)
      return {{"type", "file_search_call"},
              {"id", i.id},
              {"status", status},
              {"queries", json::array{json::value(i.query)}},
              {"results", nullptr}};
    if (!i.name.empty())
      return {{"type", "function_call"}, {"id", i.id},          {"call_id", i.call_id},
              {"name", i.name},          {"arguments", i.text}, {"status", status}};
    json::array content;
    if (status != "in_progress") content.push_back(part(i));
    return {{"type", "message"},
            {"id", i.id},
            {"role", "assistant"},
            {"status", status},
            {"content", std::move(content)}};
  }

  json::object response(std::string_view status, json::array output) const {
    json::object o{{"id", "resp_" + record_->id},
                   {"object", "response"},
                   {"created_at", record_->created_ms / 1000},
                   {"status", status},
                   {"model", record_->model},
                   {"output", std::move(output)},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"instructions", nullptr},
                   {"max_output_tokens", nullptr},
                   {"metadata", json::object()},
                   {"parallel_tool_calls", parallel_},
                   {"previous_response_id", nullptr},
                   {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                   {"store", false},
                   {"temperature", 1.0},
                   {"text", {{"format", {{"type", "text"}}}}},
                   {"tool_choice", "auto"},
                   {"tools", json::array()},
                   {"top_p", 1.0},
                   {"truncation", "disabled"},
                   {"usage", nullptr}};
    for (const auto& [name, value] : echoed_) o[name] = value;
    if (status == "incomplete")
      o["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
    if (status == "in_progress") return o;
    const QueryRecord& r = *record_;
    const std::int64_t input = r.plan.prompt_tokens, written = r.stats.completion_tokens;
    o["usage"] = json::object{{"input_tokens", input},
                              {"input_tokens_details",
                               {{"cached_tokens", r.plan.fates.cached()},
                                {"cache_write_tokens", r.stats.written_tokens}}},
                              {"output_tokens", written},
                              {"output_tokens_details", {{"reasoning_tokens", 0}}},
                              {"total_tokens", input + written}};
    return o;
  }

  void report_search() {
    const Item& i = items_.front();
    (void)send("response.output_item.added",
               {{"output_index", 0}, {"item", item(i, "in_progress")}});
    for (const char* step : {"in_progress", "searching", "completed"})
      (void)send("response.file_search_call." + std::string(step),
                 {{"item_id", i.id}, {"output_index", 0}});
    (void)send("response.output_item.done", {{"output_index", 0}, {"item", item(i, "completed")}});
  }

  /// Adds the documents that support the text, each where a sentence that it supports ends.
  void cite() {
    Item& text = items_.back();
    if (open_ != Open::kText || !items_.front().searches) return;
    for (const Citation& c : record_->citations) {
      if (c.document_id.empty()) continue;
      json::object annotation{{"type", "file_citation"},
                              {"index", c.answer_end},
                              {"file_id", c.document_id},
                              {"filename", name_of(c.document_id)}};
      if (std::ranges::find(text.annotations, json::value(annotation)) != text.annotations.end())
        continue;
      if (stream_)
        (void)send("response.output_text.annotation.added",
                   {{"item_id", text.id},
                    {"output_index", index()},
                    {"content_index", 0},
                    {"annotation_index", text.annotations.size()},
                    {"annotation", annotation}});
      text.annotations.push_back(std::move(annotation));
    }
  }

  std::string name_of(const std::string& id) const {
    const auto d = call_->services.ingest->documents().get(call_->ns, id);
    return d.ok() ? file_name(metadata_object(d->metadata_json), d->title, id) : id;
  }

  void open_text() {
    open_ = Open::kText;
    items_.push_back({.id = items_.empty() ? message_id_ : make_id("msg_")});
    if (!stream_) return;
    (void)send("response.output_item.added",
               {{"output_index", index()}, {"item", item(items_.back(), "in_progress")}});
    (void)send("response.content_part.added", {{"item_id", items_.back().id},
                                               {"output_index", index()},
                                               {"content_index", 0},
                                               {"part", part(items_.back())}});
  }

  void close_item(std::string_view status = "completed") {
    const Open was = std::exchange(open_, Open::kNothing);
    if (!stream_ || was == Open::kNothing) return;
    const Item& i = items_.back();
    if (was == Open::kText) {
      (void)send("response.output_text.done", {{"item_id", i.id},
                                               {"output_index", index()},
                                               {"content_index", 0},
                                               {"text", i.text},
                                               {"logprobs", json::array()}});
      (void)send(
          "response.content_part.done",
          {{"item_id", i.id}, {"output_index", index()}, {"content_index", 0}, {"part", part(i)}});
    } else {
      (void)send(
          "response.function_call_arguments.done",
          {{"item_id", i.id}, {"output_index", index()}, {"name", i.name}, {"arguments", i.text}});
    }
    (void)send("response.output_item.done", {{"output_index", index()}, {"item", item(i, status)}});
  }

  bool send(std::string_view type, json::object members) {
    json::object o{{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [name, value] : members) o[name] = std::move(value);
    return call_->event(type, o);
  }

  void fail(const Problem& problem) {
    failed_ = true;
    if (!started_) return call_->fail(problem);
    call_->add_log("error_code", problem.code);
    json::object body = response("failed", {});
    body["error"] = json::object{{"code", "server_error"}, {"message", problem.detail}};
    (void)send("response.failed", {{"response", std::move(body)}});
    call_->end_events();
  }

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const bool stream_, parallel_;
  const json::object echoed_;
  const std::string message_id_;
  std::mutex mu_;
  std::vector<Item> items_;                // guarded by mu_
  Open open_ = Open::kNothing;             // guarded by mu_
  std::int64_t sequence_ = 0;              // guarded by mu_
  bool started_ = false, failed_ = false;  // guarded by mu_
};

}  // namespace

namespace handlers {

void openai_responses(std::shared_ptr<Call> call) {
  const auto parsed = body_json(*call);
  if (!parsed) return;
  ResponsesBody body;
  peek_model(*call, named_model(*parsed));
  body.query = chat_query(*call);
  if (failed(*call, read_responses(*parsed, body))) return;
  if (!has_vector_stores(*call, body.vector_store_ids)) return;
  run_chat(
      std::move(call), std::move(body.query),
      [echoed = std::move(body.echoed), searches = !body.vector_store_ids.empty()](
          const Generation& g) { return std::make_shared<ResponsesReply>(g, echoed, searches); });
}

}  // namespace handlers
}  // namespace quire
