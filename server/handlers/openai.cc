#include <mutex>
#include <utility>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/generation.h"
#include "server/handlers/handlers.h"
#include "server/json/openai_codec.h"
#include "server/json/text.h"
#include "server/reply/cache_reply.h"
#include "server/reply/openai_reply.h"
#include "server/reply/query_reply.h"
#include "server/reply/timings_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

using namespace std::chrono_literals;

/// The longest wait for documents that are still being cached. After it the reply is 409, which
/// clients retry.
constexpr auto kDocumentsTime = 30s;

/// Values that both forms of the reply need.
struct ReplyParts {
  ReplyParts(const Generation& g, OpenAiKind kind, bool usage)
      : call(g.call),
        records(g.records),
        samples(to_size(g.samples)),
        include_usage(usage),
        explain(g.body.explain),
        wants_logprobs(g.body.sampling.top_logprobs.has_value()),
        format(kind, g.first(), g.call->model().engine->info().fingerprint,
               g.call->model().engine->tokenizer()) {}

  /// Adds the members that concern the whole request, besides its choices.
  void add_extensions(json::object& o) const {
    const QueryRecord& r = *records.front();
    o["documents"] = query_documents_json(r);
    if (explain != ExplainLevel::kNone) o["explain_url"] = "/v1/queries/" + r.id + "/explain";
    if (explain == ExplainLevel::kBlocks)
      o["explain"] = explain_json(r, block_chars(call->services, r));
  }

  const std::shared_ptr<Call> call;
  const std::vector<std::shared_ptr<QueryRecord>> records;
  const std::size_t samples;
  const bool include_usage;
  const ExplainLevel explain;
  const bool wants_logprobs;
  const OpenAiFormat format;
};

/// Sends all choices in one reply when the last one is complete.
class WholeReply final : public ReplyWriter {
 public:
  explicit WholeReply(ReplyParts parts)
      : p_(std::move(parts)), logprobs_(p_.records.size()), left_(p_.records.size()) {}

  void planned(std::size_t) override {}

  bool text(std::size_t choice, std::string_view, std::vector<TokenLogprobs> logprobs) override {
    auto& all = logprobs_[choice];
    all.insert(all.end(), std::make_move_iterator(logprobs.begin()),
               std::make_move_iterator(logprobs.end()));
    return true;
  }

  bool tool_call(std::size_t choice, const ToolDelta&,
                 std::vector<TokenLogprobs> logprobs) override {
    return text(choice, {}, std::move(logprobs));
  }

  void finished(std::size_t, const Status& status) override {
    {
      std::lock_guard lock(mu_);
      if (failed_) return;
      failed_ = !status.ok();
      if (!failed_ && --left_ > 0) return;
    }
    if (!status.ok())
      return p_.call->fail(answer_problem(status, *p_.records.front(), *p_.call->model().engine));
    json::array choices;
    for (std::size_t i = 0; i < p_.records.size(); ++i)
      choices.push_back(
          p_.format.whole_choice(i, *p_.records[i], p_.wants_logprobs ? &logprobs_[i] : nullptr));
    const QueryRecord& r = *p_.records.front();
    json::object body = p_.format.whole(std::move(choices));
    body["usage"] = openai_usage_json(p_.records, p_.samples);
    body["cache"] = cache_json(r);
    body["timings"] = timings_json(r);
    p_.add_extensions(body);
    p_.call->add_timing("queue", r.stats.queue_ms);
    p_.call->add_timing("load", r.stats.load_ms);
    p_.call->add_timing("prefill", r.stats.prefill_ms);
    p_.call->add_timing("decode", r.stats.decode_ms);
    p_.call->reply_json(200, body, {{"X-Cache", std::string(cache_header(r.plan))}});
  }

 private:
  const ReplyParts p_;
  std::vector<std::vector<TokenLogprobs>> logprobs_;  ///< per choice, written by its events only
  std::mutex mu_;
  std::size_t left_;     // guarded by mu_
  bool failed_ = false;  // guarded by mu_
};

/// Streams chunks as they arrive. The lock keeps the pieces of a choice in order and the end last.
class StreamedReply final : public ReplyWriter {
 public:
  explicit StreamedReply(ReplyParts parts)
      : p_(std::move(parts)),
        offsets_(p_.records.size(), p_.format.text_offsets()),
        left_(p_.records.size()) {}

