#include "engine/draft/draft.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <optional>
#include <span>
#include <thread>

#include "base/index.h"
#include "base/log.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/draft/draft_documents.h"
#include "engine/draft/draft_prompt.h"
#include "engine/draft/short_head.h"
#include "engine/model/forward.h"
#include "engine/prompt/prompt_scores.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {

void LookAhead::give_scores(std::vector<float> scores) {
  scores_ = std::move(scores);
  scored_.store(true, std::memory_order_release);
}

void LookAhead::finish(std::vector<std::int32_t> token_ids, std::string reason) {
  token_ids_ = std::move(token_ids);
  reason_ = std::move(reason);
  done_.store(true, std::memory_order_release);
  scored_.store(true, std::memory_order_release);
}

bool LookAhead::join() {
  int askers = askers_.load();
  while (askers > 0 && !askers_.compare_exchange_weak(askers, askers + 1)) {
  }
  return askers > 0;
}

namespace {

class ModelDraft final : public Draft {
 public:
  ModelDraft(const DraftOptions& options, std::unique_ptr<Model> model,
             std::unique_ptr<Tokenizer> tokenizer, std::shared_ptr<const Tokenizer> target,
             std::unique_ptr<ShortHead> head)
      : options_(options),
        model_(std::move(model)),
        reader_(model_->twin()),
        tokenizer_(std::move(tokenizer)),
        target_(std::move(target)),
        same_ids_(tokenizer_->digest() == target_->digest()),
        pool_(PageFormat{model_->config().num_kv_heads, model_->config().head_dim,
                         model_->options().kv_dtype},
              0),
        head_(std::move(head)) {
    if (options.store != nullptr)
      documents_.emplace(*options.store, *model_, *tokenizer_, pool_, options.chunk_tokens);
    thread_ = std::thread([this] { run(); });
  }
  ~ModelDraft() override { stop(); }

  std::shared_ptr<LookAhead> ask(DraftRequest request) override {
    auto answer = std::make_shared<LookAhead>();
    const std::function<void()> on_progress = request.on_progress;
    std::string refused;
    bool queued = false;
    {
      std::lock_guard lock(mu_);
      if (const auto same = find_same(request, answer)) {
        if (!answer->done()) {
          same->askers.push_back(on_progress);
          return answer;
        }
      } else if (stopping_) {
        refused = "the draft is stopping";
      } else if (jobs_.size() >= static_cast<std::size_t>(options_.max_queue)) {
        refused = "the draft's queue is full";
      } else {
        auto job = std::make_shared<Job>();
        job->askers.push_back(on_progress);
        job->request = std::move(request);
        job->answer = answer;
        job->asked = answer;
        jobs_.push_back(job);
        known_.push_back(std::move(job));
        queued = true;
      }
    }
    if (queued) {
      changed_.notify_one();
      return answer;
    }
    if (!refused.empty()) answer->finish({}, std::move(refused));
    if (on_progress) on_progress();
    return answer;
  }

  bool keeps_documents() const override { return documents_.has_value(); }
  std::int64_t document_bytes_per_token() const override {
    return documents_ ? documents_->bytes_per_token() : 0;
  }

  void keep(DraftContext context, std::function<void(Result<SegmentHandle>)> done) override {
    Status refused;
    {
      std::lock_guard lock(mu_);
      if (!documents_)
        refused = Status::unimplemented(
            "this draft keeps no KV of documents (model.draft_document_kv)");
      else if (stopping_)
        refused = Status::unavailable("the draft is stopping");
      else
        keeps_.push_back({std::move(context), done});
    }
    if (!refused.ok()) return done(std::move(refused));
    changed_.notify_one();
  }

