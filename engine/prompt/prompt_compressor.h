/// This socket decides which tokens of a prompt's uncached text the target model sees. It runs
/// before anything is planned, on a draft's reading of the whole prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/model/config.h"
#include "engine/model/forward.h"
#include "engine/plug/plug_registry.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/rows/rope.h"

namespace quire {

/// Describes the draft that will read the prompt. The objects it points to must outlive the
/// compressor.
struct PromptReadSetup {
  const ModelConfig* draft = nullptr;
  const RopeTable* rope = nullptr;  ///< the draft's
  /// Number of tokens of the prompt in the draft's tokenization, at positions 0, 1, ...; at least
  /// 1.
  std::int64_t num_tokens = 0;
  std::int64_t num_ahead = 0;  ///< most tokens of the draft's answer that run after the prompt
};

/// The prompt in the target's tokenization.
struct CuttablePrompt {
  std::span<const float> scores;  ///< [tokens], larger is more important
  /// [tokens]; 0: the token's KV is cached, so it stays and does not count.
  std::span<const std::uint8_t> cuttable;
  /// Ranges that stay before all tokens but the window, in this order; each only if all of it fits.
  std::span<const RowRange> stays;
};

/// A prompt compressor; one object per query, made with its options. Threads: the engine thread.
class PromptCompressor : public NamedPlug<PromptCompressor> {
 public:
  virtual ~PromptCompressor() = default;
  /// Returns true if every prompt is left unchanged; no method below need then be called.
  virtual bool keeps_everything() const { return false; }
  /// Returns how many of `tokens` cuttable tokens stay. A prompt with no more cuttable tokens is
  /// left unchanged and need not be read.
  virtual std::int64_t capacity(std::int64_t /*tokens*/) const { return 0; }
  /// Returns how many rows of the draft's answer the observer should see, in addition to what
  /// others request.
  virtual std::int32_t rows_ahead() const { return 0; }

  /// Is called once, before the draft reads.
  virtual void begin(const PromptReadSetup&) {}
  /// Returns a hook that observes the draft's rows from position observed_from() on; null: none
  /// needed. Valid after begin(); owned by the compressor.
  virtual ForwardHook* observer() { return nullptr; }
  virtual std::int64_t observed_from() const { return 0; }
  /// Returns whether on_logits() should be called for every row of the prompt.
  virtual bool wants_logits() const { return false; }
  /// Receives logits, [next_ids.size(), vocab], of the rows from `first_position` on. next_ids
  /// holds the token that really follows each row, -1 after the last.
  virtual void on_logits(std::int64_t /*first_position*/, std::span<const float> /*logits*/,
                         std::span<const std::int32_t> /*next_ids*/) {}
  /// Returns the scores of the draft's prompt, [num_tokens], once all of it ran.
  virtual std::vector<float> scores() const { return {}; }
  /// Returns the indices of the cuttable tokens that stay, ascending: exactly capacity() of them,
  /// or all if there are fewer.
  virtual std::vector<std::int32_t> kept(const CuttablePrompt&) const { return {}; }
};

void register_plugs(PlugRegistry<PromptCompressor>& plugs);
/// The prompt compressors of this build: the files in engine/prompt/plugs.
inline const PlugRegistry<PromptCompressor>& prompt_compressors() {
  return built_plugs<PromptCompressor>(
      {.field = "cache.prompt_compression", .options_field = "cache.prompt_compression"});
}

}  // namespace quire
