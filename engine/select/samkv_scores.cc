#include "engine/select/samkv_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/index.h"
#include "engine/select/block_scores.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Returns the query rotated by `position` and averaged over the heads that share a KV head,
/// [num_kv_heads * head_dim].
class QueryFrame {
 public:
  QueryFrame(const SelectionInput& input)
      : input_(input),
        turned_(at(std::int64_t{input.num_heads} * input.head_dim)),
        pooled_(at(std::int64_t{input.num_kv_heads} * input.head_dim)) {}

  Result<std::span<const float>> at_distance(std::span<const float> query, std::int64_t position) {
    const auto where = static_cast<std::int32_t>(position);
    QUIRE_RETURN_IF_ERROR(rope_rotate(*input_.rope, {.x = query.data(),
                                                     .out = turned_.data(),
                                                     .positions = &where,
                                                     .rows = 1,
                                                     .num_heads = input_.num_heads,
                                                     .ldx = count_of(query),
                                                     .ldo = count_of(query)}));
    const std::int32_t group = input_.num_heads / input_.num_kv_heads, dim = input_.head_dim;
    for (std::int32_t m = 0; m < input_.num_kv_heads; ++m) {
      for (std::int32_t c = 0; c < dim; ++c) {
        float sum = 0;
        for (std::int32_t g = 0; g < group; ++g)
          sum += turned_[at((std::int64_t{m} * group + g) * dim + c)];
        pooled_[at(std::int64_t{m} * dim + c)] = sum / static_cast<float>(group);
      }
    }
    return std::span<const float>(pooled_);
  }

 private:
  const SelectionInput& input_;
  std::vector<float> turned_, pooled_;
};

Status score_layer(const SelectionInput& input, const SamkvScoreOptions& options,
                   std::int32_t layer, std::span<const float> query, QueryFrame& frame,
                   std::vector<float>& means, SamkvScores::Document& doc) {
  const SketchView& sketch = *doc.sketch;
  const std::size_t blocks = at(sketch.num_blocks()),
                    dim = at(std::int64_t{input.num_kv_heads} * input.head_dim);
  means.resize(blocks * dim);
  sketch.means(layer, means);
  std::vector<float>& scores = doc.score[at(layer)];
  scores.resize(blocks);
  float length = 0;
  if (options.frame == SamkvScoreOptions::Frame::kRotated) {
    const std::int64_t distance = input.query_pass->last_position -
                                  input.query_pass->context_position[at(doc.context)];
    QUIRE_ASSIGN_OR_RETURN(const auto pooled, frame.at_distance(query, distance));
    length = norm(pooled);
    block_scores(pooled, means, scores);
  } else {
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::int64_t first = static_cast<std::int64_t>(b) * sketch.block_tokens();
      const std::int64_t middle = (first +
                                   std::min(first + sketch.block_tokens(), sketch.num_tokens()) -
                                   1) /
                                  2;
      QUIRE_ASSIGN_OR_RETURN(const auto pooled, frame.at_distance(query, middle));
      length = norm(pooled);
      scores[b] = dot(pooled, std::span(means).subspan(b * dim, dim));
    }
  }
  std::vector<float>& comparable = doc.comparable[at(layer)];
  comparable = scores;
  for (float& s : comparable) s = length > 0 ? s / length : 0;
  return {};
}

/// Scores of a document's most and least important middle block: that with the smallest alpha, and
/// that with the least sustained attention (the runner-up if both are one).
struct ScorePair {
  float largest, least;
};
std::optional<ScorePair> scores_by_statistics(std::span<const SamkvScores::Document> chunks,
                                              std::int32_t layer) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  float alpha = kNone;
  float sustained[2] = {kNone, kNone};
  const float *most = nullptr, *least[2] = {nullptr, nullptr};
  for (const SamkvScores::Document& doc : chunks) {
    if (!doc.sketch->has(kSketchStats)) continue;
    for (const std::int32_t b : doc.middle) {
      const BlockStats stats = doc.sketch->stats(layer, b);
      const float* const score = &doc.score[at(layer)][at(b)];
      if (stats.alpha < alpha) {
        alpha = stats.alpha;
        most = score;
      }
      if (stats.sustained < sustained[0]) {
        sustained[1] = sustained[0];
        least[1] = least[0];
        sustained[0] = stats.sustained;
        least[0] = score;
      } else if (stats.sustained < sustained[1]) {
        sustained[1] = stats.sustained;
        least[1] = score;
      }
    }
  }
  const float* const other = least[0] == most ? least[1] : least[0];
  if (most == nullptr || other == nullptr) return std::nullopt;
  return ScorePair{*most, *other};
}

