#include "engine/calibrate/head_calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <numeric>
#include <span>

#include "base/index.h"
#include "engine/cache/working_cache.h"
#include "engine/prefill/context_kv.h"
#include "engine/select/head_scores.h"
#include "kernels/choice/topk.h"
#include "kernels/rows/rope.h"

namespace quire {
namespace {

constexpr std::array kAsks = {SelectionHeads::Asks::kWords, SelectionHeads::Asks::kLastToken};

/// Keeps every layer's queries and log-sum-exps of the question's rows.
class AllQueries final : public ForwardHook {
 public:
  AllQueries(std::int32_t num_layers, std::int64_t rows, std::int64_t num_heads, std::int64_t dim)
      : rows_(rows),
        num_heads_(num_heads),
        dim_(dim),
        queries_(to_size(num_layers)),
        outside_(to_size(num_layers)) {}

  Status after_projection(LayerPass& pass) override {
    std::vector<float>& out = queries_[at(pass.layer)];
    out.resize(at(rows_ * num_heads_ * dim_));
    for (std::int64_t r = 0; r < rows_; ++r)
      std::copy_n(pass.qkv.q + r * pass.qkv.ld, num_heads_ * dim_,
                  out.begin() + r * num_heads_ * dim_);
    return {};
  }
  Status after_attention(LayerPass& pass) override {
    outside_[at(pass.layer)].assign(pass.lse, pass.lse + rows_ * num_heads_);
    // The last layer's output is not used.
    if (pass.layer + 1 == std::ssize(queries_))
      std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }

  /// Returns the queries [count, head_dim] of one head's rows from `first` on.
  std::vector<float> queries(std::int32_t layer, std::int64_t head, std::int64_t first,
                             std::int64_t count) const {
    std::vector<float> out;
    for (std::int64_t r = first; r < first + count; ++r) {
      const auto row = queries_[at(layer)].begin() + (r * num_heads_ + head) * dim_;
      out.insert(out.end(), row, row + dim_);
    }
    return out;
  }
  std::vector<float> outside(std::int32_t layer, std::int64_t head, std::int64_t first,
                             std::int64_t count) const {
    std::vector<float> out;
    for (std::int64_t r = first; r < first + count; ++r)
      out.push_back(outside_[at(layer)][at(r * num_heads_ + head)]);
    return out;
  }

 private:
  const std::int64_t rows_, num_heads_, dim_;
  std::vector<std::vector<float>> queries_, outside_;  ///< [layer]
};

Status run(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
           std::span<const std::int32_t> ids, std::int32_t position, ForwardHook* hook) {
  if (ids.empty()) return {};
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), position);
  ForwardRequest request{};
  request.token_ids = ids;
  request.positions = positions;
  request.cache = &cache;
  request.hook = hook;
  return forward(model, request, workspace);
}

/// Returns one KV head's keys of a context, rotated to positions from 0 on.
Result<std::vector<float>> rotated_keys(const ContextKv& kv, const RopeTable& rope,
                                        std::int32_t layer, std::int32_t kv_head) {
  const KvLayout& layout = kv.layout;
  const std::int64_t dim = layout.shape().head_dim;
  std::vector<float> keys(at(layout.num_tokens() * dim));
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    const RawKvView raw = layout.view(kv.value(b, layout.group_of(layer)), b, layer);
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(raw.dtype));
    for (std::int64_t r = 0; r < raw.num_rows; ++r) {
      const std::byte* row = static_cast<const std::byte*>(raw.data) + kv_head * raw.head_stride +
                             r * raw.row_stride;
      for (std::int64_t c = 0; c < dim; ++c)
        keys[at((layout.first_token(b) + r) * dim + c)] = load_f32(row + c * bytes, raw.dtype, 0);
    }
  }
  std::vector<std::int32_t> positions(at(layout.num_tokens()));
  std::iota(positions.begin(), positions.end(), 0);
  QUIRE_RETURN_IF_ERROR(rope_rotate(rope, {.x = keys.data(),
                                           .out = keys.data(),
                                           .positions = positions.data(),
                                           .rows = layout.num_tokens(),
                                           .num_heads = 1,
                                           .ldx = dim,
                                           .ldo = dim}));
  return keys;
}

}  // namespace