  void stop() override {
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  Model& reader() override { return *reader_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  bool same_tokens() const override { return same_ids_; }
  std::vector<std::int32_t> to_target(std::vector<std::int32_t> ids) const override {
    return same_ids_ ? std::move(ids)
                     : target_->encode(tokenizer_->decode(ids), Special::kNone, Start::kMiddle);
  }

 private:
  struct Job {
    DraftRequest request;
    std::shared_ptr<LookAhead> answer;          // until it is done
    std::weak_ptr<LookAhead> asked;             // the same, while somebody holds it
    std::vector<std::function<void()>> askers;  // guarded by mu_
  };

  /// Selects whether tokens after those left out keep their positions.
  enum class Gaps : std::uint8_t { kStay, kClose };

  struct Keep {
    DraftContext context;
    std::function<void(Result<SegmentHandle>)> done;
  };

  void run() {
    set_num_threads(1);  // the other cores belong to the engine
    for (;;) {
      std::optional<Keep> keep;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty() || !keeps_.empty(); });
        if (jobs_.empty() && keeps_.empty()) return;
        if (jobs_.empty()) {
          keep.emplace(std::move(keeps_.front()));
          keeps_.pop_front();
        }
      }
      if (keep)
        keep_document(*keep);
      else
        serve_next();
    }
  }

  /// Serves the next look-ahead before any other job, as a question waits for it. Returns false if
  /// none waits.
  bool serve_next() {
    std::shared_ptr<Job> job;
    bool stopping = false;
    {
      std::lock_guard lock(mu_);
      if (jobs_.empty()) return false;
      stopping = stopping_;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    serve(*job, stopping);
    return true;
  }

  void keep_document(Keep& keep) {
    const auto between = [&]() -> Status {
      while (serve_next()) {
      }
      if (keep.context.cancelled && keep.context.cancelled->load())
        return Status::cancelled("nobody wants the context any more");
      std::lock_guard lock(mu_);
      return stopping_ ? Status::unavailable("the draft is stopping") : Status();
    };
    Result<SegmentHandle> kept = Status::internal("the draft's KV of a document was not computed");
    try {
      const auto& ids = keep.context.token_ids;
      kept = documents_->keep(same_ids_ ? ids : spell_document(ids, *target_, *tokenizer_),
                              {keep.context.tenant, keep.context.salt_digest}, between);
    } catch (const std::exception& e) {
      kept = Status::exhausted(e.what());
    }
    keep.done(std::move(kept));
  }

  /// Returns a job with an equal reading that is still held, joined, and its answer. Jobs whose
  /// answers were released are forgotten.
  std::shared_ptr<Job> find_same(const DraftRequest& request, std::shared_ptr<LookAhead>& answer) {
    std::erase_if(known_, [](const std::shared_ptr<Job>& job) { return job->asked.expired(); });
    for (const std::shared_ptr<Job>& job : known_) {
      const DraftRequest& other = job->request;
      const bool same_reading = other.max_tokens == request.max_tokens &&
                                other.score_window == request.score_window &&
                                other.prompt_ids == request.prompt_ids &&
                                std::ranges::equal(other.kept, request.kept,
                                                   [](const RowRange& a, const RowRange& b) {
                                                     return a.begin == b.begin && a.end == b.end;
                                                   });
      if (!same_reading || other.tenant != request.tenant ||
          other.salt_digest != request.salt_digest)
        continue;
      auto asked = job->asked.lock();
      if (!asked || !(asked->done() ? asked->reason().empty() : asked->join())) continue;
      answer = std::move(asked);
      return job;
    }
    return nullptr;
  }

  void tell(Job& job, bool last) {
    std::vector<std::function<void()>> askers;
    {
      std::lock_guard lock(mu_);
      if (last)
        askers.swap(job.askers);
      else
        askers = job.askers;
    }
    for (const auto& call : askers) {
      if (call) call();
    }
  }

  void serve(Job& job, bool stopping) {
    std::vector<std::int32_t> ids;
    std::string reason;
    if (stopping) {
      reason = "the draft is stopping";
    } else {
      try {
        auto answered = answer(job);
        if (answered.ok())
          ids = std::move(*answered);
        else
          reason = answered.status().message();
      } catch (const std::exception& e) {
        reason = e.what();
        log_warning("the draft failed", {{"reason", reason}});
      }
    }
    if (ids.empty() && reason.empty() && job.request.max_tokens > 0)
      reason = "the draft had nothing to say";
    job.answer->finish(std::move(ids), std::move(reason));
    job.answer.reset();
    tell(job, /*last=*/true);
  }

  bool unwanted(const Job& job) {
    std::lock_guard lock(mu_);
    return stopping_ || job.answer->cancelled();
  }

  /// Tokenizes the prompt for the draft; without ranges of documents or kept tokens it is one text.
  DraftPrompt spelled(const DraftRequest& request) const {
    const std::vector<RowRange> none;
    return DraftPrompt(
        request.prompt_ids,
        {documents_ ? request.documents : none, request.score_window > 0 ? none : request.kept},
        *target_, *tokenizer_, same_ids_);
  }

  /// Generates greedily, up to and including the token that ends the answer.
  Result<std::vector<std::int32_t>> answer(Job& job) {
    const DraftPrompt prompt = spelled(job.request);
    if (prompt.num_kept() == 0)
      return Status::invalid("prompt", "the prompt is empty for the draft");
    const std::int64_t window = model_->rope().max_positions(),
                       room = window - job.request.max_tokens;
    if (prompt.num_kept() > room) {
      return Status::invalid("prompt", "the prompt has " + std::to_string(prompt.num_kept()) +
                                           " tokens for the draft, whose window holds " +
                                           std::to_string(window));
    }
    // Tokens that are left out leave gaps, as in the target, unless the window ends before the
    // prompt does.
    const Gaps gaps = prompt.num_tokens() <= room ? Gaps::kStay : Gaps::kClose;
    WorkingCache cache(pool_, model_->config().num_layers);
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t end, read(job, prompt, gaps, cache));
    if (job.request.max_tokens == 0) return std::vector<std::int32_t>();
    if (head_) QUIRE_RETURN_IF_ERROR(head_->add_only(kept_ids(prompt)));
    return write(job, end, cache);
  }

