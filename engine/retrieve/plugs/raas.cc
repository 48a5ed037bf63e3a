// raas evicts pages like RaaS (arXiv 2502.11147), with the pages of Quest. It keeps a bounded set
// of pages, each stamped with the last step in which it mattered. The page that has not mattered
// for the longest time makes room for a new one and is evicted for good.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/index.h"
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

struct RaasOptions : PagedPolicy {
  RaasOptions() {
    page_tokens = 16;
    sink = window = 0;
    device = false;
  }
  double alpha = 0.0001;
};

OptionTable<RaasOptions> option_table() {
  return {
      page_option({1, 256}, "tokens of a page"),
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option("last tokens that are always attended to, beside the page being filled"),
      dense_layers_option(),
      number_option("decode_alpha", &RaasOptions::alpha, {0, 1},
                    "share of the attention to pages, by their bounds, above which a page has "
                    "mattered"),
  };
}

class RaasRetriever final : public PagedRetriever {
 public:
  explicit RaasRetriever(const RaasOptions& options)
      : PagedRetriever(options), alpha_(options.alpha) {}

  Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) override {
    heads_.assign(at(std::int64_t{sequence.num_layers} * sequence.num_kv_heads), {});
    return PagedRetriever::prepare(sequence, prompt);
  }

 protected:
  bool chooses_by_votes() const override { return false; }
  Result<std::vector<std::int32_t>> choose(const Candidates& candidates) override {
    Head& head =
        heads_[at(std::int64_t{candidates.layer} * sequence().num_kv_heads + candidates.kv_head)];
    ++head.step;
    for (auto page = static_cast<std::int32_t>(head.stamps.size()); page < candidates.count;
         ++page) {
      head.stamps.push_back(head.step);
      head.alive.push_back(page);
    }
    const std::vector<double> shares = attention_shares(candidates, head.alive);
    for (std::size_t i = 0; i < head.alive.size(); ++i) {
      if (shares[i] > alpha_) head.stamps[at(head.alive[i])] = head.step;
    }
    if (const auto most = at(policy().selected_pages()); head.alive.size() > most) {
      // Among pages that last mattered in the same step, the least wanted is evicted first.
      std::vector<std::size_t> order(head.alive.size());
      std::iota(order.begin(), order.end(), 0u);
      const auto later = [&](std::size_t a, std::size_t b) {
        return std::tuple(head.stamps[at(head.alive[a])], shares[a], head.alive[a]) >
               std::tuple(head.stamps[at(head.alive[b])], shares[b], head.alive[b]);
      };
      std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most),
                       order.end(), later);
      order.resize(most);
      std::sort(order.begin(), order.end());
      std::vector<std::int32_t> kept;
      for (const std::size_t i : order) kept.push_back(head.alive[i]);
      head.alive = std::move(kept);
    }
    return head.alive;
  }

 private:
  struct Head {
    /// The candidates that were never evicted, as ascending offsets from the first.
    std::vector<std::int32_t> alive;
    std::vector<std::int64_t> stamps;  ///< of all candidates: the last step in which it mattered
    std::int64_t step = 0;
  };

  /// Returns the mean, over the query heads, of each one's softmax over the pages in `alive`.
  static std::vector<double> attention_shares(const Candidates& candidates,
                                              const std::vector<std::int32_t>& alive) {
    std::vector<double> shares(alive.size(), 0.0), weights(alive.size());
    for (std::int32_t h = 0; h < candidates.group; ++h) {
      const auto scores = candidates.scores.subspan(at(std::int64_t{h} * candidates.count),
                                                    at(candidates.count));
      float largest = scores[at(alive.front())];
      for (const std::int32_t page : alive) largest = std::max(largest, scores[at(page)]);
      double sum = 0;
      for (std::size_t i = 0; i < alive.size(); ++i)
        sum += weights[i] = std::exp(double{scores[at(alive[i])]} - largest);
      for (std::size_t i = 0; i < alive.size(); ++i)
        shares[i] += weights[i] / sum / candidates.group;
    }
    return shares;
  }

  const double alpha_;
  std::vector<Head> heads_;  ///< [num_layers, num_kv_heads]
};

}  // namespace

void register_raas(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("raas", option_table(), [](const RaasOptions& options) {
    return std::make_unique<RaasRetriever>(options);
  });
}

}  // namespace quire
