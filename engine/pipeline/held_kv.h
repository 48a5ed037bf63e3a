/// Raw KV of placed contexts, kept until the recompute pass is over.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/pipeline/context_kv.h"
#include "engine/pipeline/fetch.h"
#include "engine/recompute/recomputer.h"

namespace quire {

class HeldKv final : public StoredKv {
 public:
  explicit HeldKv(std::size_t num_contexts) : contexts_(num_contexts) {}

  /// `values` [block * num_groups + group] point into `fetched` or `alone`, which are kept.
  void hold(std::int32_t context, const KvLayout& layout, std::vector<std::span<const std::byte>> values,
            std::vector<Fetch::Arrived> fetched, std::shared_ptr<const ContextKv> alone) {
    contexts_[static_cast<std::size_t>(context)] = {layout, std::move(values), std::move(fetched), std::move(alone)};
  }

  Result<RawKvView> block(std::int32_t context, std::int32_t block, std::int32_t layer) const override {
    const Held& held = contexts_.at(static_cast<std::size_t>(context));
    if (held.values.empty() || block < 0 || block >= held.layout.num_blocks()) return Status::not_found("context or block is not placed");
    const auto value = held.values[static_cast<std::size_t>(block * held.layout.num_groups() + held.layout.group_of(layer))];
    if (value.empty()) return Status::not_found("block was not loaded for this layer");
    return held.layout.view(value, block, layer);
  }

 private:
  struct Held {
    KvLayout layout;
    std::vector<std::span<const std::byte>> values;
    std::vector<Fetch::Arrived> fetched;
    std::shared_ptr<const ContextKv> alone;
  };
  std::vector<Held> contexts_;
};

}  // namespace quire
