/// This file declares small records and replies to repeated requests that the replicas of a shared
/// catalog have in common.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/key.h"

namespace quire {

struct SharedRecord {
  std::uint64_t revision = 0;  ///< 0: it was never put
  std::string value;
};

/// Threads: all methods concurrently. Errors of all: catalog_is_away().
class SharedRecords {
 public:
  virtual ~SharedRecords() = default;
  virtual Result<SharedRecord> get(std::string_view name) = 0;
  /// Makes this the value, durably, if the record has the revision `expected`; it then has the next
  /// one. Errors: kFailedPrecondition (it has another).
  virtual Status put(std::string_view name, std::string_view value, std::uint64_t expected) = 0;
};

/// What is known of a request that clients may repeat, at any replica.
struct SharedReply {
  enum class Outcome : unsigned char { kFirst, kReplay, kInProgress, kMismatch };
  Outcome outcome = Outcome::kFirst;
  std::string reply;  ///< the caller's bytes; of kReplay
};

/// Requests by slot. One that a replica has begun is its own until it completes or forgets it, or
/// is not heard of any more (SharedJobs). Threads: all methods concurrently. Errors of all:
/// catalog_is_away().
class SharedReplies {
 public:
  virtual ~SharedReplies() = default;
  /// Begins the request (kFirst), or says what became of it. Replies older than `keep` do not
  /// count.
  virtual Result<SharedReply> begin(const Digest& slot, const Digest& body,
                                    std::chrono::seconds keep) = 0;
  /// Keeps the reply, which is not empty. Errors: kFailedPrecondition (another has the slot).
  virtual Status complete(const Digest& slot, std::string_view reply) = 0;
  /// Frees a slot of this replica without a reply.
  virtual Status forget(const Digest& slot) = 0;
  virtual Status purge(std::chrono::seconds keep) = 0;
};

}  // namespace quire
