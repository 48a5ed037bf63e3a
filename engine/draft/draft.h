/// This file runs a small model that writes a provisional answer while a query's documents are
/// fetched. The target's attention from that answer's rows tells a compressor what the real answer
/// will need; its tokens are never emitted.
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
#include "kernels/attention/attention_mass.h"

namespace quire {

/// A provisional answer in progress, possibly shared by several queries. Threads: any.
class LookAhead {
 public:
  /// Returns whether scores() may be read, which is before done() or with it.
  bool scored() const { return scored_.load(std::memory_order_acquire); }
  /// Returns the attention of the prompt's last rows to each of its tokens in the draft (SpecPC),
  /// [prompt_ids.size()]. It is empty if scores were not requested or there are none.
  const std::vector<float>& scores() const { return scores_; }
  /// Returns whether the members below may be read.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Returns the answer in ids of the target's vocabulary; empty if there is none.
  const std::vector<std::int32_t>& token_ids() const { return token_ids_; }
  /// Returns why there is no answer.
  const std::string& reason() const { return reason_; }
  /// Withdraws one request; call it at most once per ask(). If all are withdrawn, the draft goes on
  /// to the next job.
  void cancel() { askers_.fetch_sub(1); }
  bool cancelled() const { return askers_.load() <= 0; }

  /// The draft calls these, each once and in this order; finish() without give_scores() means no
  /// scores.
  void give_scores(std::vector<float> scores);
  void finish(std::vector<std::int32_t> token_ids, std::string reason);
  /// Adds a request. Returns false if all others were withdrawn.
  bool join();

 private:
  std::vector<float> scores_;            // written before scored_
  std::vector<std::int32_t> token_ids_;  // written before done_
  std::string reason_;                   // written before done_
  std::atomic<bool> scored_{false}, done_{false};
  std::atomic<int> askers_{1};
};

struct DraftRequest {
  std::vector<std::int32_t> prompt_ids;  ///< the whole prompt in order, in the target's vocabulary
  std::int32_t max_tokens = 0;           ///< most answer tokens; 0: only scores are requested
  /// Is called when the answer is done, and earlier when scores are ready; on the draft's thread or
  /// the caller's; must not block.
  std::function<void()> on_progress;
  /// Number of last prompt tokens whose rows score the others; 0: no scores.
  std::int32_t score_window = 0;
  std::string tenant;  ///< requests of one tenant and salt with an equal prompt share one reading
  std::array<std::uint8_t, 32> salt_digest{};
  /// Ascending ranges of prompt_ids with contexts whose KV the draft may have stored (keep()); it
  /// computes what it does not find.
  std::vector<RowRange> documents;
  /// Ascending ranges of prompt_ids that the answer is written from, including the last token;
  /// empty: all. With score_window the whole prompt is used, as scores cover whole prompts.
  std::vector<RowRange> kept;
};

/// A context that ingest prefills alone.
struct DraftContext {
  std::vector<std::int32_t> token_ids;  ///< ids of the target's vocabulary
  std::string tenant;
  std::array<std::uint8_t, 32> salt_digest{};
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null
};

/// Runs draft jobs one after another on its own thread, whose kernels use one core. Threads: any
/// for ask().
class Draft {
 public:
  virtual ~Draft() = default;
  /// Requests a look-ahead; an equal request that is in progress or still held returns the same
  /// object. It never fails: without a look-ahead (queue full, prompt beyond the draft's window,
  /// error while running) the object says why.
  virtual std::shared_ptr<LookAhead> ask(DraftRequest request) = 0;
  /// Computes KV of a context between look-aheads and stores it (DraftDocuments). `done` is called
  /// once, on the draft's thread or the caller's. Errors (through done): those of
  /// DraftDocuments::keep(), kUnavailable (stopping), kUnimplemented (it stores none).
  virtual void keep(DraftContext context, std::function<void(Result<SegmentHandle>)> done) = 0;
  /// Returns whether keep() is supported.
  virtual bool keeps_documents() const = 0;
  /// Returns its stored bytes per document token; 0: it stores none.
  virtual std::int64_t document_bytes_per_token() const = 0;
  /// Ends running and waiting jobs; later requests get no look-ahead.
  virtual void stop() = 0;

  /// Returns a model with the same weights for reading whole prompts (engine/prompt), concurrently
  /// with the draft's thread. It has one user at a time, the engine thread.
  virtual Model& reader() = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  /// Returns whether its token ids are the target's.
  virtual bool same_tokens() const = 0;
  /// Converts the ids of an answer to the target's vocabulary.
  virtual std::vector<std::int32_t> to_target(std::vector<std::int32_t> ids) const = 0;
};

struct DraftOptions {
  std::string path;  ///< path of a Hugging Face folder
  ModelOptions model;
  std::int32_t max_queue = 8;  ///< most waiting jobs; one more has no look-ahead
  std::int32_t chunk_tokens = 256;
  /// Number of first ids of a large vocabulary that a look-ahead chooses from besides the prompt's
  /// own (ShortHead); 0: all.
  std::int32_t common_tokens = 16384;
  /// Store for KV of documents, which must outlive the draft; null: none is stored.
  Store* store = nullptr;
};

/// Creates a draft from a matching model and tokenizer; it keeps a reference to `target`.
std::unique_ptr<Draft> make_draft(const DraftOptions& options, std::unique_ptr<Model> model,
                                  std::unique_ptr<Tokenizer> tokenizer,
                                  std::shared_ptr<const Tokenizer> target);

/// Loads a draft; it keeps a reference to `target`. If its tokenizer differs from the target's,
/// prompt and answer are converted through text. Errors: those of load_model() and
/// load_tokenizer().
Result<std::unique_ptr<Draft>> load_draft(const DraftOptions& options,
                                          std::shared_ptr<const Tokenizer> target);

}  // namespace quire
