/// This file implements the arithmetic of SamKV's selection: personalised queries, block scores and
/// dynamic top-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// Returns the share of a document's middle blocks that become candidates (SamKV, Eq. 2). It is
/// (max - anchor) / (max - min) if min < anchor <= max, else 0; the result is in [0, 1), and NaN
/// scores give 0.
double candidate_share(float max_score, float anchor_score, float min_score);

/// Returns |cos(a, b)| over the whole vectors, or its mean over heads of head_dim each. It is 0 if
/// a vector is zero.
enum class BiasCos : std::uint8_t { kLayer, kHead };
float bias_weight(std::span<const float> a, std::span<const float> b, std::int32_t head_dim,
                  BiasCos over);

/// Returns the personalised queries Qhat_i of all documents (SamKV, Eq. 1): query + 1/(D-1) * sum
/// over j != i of weights[j] * locals[j]. A single document keeps the query unchanged.
std::vector<std::vector<float>> personalised_queries(std::span<const float> query,
                                                     std::span<const std::vector<float>> locals,
                                                     std::span<const float> weights);

struct SamkvScoreOptions {
  bool bias = true;
  BiasCos bias_cos = BiasCos::kLayer;
  /// Selects the frame in which query and block means are multiplied. kRotated: the query is
  /// rotated by its distance from the document. kRaw: positions are ignored; sketches hold means of
  /// rotated keys, so the query is rotated to each block's middle, which cancels all but a key's
  /// place in its block.
  enum class Frame : std::uint8_t { kRotated, kRaw } frame = Frame::kRotated;
};

/// Scores of all blocks, in all layers, of the contexts that have a sketch.
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

/// Returns an entry without scores for each context that has a sketch and at least one block.
std::vector<SamkvScores::Document> samkv_documents(const SelectionInput& input);
/// Computes all scores; needs input.query_pass and input.rope. Errors: kInvalidArgument (a position
/// outside the RoPE table).
Result<SamkvScores> samkv_scores(const SelectionInput& input, const SamkvScoreOptions& options);

}  // namespace quire