HeadCalibration::HeadCalibration(PassResources& core) : core_(core) {}

Result<bool> HeadCalibration::add(const HeadExample& example) {
  const EngineFacts& facts = core_.facts;
  const std::int32_t layers = facts.shape.num_layers, heads = facts.num_heads,
                     group = heads / facts.shape.num_kv_heads, dim = facts.shape.head_dim;
  std::vector<SelectableContext> contexts;
  std::int64_t position = count_of(example.prefix_ids), support = 0;
  for (const auto& p : example.passages) {
    const KvLayout layout = kv_layout(facts, count_of(p.token_ids));
    contexts.push_back({layout.num_tokens(), position, layout.block_tokens(), layout.num_blocks()});
    position += layout.num_tokens();
    for (const auto& [begin, end] : p.support) support += end - begin;
  }
  const std::int64_t tokens = position - count_of(example.prefix_ids),
                     rows = count_of(example.suffix_ids);
  const auto budget = static_cast<std::int64_t>(kRecallShare * static_cast<double>(tokens));
  if (support == 0 || budget == 0 || rows == 0 || position + rows > facts.window) return false;

  std::vector<std::shared_ptr<const ContextKv>> kv;
  for (const auto& p : example.passages) {
    ContextPrefill prefill(core_, {p.token_ids, {}}, PrefillRecords::kNone);
    while (!prefill.done()) QUIRE_RETURN_IF_ERROR(prefill.step());
    kv.push_back(prefill.take());
  }
  AllQueries asked(layers, rows, heads, dim);
  WorkingCache cache(*core_.pool, layers);
  QUIRE_RETURN_IF_ERROR(run(*core_.model, cache, core_.workspace, example.prefix_ids, 0, nullptr));
  QUIRE_RETURN_IF_ERROR(run(*core_.model, cache, core_.workspace, example.suffix_ids,
                            static_cast<std::int32_t>(position), &asked));

  Scored& scored = examples_.emplace_back();
  scored.budget = budget;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    for (std::int32_t b = 0; b < contexts[i].num_blocks; ++b) {
      const std::int64_t from = std::int64_t{b} * contexts[i].block_tokens,
                         to = std::min(from + contexts[i].block_tokens, contexts[i].num_tokens);
      std::int64_t found = 0;
      for (const auto& [begin, stop] : example.passages[i].support)
        found += std::max<std::int64_t>(0, std::min(to, stop) - std::max(from, begin));
      scored.tokens.push_back(static_cast<std::int32_t>(to - from));
      scored.support.push_back(static_cast<std::int32_t>(found));
    }
  }
  const std::size_t blocks = scored.tokens.size();
  scored.mass.resize(kAsks.size() * num_heads() * blocks);
  std::vector<std::vector<float>> keys(kv.size());
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    for (std::int32_t head = 0; head < heads; ++head) {
      for (std::size_t i = 0; i < kv.size() && head % group == 0; ++i) {
        QUIRE_ASSIGN_OR_RETURN(keys[i],
                               rotated_keys(*kv[i], core_.model->rope(), layer, head / group));
      }
      for (std::size_t a = 0; a < kAsks.size(); ++a) {
        const bool all = kAsks[a] == SelectionHeads::Asks::kWords &&
                         example.words_begin < example.words_end;
        const std::int64_t first = all ? static_cast<std::int64_t>(example.words_begin) : rows - 1,
                           end = all ? static_cast<std::int64_t>(example.words_end) : rows;
        std::vector<HeadContext> views;
        BlockScores scores;
        for (std::size_t i = 0; i < kv.size(); ++i) {
          views.push_back({contexts[i].num_tokens, contexts[i].block_tokens,
                           position + first - contexts[i].offset, keys[i]});
          scores.emplace_back(at(contexts[i].num_blocks), 0.0f);
        }
        const auto queries = asked.queries(layer, head, first, end - first),
                   outside = asked.outside(layer, head, first, end - first);
        QUIRE_RETURN_IF_ERROR(
            add_head_scores(core_.model->rope(), dim, {queries, outside}, views, 1.0f, scores));
        float* out = scored.mass.data() +
                     (a * num_heads() + at(layer) * at(heads) + at(head)) * blocks;
        for (const std::vector<float>& of_context : scores)
          out = std::copy(of_context.begin(), of_context.end(), out);
      }
    }
  }
  return true;
}

