#include "engine/answer/attribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/clock.h"
#include "base/index.h"
#include "engine/answer/block_rows.h"
#include "engine/compute/compute.h"

namespace quire {
namespace {

/// Rows of one step, which bounds its attention shares: rows * heads * blocks.
constexpr std::size_t kChunkRows = 64;
/// Number of first tokens of a context that do not count, as models use them as attention sinks.
constexpr std::int64_t kSinkTokens = 1;
/// Largest result, in f32 values.
constexpr std::int64_t kMostShares = std::int64_t{16} << 20;

}  // namespace

class AttributionPass::Hook final : public ForwardHook {
 public:
  Hook(AttributionPass& pass, std::int32_t num_layers) : pass_(pass), num_layers_(num_layers) {}

  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  bool wants_lse(std::int32_t) const override { return true; }

  Status after_projection(LayerPass& pass) override {
    std::fill(pass.write->begin(), pass.write->end(), std::uint8_t{0});
    return {};
  }

  Status after_attention(LayerPass& pass) override {
    const EngineFacts& facts = pass_.run_.core.facts;
    const LayerMap& map = pass_.map(pass.layer);
    const std::int64_t rows = pass.qkv.rows, ranges = count_of(map.ranges);
    const std::int64_t width = std::int64_t{facts.num_heads} * facts.shape.head_dim;
    const RopeTable& rope = pass_.run_.core.model->rope();
    QUIRE_RETURN_IF_ERROR(q_.reserve(pass.compute->memory(), rows * width));
    const RopeRotateArgs rotate{.x = pass.qkv.q,
                                .out = q_.data(),
                                .positions = pass.positions.data(),
                                .rows = rows,
                                .num_heads = facts.num_heads,
                                .ldx = pass.qkv.ld,
                                .ldo = width};
    QUIRE_RETURN_IF_ERROR(pass.compute->attention().rotate(rope, rotate));
    AttentionMassArgs args{};
    args.q = q_.data();
    args.query_positions = pass.positions.data();
    args.lse = pass.lse;
    args.rows = rows;
    args.ldq = width;
    args.ld_lse = facts.num_heads;
    args.num_heads = facts.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(facts.shape.head_dim));
    args.kv = pass.cache->view(pass.layer);
    args.ranges = map.ranges.data();
    args.num_ranges = ranges;
    QUIRE_RETURN_IF_ERROR(fetch_mass(*pass.compute, args, pass.layer));
    // The last layer's output is not used.
    if (pass.layer == num_layers_ - 1)
      std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }

 private:
  Status fetch_mass(Compute& compute, AttentionMassArgs args, std::int32_t layer) {
    const std::int64_t rows = args.rows, masses = rows * args.num_heads * args.num_ranges,
                       bytes = masses * static_cast<std::int64_t>(sizeof(float));
    if (masses == 0) return {};
    QUIRE_ASSIGN_OR_RETURN(std::byte* const to, compute.fetch().place(bytes));
    args.mass = reinterpret_cast<float*>(to);
    QUIRE_RETURN_IF_ERROR(compute.attention().mass(args));
    return compute.fetch().fetch(bytes, [this, layer, rows, masses](const std::byte* mass) {
      pass_.add(layer, std::span(reinterpret_cast<const float*>(mass), at(masses)), rows);
    });
  }

  AttributionPass& pass_;
  const std::int32_t num_layers_;
  ComputeBuffer<float> q_;
};

bool AttributionPass::possible(const QueryRun& run, std::span<const std::int32_t> answer) {
  if (answer.empty() || run.request.suffix_ids.empty()) return false;
  return std::any_of(run.execution.work.begin(), run.execution.work.end(),
                     [](const ContextWork& w) { return w.source != ContextSource::kNothing; });
}

AttributionPass::AttributionPass(QueryRun& run, std::vector<std::int32_t> answer,
                                 std::int32_t first_position)
    : run_(run), answer_(std::move(answer)), first_position_(first_position) {
  result_.num_tokens = count_of(answer_);
  for (const PlannedContext& c : run.plan.contexts) result_.num_blocks += count_of(c.blocks);
}

Result<AttributionPass::LayerMap> AttributionPass::map_layer(std::int32_t layer) const {
  const auto after = static_cast<std::int64_t>(run_.request.suffix_ids.size() + answer_.size()) - 1;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<BlockRows> blocks, block_rows(run_, layer, after));
  std::vector<std::int32_t> first_block = {0};
  for (const PlannedContext& c : run_.plan.contexts)
    first_block.push_back(first_block.back() + static_cast<std::int32_t>(c.blocks.size()));
  LayerMap map;
  for (const BlockRows& b : blocks) {
    const std::int64_t skipped = b.block == 0 ? std::min(kSinkTokens, b.rows.end - b.rows.begin)
                                              : 0;
    map.ranges.push_back({b.rows.begin + skipped, b.rows.end});
    map.blocks.push_back(first_block[at(b.context)] + b.block);
  }
  return map;
}

Status AttributionPass::map_layers() {
  const std::int32_t layers = run_.execution.selection.same_in_all_layers()
                                  ? 1
                                  : run_.core.facts.shape.num_layers;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    QUIRE_ASSIGN_OR_RETURN(LayerMap map, map_layer(layer));
    maps_.push_back(std::move(map));
  }
  return {};
}

/// Adds the shares of one layer; every layer and every head counts equally.
void AttributionPass::add(std::int32_t layer, std::span<const float> mass, std::int64_t rows) {
  const LayerMap& m = map(layer);
  const std::int64_t heads = run_.core.facts.num_heads, ranges = count_of(m.blocks);
  const float scale = 1.0f / static_cast<float>(heads * run_.core.facts.shape.num_layers);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* share = result_.share.data() +
                   (static_cast<std::int64_t>(next_) + r) * result_.num_blocks;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* row = mass.data() + (r * heads + h) * ranges;
      for (std::int64_t s = 0; s < ranges; ++s) share[m.blocks[at(s)]] += scale * row[s];
    }
  }
}

Status AttributionPass::step() {
  const auto started = Clock::now();
  if (next_ == 0) {
    if (result_.num_tokens * result_.num_blocks > kMostShares) {
      return Status::exhausted(std::to_string(result_.num_tokens) + " tokens over " +
                               std::to_string(result_.num_blocks) +
                               " blocks are too many to attribute");
    }
    result_.share.assign(at(result_.num_tokens * result_.num_blocks), 0.0f);
    QUIRE_RETURN_IF_ERROR(map_layers());
  }
  const std::size_t n = std::min({kChunkRows, at(run_.core.chunk_tokens), answer_.size() - next_});
  std::vector<std::int32_t> ids(n), positions(n);
  for (std::size_t i = 0; i < n; ++i)
    ids[i] = next_ + i == 0 ? run_.request.suffix_ids.back() : answer_[next_ + i - 1];
  std::iota(positions.begin(), positions.end(),
            first_position_ - 1 + static_cast<std::int32_t>(next_));
  const std::vector<std::int64_t> nowhere(n, -1);
  Hook hook(*this, run_.core.facts.shape.num_layers);
  ForwardRequest request{};
  request.token_ids = ids;
  request.positions = positions;
  request.cache_rows = nowhere;
  request.cache = &*run_.cache;
  request.hook = &hook;
  QUIRE_RETURN_IF_ERROR(forward(*run_.core.model, request, run_.core.workspace));
  next_ += n;
  const auto now = Clock::now();
  run_.stats.attribution_ms += ms_between(started, now);
  run_.add_span("attribution", started, now);
  return {};
}

}  // namespace quire
