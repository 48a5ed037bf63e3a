/// This file declares what the store needs of a shared tier: segments by name, as a record and
/// values. It is internal to cachestore. Redis and S3 implement it; tests implement it in memory
/// and with faults.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/remote/remote_record.h"

namespace quire {

/// Keeps segments of many replicas. Whatever it returns is unchecked: a tier may lose, cut, swap or
/// change anything at any time. Threads: all methods concurrently. All wait on the network, at most
/// until `deadline`. Errors common to all: kDeadlineExceeded, kUnavailable (cannot be reached, or
/// refuses work now), kFailedPrecondition (refuses this client), kIo (answers out of protocol).
class RemoteTier {
 public:
  using Deadline = Clock::time_point;
  /// Receives the stored bytes of the value at this position. An error ends the read, and is
  /// returned by it.
  using TakeValue = std::function<Status(std::uint64_t position, std::string_view stored)>;
  /// Returns the stored bytes of the value at this position; asked for in order, once each.
  using ReadValue = std::function<Result<std::string>(std::uint64_t position)>;
  /// Returns the bytes of the record, once every value has been read.
  using ReadRecord = std::function<std::string()>;

  virtual ~RemoteTier() = default;
  /// Returns "redis" or "s3".
  virtual std::string_view kind() const = 0;

  /// Returns the record of a segment. Errors: kNotFound is an ordinary miss.
  virtual Result<std::string> get_record(const std::string& name, Deadline deadline) = 0;
  /// Reads all values that the record names, in any order, each once. Errors: kNotFound (a value is
  /// missing).
  virtual Status get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                            const TakeValue& take) = 0;
  /// Returns where the stored bytes of the value at this position go, of just that size; empty:
  /// anywhere. What lies there is passed on from there.
  using PlaceValue = std::function<std::span<std::byte>(std::uint64_t position, std::size_t bytes)>;
  /// The same without a copy, where the tier can. `place` may be asked again for a position.
  virtual Status get_values_into(const std::string& name, const RemoteRecord& record,
                                 Deadline deadline, const PlaceValue& place,
                                 const TakeValue& take) {
    (void)place;
    return get_values(name, record, deadline, take);
  }
  /// Stores a segment of `num_values` values with `stored_bytes` bytes in all, replacing what is
  /// there. The record is stored last, so that a segment with a record is whole.
  virtual Status put(const std::string& name, std::uint64_t num_values, std::uint64_t stored_bytes,
                     Deadline deadline, const ReadValue& value, const ReadRecord& record) = 0;
  /// Deletes a segment; a missing one is no error.
  virtual Status remove(const std::string& name, Deadline deadline) = 0;
  /// Returns a second way to the same segments, for reads alone: replicas, or another connection.
  /// What it lacks, this tier may have. Null: there is none.
  virtual std::unique_ptr<RemoteTier> second_way() { return nullptr; }
  // Leases say which replica computes a segment. The tier ends one by itself after its time.
  /// Returns whether the tier has leases; without them the other three fail.
  virtual bool has_leases() const { return false; }
  /// Takes the lease of a segment under a token that no other replica has. Returns whether it is
  /// this token's now.
  virtual Result<bool> take_lease(const std::string& name, std::string_view token,
                                  std::chrono::milliseconds time, Deadline deadline);
  /// Lets the lease begin anew. Returns false if it is not this token's any more.
  virtual Result<bool> renew_lease(const std::string& name, std::string_view token,
                                   std::chrono::milliseconds time, Deadline deadline);
  /// Ends the lease if it is still this token's.
  virtual Status end_lease(const std::string& name, std::string_view token, Deadline deadline);
  // Accounts say how many bytes each tenant has in the shared tiers, for all replicas.
  /// A segment that counts for the account of a tenant.
  struct Entry {
    std::string account, segment;
    std::uint64_t bytes = 0;
  };
  /// Returns whether the tier has accounts; without them the other two fail.
  virtual bool has_accounts() const { return false; }
  /// Counts a segment that is about to be written. Returns the oldest segments of the account,
  /// which count no more because it would hold more than `limit` bytes: the caller removes them.
  /// `expires`: no tier keeps a segment for longer than this one does.
  virtual Result<std::vector<std::string>> count_in(const Entry& entry, std::uint64_t limit,
                                                    bool expires, Deadline deadline);
  /// Counts a segment no more; one that is not counted is no error.
  virtual Status count_out(const Entry& entry, Deadline deadline);
  /// Ends calls in flight soon, with kUnavailable, and refuses further ones.
  virtual void stop() = 0;
};

inline Result<bool> RemoteTier::take_lease(const std::string&, std::string_view,
                                           std::chrono::milliseconds, Deadline) {
  return Status::unimplemented("this tier has no leases");
}
inline Result<bool> RemoteTier::renew_lease(const std::string&, std::string_view,
                                            std::chrono::milliseconds, Deadline) {
  return Status::unimplemented("this tier has no leases");
}
inline Result<std::vector<std::string>> RemoteTier::count_in(const Entry&, std::uint64_t, bool,
                                                             Deadline) {
  return Status::unimplemented("this tier has no accounts");
}
inline Status RemoteTier::count_out(const Entry&, Deadline) {
  return Status::unimplemented("this tier has no accounts");
}
inline Status RemoteTier::end_lease(const std::string&, std::string_view, Deadline) {
  return Status::unimplemented("this tier has no leases");
}

}  // namespace quire
