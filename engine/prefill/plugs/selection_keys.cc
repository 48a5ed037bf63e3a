// The keys of the model's selection heads (engine/record/selection_keys.h), by which a question
// ranks the blocks of the context. Without calibrated heads there is no record.
#include "engine/record/selection_keys.h"

#include <algorithm>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "engine/prefill/record_kind.h"
#include "kernels/rows/rope.h"

namespace quire {
namespace {

SelectionKeysShape shape_of(const EngineFacts& facts, std::int64_t num_tokens) {
  return {facts.selection_heads.pairs(facts.num_heads / facts.shape.num_kv_heads),
          facts.shape.head_dim, num_tokens};
}

class SelectionKeysObserver final : public ContextObserver {
 public:
  SelectionKeysObserver(SelectionKeysShape shape, const RopeTable& rope)
      : shape_(std::move(shape)), rope_(rope), record_(begin_selection_keys(shape_)) {}

  Status after_projection(const LayerPass& pass, const ChunkRows& chunk) override {
    const std::int64_t rows = pass.qkv.rows - chunk.skip, dim = shape_.head_dim;
    if (rows <= 0) return {};
    for (std::size_t p = 0; p < shape_.pairs.size(); ++p) {
      if (shape_.pairs[p].layer != pass.layer) continue;
      const float* keys = pass.qkv.k + chunk.skip * pass.qkv.ld + shape_.pairs[p].kv_head * dim;
      FetchOps& fetch = pass.compute->fetch();
      const std::int64_t bytes = rows * dim * static_cast<std::int64_t>(sizeof(float));
      QUIRE_ASSIGN_OR_RETURN(std::byte* const there, fetch.place(bytes));
      QUIRE_RETURN_IF_ERROR(pass.compute->linear().copy_rows(keys, rows, dim, pass.qkv.ld,
                                                             reinterpret_cast<float*>(there)));
      QUIRE_RETURN_IF_ERROR(
          fetch.fetch(bytes, [this, p, first = chunk.first_token, rows](const std::byte* data) {
            put(p, first, reinterpret_cast<const float*>(data), rows);
          }));
    }
    return {};
  }

  Result<std::vector<std::byte>> finish() override {
    QUIRE_RETURN_IF_ERROR(status_);
    return std::move(record_);
  }

 private:
  void put(std::size_t pair, std::int64_t first, const float* keys, std::int64_t rows) {
    const std::int64_t dim = shape_.head_dim;
    std::vector<float> rotated(at(dim));
    for (std::int64_t r = 0; r < rows && status_.ok(); ++r) {
      const auto position = static_cast<std::int32_t>(first + r);
      status_ = rope_rotate(rope_, {.x = keys + r * dim,
                                    .out = rotated.data(),
                                    .positions = &position,
                                    .rows = 1,
                                    .num_heads = 1,
                                    .ldx = dim,
                                    .ldo = dim});
      put_selection_key(record_, shape_, pair, first + r, rotated.data());
    }
  }

  const SelectionKeysShape shape_;
  const RopeTable& rope_;
  std::vector<std::byte> record_;
  Status status_;
};

class SelectionKeysKind final : public RecordKind {
 public:
  std::uint32_t index() const override { return kSelectionKeysIndex; }
  /// A context that was stored before the calibration is computed anew by the first query that
  /// wants its keys.
  bool required() const override { return true; }

  std::unique_ptr<ContextObserver> observe(const ObservedContext& context) const override {
    const PassResources& core = context.core;
    if (core.facts.selection_heads.empty()) return nullptr;
    return std::make_unique<SelectionKeysObserver>(
        shape_of(core.facts, context.layout.num_tokens()), core.model->rope());
  }
  Result<std::any> parse(std::span<const std::byte> record,
                         const RecordOwner& owner) const override {
    QUIRE_ASSIGN_OR_RETURN(const SelectionKeysView view, SelectionKeysView::parse(record));
    if (!(view.shape() == shape_of(owner.facts, owner.layout.num_tokens())))
      return Status::corruption("they are those of another context or calibration");
    return std::any(view);
  }
};

}  // namespace

void register_selection_keys(PlugRegistry<RecordKind>& kinds) {
  kinds.add("selection_keys", [] { return std::make_unique<SelectionKeysKind>(); });
}

}  // namespace quire