  /// Computes the prompt's KV, its scores, and the last token's output (result_). Returns the
  /// position after it.
  Result<std::int64_t> read(Job& job, const DraftPrompt& prompt, Gaps gaps, WorkingCache& cache) {
    std::optional<PromptScores> scores;
    if (job.request.score_window > 0) {
      PromptScores::Settings settings;
      settings.window = job.request.score_window;
      scores.emplace(model_->config(), model_->rope(), prompt.num_tokens(), 0, settings);
    }
    std::int64_t position = 0;
    for (const DraftPrompt::Piece& piece : prompt.pieces()) {
      const bool last = &piece == prompt.last_kept();
      const std::vector<std::int32_t> positions = positions_of(piece, gaps, position);
      // The last token always runs, as the answer begins with its logits.
      const bool placed = piece.document && !last &&
                          documents_->place(piece.ids, piece.kept,
                                            {job.request.tenant, job.request.salt_digest},
                                            positions, cache);
      if (!placed)
        QUIRE_RETURN_IF_ERROR(
            read_piece(job, piece, positions, cache, last, scores ? &*scores : nullptr));
      position += gaps == Gaps::kStay ? count_of(piece.ids) : count_of(positions);
    }
    if (!scores) return position;
    job.answer->give_scores(prompt.bring_back(scores->scores()));
    tell(job, /*last=*/false);
    return position;
  }

  static std::vector<std::int32_t> kept_ids(const DraftPrompt::Piece& piece) {
    std::vector<std::int32_t> out;
    for (const RowRange& s : piece.kept)
      out.insert(out.end(), piece.ids.begin() + s.begin, piece.ids.begin() + s.end);
    return out;
  }
  static std::vector<std::int32_t> kept_ids(const DraftPrompt& prompt) {
    std::vector<std::int32_t> out;
    for (const DraftPrompt::Piece& piece : prompt.pieces()) {
      const std::vector<std::int32_t> ids = kept_ids(piece);
      out.insert(out.end(), ids.begin(), ids.end());
    }
    return out;
  }

  /// Returns the positions of the kept tokens of a piece that begins at `begin`.
  static std::vector<std::int32_t> positions_of(const DraftPrompt::Piece& piece, Gaps gaps,
                                                std::int64_t begin) {
    std::vector<std::int32_t> out;
    for (const RowRange& s : piece.kept) {
      const std::int64_t first = begin + (gaps == Gaps::kStay ? s.begin : count_of(out));
      for (std::int64_t i = 0; i < s.end - s.begin; ++i)
        out.push_back(static_cast<std::int32_t>(first + i));
    }
    return out;
  }