std::size_t HeadCalibration::num_heads() const {
  return at(core_.facts.shape.num_layers) * at(core_.facts.num_heads);
}

double HeadCalibration::recall(const Scored& example, std::size_t asks,
                               std::span<const std::size_t> heads) const {
  const std::size_t blocks = example.tokens.size();
  std::vector<float> score(blocks);
  for (const std::size_t h : heads) {
    const float* const mass = example.mass.data() + (asks * num_heads() + h) * blocks;
    for (std::size_t b = 0; b < blocks; ++b) score[b] += mass[b];
  }
  std::int64_t used = 0, found = 0, all = 0;
  for (const std::int32_t n : example.support) all += n;
  for (const std::int32_t b : top_k(score, count_of(score))) {
    if (2 * (example.budget - used) < example.tokens[at(b)]) break;
    used += example.tokens[at(b)];
    found += example.support[at(b)];
  }
  return static_cast<double>(found) / static_cast<double>(all);
}

double HeadCalibration::mean_recall(std::size_t asks, std::span<const std::size_t> heads,
                                    std::size_t begin, std::size_t step) const {
  double sum = 0, n = 0;
  for (std::size_t e = begin; e < examples_.size(); e += step, ++n)
    sum += recall(examples_[e], asks, heads);
  return n > 0 ? sum / n : 0;
}

SelectionHeads HeadCalibration::choose(std::size_t begin, std::size_t step) const {
  // A head that finds nothing alone adds nothing to others but noise.
  constexpr std::size_t kCandidates = 24;
  SelectionHeads best;
  double best_recall = -1;
  for (std::size_t a = 0; a < kAsks.size(); ++a) {
    std::vector<float> alone(num_heads());
    for (std::size_t h = 0; h < alone.size(); ++h)
      alone[h] = static_cast<float>(mean_recall(a, std::span(&h, 1), begin, step));
    const std::vector<std::int32_t> candidates = top_k(alone, kCandidates);
    std::vector<std::size_t> chosen;
    double found = 0;
    while (chosen.size() < std::min(kHeads, alone.size())) {
      std::size_t next = alone.size();
      double most = -1;
      for (const std::int32_t c : candidates) {
        if (std::ranges::count(chosen, at(c)) > 0) continue;
        chosen.push_back(at(c));
        const double together = mean_recall(a, chosen, begin, step);
        chosen.pop_back();
        if (together > most) {
          most = together;
          next = at(c);
        }
      }
      if (next == alone.size()) break;
      chosen.push_back(next);
      found = most;
    }
    if (found <= best_recall) continue;
    best_recall = found;
    best.asks = kAsks[a];
    best.heads.clear();
    for (const std::size_t h : chosen)
      best.heads.push_back({static_cast<std::int32_t>(h / at(core_.facts.num_heads)),
                            static_cast<std::int32_t>(h % at(core_.facts.num_heads))});
  }
  return best;
}

