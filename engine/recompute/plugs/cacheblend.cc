#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_chunk.h"
#include "engine/recompute/row_pass.h"
#include "engine/recompute/stored_row.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"
#include "kernels/rows/raw_rows.h"

namespace quire {
namespace {

enum class Deviation : std::uint8_t { kValue, kKey, kBoth };

struct BlendOptions {
  std::optional<double> share;
  Deviation deviation = Deviation::kValue;
  std::int32_t check_layer = 1;
  bool refresh_all = true;

  bool by_key() const { return deviation != Deviation::kValue; }
  bool by_value() const { return deviation != Deviation::kKey; }
};
constexpr double kDefaultShare = 0.15;

OptionTable<BlendOptions> option_table() {
  return {
      number_option("r", &BlendOptions::share, {0, 1}, number_text(kDefaultShare),
                    "share of the document tokens computed again; published: 0.15 to 0.18"),
      words_option("deviation", &BlendOptions::deviation,
                   {{"v", Deviation::kValue}, {"k", Deviation::kKey}, {"kv", Deviation::kBoth}},
                   "whose deviation from the stored value ranks tokens"),
      number_option("check_layer", &BlendOptions::check_layer, {1, 16},
                    "layer whose deviation ranks tokens; all tokens run up to it"),
      words_option(
          "check_rows", &BlendOptions::refresh_all, {{"all", true}, {"chosen", false}},
          "which tokens get new KV in the check layer itself: all, as in the published code, or "
          "the chosen ones"),
  };
}

/// Runs all candidates up to the check layer, then the chosen ones through every layer. The second
/// part rewrites the layers below the check layer with the same values, as a row's result does not
/// depend on the other rows of its pass.
class CacheBlendPass final : public RecomputePass, private ForwardHook {
 public:
  CacheBlendPass(const RecomputeInput& input, RowSet candidates, std::int64_t num_chosen,
                 BlendOptions options, RowFinder finder)
      : input_(input.without_request()),
        candidates_(std::move(candidates)),
        num_chosen_(num_chosen),
        options_(options),
        finder_(std::move(finder)),
        deviation_(candidates_.size()) {}

  bool done() const override { return done_; }

  Status step(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
              std::int64_t max_rows) override {
    const Status status = chosen_ ? chosen_->step(model, cache, workspace, max_rows)
                                  : scan(model, cache, workspace, max_rows);
    if (chosen_ && !status.ok()) report_.wrong_context = chosen_->report().wrong_context;
    done_ = !status.ok() || (chosen_ && chosen_->done());
    if (done_ && status.ok()) finish_report();
    return status;
  }

 private:
  Status scan(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
              std::int64_t max_rows) {
    chunk_.begin(candidates_, next_, max_rows, model, cache, *this, workspace);
    QUIRE_RETURN_IF_ERROR(chunk_.advance(nullptr));
    next_ += chunk_.num_rows();
    return next_ == candidates_.size() ? choose(cache) : Status();
  }

  bool needs_host(std::int32_t layer, HookPoint point, Compute&) const override {
    return point == HookPoint::kProjection && (layer == 0 || layer == options_.check_layer);
  }

  Status after_projection(LayerPass& pass) override {
    if (pass.layer == 0) {
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t wrong,
                             find_wrong_row(input_, candidates_, next_, pass.host_qkv));
      if (wrong >= 0) {
        report_.wrong_context = candidates_[next_ + at(wrong)].context;
        return wrong_context_status(report_.wrong_context);
      }
    }
    report_.projected += count_of(pass.rows);
    const bool check = pass.layer == options_.check_layer;
    for (std::size_t i = 0; i < pass.rows.size(); ++i) {
      (*pass.cache_rows)[i] = finder_.find(*pass.cache, pass.layer, pass.positions[i]);
      if ((*pass.cache_rows)[i] < 0) {
        return Status::internal("position " + std::to_string(pass.positions[i]) +
                                " has no row to recompute in layer " + std::to_string(pass.layer));
      }
      (*pass.write)[i] = !check || options_.refresh_all;
      (*pass.carry_on)[i] = !check;
    }
    return check ? measure(pass) : Status();
  }

