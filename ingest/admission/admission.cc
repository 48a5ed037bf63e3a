#include "ingest/admission/admission.h"

#include <algorithm>
#include <utility>

namespace quire {

std::uint64_t kv_bytes(const EngineInfo& info, std::uint64_t tokens) {
  return tokens *
         static_cast<std::uint64_t>(info.kv_bytes_per_token + info.draft_kv_bytes_per_token);
}

Result<NamespaceRoom::Grant> reserve_room(Store& store, const EngineInfo& info, NamespaceRoom& room,
                                          const std::string& ns, std::uint64_t limit,
                                          const RoomNeed& need) {
  if (limit == 0) return NamespaceRoom::Grant();
  while (true) {
    // It is read before the store, so a document whose commit comes in between counts twice for a
    // moment. Otherwise it might not count at all.
    const NamespaceRoom::State reserved = room.state(ns);
    std::uint64_t used = 0;
    for (const NamespaceStats& n : store.namespaces()) {
      if (n.name == ns) used = n.text_bytes + kv_bytes(info, n.tokens);
    }
    used = used - std::min(used, need.replaced) + reserved.bytes;
    if (used + need.wanted > limit)
      return Status::exhausted("the namespace holds " + std::to_string(used) +
                               " bytes of text and KV, with documents in progress; this document "
                               "needs " +
                               std::to_string(need.wanted) + ", the limit is " +
                               std::to_string(limit) +
                               " (limits.namespace_bytes); delete documents");
    auto grant = room.reserve(ns, need.wanted - std::min(need.wanted, need.replaced), reserved);
    if (grant) return std::move(*grant);
  }
}

}  // namespace quire
