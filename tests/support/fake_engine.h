/// An Engine without a model: the real tokenizer of models/demo, a prompt format with titles, and
/// made-up KV. A test can hold its prefills, release them one by one, and make them fail. It can
/// also make embeddings fail; they count tokens. Queries are not answered.
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"

namespace quire::test {

/// The prompt format of the tests: the embedded model's control tokens, with titles in the header.
inline constexpr std::string_view kTestPrompt =
    R"({"quire_prompt":{"document_prefix":"<doc>","question_prefix":"<q>","answer_prefix":"<a>",)"
    R"("stop":["</a>"],"system":false,"titles":true}})";

class FakeEngine final : public Engine {
 public:
  /// `fingerprint` stands for the model: a different one makes stored documents stale.
  /// `block_tokens` is that of ContextNames.
  explicit FakeEngine(Store& store, const std::string& fingerprint = "m-00000001",
                      std::int64_t window = 2048, std::int32_t block_tokens = 0)
      : store_(store) {
    const std::string folder = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
    auto tokenizer = load_tokenizer(folder);
    QUIRE_CHECK(tokenizer.ok(), tokenizer.status().to_string());
    tokenizer_ = std::move(*tokenizer);
    auto format = PromptFormat::parse(kTestPrompt, "", tokenizer_);
    QUIRE_CHECK(format.ok(), format.status().to_string());
    format_ = std::make_unique<PromptFormat>(std::move(*format));
    info_.model_name = "fake";
    info_.kv_dtype = "f16";
    info_.fingerprint = fingerprint;
    const Digest digest = Sha256().update_field(fingerprint).finish();
    std::memcpy(info_.fingerprint_digest.data(), digest.bytes.data(),
                info_.fingerprint_digest.size());
    names_ = ContextNames(digest, block_tokens);
    info_.max_model_len = window;
    info_.kv_bytes_per_token = kBytesPerToken;
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override { stop(std::chrono::milliseconds(0)); }

  // Controls for tests
  /// Makes later prefills wait until permit() or open().
  void close() {
    set([this] { closed_ = true, permits_ = 0; });
  }
  void permit(int n) {
    set([&] { permits_ += n; });
  }
  void open() {
    set([this] { closed_ = false; });
  }
  /// Returns once a prefill waits at the closed gate.
  void wait_for_one() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return at_gate_; });
  }
  /// Makes the n-th prefill from now (0: the next) fail with `status`.
  void fail_at(int n, Status status) {
    set([&] { fail_in_ = n, fail_with_ = std::move(status); });
  }
  /// Makes later prefills give KV of a draft, too, under names of its own.
  void give_draft() {
    set([this] { has_draft_ = true; });
  }
  /// Makes the next embedding fail with `status`. Later calls add failures for the embeddings after
  /// it.
  void fail_embed(Status status) {
    set([&] { fail_embeds_.push_back(std::move(status)); });
  }
  std::int64_t embeds() const { return locked(embeds_); }
  std::int64_t prefilled_tokens() const { return locked(prefilled_tokens_); }
  std::int64_t prefills() const { return locked(prefills_); }

  // Engine
  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const PromptFormat& prompt_format() const override { return *format_; }
  const ContextNames& names() const override { return names_; }
  void prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) override {
    set([&] { queue_.emplace_back(std::move(request), std::move(done)); });
  }
  Result<QueryHandle> query(QueryRequest, std::shared_ptr<QuerySink>) override {
    return Status::unimplemented("the fake engine answers nothing");
  }
  /// Counts the tokens of the text by classes of ids and scales the counts to length 1. Texts with
  /// equal words are therefore near each other.
  void embed(EmbedRequest request, std::function<void(Result<std::vector<float>>)> done) override {
    Status failure;
    set([&] {
      ++embeds_;
      if (!fail_embeds_.empty()) failure = fail_embeds_.front(), fail_embeds_.pop_front();
    });
    if (!failure.ok()) return done(std::move(failure));
    std::vector<float> out(kEmbeddingSize, 0.0f);
    float squares = 0;
    for (const std::int32_t id : request.token_ids)
      out[static_cast<std::size_t>(id) % kEmbeddingSize] += 1;
    for (const float x : out) squares += x * x;
    for (float& x : out) x /= std::sqrt(squares);
    done(std::move(out));
  }
  Result<Plan> plan(const QueryRequest&) override {
    return Status::unimplemented("the fake engine plans nothing");
  }
  EngineLoad load() const override { return {}; }
  void stop(std::chrono::milliseconds) override {
    set([this] { stop_ = true; });
    if (thread_.joinable()) thread_.join();
  }

 private:
  static constexpr std::int64_t kBytesPerToken = 64;
  static constexpr std::size_t kEmbeddingSize = 512;

  template <class F>
  void set(F change) {
    {
      const std::lock_guard lock(mu_);
      change();
    }
    changed_.notify_all();
  }
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mu_);
    return value;
  }

  void loop() {
    std::unique_lock lock(mu_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto [request, done] = std::move(queue_.front());
      queue_.pop_front();
      const auto cancelled = [&] { return stop_ || request.cancelled.stop_requested(); };
      while (closed_ && permits_ == 0 && !cancelled()) {
        if (!std::exchange(at_gate_, true)) changed_.notify_all();
        // `cancelled` has no condition variable, so it is polled.
        changed_.wait_for(lock, std::chrono::milliseconds(1));
      }
      at_gate_ = false;
      if (closed_ && permits_ > 0) --permits_;
      Status failure;
      if (fail_in_ >= 0 && fail_in_-- == 0) failure = fail_with_;
      if (cancelled()) failure = Status::cancelled("cancelled");
      lock.unlock();
      Result<PrefillResult> result = failure.ok() ? compute(request)
                                                  : Result<PrefillResult>(failure);
      done(std::move(result));
      lock.lock();
    }
  }

  Result<PrefillResult> compute(const PrefillRequest& request) {
    PrefillResult out;
    out.tokens = static_cast<std::int64_t>(request.token_ids.size());
    out.key = names_.context_key(request.token_ids, request.tenant, request.salt_digest,
                                 request.left_context);
    const std::int32_t step = names_.block_tokens_for(out.tokens);
    out.blocks = (out.tokens + step - 1) / step;
    if (locked(has_draft_)) {
      QUIRE_ASSIGN_OR_RETURN(out.companion, draft_of(request));
    }
    if (auto found = store_.find_segment(out.key)) {
      out.segment = *found;
      out.already_cached = true;
      return out;
    }
    const SegmentLayout layout{static_cast<std::uint32_t>(out.blocks), 1, 1};
    QUIRE_ASSIGN_OR_RETURN(
        auto writer,
        store_.begin_segment(out.key, layout,
                             static_cast<std::uint64_t>(out.tokens * kBytesPerToken) + 64,
                             request.tenant, info_.fingerprint));
    for (std::int64_t b = 0; b < out.blocks; ++b) {
      const std::int64_t n = std::min<std::int64_t>(step, out.tokens - b * step);
      const std::vector<std::byte> kv(static_cast<std::size_t>(n * kBytesPerToken), std::byte(b));
      QUIRE_RETURN_IF_ERROR(writer->put_value(static_cast<std::uint32_t>(b), 0, kv));
      if (request.on_progress) request.on_progress(std::min(out.tokens, (b + 1) * step));
    }
    QUIRE_RETURN_IF_ERROR(writer->put_sketch(0, std::as_bytes(std::span("sketch"))));
    QUIRE_ASSIGN_OR_RETURN(out.segment, writer->finish());
    out.kv_bytes = out.tokens * kBytesPerToken;
    const std::lock_guard lock(mu_);
    prefilled_tokens_ += out.tokens;
    ++prefills_;
    return out;
  }

  Result<SegmentHandle> draft_of(const PrefillRequest& request) {
    const ContextNames names(sha256("the draft of " + info_.fingerprint));
    const ContextKey key = names.context_key(request.token_ids, request.tenant,
                                             request.salt_digest);
    if (auto found = store_.find_segment(key)) return *found;
    QUIRE_ASSIGN_OR_RETURN(auto writer,
                           store_.begin_segment(key, {1, 1, 0}, 64, request.tenant, "d-00000001"));
    QUIRE_RETURN_IF_ERROR(writer->put_value(0, 0, std::vector<std::byte>(16)));
    return writer->finish();
  }

  Store& store_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<PromptFormat> format_;
  EngineInfo info_;
  ContextNames names_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // mu_ guards this member and all below.
  std::deque<std::pair<PrefillRequest, std::function<void(Result<PrefillResult>)>>> queue_;
  bool stop_ = false, closed_ = false, at_gate_ = false, has_draft_ = false;
  int permits_ = 0, fail_in_ = -1;
  Status fail_with_;
  std::deque<Status> fail_embeds_;
  std::int64_t prefilled_tokens_ = 0, prefills_ = 0, embeds_ = 0;
  std::thread thread_;
};

}  // namespace quire::test
