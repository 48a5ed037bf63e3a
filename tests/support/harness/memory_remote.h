/// A shared tier in memory, with faults. Several stores may have tiers over one MemoryShared.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cachestore/remote/remote_cache.h"

namespace quire::test {

/// What the tiers over it share. Tests change it as they like.
struct MemoryShared {
  struct Segment {
    std::string record;
    std::map<std::uint64_t, std::string> values;
  };
  std::mutex mu;
  std::map<std::string, Segment> segments;  // guarded by mu
  std::atomic<int> gets{0}, puts{0}, removes{0};
  /// Leases of segments: whose each is, and when it ends. Without `leases` there are none.
  struct Lease {
    std::string token;
    Clock::time_point ends;
  };
  std::atomic<bool> leases{false};
  std::map<std::string, Lease> held;  // guarded by mu
  std::atomic<int> takes{0}, renewals{0};
  /// What a second way to these segments finds; null: there is none. Set it while idle.
  std::shared_ptr<MemoryShared> second_way;
  /// Called before each operation; an error is its result. Empty: no fault. Set it while idle.
  std::function<Status(std::string_view operation)> fault;

  bool has(const std::string& name) {
    const std::lock_guard lock(mu);
    return segments.contains(name);
  }
};

class MemoryRemote final : public RemoteTier {
 public:
  explicit MemoryRemote(std::shared_ptr<MemoryShared> shared, std::string kind = "redis")
      : shared_(std::move(shared)), kind_(std::move(kind)) {}
  std::string_view kind() const override { return kind_; }

  Result<std::string> get_record(const std::string& name, Deadline) override {
    QUIRE_RETURN_IF_ERROR(begin("get_record"));
    const std::lock_guard lock(shared_->mu);
    const auto it = shared_->segments.find(name);
    if (it == shared_->segments.end()) return Status::not_found("no such segment");
    return it->second.record;
  }
  Status get_values(const std::string& name, const RemoteRecord& record, Deadline,
                    const TakeValue& take) override {
    QUIRE_RETURN_IF_ERROR(begin("get_values"));
    ++shared_->gets;
    MemoryShared::Segment segment;
    {
      const std::lock_guard lock(shared_->mu);
      segment = shared_->segments[name];
    }
    for (std::uint64_t i = 0; i < record.num_stored(); ++i) {
      if (!segment.values.contains(i)) return Status::not_found("a value is missing");
      QUIRE_RETURN_IF_ERROR(take(i, segment.values[i]));
    }
    return {};
  }
  Status put(const std::string& name, std::uint64_t num_values, std::uint64_t stored_bytes,
             Deadline, const ReadValue& value, const ReadRecord& record) override {
    QUIRE_RETURN_IF_ERROR(begin("put"));
    ++shared_->puts;
    MemoryShared::Segment segment;
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < num_values; ++i) {
      QUIRE_ASSIGN_OR_RETURN(segment.values[i], value(i));
      bytes += segment.values[i].size();
    }
    if (bytes != stored_bytes) return Status::internal("another number of bytes was promised");
    segment.record = record();
    const std::lock_guard lock(shared_->mu);
    shared_->segments[name] = std::move(segment);
    return {};
  }
  Status remove(const std::string& name, Deadline) override {
    QUIRE_RETURN_IF_ERROR(begin("remove"));
    ++shared_->removes;
    const std::lock_guard lock(shared_->mu);
    shared_->segments.erase(name);
    return {};
  }
  std::unique_ptr<RemoteTier> second_way() override {
    return shared_->second_way ? std::make_unique<MemoryRemote>(shared_->second_way, kind_)
                               : nullptr;
  }
  bool has_leases() const override { return shared_->leases; }
  Result<bool> take_lease(const std::string& name, std::string_view token,
                          std::chrono::milliseconds time, Deadline) override {
    QUIRE_RETURN_IF_ERROR(begin("take_lease"));
    const std::lock_guard lock(shared_->mu);
    ++shared_->takes;
    MemoryShared::Lease& lease = shared_->held[name];
    const bool is_free = lease.token.empty() || lease.ends <= Clock::now();
    if (is_free) lease = {std::string(token), Clock::now() + time};
    return lease.token == token;
  }
  Result<bool> renew_lease(const std::string& name, std::string_view token,
                           std::chrono::milliseconds time, Deadline) override {
    QUIRE_RETURN_IF_ERROR(begin("renew_lease"));
    const std::lock_guard lock(shared_->mu);
    ++shared_->renewals;
    const auto it = shared_->held.find(name);
    if (it == shared_->held.end() || it->second.token != token) return false;
    it->second.ends = Clock::now() + time;
    return true;
  }
  Status end_lease(const std::string& name, std::string_view token, Deadline) override {
    QUIRE_RETURN_IF_ERROR(begin("end_lease"));
    const std::lock_guard lock(shared_->mu);
    const auto it = shared_->held.find(name);
    if (it != shared_->held.end() && it->second.token == token) shared_->held.erase(it);
    return {};
  }
  void stop() override {}

 private:
  Status begin(std::string_view operation) {
    return shared_->fault ? shared_->fault(operation) : Status();
  }
  const std::shared_ptr<MemoryShared> shared_;
  const std::string kind_;
};

}  // namespace quire::test
