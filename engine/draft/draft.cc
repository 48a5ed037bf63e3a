#include "engine/draft/draft.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <numeric>
#include <span>
#include <thread>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "kernels/base/log.h"
#include "kernels/parallel.h"
#include "kernels/topk.h"

namespace quire {

void LookAhead::finish(std::vector<std::int32_t> token_ids, std::string reason) {
  token_ids_ = std::move(token_ids);
  reason_ = std::move(reason);
  done_.store(true, std::memory_order_release);
}

namespace {

class ModelDraft final : public Draft {
 public:
  ModelDraft(const DraftOptions& options, std::unique_ptr<Model> model, std::unique_ptr<Tokenizer> tokenizer, std::shared_ptr<const Tokenizer> target)
      : options_(options), model_(std::move(model)), reader_(model_->twin()), tokenizer_(std::move(tokenizer)), target_(std::move(target)),
        same_ids_(tokenizer_->digest() == target_->digest()),
        pool_(PageFormat{model_->config().num_kv_heads, model_->config().head_dim, model_->options().kv_dtype}, 0), thread_([this] { run(); }) {}
  ~ModelDraft() override { stop(); }

  std::shared_ptr<LookAhead> ask(DraftRequest request) override {
    auto job = std::make_shared<LookAhead>();
    std::string refused;
    {
      std::lock_guard lock(mu_);
      if (stopping_) refused = "the draft is stopping";
      else if (jobs_.size() >= static_cast<std::size_t>(options_.max_queue)) refused = "the draft's queue is full";
      else jobs_.push_back({std::move(request), job});
    }
    if (!refused.empty()) {
      job->finish({}, std::move(refused));
      if (request.on_done) request.on_done();
      return job;
    }
    changed_.notify_one();
    return job;
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
    return same_ids_ ? std::move(ids) : target_->encode(tokenizer_->decode(ids), Special::kNone, Start::kMiddle);
  }

 private:
  struct Job {
    DraftRequest request;
    std::shared_ptr<LookAhead> answer;
  };

  void run() {
    set_num_threads(1);  // the other cores are the engine's
    for (;;) {
      Job job;
      bool stopping = false;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        stopping = stopping_;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      serve(job, stopping);
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
        if (answered.ok()) ids = std::move(*answered);
        else reason = answered.status().message();
      } catch (const std::exception& e) {
        reason = e.what();
        log_warning("the draft failed", {{"reason", reason}});
      }
    }
    if (ids.empty() && reason.empty()) reason = "the draft had nothing to say";
    job.answer->finish(std::move(ids), std::move(reason));
    if (job.request.on_done) job.request.on_done();
  }

  bool unwanted(const Job& job) {
    std::lock_guard lock(mu_);
    return stopping_ || job.answer->cancelled();
  }

  std::vector<std::int32_t> to_draft(const std::vector<std::int32_t>& ids) const {
    if (same_ids_) return ids;
    std::vector<std::int32_t> out;
    if (tokenizer_->add_bos() && tokenizer_->bos_id()) out.push_back(*tokenizer_->bos_id());
    const auto text = tokenizer_->encode(target_->decode(ids));
    out.insert(out.end(), text.begin(), text.end());
    return out;
  }

  /// Greedy, up to the token that ends the answer and that one, too.
  Result<std::vector<std::int32_t>> answer(const Job& job) {
    const std::vector<std::int32_t> prompt = to_draft(job.request.prompt_ids);
    const auto length = static_cast<std::int64_t>(prompt.size());
    if (length == 0) return Status::invalid("prompt", "the prompt is empty for the draft");
    if (length + job.request.max_tokens > model_->rope().max_positions()) {
      return Status::invalid("prompt", "the prompt has " + std::to_string(length) + " tokens for the draft, whose window holds " +
                                           std::to_string(model_->rope().max_positions()));
    }
    WorkingCache cache(pool_, model_->config().num_layers);
    std::vector<float> logits(static_cast<std::size_t>(model_->config().vocab_size));
    const auto chunk = static_cast<std::size_t>(options_.chunk_tokens);
    for (std::size_t at = 0; at < prompt.size(); at += chunk) {
      if (unwanted(job)) return Status::cancelled("the look-ahead is not wanted any more");
      const std::size_t n = std::min(chunk, prompt.size() - at);
      QUIRE_RETURN_IF_ERROR(pass(std::span(prompt).subspan(at, n), static_cast<std::int32_t>(at), cache, at + n == prompt.size() ? logits.data() : nullptr));
    }
    std::vector<std::int32_t> out;
    const auto& ends = tokenizer_->eos_ids();
    for (;;) {
      out.push_back(static_cast<std::int32_t>(argmax(logits.data(), std::min<std::int64_t>(tokenizer_->vocab_size(), model_->config().vocab_size))));
      if (static_cast<std::int32_t>(out.size()) >= job.request.max_tokens || std::binary_search(ends.begin(), ends.end(), out.back())) break;
      if (unwanted(job)) return Status::cancelled("the look-ahead is not wanted any more");
      QUIRE_RETURN_IF_ERROR(pass(std::span(out).last(1), static_cast<std::int32_t>(prompt.size() + out.size()) - 1, cache, logits.data()));
    }
    return to_target(std::move(out));
  }

  Status pass(std::span<const std::int32_t> ids, std::int32_t first_position, WorkingCache& cache, float* logits) {
    std::vector<std::int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), first_position);
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    if (logits != nullptr) request.logit_rows = std::span(&last, 1);
    request.logits = logits;
    return forward(*model_, request, workspace_);
  }

  const DraftOptions options_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Model> reader_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::shared_ptr<const Tokenizer> target_;
  const bool same_ids_;
  PagePool pool_;
  ForwardWorkspace workspace_;   // the thread's
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;         // guarded by mu_
  bool stopping_ = false;        // guarded by mu_
  std::thread thread_;           // last: it uses everything above
};

}  // namespace

Result<std::unique_ptr<Draft>> load_draft(const DraftOptions& options, std::shared_ptr<const Tokenizer> target) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, load_tokenizer(options.path));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, load_model(options.path, options.model));
  if (tokenizer->vocab_size() > model->config().vocab_size) {
    return Status::invalid("tokenizer", "the tokenizer of " + options.path + " has more ids than its model: these files do not belong together");
  }
  return std::unique_ptr<Draft>(std::make_unique<ModelDraft>(options, std::move(model), std::move(tokenizer), std::move(target)));
}

}  // namespace quire
