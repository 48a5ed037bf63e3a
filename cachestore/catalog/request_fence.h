/// This file declares what ties changes to the request that they are made for, where clients may
/// repeat it at other replicas.
#pragma once

#include "cachestore/format/key.h"

namespace quire {

/// While it lives, what this thread changes in the shared catalog is for the request in this slot
/// (SharedReplies). A replica that hung may find that another one carries the request out: then the
/// change is not made, and fails as if the catalog were away. Changes under a JobFence are tied to
/// their job instead. Threads: each has its own; fences of one end in the reverse order.
class RequestFence {
 public:
  explicit RequestFence(const Digest& slot) : slot_(slot), before_(current_) { current_ = &slot_; }
  ~RequestFence() { current_ = before_; }
  RequestFence(const RequestFence&) = delete;
  RequestFence& operator=(const RequestFence&) = delete;

  /// Returns the slot of this thread's request; null: there is none.
  static const Digest* current() { return current_; }

 private:
  const Digest slot_;
  const Digest* const before_;
  inline static thread_local const Digest* current_ = nullptr;
};

}  // namespace quire
