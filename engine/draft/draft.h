/// A small model that writes a provisional answer while the documents of a query are fetched (algorithms §5): what the target's rows of that
/// answer attend to tells a compressor what the real answer will need. Its tokens are never given out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/base/status.h"

namespace quire {

/// One provisional answer on its way. Threads: any.
class LookAhead {
 public:
  /// What is below may be read.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Ids of the target's vocabulary; empty where there is none.
  const std::vector<std::int32_t>& token_ids() const { return token_ids_; }
  /// Why there is none.
  const std::string& reason() const { return reason_; }
  /// Nobody wants it any more: the draft turns to the next.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  /// The draft's part: once.
  void finish(std::vector<std::int32_t> token_ids, std::string reason);

 private:
  std::vector<std::int32_t> token_ids_;  // written before done_
  std::string reason_;                   // written before done_
  std::atomic<bool> done_{false}, cancelled_{false};
};

struct DraftRequest {
  std::vector<std::int32_t> prompt_ids;  ///< of the target's vocabulary: the whole prompt in order
  std::int32_t max_tokens = 0;
  std::function<void()> on_done;         ///< called once, on the draft's thread or the caller's; must not block
};

/// Threads: ask() from any. Jobs run one after the other on a thread of its own, whose kernels use one core.
class Draft {
 public:
  virtual ~Draft() = default;
  /// Never fails: where there is no look-ahead (no room in the queue, a prompt beyond the draft's window, an error while it ran) it says why.
  virtual std::shared_ptr<LookAhead> ask(DraftRequest request) = 0;
  /// Ends what runs and waits; later asks have no look-ahead.
  virtual void stop() = 0;

  /// The same weights for whoever reads whole prompts with them (engine/prompt), beside what runs on the draft's thread. One user at a time: the engine thread.
  virtual Model& reader() = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  /// Its token ids are the target's.
  virtual bool same_tokens() const = 0;
  /// Ids of an answer in the target's vocabulary.
  virtual std::vector<std::int32_t> to_target(std::vector<std::int32_t> ids) const = 0;
};

struct DraftOptions {
  std::string path;               ///< of a Hugging Face folder
  ModelOptions model;
  std::int32_t max_queue = 8;     ///< waiting jobs; one more has no look-ahead
  std::int32_t chunk_tokens = 256;
};

/// Where its tokenizer is not the target's, the prompt goes over as text and the answer comes back as text. `target` is kept. Errors: those of
/// load_model() and load_tokenizer().
Result<std::unique_ptr<Draft>> load_draft(const DraftOptions& options, std::shared_ptr<const Tokenizer> target);

}  // namespace quire
