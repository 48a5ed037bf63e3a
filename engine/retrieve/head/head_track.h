/// HeadTrack collects a prompt's tokens as a retrieval head sees them, while the prompt is
/// assembled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/forward.h"
#include "engine/retrieve/head/retrieval_head.h"

namespace quire {

/// HeadInput says what a head gets for a token besides its id.
enum class HeadInput : std::uint8_t { kEmbedding, kFeature };

/// HeadTrack stores tokens in the order in which they are added, each with its raw key. As the tap
/// of a forward pass it keeps the features of the pass's rows; add_computed() then computes the
/// keys of those rows. A token's feature is that of the token added before it in a pass without a
/// gap; a token after one whose feature is unknown has none. Threads: the engine thread.
class HeadTrack final : public HiddenTap {
 public:
  /// Makes a track for `head`, which must outlive it. kFeature needs a head that uses features.
  HeadTrack(const RetrievalHead& head, HeadInput input) : head_(&head), input_(input) {}
  /// Makes a track without a head: it keeps tokens and no keys.
  HeadTrack() : head_(nullptr), input_(HeadInput::kEmbedding) {}

  std::span<const std::int32_t> layers() const override {
    return input_ == HeadInput::kFeature ? head_->feature_layers()
                                         : std::span<const std::int32_t>();
  }
  void take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) override;

  /// Adds these tokens, the first rows of the pass that ran since the last call. In embedding mode
  /// no pass is needed.
  Status add_computed(std::span<const std::int32_t> token_ids,
                      std::span<const std::int32_t> positions);
  /// Adds tokens of which only the embedding is known.
  Status add_embedded(std::span<const std::int32_t> token_ids,
                      std::span<const std::int32_t> positions);
  /// Adds tokens with known raw keys, [token_ids.size(), key_dim()] f32.
  void add_known(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> positions,
                 std::span<const float> keys);

  HeadInput input() const { return input_; }
  std::span<const std::int32_t> token_ids() const { return token_ids_; }
  std::span<const std::int32_t> positions() const { return positions_; }
  /// Returns the raw keys, [tokens, key_dim()].
  std::span<const float> keys() const { return keys_; }
  /// Returns the feature of the last token, [feature_dim()]; empty in embed mode, and if it is
  /// unknown.
  std::span<const float> last_feature() const { return last_feature_; }

 private:
  void append(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> positions);

  const RetrievalHead* const head_;
  const HeadInput input_;
  std::vector<std::int32_t> token_ids_, positions_;
  std::vector<float> keys_;
  /// The pass's features, [1 + rows, feature_dim()]; the first row is that of the token before the
  /// pass.
  std::vector<float> features_;
  std::vector<float> last_feature_;
};

}  // namespace quire
