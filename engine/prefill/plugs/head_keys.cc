// The keys of a retrieval head that reads the model's states (engine/record/head_record.h).
#include "base/index.h"
#include "engine/prefill/record_kind.h"
#include "engine/record/head_record.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/head/retrieval_head.h"

namespace quire {
namespace {

class HeadKeysObserver final : public ContextObserver {
 public:
  HeadKeysObserver(const RetrievalHead& head, std::int64_t num_tokens)
      : head_(head), num_tokens_(num_tokens), track_(head, HeadInput::kFeature) {}

  HiddenTap* tap() override { return &track_; }
  Status end_chunk(std::span<const std::int32_t> token_ids,
                   std::span<const std::int32_t> positions) override {
    return track_.add_computed(token_ids, positions);
  }
  Result<std::vector<std::byte>> finish() override {
    const RetrievalHeadConfig& c = head_.config();
    // Rows before the context are not part of it.
    const auto keys = track_.keys().last(to_size(num_tokens_) * to_size(c.key_dim()));
    return build_head_record({c.num_kv_heads, c.head_dim, num_tokens_, head_.digest()}, keys);
  }

 private:
  const RetrievalHead& head_;
  const std::int64_t num_tokens_;
  HeadTrack track_;
};

class HeadKeysKind final : public RecordKind {
 public:
  std::uint32_t index() const override { return kHeadRecordIndex; }
  bool required() const override { return true; }

  std::unique_ptr<ContextObserver> observe(const ObservedContext& context) const override {
    const RetrievalHead* const head = context.core.head;
    if (head == nullptr || !head->uses_features()) return nullptr;
    return std::make_unique<HeadKeysObserver>(*head, context.layout.num_tokens());
  }
  Result<std::any> parse(std::span<const std::byte> record,
                         const RecordOwner& owner) const override {
    QUIRE_ASSIGN_OR_RETURN(const HeadRecordView view, HeadRecordView::parse(record));
    if (owner.head == nullptr) return Status::corruption("no retrieval head is loaded");
    const RetrievalHeadConfig& head = owner.head->config();
    const HeadRecordShape wanted{head.num_kv_heads, head.head_dim, owner.layout.num_tokens(),
                                 owner.head->digest()};
    if (!(view.shape() == wanted)) return Status::corruption("they are those of another head");
    return std::any(view);
  }
};

}  // namespace

void register_head_keys(PlugRegistry<RecordKind>& kinds) {
  kinds.add("head_keys", [] { return std::make_unique<HeadKeysKind>(); });
}

}  // namespace quire