Result<HeadFinding> HeadCalibration::result() const {
  if (examples() < kFewestExamples)
    return Status::precondition("only " + std::to_string(examples()) +
                                " questions could be used; at least " +
                                std::to_string(kFewestExamples) + " are needed");
  HeadFinding out;
  out.examples = examples();
  const SelectionHeads chosen = choose(0, 2);
  const std::size_t asks = chosen.asks == kAsks[0] ? 0 : 1;
  std::vector<std::size_t> group;
  for (const SelectionHeads::Head& h : chosen.heads)
    group.push_back(at(h.layer) * at(core_.facts.num_heads) + at(h.head));
  out.chosen_recall = mean_recall(asks, group, 1, 2);
  for (std::size_t h = 0; h < num_heads(); ++h)
    out.average_recall += mean_recall(asks, std::span(&h, 1), 1, 2) /
                          static_cast<double>(num_heads());
  out.heads = choose(0, 1);
  if (out.chosen_recall >= kLeastGain * out.average_recall && out.chosen_recall > 0) return out;
  const auto percent = [](double share) {
    return std::to_string(static_cast<int>(100 * share + 0.5)) + " %";
  };
  return Status::precondition(
      "no head stands out: on questions that did not choose them, the best " +
      std::to_string(kHeads) + " find " + percent(out.chosen_recall) +
      " of what supports the answer, the average head " + percent(out.average_recall));
}

std::string selection_heads_record(const Digest& fingerprint) {
  return "selection-heads/" + fingerprint.hex();
}

std::string encode_selection_heads(const SelectionHeads& heads) {
  std::string text = heads.asks == SelectionHeads::Asks::kWords ? "1 words" : "1 last";
  for (const SelectionHeads::Head& h : heads.heads)
    text += " " + std::to_string(h.layer) + "." + std::to_string(h.head);
  return text;
}

Result<SelectionHeads> decode_selection_heads(std::string_view text, std::int32_t num_layers,
                                              std::int32_t num_heads) {
  SelectionHeads heads;
  if (text.starts_with("1 words")) {
    text.remove_prefix(7);
  } else if (text.starts_with("1 last")) {
    heads.asks = SelectionHeads::Asks::kLastToken;
    text.remove_prefix(6);
  } else {
    return Status::corruption("selection heads: unknown version");
  }
  while (!text.empty()) {
    SelectionHeads::Head head;
    const char* const end = text.data() + text.size();
    if (text.front() != ' ') return Status::corruption("selection heads: text behind the fields");
    const auto [dot, error] = std::from_chars(text.data() + 1, end, head.layer);
    if (error != std::errc() || dot == end || *dot != '.')
      return Status::corruption("selection heads: a field is not LAYER.HEAD");
    const auto [next, second] = std::from_chars(dot + 1, end, head.head);
    if (second != std::errc())
      return Status::corruption("selection heads: a field is not LAYER.HEAD");
    if (head.layer < 0 || head.layer >= num_layers || head.head < 0 || head.head >= num_heads ||
        std::ranges::count(heads.heads, head) > 0)
      return Status::corruption("selection heads: outside the model");
    heads.heads.push_back(head);
    text.remove_prefix(to_size(next - text.data()));
  }
  if (heads.empty()) return Status::corruption("selection heads: there is none");
  return heads;
}

Status save_selection_heads(Store& store, const Digest& fingerprint, const SelectionHeads& heads) {
  return store.put_meta(selection_heads_record(fingerprint), encode_selection_heads(heads));
}

Status drop_selection_heads(Store& store, const Digest& fingerprint) {
  const Status status = store.delete_meta(selection_heads_record(fingerprint));
  return status.code() == Code::kNotFound ? Status() : status;
}

Result<SelectionHeads> load_selection_heads(Store& store, const Digest& fingerprint,
                                            std::int32_t num_layers, std::int32_t num_heads) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text,
                         store.get_meta(selection_heads_record(fingerprint)));
  return decode_selection_heads(text, num_layers, num_heads);
}

}  // namespace quire
