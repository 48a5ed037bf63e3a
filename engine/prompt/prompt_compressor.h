/// Socket: which tokens of a prompt's uncached text the target ever sees. Runs before anything is
/// planned, by what a draft makes of the whole prompt.
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
#include "engine/plug/plug_options.h"
#include "kernels/attention_mass.h"
#include "kernels/rope.h"

namespace quire {

/// The draft that will read the prompt. What it points to outlives the compressor.
struct PromptReadSetup {
  const PlugOptions* options = nullptr;  ///< checked against options() and check()
  const ModelConfig* draft = nullptr;
  const RopeTable* rope = nullptr;  ///< the draft's
  /// Of the prompt as the draft spells it, at positions 0, 1, ...; at least 1
  std::int64_t num_tokens = 0;
  std::int64_t num_ahead = 0;  ///< tokens of the draft's answer that run behind it, at most
};

/// The prompt as the target spells it.
struct CuttablePrompt {
  std::span<const float> scores;  ///< [tokens], larger is more important
  /// [tokens]; 0: KV of the token is cached, it stays and counts nothing
  std::span<const std::uint8_t> cuttable;
  /// Tokens that stay before any other but the window, in this order, each stretch while all of it
  /// fits
  std::span<const KvStretch> stays;
};

/// One object per query. Threads: the engine thread.
class PromptCompressor {
 public:
  virtual ~PromptCompressor() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// What options() cannot say of one option alone. Errors: kInvalidArgument, field
  /// "cache.prompt_compression.<name>".
  virtual Status check(const PlugOptions&) const { return {}; }
  /// Leaves every prompt as it is: nothing below need be called.
  virtual bool keeps_everything() const { return false; }
  /// How many of `tokens` cuttable ones stay; a prompt with no more of them is left as it is and
  /// need not be read.
  virtual std::int64_t capacity(const PlugOptions&, std::int64_t /*tokens*/) const { return 0; }
  /// Rows of the draft's answer that the observer should see, on top of what others ask for.
  virtual std::int32_t rows_ahead(const PlugOptions&) const { return 0; }

  /// Once, before the draft reads.
  virtual void begin(const PromptReadSetup&) {}
  /// After begin(): sees the draft's rows from position observed_from() on; null: not needed. Owned
  /// by the compressor.
  virtual ForwardHook* observer() { return nullptr; }
  virtual std::int64_t observed_from() const { return 0; }
  /// on_logits() is wanted for every row of the prompt.
  virtual bool wants_logits() const { return false; }
  /// logits: [next_ids.size(), vocab] of the rows from `first_position` on; next_ids: the token
  /// that really follows each, -1 behind the last.
  virtual void on_logits(std::int64_t /*first_position*/, std::span<const float> /*logits*/,
                         std::span<const std::int32_t> /*next_ids*/) {}
  /// [num_tokens] of the draft's prompt, once all of it ran.
  virtual std::vector<float> scores() const { return {}; }
  /// Indices of the cuttable tokens that stay, ascending: exactly capacity() of them, or all there
  /// are.
  virtual std::vector<std::int32_t> kept(const CuttablePrompt&) const { return {}; }
};

std::vector<std::string> prompt_compressor_names();
/// Errors: kInvalidArgument (field cache.prompt_compression) naming the known ones.
Result<std::unique_ptr<PromptCompressor>> make_prompt_compressor(std::string_view name);

std::unique_ptr<PromptCompressor> make_none_prompt_compressor();
std::unique_ptr<PromptCompressor> make_specpc_compressor();
std::unique_ptr<PromptCompressor> make_surprisal_compressor();

}  // namespace quire
