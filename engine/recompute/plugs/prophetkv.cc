#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "base/index.h"
#include "engine/compress/window_scores.h"
#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_pass.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

struct ProphetOptions {
  std::optional<double> share;
  std::int32_t layers = 0;
};
constexpr double kDefaultShare = 0.2;

OptionTable<ProphetOptions> option_table() {
  return {
      number_option("r", &ProphetOptions::share, {0, 1}, number_text(kDefaultShare),
                    "share of the document tokens computed again; published: 0.2"),
      number_option(
          "layers", &ProphetOptions::layers, {0, 1024},
          "first layers in which the question's attention ranks tokens; 0: all, as published"),
  };
}

/// Sums the attention of the question's rows in the first layers, and ends their pass there.
class QuestionScores final : public WindowScores {
 public:
  QuestionScores(const CompressSetup& setup, std::int32_t num_scored)
      : WindowScores(setup, setup.question_begin, ScoreReduction::kSum), num_scored_(num_scored) {}

  Status after_attention(LayerPass& pass) override {
    QUIRE_RETURN_IF_ERROR(WindowScores::after_attention(pass));
    if (pass.layer + 1 >= num_scored_)
      std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }

 private:
  const std::int32_t num_scored_;
};

/// Runs the question over the stored rows, then computes again the candidates that it attended to
/// most. The question's rows leave the cache in between; assembly runs them anew.
class ProphetPass final : public RecomputePass {
 public:
  ProphetPass(const RecomputeInput& input, RowSet candidates, std::int64_t num_chosen,
              std::int32_t num_scored)
      : input_(input.without_request()),
        question_(input.question.begin(), input.question.end()),
        candidates_(std::move(candidates)),
        num_chosen_(num_chosen),
        num_scored_(num_scored),
        scores_(setup_of(input), num_scored) {}

  bool done() const override { return done_; }

  Status step(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
              std::int64_t max_rows) override {
    if (!chosen_) {
      const Status status = ask(model, cache, workspace, max_rows);
      done_ = !status.ok();
      return status;
    }
    const Status status = chosen_->step(model, cache, workspace, max_rows);
    done_ = !status.ok() || chosen_->done();
    const std::int64_t asked = count_of(question_) * num_scored_;
    report_ = chosen_->report();
    report_.projected += asked;
    return status;
  }

 private:
  static CompressSetup setup_of(const RecomputeInput& input) {
    CompressSetup setup;
    setup.rope = input.rope;
    setup.num_layers = input.num_layers;
    setup.num_heads = input.num_heads;
    setup.num_kv_heads = input.num_kv_heads;
    setup.head_dim = input.head_dim;
    setup.question_begin = input.question_position;
    setup.question_end = input.question_position + static_cast<std::int32_t>(input.question.size());
    return setup;
  }

  /// Runs the next rows of the question, and chooses after the last.
  Status ask(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
             std::int64_t max_rows) {
    if (num_rows_.empty()) {
      for (std::int32_t layer = 0; layer < input_.num_layers; ++layer)
        num_rows_.push_back(cache.num_rows(layer));
    }
    const std::size_t n = std::min(at(max_rows), question_.size() - asked_);
    std::vector<std::int32_t> positions(n);
    std::iota(positions.begin(), positions.end(),
              input_.question_position + static_cast<std::int32_t>(asked_));
    ForwardRequest request{};
    request.token_ids = std::span(question_).subspan(asked_, n);
    request.positions = positions;
    request.cache = &cache;
    request.hook = &scores_;
    const Status status = forward(model, request, workspace);
    asked_ += n;
    report_.projected += static_cast<std::int64_t>(n) * num_scored_;
    if (status.ok() && asked_ < question_.size()) return {};
    for (std::int32_t layer = 0; layer < input_.num_layers; ++layer)
      cache.truncate(layer, num_rows_[at(layer)]);
    return status.ok() ? choose(cache) : status;
  }