  Status read_piece(const Job& job, const DraftPrompt::Piece& piece,
                    std::span<const std::int32_t> positions, WorkingCache& cache, bool last,
                    PromptScores* scores) {
    const std::vector<std::int32_t> ids = kept_ids(piece);
    const auto chunk = to_size(options_.chunk_tokens);
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      if (unwanted(job)) return Status::cancelled("the look-ahead is not wanted any more");
      const std::size_t n = std::min(chunk, ids.size() - at);
      const auto part = positions.subspan(at, n);
      const bool scoring = scores != nullptr && part.back() >= scores->first_position();
      QUIRE_RETURN_IF_ERROR(pass(std::span(ids).subspan(at, n), part, cache,
                                 last && at + n == ids.size(), scoring ? scores : nullptr));
    }
    return {};
  }

  Result<std::vector<std::int32_t>> write(const Job& job, std::int64_t begin, WorkingCache& cache) {
    std::vector<std::int32_t> out;
    const auto& ends = tokenizer_->eos_ids();
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(const std::int32_t next, best_token());
      out.push_back(next);
      if (static_cast<std::int32_t>(out.size()) >= job.request.max_tokens ||
          std::binary_search(ends.begin(), ends.end(), out.back()))
        break;
      if (unwanted(job)) return Status::cancelled("the look-ahead is not wanted any more");
      const auto position = static_cast<std::int32_t>(begin + count_of(out) - 1);
      QUIRE_RETURN_IF_ERROR(
          pass(std::span(out).last(1), std::span(&position, 1), cache, true, nullptr));
    }
    return to_target(std::move(out));
  }

  /// Returns the most likely token after the last row.
  Result<std::int32_t> best_token() {
    if (head_) return head_->best(result_.data());
    return static_cast<std::int32_t>(
        argmax(result_.data(), std::min(tokenizer_->vocab_size(), model_->config().vocab_size)));
  }

  Status pass(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
              WorkingCache& cache, bool result, ForwardHook* hook) {
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = hook;
    if (result) {
      request.logit_rows = std::span(&last, 1);
      result_.resize(to_size(head_ ? model_->config().hidden_size : model_->config().vocab_size));
      (head_ ? request.hidden : request.logits) = result_.data();
    }
    return forward(*model_, request, workspace_);
  }

  const DraftOptions options_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Model> reader_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::shared_ptr<const Tokenizer> target_;
  const bool same_ids_;
  PagePool pool_;
  std::optional<DraftDocuments> documents_;  // used by the thread only; set before it starts
  const std::unique_ptr<ShortHead> head_;    // used by the thread only; null: the full head
  // Used by the thread only: the last row's hidden state with head_, else its logits.
  std::vector<float> result_;
  ForwardWorkspace workspace_;  // used by the thread only
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // guarded by mu_
  // Guarded by mu_: the jobs in jobs_, the running one, and those whose answers are still held.
  std::vector<std::shared_ptr<Job>> known_;
  // Guarded by mu_; callers wait for their results, so there are no more than contexts in ingest's
  // queue.
  std::deque<Keep> keeps_;
  bool stopping_ = false;  // guarded by mu_
  std::thread thread_;     // last member, as it uses all others
};

}  // namespace

std::unique_ptr<Draft> make_draft(const DraftOptions& options, std::unique_ptr<Model> model,
                                  std::unique_ptr<Tokenizer> tokenizer,
                                  std::shared_ptr<const Tokenizer> target) {
  auto head = ShortHead::make(*model, std::min(tokenizer->vocab_size(), model->config().vocab_size),
                              options.common_tokens, tokenizer->eos_ids());
  if (!head.ok())
    log_warning("the draft writes with its whole head", {{"reason", head.status().message()}});
  return std::make_unique<ModelDraft>(options, std::move(model), std::move(tokenizer),
                                      std::move(target), head.ok() ? std::move(*head) : nullptr);
}

Result<std::unique_ptr<Draft>> load_draft(const DraftOptions& options,
                                          std::shared_ptr<const Tokenizer> target) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, load_tokenizer(options.path));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, load_model(options.path, options.model));
  if (tokenizer->vocab_size() > model->config().vocab_size) {
    return Status::invalid("tokenizer",
                           "the tokenizer of " + options.path +
                               " has more ids than its model: these files do not belong together");
  }
  return make_draft(options, std::move(model), std::move(tokenizer), std::move(target));
}

}  // namespace quire