  Status measure(const LayerPass& pass) {
    constexpr std::int64_t kRowsEach = 16;  // of one core
    const std::int64_t dim = std::int64_t{input_.num_kv_heads} * input_.head_dim;
    std::vector<RawKvView> blocks;
    for (const std::int32_t row : pass.rows) {
      QUIRE_ASSIGN_OR_RETURN(
          const RawKvView block,
          stored_block(*input_.stored, candidates_[next_ + at(row)], pass.layer));
      blocks.push_back(block);
    }
    parallel_for(count_of(blocks), kRowsEach, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> old(at(2 * dim));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t r = next_ + at(pass.rows[at(i)]);
        load_raw_row(blocks[at(i)], candidates_[r].block_row, input_.num_kv_heads, input_.head_dim,
                     old.data(), old.data() + dim);
        const std::int64_t from = i * pass.host_qkv.ld;
        double sum = 0;
        if (options_.by_key()) sum += squared_distance(pass.host_qkv.k + from, old.data(), dim);
        if (options_.by_value())
          sum += squared_distance(pass.host_qkv.v + from, old.data() + dim, dim);
        deviation_[r] = static_cast<float>(sum);
      }
    });
    return {};
  }

  Status choose(const WorkingCache& cache) {
    RecomputeInput input = input_;
    input.cache = &cache;
    QUIRE_ASSIGN_OR_RETURN(
        chosen_, make_row_pass(input, candidates_.subset(top_k_sorted(deviation_, num_chosen_)),
                               WriteBack::kOverwrite));
    chosen_->observe(observer_);
    return {};
  }

  void finish_report() {
    const RecomputeReport& chosen = chosen_->report();
    report_.tokens = chosen.tokens;
    report_.projected += chosen.projected;
    const auto all = count_of(candidates_);
    const std::int64_t refreshed = options_.check_layer + (options_.refresh_all ? 1 : 0);
    report_.replaced = all * refreshed + num_chosen_ * (input_.num_layers - refreshed);
  }

  RecomputeInput input_;
  const RowSet candidates_;
  const std::int64_t num_chosen_;
  const BlendOptions options_;
  RowFinder finder_;
  std::vector<float> deviation_;  ///< [candidate]
  std::size_t next_ = 0;
  bool done_ = false;
  std::unique_ptr<RecomputePass> chosen_;
  RowChunk chunk_;
};

/// Implements CacheBlend: tokens whose value deviates most from the stored one in an early layer
/// are computed again in all layers. Their share of all document tokens is option `r`, else the
/// requested recompute ratio, else 0.15. Documents with exact KV cannot deviate and are skipped.
/// Masks are exact, by position.
class CacheBlendRecomputer final : public Recomputer {
 public:
  explicit CacheBlendRecomputer(const BlendOptions& options) : options_(options) {}

  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput& input) const override {
    const double share = options_.share ? *options_.share
                                        : input.recompute_ratio.value_or(kDefaultShare);
    double all = 0;
    RowSet candidates(input.num_layers, input.contexts.size());
    const std::size_t words = layer_words(input.num_layers);
    for (std::size_t i = 0; i < input.contexts.size(); ++i) {
      const RecomputableContext& c = input.contexts[i];
      all += static_cast<double>(c.token_ids.size());
      if (c.exact || c.token_ids.empty()) continue;
      const auto context = static_cast<std::int32_t>(i);
      const std::vector<std::uint64_t> kept = kept_layers(input, context);
      for (std::int32_t block = 0; block < c.num_blocks; ++block) {
        if (input.selection->kept_layers(context, block) < input.num_layers) continue;
        const std::int32_t end = std::min((block + 1) * c.block_tokens,
                                          static_cast<std::int32_t>(c.token_ids.size()));
        for (std::int32_t token = block * c.block_tokens; token < end; ++token)
          candidates.add(input, context, token, kept.data() + at(block) * words);
      }
    }
    const auto chosen = static_cast<std::int64_t>(std::ceil(share * all));
    const auto most = count_of(candidates);
    // Layer 0 alone cannot deviate.
    if (chosen <= 0 || most == 0 || input.num_layers == 1) return std::unique_ptr<RecomputePass>();
    if (chosen >= most) return make_row_pass(input, std::move(candidates), WriteBack::kOverwrite);
    BlendOptions options = options_;
    options.check_layer = std::min(options.check_layer, input.num_layers - 1);
    QUIRE_ASSIGN_OR_RETURN(RowFinder finder, RowFinder::make(*input.cache));
    return std::unique_ptr<RecomputePass>(std::make_unique<CacheBlendPass>(
        input, std::move(candidates), chosen, options, std::move(finder)));
  }

 private:
  const BlendOptions options_;
};

}  // namespace

void register_cacheblend(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("cacheblend", option_table(), [](const BlendOptions& options) {
    return std::make_unique<CacheBlendRecomputer>(options);
  });
}

}  // namespace quire
