#include <numeric>

#include "base/index.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

/// Keeps every block; used by every strategy that does not sparsify.
class AllSelector final : public Selector {
 public:
  Result<Selection> select(const SelectionInput& input) const override {
    Selection::ContextBlocks kept;
    for (const SelectableContext& c : input.contexts) {
      kept.emplace_back(to_size(c.num_blocks));
      std::iota(kept.back().begin(), kept.back().end(), 0);
    }
    return Selection::shared(input.num_layers, std::move(kept));
  }
};

}  // namespace

void register_all(PlugRegistry<Selector>& selectors) {
  selectors.add("all", [] { return std::make_unique<AllSelector>(); });
}

}  // namespace quire