  /// Ranks the candidates by their attention, summed over the scored layers that keep them.
  Status choose(const WorkingCache& cache) {
    QUIRE_ASSIGN_OR_RETURN(RowFinder finder, RowFinder::make(cache));
    std::vector<float> attention(candidates_.size());
    for (std::int32_t layer = 0; layer < num_scored_; ++layer) {
      std::vector<float> rows(at(cache.num_rows(layer)));
      for (std::int32_t head = 0; head < input_.num_kv_heads; ++head) {
        const auto of_head = scores_.scores(layer, head, cache.num_rows(layer));
        std::transform(rows.begin(), rows.end(), of_head.begin(), rows.begin(), std::plus<>());
      }
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        const std::int64_t row = finder.find(cache, layer, candidates_[i].position);
        if (row >= 0) attention[i] += rows[at(row)];
      }
    }
    RecomputeInput input = input_;
    input.cache = &cache;
    QUIRE_ASSIGN_OR_RETURN(
        chosen_, make_row_pass(input, candidates_.subset(top_k_sorted(attention, num_chosen_)),
                               WriteBack::kOverwrite));
    chosen_->observe(observer_);
    return {};
  }

  RecomputeInput input_;
  const std::vector<std::int32_t> question_;
  const RowSet candidates_;
  const std::int64_t num_chosen_;
  const std::int32_t num_scored_;
  QuestionScores scores_;
  std::vector<std::int64_t> num_rows_;  ///< [layer] before the question's rows
  std::size_t asked_ = 0;               ///< rows of the question that have run
  bool done_ = false;
  std::unique_ptr<RecomputePass> chosen_;
};

/// Implements ProphetKV (Wang et al., arXiv 2602.02579): tokens that the question attends to most
/// are computed again in all layers, so that the budget goes to what the answer needs. Their share
/// of all document tokens is option `r`, else the requested recompute ratio, else 0.2. The
/// attention of all layers is fused, as published; `layers` limits it to the first ones, which cost
/// less and rank worse. Documents with exact KV are skipped, and so are blocks that some layer
/// lacks. Without a question nothing is computed again.
class ProphetRecomputer final : public Recomputer {
 public:
  explicit ProphetRecomputer(const ProphetOptions& options) : options_(options) {}

  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput& input) const override {
    const double share = options_.share ? *options_.share
                                        : input.recompute_ratio.value_or(kDefaultShare);
    std::vector<std::vector<std::int32_t>> tokens(input.contexts.size());
    double all = 0;
    for (std::size_t i = 0; i < input.contexts.size(); ++i) {
      const RecomputableContext& c = input.contexts[i];
      const auto n = static_cast<std::int32_t>(c.token_ids.size());
      all += static_cast<double>(n);
      for (std::int32_t t = 0; !c.exact && t < n; ++t) {
        // A token that some layer lacks would have to be loaded there for its pass alone.
        if (input.selection->kept_layers(static_cast<std::int32_t>(i), t / c.block_tokens) ==
            input.num_layers)
          tokens[i].push_back(t);
      }
    }
    RowSet candidates = rows_where_kept(input, tokens);
    const auto chosen = static_cast<std::int64_t>(std::ceil(share * all));
    if (chosen <= 0 || candidates.empty() || input.question.empty())
      return std::unique_ptr<RecomputePass>();
    if (chosen >= count_of(candidates))
      return make_row_pass(input, std::move(candidates), WriteBack::kOverwrite);
    const std::int32_t scored = options_.layers > 0 ? std::min(options_.layers, input.num_layers)
                                                    : input.num_layers;
    return std::unique_ptr<RecomputePass>(
        std::make_unique<ProphetPass>(input, std::move(candidates), chosen, scored));
  }

 private:
  const ProphetOptions options_;
};

}  // namespace

void register_prophetkv(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("prophetkv", option_table(), [](const ProphetOptions& options) {
    return std::make_unique<ProphetRecomputer>(options);
  });
}

}  // namespace quire
