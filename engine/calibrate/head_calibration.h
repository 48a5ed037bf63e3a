/// Calibration of the heads by which a model's questions find their passages, and where the result
/// is kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"
#include "cachestore/store.h"
#include "engine/prefill/pass_resources.h"
#include "engine/record/selection_heads.h"

namespace quire {

/// One question over passages, of which some tokens are known to answer it.
struct HeadExample {
  struct Passage {
    std::vector<std::int32_t> token_ids;
    std::vector<std::pair<std::int64_t, std::int64_t>> support;  ///< [begin, end) of its tokens
  };
  std::vector<std::int32_t> prefix_ids, suffix_ids;  ///< as in a query
  std::size_t words_begin = 0, words_end = 0;        ///< the question's own words in suffix_ids
  std::vector<Passage> passages;
};

/// How well a group of heads finds what supports the answer.
struct HeadFinding {
  SelectionHeads heads;
  /// Mean recall of such heads together, and of one head on average, on the half of the examples
  /// that did not choose them.
  double chosen_recall = 0, average_recall = 0;
  std::int64_t examples = 0;
};

/// Finds the heads of a model whose best blocks, kRecallShare of the text, hold most of what
/// supports the answers. Threads: one at a time.
class HeadCalibration {
 public:
  static constexpr double kRecallShare = 0.15;
  static constexpr std::size_t kHeads = 4;
  /// Chosen heads must find this much more than the average head.
  static constexpr double kLeastGain = 1.5;
  static constexpr std::int64_t kFewestExamples = 8;

  /// `core` needs facts, model, pool and meter; it must outlive this.
  explicit HeadCalibration(PassResources& core);

  /// Runs the passages alone and the question without them, and scores every head. Returns false
  /// if nothing can be learnt (no support, or all of it is within the share). Errors: those of a
  /// pass.
  Result<bool> add(const HeadExample& example);
  std::int64_t examples() const { return static_cast<std::int64_t>(examples_.size()); }
  /// Chooses heads, and who asks, by all examples. Errors: kFailedPrecondition (too few examples;
  /// no head stands out), with the reason.
  Result<HeadFinding> result() const;

 private:
  /// What every head paid to the blocks of one example.
  struct Scored {
    std::vector<std::int32_t> tokens, support;  ///< [block] its tokens, those that support
    std::int64_t budget = 0;                    ///< tokens
    std::vector<float> mass;                    ///< [asks, layer, head, block]
  };
  /// Returns the share of the example's support among the best blocks of these heads together.
  double recall(const Scored& example, std::size_t asks, std::span<const std::size_t> heads) const;
  /// Returns its mean over the examples begin, begin + step, ...
  double mean_recall(std::size_t asks, std::span<const std::size_t> heads, std::size_t begin,
                     std::size_t step) const;
  /// Chooses by the examples begin, begin + step, ...: each next head is the one that finds most
  /// together with those before it, among the best alone.
  SelectionHeads choose(std::size_t begin, std::size_t step) const;
  std::size_t num_heads() const;  ///< of all layers

  PassResources& core_;
  std::vector<Scored> examples_;
};

/// Returns the name of the model's record in the store: "selection-heads/" and the hex fingerprint.
std::string selection_heads_record(const Digest& fingerprint);
/// Keeps the result in that record, as "1 ASKS LAYER.HEAD ...".
Status save_selection_heads(Store& store, const Digest& fingerprint, const SelectionHeads& heads);
/// Removes it, so that selection goes without heads. Errors: kIo.
Status drop_selection_heads(Store& store, const Digest& fingerprint);
/// What was kept for this model. Errors: kNotFound (never calibrated), kCorruption (not readable,
/// or outside the model), kIo.
Result<SelectionHeads> load_selection_heads(Store& store, const Digest& fingerprint,
                                            std::int32_t num_layers, std::int32_t num_heads);

/// Text of a record; for the functions above and their tests.
std::string encode_selection_heads(const SelectionHeads& heads);
Result<SelectionHeads> decode_selection_heads(std::string_view text, std::int32_t num_layers,
                                              std::int32_t num_heads);

}  // namespace quire
