/// This file runs a draft over a whole prompt, observed by a prompt compressor, and generates the
/// beginning of an answer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/draft/draft.h"
#include "engine/model/forward.h"
#include "engine/prompt/prompt_compressor.h"

namespace quire {

/// Runs in chunks on the caller's thread with all of its cores, as nothing else of the query can
/// begin before it ends. Its KV is not part of the working caches' budget and is freed with it.
/// Threads: the engine thread.
class PromptReading {
 public:
  /// Prepares reading prompt_ids, at least one id of the draft's vocabulary; all arguments must
  /// outlive it. The compressor has begun; it observes the prompt's rows and up to `num_rows_ahead`
  /// answer rows. At least `num_answer_tokens` tokens are generated unless the answer ends before.
  PromptReading(Draft& draft, PromptCompressor& compressor, std::vector<std::int32_t> prompt_ids,
                std::int32_t num_rows_ahead, std::int32_t num_answer_tokens);

  /// Returns how many tokens exceed the draft's window; 0: the prompt can be read.
  static std::int64_t tokens_over(Draft& draft, std::int64_t prompt_tokens, std::int64_t num_ahead);

  bool done() const { return done_; }
  /// Runs the next chunk of at most `chunk_tokens` tokens, or generates the next token. Errors:
  /// those of forward(), which end the reading.
  Status step(std::int32_t chunk_tokens);
  /// Returns the answer in the draft's vocabulary, including the id that ends it.
  const std::vector<std::int32_t>& answer() const { return answer_; }

 private:
  Status read_chunk(std::int32_t chunk_tokens);
  Status run(std::span<const std::int32_t> ids, std::int64_t first_position,
             std::span<const std::int32_t> logit_rows);
  Status run_answer();
  void pick(std::int64_t logit_row);
  bool over() const;
  bool wants_more() const {
    return static_cast<std::int32_t>(answer_.size()) < std::max(rows_ahead_, answer_tokens_);
  }

  Draft& draft_;
  Model& model_;
  PromptCompressor& compressor_;
  const std::vector<std::int32_t> prompt_;
  const std::int32_t rows_ahead_, answer_tokens_;
  PagePool pool_;
  WorkingCache cache_;
  ForwardWorkspace workspace_;
  std::vector<float> logits_;
  std::vector<std::int32_t> answer_;
  std::size_t read_ = 0;  ///< prompt tokens that have run
  std::size_t ran_ = 0;   ///< answer tokens that have run
  bool done_ = false;
};

}  // namespace quire