  void planned(std::size_t choice) override {
    std::lock_guard lock(mu_);
    if (failed_) return;
    const QueryRecord& r = *p_.records[choice];
    if (!started_) p_.call->start_events({{"X-Cache", std::string(cache_header(r.plan))}});
    json::object chunk = p_.format.chunk({p_.format.opening_choice(choice)});
    chunk["cache"] = cache_json(r);
    // The extensions concern the whole request, so only its first chunk has them.
    if (!started_) p_.add_extensions(chunk);
    started_ = true;
    (void)send(chunk);
  }

  bool text(std::size_t choice, std::string_view text,
            std::vector<TokenLogprobs> logprobs) override {
    std::lock_guard lock(mu_);
    if (failed_) return false;
    return send(
        p_.format.chunk({p_.format.delta_choice(choice, text, logprobs, &offsets_[choice])}));
  }

  bool tool_call(std::size_t choice, const ToolDelta& delta,
                 std::vector<TokenLogprobs> logprobs) override {
    std::lock_guard lock(mu_);
    if (failed_) return false;
    return send(p_.format.chunk({p_.format.call_choice(choice, delta.index, *delta.call,
                                                       delta.begins, delta.arguments, logprobs)}));
  }

  void finished(std::size_t choice, const Status& status) override {
    std::lock_guard lock(mu_);
    if (failed_) return;
    const QueryRecord& r = *p_.records[choice];
    if (!status.ok()) return fail(answer_problem(status, r, *p_.call->model().engine));
    json::object chunk = p_.format.chunk({p_.format.closing_choice(choice, r)});
    chunk["timings"] = timings_json(r);
    (void)send(chunk);
    if (--left_ > 0) return;
    if (p_.include_usage) {
      json::object usage = p_.format.chunk({});
      usage["usage"] = openai_usage_json(p_.records, p_.samples);
      (void)send(usage);
    }
    (void)p_.call->data("[DONE]");
    p_.call->end_events();
  }

 private:
  bool send(const json::object& chunk) { return p_.call->data(to_text(chunk)); }

  /// Must be called under the lock.
  void fail(const Problem& problem) {
    failed_ = true;
    if (!started_) return p_.call->fail(problem);
    p_.call->add_log("error_code", problem.code);
    const json::object body = problem_body(problem, p_.call->instance, p_.call->request_id);
    (void)send(json::object{{"error", body.at("error")}});
    p_.call->exchange->abort();
  }

  const ReplyParts p_;
  std::mutex mu_;
  std::vector<TextOffsets> offsets_;  // guarded by mu_: of each choice
  std::size_t left_;                  // guarded by mu_
  bool started_ = false;              // guarded by mu_
  bool failed_ = false;               // guarded by mu_
};

void generate(std::shared_ptr<Call> call, OpenAiKind kind) {
  const auto parsed = body_json(*call);
  if (!parsed) return;
  peek_model(*call, named_model(*parsed));
  const QueryDefaults defaults = query_defaults(*call);
  OpenAiBody body;
  const std::int64_t window = call->model().engine->info().max_model_len;
  const auto error = kind == OpenAiKind::kChat
                         ? read_chat_completion(*parsed, defaults, window, body)
                         : read_completion(*parsed, defaults, window, body);
  if (failed(*call, error)) return;
  if (!body.user.empty()) call->add_log("user", body.user);
  auto g = std::make_shared<Generation>();
  g->body = std::move(body.query);
  g->samples = body.n;
  g->ready_by = call->start + kDocumentsTime;
  g->deadline = call->start + kAnswerTime;
  g->call = std::move(call);
  g->on_prepared = [kind, usage = body.include_usage](std::shared_ptr<Generation> prepared) {
    ReplyParts parts(*prepared, kind, usage);
    std::shared_ptr<ReplyWriter> writer;
    if (prepared->body.stream)
      writer = std::make_shared<StreamedReply>(std::move(parts));
    else
      writer = std::make_shared<WholeReply>(std::move(parts));
    run_choices(*prepared, std::move(writer));
  };
  prepare(std::move(g));
}

}  // namespace

namespace handlers {

void chat_completions(std::shared_ptr<Call> call) { generate(std::move(call), OpenAiKind::kChat); }
void completions(std::shared_ptr<Call> call) { generate(std::move(call), OpenAiKind::kCompletion); }

}  // namespace handlers
}  // namespace quire
