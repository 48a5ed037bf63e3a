// The sketch summarises a context's KV for selection (engine/record/sketch.h). Its parts are
// captured with the KV itself, as they need the packed rows.
#include "engine/record/sketch.h"
#include "engine/prefill/context_kv.h"
#include "engine/prefill/record_kind.h"

namespace quire {
namespace {

class SketchKind final : public RecordKind {
 public:
  std::uint32_t index() const override { return kSketchIndex; }
  bool required() const override { return true; }

  Result<std::vector<std::byte>> build(const ContextKv& kv, std::int32_t num_heads,
                                       const RopeTable& rope) const override {
    return context_sketch(kv, num_heads, rope);
  }
  Result<std::any> parse(std::span<const std::byte> record,
                         const RecordOwner& owner) const override {
    QUIRE_ASSIGN_OR_RETURN(const SketchView s, SketchView::parse(record));
    const KvShape& shape = owner.layout.shape();
    const bool fits = s.num_layers() == shape.num_layers &&
                      s.num_kv_heads() == shape.num_kv_heads && s.head_dim() == shape.head_dim &&
                      s.num_heads() == owner.facts.num_heads &&
                      s.num_blocks() == owner.layout.num_blocks() &&
                      s.num_tokens() == owner.layout.num_tokens() && s.has(kSketchMeans) &&
                      s.has(kSketchLocalQuery);
    if (!fits) return Status::corruption("it describes another context");
    return std::any(s);
  }
};

}  // namespace

void register_sketch(PlugRegistry<RecordKind>& kinds) {
  kinds.add("sketch", [] { return std::make_unique<SketchKind>(); });
}

}  // namespace quire
