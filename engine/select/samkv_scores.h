/// The arithmetic of SamKV's selection: personalised queries, block scores, dynamic Top-P.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// Share of a document's middle blocks that become candidates (Eq. 2): (max - anchor) / (max - min)
/// if min < anchor <= max, else 0. In [0, 1); NaN scores give 0.
double candidate_share(float max_score, float anchor_score, float min_score);

/// |cos(a, b)|: over everything, or the mean over heads of head_dim each. 0 when a vector is zero.
enum class BiasCos : std::uint8_t { kLayer, kHead };
float bias_weight(std::span<const float> a, std::span<const float> b, std::int32_t head_dim,
                  BiasCos over);

/// Qhat_i of all documents (Eq. 1): query + 1/(D-1) sum over j != i of weights[j] * locals[j]. One
/// document keeps the query as it is.
std::vector<std::vector<float>> personalised_queries(std::span<const float> query,
                                                     std::span<const std::vector<float>> locals,
                                                     std::span<const float> weights);

struct SamkvScoreOptions {
  bool bias = true;
  BiasCos bias_cos = BiasCos::kLayer;
  /// Where query and block means meet. kRotated: at the query's distance from the document (A1).
  /// kRaw: without positions; as sketches hold means of rotated keys, the query is turned to each
  /// block's middle, which undoes the turn of the keys but for their place in the block.
  enum class Frame : std::uint8_t { kRotated, kRaw } frame = Frame::kRotated;
};

/// Scores of all blocks of the contexts that have a sketch, in all layers.
struct SamkvScores {
  struct Document {
    std::int32_t context = 0;
    const SketchView* sketch = nullptr;
    std::vector<std::int32_t> middle;            ///< M_i
    std::vector<std::vector<float>> score;       ///< [layer][block]: s_i
    std::vector<std::vector<float>> comparable;  ///< [layer][block]: s_i / |Qs_i|
    double keep_share = 0;                       ///< P_i
    float bias_weight = 0;                       ///< w_i, mean over layers
  };
  std::vector<Document> documents;
};

/// Contexts with a sketch and at least one block, without scores.
std::vector<SamkvScores::Document> samkv_documents(const SelectionInput& input);
/// Needs input.query_pass and input.rope. Errors: kInvalidArgument (a position outside the RoPE
/// table).
Result<SamkvScores> samkv_scores(const SelectionInput& input, const SamkvScoreOptions& options);

}  // namespace quire
