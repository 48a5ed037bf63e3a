#include "ingest/embed/engine_embedder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

/// Shared by the waiting thread and the engine's; the last one to release it frees it.
struct Waiting {
  std::mutex mu;
  std::condition_variable_any done;
  std::optional<Result<std::vector<float>>> result;  // guarded by mu
};

/// Calls Engine::embed() and waits. When stopped or late, it cancels the work and does not wait for
/// its end.
Result<std::vector<float>> embed_and_wait(Engine& engine, std::vector<std::int32_t> ids,
                                          const EmbedLimits& limits) {
  auto waiting = std::make_shared<Waiting>();
  EmbedRequest request;
  request.token_ids = std::move(ids);
  request.cancelled = std::make_shared<std::atomic<bool>>(false);
  const auto cancelled = request.cancelled;
  engine.embed(std::move(request), [waiting](Result<std::vector<float>> vector) {
    {
      const std::lock_guard lock(waiting->mu);
      waiting->result = std::move(vector);
    }
    waiting->done.notify_all();
  });
  std::unique_lock lock(waiting->mu);
  const auto ended = [&waiting] { return waiting->result.has_value(); };
  const bool in_time = limits.deadline == std::chrono::steady_clock::time_point::max()
                           ? waiting->done.wait(lock, limits.stop, ended)
                           : waiting->done.wait_until(lock, limits.stop, limits.deadline, ended);
  if (in_time) return std::move(*waiting->result);
  cancelled->store(true);
  if (limits.stop.stop_requested()) return Status::unavailable("the service is stopping");
  return Status::deadline(
      "the question could not be embedded in time: the engine is busy with queries, or the "
      "question "
      "is long; ask again, shorten it, or use the scorer bm25");
}

class EngineEmbedder final : public Embedder {
 public:
  explicit EngineEmbedder(Engine& engine) : engine_(engine) {}

  Digest fingerprint() const override {
    return std::bit_cast<Digest>(engine_.info().fingerprint_digest);
  }
  Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts, EmbedRole role,
                                                const EmbedLimits& limits) override {
    std::vector<std::vector<float>> out;
    for (const std::string& text : texts) {
      std::vector<std::int32_t> ids = embedding_ids(engine_.tokenizer(), text);
      ids.resize(std::min(ids.size(), to_size(engine_.info().max_model_len)));
      if (ids.empty() && role == EmbedRole::kText) {
        out.emplace_back();
        continue;
      }
      auto vector = embed_and_wait(engine_, std::move(ids), limits);
      if (vector.code() == Code::kInvalidArgument && role == EmbedRole::kText)
        vector = std::vector<float>();
      QUIRE_RETURN_IF_ERROR(vector.status());
      out.push_back(std::move(*vector));
    }
    return out;
  }

 private:
  Engine& engine_;
};

}  // namespace

std::vector<std::int32_t> embedding_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> out;
  if (tokenizer.add_bos() && tokenizer.bos_id()) out.push_back(*tokenizer.bos_id());
  const auto ids = tokenizer.encode(text);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

std::shared_ptr<Embedder> make_engine_embedder(Engine& engine) {
  return std::make_shared<EngineEmbedder>(engine);
}

}  // namespace quire
