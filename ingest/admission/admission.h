/// What documents take of the limits, and what is held of them until the store counts it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/admission/namespace_room.h"
#include "ingest/admission/pin_gate.h"

namespace quire {

/// Holds what one document takes until it is destroyed. Threads: one at a time. The service that
/// gave it must outlive it.
struct Admission {
  PinGate::Grant pin;
  NamespaceRoom::Grant room;
};

/// Returns the bytes that the KV of so many tokens takes, the draft's included.
std::uint64_t kv_bytes(const EngineInfo& info, std::uint64_t tokens);

/// Bytes of text and KV of a document, whatever of its KV is cached.
struct RoomNeed {
  std::uint64_t wanted = 0;
  std::uint64_t replaced = 0;  ///< of the version that it replaces
};

/// Reserves what a document takes of the quota of its namespace; `limit` 0: there is none, and
/// nothing is reserved. Errors: kResourceExhausted (it does not fit). Threads: any.
Result<NamespaceRoom::Grant> reserve_room(Store& store, const EngineInfo& info, NamespaceRoom& room,
                                          const std::string& ns, std::uint64_t limit,
                                          const RoomNeed& need);

}  // namespace quire
