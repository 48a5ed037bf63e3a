// magicpig samples rows like MagicPIG (arXiv 2410.16179). Keys whose hash codes collide with the
// query's are a sample with known probabilities. Weighting each by its inverse probability makes
// attention to the sample an estimate of attention to everything. Sampling is per query head.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/rows/row_retriever.h"
#include "engine/retrieve/rows/sim_hash.h"
#include "kernels/choice/row_products.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

struct MagicPigOptions : RowPolicy {
  MagicPigOptions() {
    sink = 4;
    window = 64;
    dense_layers = 1;
    chosen = 0;  // the keys determine how many are sampled
  }
  std::int32_t hash_bits = 9, hash_tables = 120;

  /// There is no budget to adapt to.
  Status finish(std::string_view) { return {}; }
};

OptionTable<MagicPigOptions> option_table() {
  return {
      sink_option(),
      window_option("last tokens of the prompt, always attended to"),
      number_option("decode_generated", &RowPolicy::generated, {0, 1 << 20},
                    "tokens of the answer beside them; older ones are always attended to, too, but "
                    "count as copied from the host"),
      dense_layers_option(),
      number_option("decode_hash_bits", &MagicPigOptions::hash_bits, {1, 12},
                    "bits of a hash code"),
      number_option("decode_hash_tables", &MagicPigOptions::hash_tables, {2, 256},
                    "hash codes of a key: two that are the query's put it into the sample"),
  };
}

class MagicPigRetriever final : public RowRetriever {
 public:
  explicit MagicPigRetriever(const MagicPigOptions& options)
      : RowRetriever({}, options), options_(options) {}

 protected:
  void begin_sequence(const AssembledPrompt&) override {
    hash_.emplace(sequence().head_dim, options_.hash_bits, options_.hash_tables);
    keys_.clear();
  }

  Result<bool> begin_index(const AssembledPrompt&) override {
    keys_.resize(at(sequence().num_layers));
    return true;
  }

  Status index(std::int32_t layer) override {
    const SequenceContext& all = sequence();
    HostRows room;
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, all.cache->host_view(layer, room));
    std::vector<std::optional<Result<HashedKeys>>> built(at(all.num_kv_heads));
    parallel_tasks(all.num_kv_heads, [&](std::int64_t m) {
      built[at(m)].emplace(
          HashedKeys::build(*hash_, kv, static_cast<std::int32_t>(m), prompt_host(layer)));
    });
    for (auto& head : built) {
      QUIRE_RETURN_IF_ERROR(head->status());
      keys_[at(layer)].push_back(std::move(**head));
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
      counts.scored += count_of(rows);
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
    const auto n = count_of(rows);
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

  const MagicPigOptions options_;
  std::optional<SimHash> hash_;
  /// The hashed keys, [layer][num_kv_heads]; empty: all prompt rows are on the device.
  std::vector<std::vector<HashedKeys>> keys_;
};

}  // namespace

void register_magicpig(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("magicpig", option_table(), [](const MagicPigOptions& options) {
    return std::make_unique<MagicPigRetriever>(options);
  });
}

}  // namespace quire
