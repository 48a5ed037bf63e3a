/// The tokens of a prompt as a retrieval head sees them, gathered while the prompt is put together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/forward.h"
#include "engine/retrieve/head/retrieval_head.h"

namespace quire {

/// What a head is given of a token besides its id.
enum class HeadInput : std::uint8_t { kEmbedding, kFeature };

/// Tokens in the order in which they are added, each with its raw key. As the tap of a forward pass
/// it keeps the features of the pass's rows; add_computed() then makes the keys of those rows. A
/// token's feature is that of the token added before it in a pass without a gap; a token behind one
/// whose feature nobody knows has none. Threads: the engine thread.
class HeadTrack final : public HiddenTap {
 public:
  /// `head` must outlive it. kFeature needs a head that uses them.
  HeadTrack(const RetrievalHead& head, HeadInput input) : head_(&head), input_(input) {}
  /// Of whoever chooses without a head: tokens, and no keys.
  HeadTrack() : head_(nullptr), input_(HeadInput::kEmbedding) {}

  std::span<const std::int32_t> layers() const override {
    return input_ == HeadInput::kFeature ? head_->feature_layers()
                                         : std::span<const std::int32_t>();
  }
  void take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) override;

  /// The first rows of the pass that ran since the last call: these tokens. In embedding mode no
  /// pass is needed.
  Status add_computed(std::span<const std::int32_t> token_ids,
                      std::span<const std::int32_t> positions);
  /// Tokens of which nothing but the embedding is known.
  Status add_embedded(std::span<const std::int32_t> token_ids,
                      std::span<const std::int32_t> positions);
  /// Tokens whose keys are known: [token_ids.size(), key_dim()] f32, raw.
  void add_known(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> positions,
                 std::span<const float> keys);

  HeadInput input() const { return input_; }
  std::span<const std::int32_t> token_ids() const { return token_ids_; }
  std::span<const std::int32_t> positions() const { return positions_; }
  /// [tokens, key_dim()], raw.
  std::span<const float> keys() const { return keys_; }
  /// Of the last token, [feature_dim()]; empty in embed mode, and where it is not known.
  std::span<const float> last_feature() const { return last_feature_; }

 private:
  void append(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> positions);

  const RetrievalHead* const head_;
  const HeadInput input_;
  std::vector<std::int32_t> token_ids_, positions_;
  std::vector<float> keys_;
  /// Of the pass: [1 + rows, feature_dim()], the first row is that of the token before it
  std::vector<float> features_;
  std::vector<float> last_feature_;
};

}  // namespace quire