std::optional<ScorePair> scores_by_question(std::span<const SamkvScores::Document> chunks,
                                            std::int32_t layer) {
  std::optional<ScorePair> pair;
  for (const SamkvScores::Document& doc : chunks) {
    for (const std::int32_t b : doc.middle) {
      const float s = doc.score[at(layer)][at(b)];
      if (std::isnan(s)) continue;
      if (!pair) pair = ScorePair{s, s};
      pair->largest = std::max(pair->largest, s);
      pair->least = std::min(pair->least, s);
    }
  }
  return pair;
}

/// The queries of one layer.
struct LayerQueries {
  std::vector<std::vector<float>> each;  ///< [whole document], or a single one that serves all
  std::vector<float> weights;            ///< of the bias, [whole document]
  std::span<const float> of(const SamkvScores::Document& doc) const {
    return each.size() == 1 ? each.front() : each[at(doc.document)];
  }
};

/// Scores all layers and documents in one call of the scorer.
Status score_together(const SelectionInput& input, const SamkvScoreOptions& options,
                      std::span<const LayerQueries> layers,
                      std::vector<SamkvScores::Document>& documents) {
  std::vector<BlockScorer::Item> items;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (SamkvScores::Document& doc : documents) {
      const std::size_t blocks = at(doc.sketch->num_blocks());
      doc.score[layer].resize(blocks);
      doc.comparable[layer].resize(blocks);
      const std::int64_t distance = input.query_pass->last_position -
                                    input.query_pass->context_position[at(doc.context)];
      if (distance < 0 || distance >= input.rope->max_positions())
        return Status::invalid("positions",
                               "a document lies further from the question than the model's window");
      items.push_back({.context = doc.context,
                       .layer = static_cast<std::int32_t>(layer),
                       .sketch = doc.sketch,
                       .query = layers[layer].of(doc),
                       .distance = static_cast<std::int32_t>(distance),
                       .score = doc.score[layer],
                       .comparable = doc.comparable[layer]});
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const bool scored,
                         input.scorer->score({input.num_heads, input.num_kv_heads}, items));
  if (scored) return {};
  QueryFrame frame(input);
  std::vector<float> means;
  for (std::size_t n = 0; n < items.size(); ++n) {
    QUIRE_RETURN_IF_ERROR(score_layer(input, options, items[n].layer, items[n].query, frame, means,
                                      documents[n % documents.size()]));
  }
  return {};
}

/// Returns P_i of a document from the scores of its chunks.
double keep_share_of(const SelectionInput& input, std::span<const SamkvScores::Document> chunks,
                     Extremes extremes) {
  std::size_t middle = 0, anchors = 0;
  for (const SamkvScores::Document& doc : chunks) {
    middle += doc.middle.size();
    anchors += doc.anchors.size();
  }
  if (middle < 2 || anchors == 0) return 0;
  double sum = 0;
  for (std::int32_t layer = input.stable_layers.first; layer <= input.stable_layers.last; ++layer) {
    const auto pair = extremes == Extremes::kDocument ? scores_by_statistics(chunks, layer)
                                                      : scores_by_question(chunks, layer);
    if (!pair) continue;
    float anchor = 0;
    for (const SamkvScores::Document& doc : chunks)
      for (const std::int32_t a : doc.anchors) anchor += doc.score[at(layer)][at(a)];
    sum += candidate_share(pair->largest, anchor / static_cast<float>(anchors), pair->least);
  }
  return sum / input.stable_layers.count();
}

/// Returns the end of the entries from `first` on that are chunks of the same document.
std::size_t end_of_document(std::span<const SamkvScores::Document> documents, std::size_t first) {
  std::size_t end = first;
  while (end < documents.size() && documents[end].document == documents[first].document) ++end;
  return end;
}

/// Returns the mean of `rows` equal rows `query` after RoPE at the positions from `first` on.
Result<std::vector<float>> rotated_mean(const SelectionInput& input, std::span<const float> query,
                                        std::int64_t first, std::int64_t rows) {
  std::vector<float> turned(query.size()), mean(query.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto where = static_cast<std::int32_t>(first + r);
    QUIRE_RETURN_IF_ERROR(rope_rotate(*input.rope, {.x = query.data(),
                                                    .out = turned.data(),
                                                    .positions = &where,
                                                    .rows = 1,
                                                    .num_heads = input.num_heads,
                                                    .ldx = count_of(query),
                                                    .ldo = count_of(query)}));
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += turned[c] / static_cast<float>(rows);
  }
  return mean;
}

