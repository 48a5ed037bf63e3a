/// A small model that writes a provisional answer while the documents of a query are fetched: what
/// the target's rows of that answer attend to tells a compressor what the real answer will need.
/// Its tokens are never given out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/store.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention_mass.h"

namespace quire {

/// One provisional answer on its way; several queries may have asked for the same. Threads: any.
class LookAhead {
 public:
  /// scores() may be read: before done(), or with it.
  bool scored() const { return scored_.load(std::memory_order_acquire); }
  /// What the prompt's last rows pay to each of its tokens in the draft (SpecPC),
  /// [prompt_ids.size()]; empty where they were not asked for or there are none.
  const std::vector<float>& scores() const { return scores_; }
  /// What is below may be read.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Ids of the target's vocabulary; empty where there is none.
  const std::vector<std::int32_t>& token_ids() const { return token_ids_; }
  /// Why there is none.
  const std::string& reason() const { return reason_; }
  /// Once for every ask(): one asker does not want it any more. When nobody does, the draft turns
  /// to the next.
  void cancel() { askers_.fetch_sub(1); }
  bool cancelled() const { return askers_.load() <= 0; }

  /// The draft's part, each once, in this order. finish() without give_scores(): there are none.
  void give_scores(std::vector<float> scores);
  void finish(std::vector<std::int32_t> token_ids, std::string reason);
  /// One more asker. False: the others have given it up.
  bool join();

 private:
  std::vector<float> scores_;            // written before scored_
  std::vector<std::int32_t> token_ids_;  // written before done_
  std::string reason_;                   // written before done_
  std::atomic<bool> scored_{false}, done_{false};
  std::atomic<int> askers_{1};
};

struct DraftRequest {
  std::vector<std::int32_t> prompt_ids;  ///< of the target's vocabulary: the whole prompt in order
  std::int32_t max_tokens = 0;           ///< of the answer; 0: it is asked for scores alone
  /// Called when it is done, and before when scores are there; on the draft's thread or the
  /// caller's; must not block
  std::function<void()> on_progress;
  /// Last tokens of the prompt whose rows score the others; 0: no scores
  std::int32_t score_window = 0;
  std::string tenant;  ///< asks of one tenant and salt with the same prompt share one reading
  std::array<std::uint8_t, 32> salt_digest{};
  /// Of prompt_ids, ascending: contexts whose KV the draft may have kept (keep()); it reads what it
  /// does not find
  std::vector<KvStretch> documents;
  /// Of prompt_ids, ascending: what the answer is written from, the last token included; empty: all
  /// of it. Scores are of whole prompts: with score_window everything is
  std::vector<KvStretch> kept;
};

/// A context that ingest prefills alone.
struct DraftContext {
  std::vector<std::int32_t> token_ids;  ///< of the target's vocabulary
  std::string tenant;
  std::array<std::uint8_t, 32> salt_digest{};
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null
};

/// Threads: ask() from any. Jobs run one after the other on a thread of its own, whose kernels use
/// one core.
class Draft {
 public:
  virtual ~Draft() = default;
  /// Who asks for what is under way or still held by somebody gets the same object. Never fails:
  /// where there is no look-ahead (no room in the queue, a prompt beyond the draft's window, an
  /// error while it ran) it says why.
  virtual std::shared_ptr<LookAhead> ask(DraftRequest request) = 0;
  /// Computes KV of a context and keeps it in the store (DraftDocuments), between look-aheads.
  /// `done` is called once, on the draft's thread or the caller's: the segment, or why there is
  /// none. Errors: those of DraftDocuments::keep(), kUnavailable (stopping), kUnimplemented (it
  /// keeps none).
  virtual void keep(DraftContext context, std::function<void(Result<SegmentHandle>)> done) = 0;
  /// Whether keep() does anything.
  virtual bool keeps_documents() const = 0;
  /// What it takes of the store; 0: it keeps none.
  virtual std::int64_t document_bytes_per_token() const = 0;
  /// Ends what runs and waits; later asks have no look-ahead.
  virtual void stop() = 0;

  /// The same weights for whoever reads whole prompts with them (engine/prompt), beside what runs
  /// on the draft's thread. One user at a time: the engine thread.
  virtual Model& reader() = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  /// Its token ids are the target's.
  virtual bool same_tokens() const = 0;
  /// Ids of an answer in the target's vocabulary.
  virtual std::vector<std::int32_t> to_target(std::vector<std::int32_t> ids) const = 0;
};

struct DraftOptions {
  std::string path;  ///< of a Hugging Face folder
  ModelOptions model;
  std::int32_t max_queue = 8;  ///< waiting jobs; one more has no look-ahead
  std::int32_t chunk_tokens = 256;
  /// Of a large vocabulary, the first that a look-ahead chooses among beside the prompt's own
  /// (ShortHead); 0: all
  std::int32_t common_tokens = 16384;
  Store* store = nullptr;  ///< where KV of documents is kept; null: none is. Must outlive the draft
};

/// A draft of these. model and tokenizer must belong together; `target` is kept.
std::unique_ptr<Draft> make_draft(const DraftOptions& options, std::unique_ptr<Model> model,
                                  std::unique_ptr<Tokenizer> tokenizer,
                                  std::shared_ptr<const Tokenizer> target);

/// Where its tokenizer is not the target's, the prompt goes over as text and the answer comes back
/// as text. `target` is kept. Errors: those of load_model() and load_tokenizer().
Result<std::unique_ptr<Draft>> load_draft(const DraftOptions& options,
                                          std::shared_ptr<const Tokenizer> target);

}  // namespace quire
