#include "engine/select/samkv_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/index.h"
#include "engine/select/block_scores.h"

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

/// Returns the middle block with the smallest alpha, and the one with the least sustained attention
/// (the runner-up if both are equal).
struct Extremes {
  std::int32_t most_important, least_important;
};
std::optional<Extremes> extremes(const SamkvScores::Document& doc, std::int32_t layer) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  Extremes e{-1, -1};
  float alpha = kNone;
  for (const std::int32_t b : doc.middle) {
    if (const float a = doc.sketch->stats(layer, b).alpha; a < alpha) {
      alpha = a;
      e.most_important = b;
    }
  }
  if (e.most_important < 0) return std::nullopt;
  float sustained[2] = {kNone, kNone};
  std::int32_t least[2] = {-1, -1};
  for (const std::int32_t b : doc.middle) {
    const float m = doc.sketch->stats(layer, b).sustained;
    if (m < sustained[0]) {
      sustained[1] = sustained[0];
      least[1] = least[0];
      sustained[0] = m;
      least[0] = b;
    } else if (m < sustained[1]) {
      sustained[1] = m;
      least[1] = b;
    }
  }
  e.least_important = least[0] == e.most_important ? least[1] : least[0];
  if (e.least_important < 0) return std::nullopt;
  return e;
}

/// Collects the queries of all layers and documents, which are scored in one call if there is a
/// scorer.
class Together {
 public:
  Together(const SelectionInput& input, std::size_t num_documents)
      : input_(input), count_(num_documents) {}

  /// Adds the queries of one layer, [document]; a single one serves all documents.
  void add(std::vector<std::vector<float>> queries) { queries_.push_back(std::move(queries)); }

  Status score(const SamkvScoreOptions& options, std::vector<SamkvScores::Document>& documents,
               QueryFrame& frame) {
    std::vector<BlockScorer::Item> items;
    for (std::size_t layer = 0; layer < queries_.size(); ++layer) {
      for (std::size_t i = 0; i < count_; ++i) {
        SamkvScores::Document& doc = documents[i];
        const std::size_t blocks = at(doc.sketch->num_blocks());
        doc.score[layer].resize(blocks);
        doc.comparable[layer].resize(blocks);
        const std::int64_t distance = input_.query_pass->last_position -
                                      input_.query_pass->context_position[at(doc.context)];
        if (distance < 0 || distance >= input_.rope->max_positions())
          return Status::invalid(
              "positions", "a document lies further from the question than the model's window");
        items.push_back({.context = doc.context,
                         .layer = static_cast<std::int32_t>(layer),
                         .sketch = doc.sketch,
                         .query = queries_[layer][std::min(i, queries_[layer].size() - 1)],
                         .distance = static_cast<std::int32_t>(distance),
                         .score = doc.score[layer],
                         .comparable = doc.comparable[layer]});
      }
    }
    QUIRE_ASSIGN_OR_RETURN(const bool scored,
                           input_.scorer->score({input_.num_heads, input_.num_kv_heads}, items));
    if (scored) return {};
    std::vector<float> means;
    for (std::size_t n = 0; n < items.size(); ++n) {
      QUIRE_RETURN_IF_ERROR(score_layer(input_, options, items[n].layer, items[n].query, frame,
                                        means, documents[n % count_]));
    }
    return {};
  }

 private:
  const SelectionInput& input_;
  const std::size_t count_;
  std::vector<std::vector<std::vector<float>>> queries_;  ///< [layer][document or one]
};

double keep_share_of(const SelectionInput& input, const SamkvScores::Document& doc) {
  if (doc.middle.size() < 2 || !doc.sketch->has(kSketchStats)) return 0;
  const std::vector<std::int32_t> anchors = anchor_blocks(doc.sketch->num_blocks());
  double sum = 0;
  for (std::int32_t layer = input.stable_layers.first; layer <= input.stable_layers.last; ++layer) {
    const auto e = extremes(doc, layer);
    if (!e) continue;
    const std::vector<float>& s = doc.score[at(layer)];
    float anchor = 0;
    for (const std::int32_t a : anchors) anchor += s[at(a)];
    anchor /= static_cast<float>(anchors.size());
    sum += candidate_share(s[at(e->most_important)], anchor, s[at(e->least_important)]);
  }
  return sum / (input.stable_layers.last - input.stable_layers.first + 1);
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

std::vector<SamkvScores::Document> samkv_documents(const SelectionInput& input) {
  std::vector<SamkvScores::Document> documents;
  for (std::size_t i = 0; i < input.contexts.size(); ++i) {
    if (input.contexts[i].num_blocks == 0) continue;
    const SketchView* sketch = input.sketch ? input.sketch(static_cast<std::int32_t>(i)) : nullptr;
    if (sketch == nullptr) continue;
    SamkvScores::Document doc;
    doc.context = static_cast<std::int32_t>(i);
    doc.sketch = sketch;
    for (std::int32_t b = 1; b < sketch->num_blocks() - 2; ++b) doc.middle.push_back(b);
    documents.push_back(std::move(doc));
  }
  return documents;
}

Result<SamkvScores> samkv_scores(const SelectionInput& input, const SamkvScoreOptions& options) {
  SamkvScores out;
  out.documents = samkv_documents(input);
  const std::size_t count = out.documents.size(),
                    dim = at(std::int64_t{input.num_heads} * input.head_dim);
  std::vector<std::vector<float>> locals(count, std::vector<float>(dim));
  std::vector<float> weights(count), means;
  QueryFrame frame(input);
  const bool scorer = input.scorer != nullptr &&
                      options.frame == SamkvScoreOptions::Frame::kRotated && count > 0;
  Together together(input, count);
  for (auto& doc : out.documents) {
    doc.score.resize(at(input.num_layers));
    doc.comparable.resize(at(input.num_layers));
  }
  for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
    const auto query = std::span(input.query_pass->mean_query).subspan(at(layer) * dim, dim);
    const bool biased = options.bias && count > 1;
    for (std::size_t i = 0; i < count && biased; ++i) {
      out.documents[i].sketch->local_query(layer, locals[i]);
      weights[i] = bias_weight(query, locals[i], input.head_dim, options.bias_cos);
      out.documents[i].bias_weight += weights[i] / static_cast<float>(input.num_layers);
    }
    auto queries = biased ? personalised_queries(query, locals, weights)
                          : std::vector<std::vector<float>>(scorer ? 1 : count,
                                                            {query.begin(), query.end()});
    if (scorer) {
      together.add(std::move(queries));
      continue;
    }
    for (std::size_t i = 0; i < count; ++i)
      QUIRE_RETURN_IF_ERROR(
          score_layer(input, options, layer, queries[i], frame, means, out.documents[i]));
  }
  if (scorer) QUIRE_RETURN_IF_ERROR(together.score(options, out.documents, frame));
  for (auto& doc : out.documents) doc.keep_share = keep_share_of(input, doc);
  return out;
}

}  // namespace quire