/// Returns the question's mean query as bias_weight() compares it.
Result<std::vector<float>> compared_question(const SelectionInput& input, BiasFrame frame,
                                             std::span<const float> query) {
  if (frame == BiasFrame::kRaw) return std::vector<float>(query.begin(), query.end());
  const std::int64_t end = input.query_pass->last_position + 1;
  const std::int64_t rows = std::clamp<std::int64_t>(count_of(input.question), 1, end);
  return rotated_mean(input, query, end - rows, rows);
}

/// Returns the mean query of a document's last two blocks as bias_weight() compares it.
Result<std::vector<float>> compared_tail(const SelectionInput& input, BiasFrame frame,
                                         const SketchView& sketch, std::span<const float> local) {
  if (frame == BiasFrame::kRaw) return std::vector<float>(local.begin(), local.end());
  const std::int64_t first = std::int64_t{std::max(0, sketch.num_blocks() - 2)} *
                             sketch.block_tokens();
  return rotated_mean(input, local, first, sketch.num_tokens() - first);
}

/// Bends the question's mean query in one layer towards what the other documents are about.
Status personalise(const SelectionInput& input, const SamkvScoreOptions& options,
                   std::int32_t layer, std::span<const float> query, const SamkvScores& scores,
                   LayerQueries& out) {
  const auto whole = to_size(scores.num_documents());
  std::vector<std::vector<float>> locals(whole, std::vector<float>(query.size()));
  out.weights.resize(whole);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> asked,
                         compared_question(input, options.bias_frame, query));
  for (std::size_t i = 0; i < scores.documents.size();) {
    i = end_of_document(scores.documents, i);
    const SamkvScores::Document& last = scores.documents[i - 1];
    std::vector<float>& local = locals[at(last.document)];
    last.sketch->local_query(layer, local);
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> tail,
                           compared_tail(input, options.bias_frame, *last.sketch, local));
    out.weights[at(last.document)] = bias_weight(asked, tail, input.head_dim, options.bias_cos);
  }
  out.each = personalised_queries(query, locals, out.weights);
  return {};
}

}  // namespace

double candidate_share(float max_score, float anchor_score, float min_score) {
  if (!(min_score < anchor_score && anchor_score <= max_score)) return 0;
  const double share = (static_cast<double>(max_score) - anchor_score) /
                       (static_cast<double>(max_score) - min_score);
  return std::isfinite(share) ? share : 0;
}

float bias_weight(std::span<const float> a, std::span<const float> b, std::int32_t head_dim,
                  BiasCos over) {
  const auto cosine = [](std::span<const float> x, std::span<const float> y) {
    const float lengths = norm(x) * norm(y);
    return lengths > 0 ? std::fabs(dot(x, y) / lengths) : 0.0f;
  };
  if (over == BiasCos::kLayer) return cosine(a, b);
  const std::size_t dim = at(head_dim), heads = a.size() / dim;
  float sum = 0;
  for (std::size_t h = 0; h < heads; ++h)
    sum += cosine(a.subspan(h * dim, dim), b.subspan(h * dim, dim));
  return sum / static_cast<float>(heads);
}

std::vector<std::vector<float>> personalised_queries(std::span<const float> query,
                                                     std::span<const std::vector<float>> locals,
                                                     std::span<const float> weights) {
  std::vector<std::vector<float>> queries(locals.size(), {query.begin(), query.end()});
  if (locals.size() < 2) return queries;
  std::vector<float> all(query.size());
  for (std::size_t j = 0; j < locals.size(); ++j) {
    for (std::size_t c = 0; c < all.size(); ++c) all[c] += weights[j] * locals[j][c];
  }
  const float share = 1 / static_cast<float>(locals.size() - 1);
  for (std::size_t i = 0; i < locals.size(); ++i) {
    for (std::size_t c = 0; c < all.size(); ++c)
      queries[i][c] += share * (all[c] - weights[i] * locals[i][c]);
  }
  return queries;
}

