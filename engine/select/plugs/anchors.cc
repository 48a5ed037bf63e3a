#include "engine/select/selector.h"

namespace quire {
namespace {

/// Keeps only the initial and local blocks of every context: SamKV without selection.
class AnchorsSelector final : public Selector {
 public:
  Result<Selection> select(const SelectionInput& input) const override {
    Selection::ContextBlocks kept;
    for (const SelectableContext& c : input.contexts) kept.push_back(anchor_blocks(c.num_blocks));
    return Selection::shared(input.num_layers, std::move(kept));
  }
};

}  // namespace

std::vector<std::int32_t> anchor_blocks(std::int32_t num_blocks) {
  std::vector<std::int32_t> blocks;
  if (num_blocks > 0) blocks.push_back(0);
  for (std::int32_t b = num_blocks - 2; b < num_blocks; ++b) {
    if (b > 0) blocks.push_back(b);
  }
  return blocks;
}

std::vector<std::int32_t> documents_of(std::span<const SelectableContext> contexts) {
  std::vector<std::int32_t> documents;
  for (const SelectableContext& c : contexts) {
    if (documents.empty())
      documents.push_back(0);
    else
      documents.push_back(documents.back() + (c.continues ? 0 : 1));
  }
  return documents;
}

void register_anchors(PlugRegistry<Selector>& selectors) {
  selectors.add("anchors", [] { return std::make_unique<AnchorsSelector>(); });
}

}  // namespace quire
