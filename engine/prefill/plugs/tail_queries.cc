// The queries of a context's last tokens (engine/record/tail_record.h), for indexes by queries.
#include <algorithm>

#include "engine/compute/compute.h"
#include "engine/prefill/record_kind.h"
#include "engine/record/tail_record.h"

namespace quire {
namespace {

class TailQueriesObserver final : public ContextObserver {
 public:
  /// `shape` has at least one row.
  explicit TailQueriesObserver(const TailRecordShape& shape)
      : shape_(shape), record_(begin_tail_record(shape)) {}

  Status after_projection(const LayerPass& pass, const ChunkRows& chunk) override {
    const std::int64_t first = chunk.skip +
                               std::max<std::int64_t>(
                                   0, shape_.num_tokens - shape_.num_rows - chunk.first_token),
                       rows = pass.qkv.rows - first;
    if (rows <= 0) return {};
    const std::int64_t width = std::int64_t{shape_.num_heads} * shape_.head_dim,
                       to = first - chunk.skip + chunk.first_token -
                            (shape_.num_tokens - shape_.num_rows);
    const float* queries = pass.qkv.q + first * pass.qkv.ld;
    FetchOps& fetch = pass.compute->fetch();
    const std::int64_t bytes = rows * width * static_cast<std::int64_t>(sizeof(float));
    QUIRE_ASSIGN_OR_RETURN(std::byte* const there, fetch.place(bytes));
    QUIRE_RETURN_IF_ERROR(pass.compute->linear().copy_rows(queries, rows, width, pass.qkv.ld,
                                                           reinterpret_cast<float*>(there)));
    return fetch.fetch(bytes, [this, layer = pass.layer, to, rows, width](const std::byte* data) {
      put(layer, to, reinterpret_cast<const float*>(data), rows, width);
    });
  }
  Result<std::vector<std::byte>> finish() override { return std::move(record_); }

 private:
  void put(std::int32_t layer, std::int64_t to, const float* queries, std::int64_t rows,
           std::int64_t ld) {
    for (std::int64_t r = 0; r < rows; ++r)
      put_tail_query(record_, shape_, layer, to + r, queries + r * ld);
  }

  const TailRecordShape shape_;
  std::vector<std::byte> record_;
};

class TailQueriesKind final : public RecordKind {
 public:
  std::uint32_t index() const override { return kTailRecordIndex; }
  bool required() const override { return false; }

  std::unique_ptr<ContextObserver> observe(const ObservedContext& context) const override {
    const EngineFacts& facts = context.core.facts;
    TailRecordShape shape{facts.shape.num_layers, facts.num_heads, facts.shape.head_dim, 0,
                          context.layout.num_tokens()};
    shape.num_rows = tail_rows(shape, context.layout.total_bytes());
    return shape.num_rows > 0 ? std::make_unique<TailQueriesObserver>(shape) : nullptr;
  }
  Result<std::any> parse(std::span<const std::byte> record,
                         const RecordOwner& owner) const override {
    QUIRE_ASSIGN_OR_RETURN(const TailRecordView view, TailRecordView::parse(record));
    const TailRecordShape& s = view.shape();
    if (s.num_layers != owner.facts.shape.num_layers || s.num_heads != owner.facts.num_heads ||
        s.head_dim != owner.facts.shape.head_dim || s.num_tokens != owner.layout.num_tokens())
      return Status::corruption("they are those of another context");
    return std::any(view);
  }
};

}  // namespace

void register_tail_queries(PlugRegistry<RecordKind>& kinds) {
  kinds.add("tail_queries", [] { return std::make_unique<TailQueriesKind>(); });
}

}  // namespace quire
