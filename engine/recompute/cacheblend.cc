#include <algorithm>
#include <cmath>

#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_chunk.h"
#include "engine/recompute/row_pass.h"
#include "engine/recompute/stored_row.h"
#include "kernels/topk.h"

namespace quire {
namespace {

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

std::span<const PlugOption> option_table() {
  static const std::vector<PlugOption> kOptions = {
      {.name = "r",
       .default_value = "0.15",
       .least = 0,
       .most = 1,
       .summary = "share of the document tokens computed again; published: 0.15 to 0.18"},
      {.name = "deviation",
       .default_value = "v",
       .values = {"v", "k", "kv"},
       .summary = "whose deviation from the stored value ranks tokens"},
      {.name = "check_layer",
       .default_value = "1",
       .least = 1,
       .most = 16,
       .summary = "layer whose deviation ranks tokens; all tokens run up to it"},
      {.name = "check_rows",
       .default_value = "all",
       .values = {"all", "chosen"},
       .summary = "which tokens get new KV in the check layer itself: all, as in the published "
                  "code, or the chosen ones"},
  };
  return kOptions;
}

struct BlendOptions {
  std::int32_t check_layer = 1;
  bool by_k = false, by_v = true, refresh_all = true;
};

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
                             find_wrong_row(input_, candidates_, next_, pass.qkv));
      if (wrong >= 0) {
        report_.wrong_context = candidates_[next_ + idx(wrong)].context;
        return wrong_context_status(report_.wrong_context);
      }
    }
    report_.projected += static_cast<std::int64_t>(pass.rows.size());
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
    const std::int64_t dim = std::int64_t{input_.num_kv_heads} * input_.head_dim;
    std::vector<float> old(idx(2 * dim));
    for (std::size_t i = 0; i < pass.rows.size(); ++i) {
      const std::size_t r = next_ + idx(pass.rows[i]);
      QUIRE_ASSIGN_OR_RETURN(const RawKvView block,
                             stored_block(*input_.stored, candidates_[r], pass.layer));
      load_stored_row(block, candidates_[r].block_row, input_.num_kv_heads, input_.head_dim,
                      old.data(), old.data() + dim);
      const std::int64_t at = static_cast<std::int64_t>(i) * pass.qkv.ld;
      double sum = 0;
      if (options_.by_k) sum += squared_distance(pass.qkv.k + at, old.data(), dim);
      if (options_.by_v) sum += squared_distance(pass.qkv.v + at, old.data() + dim, dim);
      deviation_[r] = static_cast<float>(sum);
    }
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
    const auto all = static_cast<std::int64_t>(candidates_.size());
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
  std::string_view name() const override { return "cacheblend"; }
  std::span<const PlugOption> options() const override { return option_table(); }
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput& input) const override {
    const auto number = [&](std::string_view name) {
      return input.options.number(option_table(), name);
    };
    const double share = input.options.given().contains("r") || !input.recompute_ratio
                             ? number("r")
                             : *input.recompute_ratio;
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
          candidates.add(input, context, token, kept.data() + idx(block) * words);
      }
    }
    const auto chosen = static_cast<std::int64_t>(std::ceil(share * all));
    const auto most = static_cast<std::int64_t>(candidates.size());
    // Layer 0 alone cannot deviate.
    if (chosen <= 0 || most == 0 || input.num_layers == 1) return std::unique_ptr<RecomputePass>();
    const auto check = static_cast<std::int32_t>(number("check_layer"));
    if (chosen >= most) return make_row_pass(input, std::move(candidates), WriteBack::kOverwrite);
    const std::string_view deviation = input.options.word(option_table(), "deviation");
    const BlendOptions options{
        .check_layer = std::min(check, input.num_layers - 1),
        .by_k = deviation != "v",
        .by_v = deviation != "k",
        .refresh_all = input.options.word(option_table(), "check_rows") == "all"};
    QUIRE_ASSIGN_OR_RETURN(RowFinder finder, RowFinder::make(*input.cache));
    return std::unique_ptr<RecomputePass>(std::make_unique<CacheBlendPass>(
        input, std::move(candidates), chosen, options, std::move(finder)));
  }
};

}  // namespace

std::unique_ptr<Recomputer> make_cacheblend_recomputer() {
  return std::make_unique<CacheBlendRecomputer>();
}

}  // namespace quire