std::vector<std::vector<std::int32_t>> blocks_of_documents(
    std::span<const SelectableContext> contexts, bool whole_documents,
    const std::function<std::vector<std::int32_t>(std::int32_t blocks)>& take) {
  const std::vector<std::int32_t> documents = documents_of(contexts);
  std::vector<std::vector<std::int32_t>> out(contexts.size());
  for (std::size_t first = 0; first < contexts.size();) {
    std::size_t end = first + 1;
    while (whole_documents && end < contexts.size() && documents[end] == documents[first]) ++end;
    std::vector<std::pair<std::size_t, std::int32_t>> blocks;
    for (std::size_t i = first; i < end; ++i)
      for (std::int32_t b = 0; b < contexts[i].num_blocks; ++b) blocks.emplace_back(i, b);
    for (const std::int32_t n : take(static_cast<std::int32_t>(blocks.size())))
      out[blocks[at(n)].first].push_back(blocks[at(n)].second);
    first = end;
  }
  return out;
}

std::vector<SamkvScores::Document> samkv_documents(const SelectionInput& input,
                                                   bool whole_documents) {
  std::vector<SamkvScores::Document> documents;
  const auto anchors = blocks_of_documents(input.contexts, whole_documents, anchor_blocks);
  const std::vector<std::int32_t> document = documents_of(input.contexts);
  for (std::size_t i = 0; i < input.contexts.size(); ++i) {
    if (input.contexts[i].num_blocks == 0) continue;
    const SketchView* sketch = input.sketch ? input.sketch(static_cast<std::int32_t>(i)) : nullptr;
    if (sketch == nullptr) continue;
    SamkvScores::Document doc;
    doc.context = static_cast<std::int32_t>(i);
    doc.sketch = sketch;
    doc.anchors = anchors[i];
    for (std::int32_t b = 0; b < sketch->num_blocks(); ++b)
      if (!std::ranges::binary_search(doc.anchors, b)) doc.middle.push_back(b);
    if (!documents.empty()) {
      const SamkvScores::Document& before = documents.back();
      const bool same = whole_documents && document[i] == document[at(before.context)];
      doc.document = before.document + (same ? 0 : 1);
    }
    documents.push_back(std::move(doc));
  }
  return documents;
}

Result<SamkvScores> samkv_scores(const SelectionInput& input, const SamkvScoreOptions& options) {
  SamkvScores out;
  out.documents = samkv_documents(input, options.whole_documents);
  const std::size_t count = out.documents.size(), whole = to_size(out.num_documents()),
                    dim = at(std::int64_t{input.num_heads} * input.head_dim);
  const bool scorer = input.scorer != nullptr &&
                      options.frame == SamkvScoreOptions::Frame::kRotated && count > 0;
  const bool biased = options.bias && whole > 1;
  for (auto& doc : out.documents) {
    doc.score.resize(at(input.num_layers));
    doc.comparable.resize(at(input.num_layers));
  }
  std::vector<LayerQueries> layers(at(input.num_layers));
  std::vector<Status> status(layers.size());
  parallel_tasks(input.num_layers, [&](std::int64_t n) {
    const auto layer = static_cast<std::int32_t>(n);
    const auto query = std::span(input.query_pass->mean_query).subspan(at(n) * dim, dim);
    LayerQueries& queries = layers[at(n)];
    if (biased)
      status[at(n)] = personalise(input, options, layer, query, out, queries);
    else
      queries.each.assign(1, {query.begin(), query.end()});
    if (scorer || !status[at(n)].ok()) return;
    QueryFrame frame(input);
    std::vector<float> means;
    for (std::size_t i = 0; i < count && status[at(n)].ok(); ++i)
      status[at(n)] = score_layer(input, options, layer, queries.of(out.documents[i]), frame, means,
                                  out.documents[i]);
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  for (const LayerQueries& queries : layers) {
    for (auto& doc : out.documents) {
      if (biased)
        doc.bias_weight += queries.weights[at(doc.document)] / static_cast<float>(input.num_layers);
    }
  }
  if (scorer) QUIRE_RETURN_IF_ERROR(score_together(input, options, layers, out.documents));
  for (std::size_t i = 0; i < count;) {
    const std::size_t end = end_of_document(out.documents, i);
    const double share = keep_share_of(input, std::span(out.documents).subspan(i, end - i),
                                       options.extremes);
    for (; i < end; ++i) out.documents[i].keep_share = share;
  }
  return out;
}

}  // namespace quire
