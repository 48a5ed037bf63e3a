#include <algorithm>

#include "engine/prefill/context_kv.h"
#include "engine/prefill/record_kind.h"

namespace quire {

std::span<const std::unique_ptr<RecordKind>> all_record_kinds() {
  static const std::vector<std::unique_ptr<RecordKind>> kKinds = [] {
    std::vector<std::unique_ptr<RecordKind>> kinds;
    for (const std::string& name : record_kinds().names())
      kinds.push_back(std::move(*record_kinds().make(name)));
    std::ranges::sort(kinds, {}, [](const auto& kind) { return kind->index(); });
    for (std::size_t i = 1; i < kinds.size(); ++i)
      QUIRE_CHECK(kinds[i - 1]->index() < kinds[i]->index(), "two record kinds have one index");
    return kinds;
  }();
  return kKinds;
}

const RecordKind& record_kind(std::uint32_t index) {
  const auto kinds = all_record_kinds();
  const auto at = std::ranges::find(kinds, index, [](const auto& kind) { return kind->index(); });
  QUIRE_CHECK(at != kinds.end(), "no such kind of record");
  return **at;
}

std::int64_t rows_behind(const PassResources& core, std::int64_t num_tokens,
                         std::int64_t rows_before) {
  const std::int64_t room = core.model->rope().max_positions() - num_tokens - rows_before;
  std::int64_t rows = 0;
  for (const auto& kind : all_record_kinds()) {
    if (kind->always() ||
        std::ranges::find(core.more_records, kind->name()) != core.more_records.end())
      rows = std::max(rows, kind->rows_behind(num_tokens, room));
  }
  return rows;
}

Status check_record_names(std::span<const std::string> names, std::string_view field) {
  for (const std::string& name : names) {
    std::string known;
    bool found = false;
    for (const auto& kind : all_record_kinds()) {
      if (kind->always()) continue;
      found = found || kind->name() == name;
      (known += known.empty() ? "" : ", ") += kind->name();
    }
    if (!found)
      return Status::invalid(std::string(field),
                             "'" + name +
                                 "' is not a record that ingest can make; this build has: " +
                                 (known.empty() ? "none" : known));
  }
  return {};
}

Result<std::vector<std::byte>> RecordKind::build(const ContextKv& kv, std::int32_t /*num_heads*/,
                                                 const RopeTable& /*rope*/) const {
  const auto record = kv.records.find(index());
  return record == kv.records.end() ? std::vector<std::byte>() : record->second;
}

}  // namespace quire
