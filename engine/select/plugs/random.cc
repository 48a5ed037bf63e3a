#include <cmath>
#include <cstdint>

#include "base/index.h"
#include "engine/select/head_scores.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

struct RandomOptions {
  std::int64_t seed = 1;
};

OptionTable<RandomOptions> option_table() {
  return {number_option("seed", &RandomOptions::seed, {0, 1e9}, "which blocks are drawn")};
}

/// Keeps a share of all blocks at random, the same in all layers: the floor that every other
/// selector must beat. The draw depends on the seed, the question and the documents' tokens.
/// Without a requested ratio all blocks stay.
class RandomSelector final : public Selector {
 public:
  explicit RandomSelector(const RandomOptions& options) : options_(options) {}

  Result<Selection> select(const SelectionInput& input) const override {
    std::uint64_t state = static_cast<std::uint64_t>(options_.seed);
    for (const std::int32_t id : input.question) state = mixed(state, id);
    std::int64_t tokens = 0;
    BlockScores scores;
    for (const SelectableContext& c : input.contexts) {
      for (const std::int32_t id : c.token_ids) state = mixed(state, id);
      tokens += c.num_blocks > 0 ? c.num_tokens : 0;
      scores.emplace_back(at(c.num_blocks));
      for (float& s : scores.back()) {
        state = mixed(state, 0);
        s = static_cast<float>(state >> 40);
      }
    }
    const double share = input.keep_ratio.value_or(1);
    return best_blocks(
        input, std::move(scores),
        static_cast<std::int64_t>(std::floor(share * static_cast<double>(tokens) + 1e-6)), 1);
  }

 private:
  /// splitmix64 (Steele, Lea, Flood 2014) over a changing state.
  static std::uint64_t mixed(std::uint64_t state, std::int64_t value) {
    std::uint64_t z = state + static_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  const RandomOptions options_;
};

}  // namespace

void register_random(PlugRegistry<Selector>& selectors) {
  selectors.add("random", option_table(), [](const RandomOptions& options) {
    return std::make_unique<RandomSelector>(options);
  });
}

}  // namespace quire
