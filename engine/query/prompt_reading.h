/// A draft's pass over a whole prompt, for a prompt compressor to look on, and the beginning of its
/// answer behind it.
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

/// Runs on the caller's thread, a chunk at a time, with all of its cores: nothing else of the query
/// can begin before it is over. Its KV lies outside of the working caches' budget and goes with it.
/// Threads: the engine thread.
class PromptReading {
 public:
  /// prompt_ids: of the draft's vocabulary, at least one. The compressor is begun; it sees the rows
  /// of the prompt and up to `num_rows_ahead` of the answer, of which at least `num_answer_tokens`
  /// tokens are written unless it ends before. All of them must outlive it.
  PromptReading(Draft& draft, PromptCompressor& compressor, std::vector<std::int32_t> prompt_ids,
                std::int32_t num_rows_ahead, std::int32_t num_answer_tokens);

  /// Tokens that the draft's window has no room for; 0: it can be read.
  static std::int64_t tokens_over(Draft& draft, std::int64_t prompt_tokens, std::int64_t num_ahead);

  bool done() const { return done_; }
  /// The next chunk of at most so many tokens, or the next token of the answer. Errors: those of
  /// forward(); it is over then.
  Status step(std::int32_t chunk_tokens);
  /// Of the draft's vocabulary, the one that ends it included.
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
  std::size_t read_ = 0;  ///< tokens of the prompt
  std::size_t ran_ = 0;   ///< tokens of the answer
  bool done_ = false;
};

}  // namespace quire
