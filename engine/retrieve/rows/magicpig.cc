// magicpig samples rows like MagicPIG (arXiv 2410.16179). Keys whose hash codes collide with the
// query's are a sample with known probabilities. Weighting each by its inverse probability makes
// attention to the sample an estimate of attention to everything. Sampling is per query head.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/stopwatch.h"
#include "engine/retrieve/rows/row_retriever.h"
#include "engine/retrieve/rows/sim_hash.h"
#include "kernels/parallel.h"
#include "kernels/row_products.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> options = {
      {"decode_sink", "4", {}, 0, 1 << 20, "first tokens that are always attended to"},
      {"decode_window", "64", {}, 0, 1 << 20, "last tokens of the prompt, always attended to"},
      {"decode_generated",
       "4096",
       {},
       0,
       1 << 20,
       "tokens of the answer beside them; older ones are always attended to, too, but count as "
       "brought from the host"},
      {"decode_dense_layers", "1", {}, 0, 1024, "first layers that attend to everything"},
      {"decode_hash_bits", "9", {}, 1, 12, "bits of a hash code"},
      {"decode_hash_tables",
       "120",
       {},
       2,
       256,
       "hash codes of a key: two that are the query's put it into the sample"},
  };
  return options;
}

class MagicPigRetriever final : public RowRetriever {
 public:
  std::string_view name() const override { return "magicpig"; }
  std::span<const PlugOption> options() const override { return table(); }

 protected:
  Result<RowPolicy> read(const PlugOptions& options) override {
    const auto number = [&](std::string_view name) {
      return static_cast<std::int32_t>(options.number(table(), name));
    };
    RowPolicy policy;
    policy.sink = number("decode_sink");
    policy.window = number("decode_window");
    policy.generated = number("decode_generated");
    policy.dense_layers = number("decode_dense_layers");
    policy.chosen = 0;  // the keys determine how many are sampled
    hash_.emplace(input().head_dim, number("decode_hash_bits"), number("decode_hash_tables"));
    keys_.clear();
    return policy;
  }

  Status index(const RetrieveInput& input) override {
    keys_.resize(at(input.num_layers));
    for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
      if (!sparse(layer)) continue;
      const KvView kv = input.cache->view(layer);
      std::vector<std::optional<Result<HashedKeys>>> built(at(input.num_kv_heads));
      parallel_tasks(input.num_kv_heads, [&](std::int64_t m) {
        built[at(m)].emplace(
            HashedKeys::build(*hash_, kv, static_cast<std::int32_t>(m), prompt_host(layer)));
      });
      for (auto& head : built) {
        QUIRE_RETURN_IF_ERROR(head->status());
        keys_[at(layer)].push_back(std::move(**head));
      }
    }
    return {};
  }

  Result<HostCounts> attend_host(const HostStep& step) override {
    HostCounts counts;
    std::vector<std::int32_t> rows;
    for (std::int32_t g = 0; g < step.group; ++g) {
      const float* query = step.query + std::int64_t{g} * step.kv.head_dim;
      const HashedKeys* keys = at(step.layer) < keys_.size() && !keys_[at(step.layer)].empty()
                                   ? &keys_[at(step.layer)][at(step.kv_head)]
                                   : nullptr;
      rows.clear();
      const Stopwatch watch;
      if (keys != nullptr) QUIRE_RETURN_IF_ERROR(keys->sample(query, rows));
      counts.choose_ms += watch.ms();
      const std::size_t sampled = rows.size();
      // Without an index the prompt had no host rows; all those of the answer are attended to.
      for (std::int64_t row = step.prompt_end; row < step.host.end; ++row)
        rows.push_back(static_cast<std::int32_t>(row));
      QUIRE_RETURN_IF_ERROR(attend_sample(step, g, keys, sampled, rows));
      counts.scored += static_cast<std::int64_t>(rows.size());
    }
    counts.attended = counts.scored;
    return counts;
  }

 private:
  /// Computes attention of query head g to `rows`, the first `sampled` of them weighted by the
  /// inverse of their probabilities.
  Status attend_sample(const HostStep& step, std::int32_t g, const HashedKeys* keys,
                       std::size_t sampled, const std::vector<std::int32_t>& rows) const {
    const std::int64_t dim = step.kv.head_dim;
    const auto n = static_cast<std::int64_t>(rows.size());
    const float* query = step.query + g * dim;
    const ChosenRows chosen{step.kv, step.kv_head, rows.data(), 0, n};
    std::vector<float> weights(rows.size());
    QUIRE_RETURN_IF_ERROR(row_scores({query, 1, dim, 1.0f, chosen, weights.data(), n}));
    double dot_mean = 0, square = 0;
    for (std::int64_t c = 0; c < dim && sampled > 0; ++c) {
      dot_mean += double{query[c]} * keys->mean()[at(c)];
      square += double{query[c]} * query[c];
    }
    for (std::size_t j = 0; j < rows.size(); ++j) {
      const double product = weights[j];
      const double chance = j < sampled ? hash_->collision_chance(keys->cosine(
                                              rows[j], product, dot_mean, std::sqrt(square)))
                                        : 1.0;
      // A sampled row has a positive probability, even if rounding leaves little of it.
      weights[j] = static_cast<float>(product * step.scale - std::log(std::max(chance, 1e-12)));
    }
    step.lse[g] = log_sum_exp(weights.data(), n);
    exp_minus(weights.data(), n, step.lse[g]);
    return row_values({weights.data(), 1, n, chosen, step.out + g * dim, dim});
  }

  std::optional<SimHash> hash_;
  /// The hashed keys, [layer][num_kv_heads]; empty: all prompt rows are on the device.
  std::vector<std::vector<HashedKeys>> keys_;
};

}  // namespace

std::unique_ptr<Retriever> make_magicpig_retriever() {
  return std::make_unique<MagicPigRetriever>();
}

}  // namespace quire
