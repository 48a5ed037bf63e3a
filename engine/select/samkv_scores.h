/// This file implements the arithmetic of SamKV's selection: personalised queries, block scores and
/// dynamic top-p.
#pragma once

#include <cstdint>
#include <functional>
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
/// Selects where these vectors are compared. kRaw: before RoPE, as they are stored. kRotated: as
/// the model multiplies them, each at the positions where it was computed: a mean query stands for
/// every row that it is the mean of. SamKV reports cosines between -0.3 and 0.3; means before RoPE
/// share much more.
enum class BiasFrame : std::uint8_t { kRaw, kRotated };
float bias_weight(std::span<const float> a, std::span<const float> b, std::int32_t head_dim,
                  BiasCos over);

/// Returns the personalised queries Qhat_i of all documents (SamKV, Eq. 1): query + 1/(D-1) * sum
/// over j != i of weights[j] * locals[j]. A single document keeps the query unchanged.
std::vector<std::vector<float>> personalised_queries(std::span<const float> query,
                                                     std::span<const std::vector<float>> locals,
                                                     std::span<const float> weights);

/// Selects the blocks whose scores are s_max and s_min of Eq. 2. kDocument: the most important and
/// the least important block by the document's own statistics (appendix A.1). kQuestion: the blocks
/// with the largest and the smallest score for this question (section 3.2).
enum class Extremes : std::uint8_t { kDocument, kQuestion };

struct SamkvScoreOptions {
  bool bias = true;
  BiasCos bias_cos = BiasCos::kLayer;
  BiasFrame bias_frame = BiasFrame::kRaw;
  Extremes extremes = Extremes::kDocument;
  /// SamKV's contexts are whole documents: their chunks share a local query, anchors, P_i and a
  /// place in D. False: every chunk counts as a document.
  bool whole_documents = true;
  /// Selects the frame in which query and block means are multiplied. kRotated: the query is
  /// rotated by its distance from the document. kRaw: positions are ignored; sketches hold means of
  /// rotated keys, so the query is rotated to each block's middle, which cancels all but a key's
  /// place in its block.
  enum class Frame : std::uint8_t { kRotated, kRaw } frame = Frame::kRotated;
};

/// Scores of all blocks, in all layers, of the contexts that have a sketch.
struct SamkvScores {
  /// A document, or one of its chunks.
  struct Document {
    std::int32_t context = 0;
    std::int32_t document = 0;  ///< index among the documents that count: chunks may share it
    const SketchView* sketch = nullptr;
    std::vector<std::int32_t> anchors, middle;   ///< published anchors in this context; M_i
    std::vector<std::vector<float>> score;       ///< [layer][block]: s_i
    std::vector<std::vector<float>> comparable;  ///< [layer][block]: s_i / |Qs_i|
    double keep_share = 0;                       ///< P_i
    float bias_weight = 0;                       ///< w_i, mean over layers
  };
  std::vector<Document> documents;

  std::int32_t num_documents() const {  ///< D
    return documents.empty() ? 0 : documents.back().document + 1;
  }
};

/// Calls take(blocks) once for each document and returns, by context, the blocks that it names:
/// `blocks` is the document's number of blocks over all its chunks, and the result is indices into
/// them.
std::vector<std::vector<std::int32_t>> blocks_of_documents(
    std::span<const SelectableContext> contexts, bool whole_documents,
    const std::function<std::vector<std::int32_t>(std::int32_t blocks)>& take);

/// Returns an entry without scores for each context that has a sketch and at least one block.
std::vector<SamkvScores::Document> samkv_documents(const SelectionInput& input,
                                                   bool whole_documents);
/// Computes all scores; needs input.query_pass and input.rope. Errors: kInvalidArgument (a position
/// outside the RoPE table).
Result<SamkvScores> samkv_scores(const SelectionInput& input, const SamkvScoreOptions& options);

}  // namespace quire
