/// This file declares the DRAM tier: values in memory under a hard byte budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/index.h"
#include "cachestore/format/record.h"
#include "cachestore/format/value_buffer.h"
#include "cachestore/store.h"
#include "cachestore/store_stats.h"
#include "cachestore/tenant_orders.h"

namespace quire {

struct ValueNameHash {
  std::size_t operator()(const record::ValueName& n) const {
    std::uint64_t h = n.segment * 0x9e3779b97f4a7c15ull;
    h ^= (std::uint64_t{n.block} << 34) ^ (std::uint64_t{n.group} << 2) ^
         static_cast<std::uint64_t>(n.part);
    h *= 0xff51afd7ed558ccdull;
    return to_size(h ^ (h >> 32));
  }
};

/// Keeps values in memory. A value that a reader holds (its buffer has other owners) or of a pinned
/// segment is never evicted. If those leave no room, a new value is not kept. A tenant that has a
/// quota never holds more; if its pins and readers leave no room in it, its new value is not kept.
/// Threads: all methods concurrently; none waits on disk.
class DramTier {
 public:
  /// Creates an empty tier. `is_pinned` is called under this tier's lock and must not call back
  /// into it.
  /// KV values are copied into `memory` as long as that has room; null: no value is.
  DramTier(std::uint64_t capacity_bytes, StorePolicy policy,
           std::function<bool(SegmentId)> is_pinned, TenantQuotas quotas = {},
           std::shared_ptr<ValueMemorySource> memory = nullptr);

  /// Returns the value and counts a use; null if it is not in DRAM.
  std::shared_ptr<const ValueBuffer> find(const record::ValueName& name);
  /// Returns the value without counting a use; null if it is not in DRAM.
  std::shared_ptr<const ValueBuffer> peek(const record::ValueName& name) const;
  bool contains(const record::ValueName& name) const;
  /// Keeps the value if there is room or room can be made, and returns the buffer that holds it: a
  /// copy of it where the tier has memory of its own. Null: it is not kept. A name that is already
  /// present keeps its buffer. All values of a segment are of one tenant.
  std::shared_ptr<const ValueBuffer> keep(const record::ValueName& name,
                                          std::shared_ptr<const ValueBuffer> buffer,
                                          std::string_view tenant = {});
  /// Does what keep() does, and returns whether the value is kept.
  bool insert(const record::ValueName& name, std::shared_ptr<const ValueBuffer> buffer,
              std::string_view tenant = {}) {
    return keep(name, std::move(buffer), tenant) != nullptr;
  }
  void erase_segment(SegmentId segment);
  struct Held {
    /// blocks with a value in DRAM; allocated bytes, sketches included
    std::uint64_t blocks = 0, bytes = 0;
    bool in_use = false;  ///< a reader holds part of it
  };
  Held held(SegmentId segment) const;
  /// Returns the allocated bytes of values of pinned segments. It looks at each segment in DRAM.
  std::uint64_t pinned_bytes() const;
  /// Evicts the segment on request; it counts as evictions, and values that a reader holds stay.
  Held evict_segment(SegmentId segment);
  /// Returns the values and bytes that evict_segment() removed since start.
  std::pair<std::uint64_t, std::uint64_t> requested() const;
  TierStats stats() const;
  /// Values in memory of the tier's own, now, and those since start that it had no room for.
  struct Moved {
    std::uint64_t values = 0, bytes = 0, unmoved = 0;
  };
  Moved moved() const;
  /// Returns the allocated bytes of a tenant; without quotas those of all.
  std::uint64_t bytes_of(std::string_view tenant) const;

 private:
  using Orders = TenantOrders<record::ValueName, ValueNameHash>;
  using NameSet = std::unordered_set<record::ValueName, ValueNameHash>;
  struct Values {
    NameSet names;
    std::uint64_t bytes = 0;  // allocated
    Orders::Tenant* tenant = nullptr;
  };

  struct Value {
    std::shared_ptr<const ValueBuffer> buffer;
    bool moved = false;  // lies in memory_
  };
  std::shared_ptr<const ValueBuffer> move(const record::ValueName& name,
                                          std::shared_ptr<const ValueBuffer> buffer);
  bool make_room(std::uint64_t bytes, Orders::Tenant& tenant);  // mu_ held
  void erase(const record::ValueName& name);                    // mu_ held
  void remove(const record::ValueName& name);  // mu_ held; not called by the policy

  const std::uint64_t capacity_;
  const std::function<bool(SegmentId)> is_pinned_;
  const std::shared_ptr<ValueMemorySource> memory_;  // null: ordinary memory
  mutable std::mutex mu_;
  std::unordered_map<record::ValueName, Value, ValueNameHash> values_;  // guarded by mu_
  Moved moved_;                                                         // guarded by mu_
  std::unordered_map<SegmentId, Values> of_segment_;                    // guarded by mu_
  Orders orders_;                                                       // guarded by mu_
  std::uint64_t requested_evictions_ = 0, requested_bytes_ = 0;         // guarded by mu_
  TierStats stats_;                                                     // guarded by mu_
};

}  // namespace quire
