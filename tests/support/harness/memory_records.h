/// Shared records and replies in memory.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cachestore/catalog/request_fence.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire::test {

class MemoryRecords final : public SharedRecords {
 public:
  /// What replicas share.
  struct Table {
    std::mutex mu;
    std::map<std::string, SharedRecord, std::less<>> records;  // guarded by mu
    /// Called before each change with its name.
    std::function<void(std::string_view name)> before_put;
    /// Called after each read with its name.
    std::function<void(std::string_view name)> after_get;
  };

  /// `call` is asked before each operation; an error is its result.
  MemoryRecords(Table& table, std::function<Status()> call) : t_(table), call_(std::move(call)) {}

  Result<SharedRecord> get(std::string_view name) override {
    QUIRE_RETURN_IF_ERROR(call_());
    SharedRecord found;
    {
      const std::lock_guard lock(t_.mu);
      if (const auto it = t_.records.find(name); it != t_.records.end()) found = it->second;
    }
    if (t_.after_get) t_.after_get(name);
    return found;
  }
  Status put(std::string_view name, std::string_view value, std::uint64_t expected) override {
    QUIRE_RETURN_IF_ERROR(call_());
    if (t_.before_put) t_.before_put(name);
    const std::lock_guard lock(t_.mu);
    SharedRecord& record = t_.records[std::string(name)];
    if (record.revision != expected) return Status::precondition("changed");
    record = {expected + 1, std::string(value)};
    return {};
  }

 private:
  Table& t_;
  const std::function<Status()> call_;
};

class MemoryReplies final : public SharedReplies {
 public:
  struct Entry {
    Digest body;
    std::string owner, reply;
  };
  /// What replicas share.
  struct Table {
    std::mutex mu;
    std::map<Digest, Entry> replies;  // guarded by mu
    int purges = 0;                   // guarded by mu
    bool lose_answer = false;         // of the next request that begins; guarded by mu

    std::map<Digest, Entry> all() {
      const std::lock_guard lock(mu);
      return replies;
    }
    /// Acts as if the replica of this name had not been heard of for the time of a lease.
    void forget_replica(const std::string& name) {
      const std::lock_guard lock(mu);
      for (auto& [slot, entry] : replies)
        if (entry.owner == name) entry.owner.clear();
    }
  };

  MemoryReplies(Table& table, std::string replica, std::function<Status()> call)
      : t_(table), replica_(std::move(replica)), call_(std::move(call)) {}

  Result<SharedReply> begin(const Digest& slot, const Digest& body, std::chrono::seconds) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto [it, fresh] = t_.replies.try_emplace(slot, Entry{body, replica_, ""});
    if (std::exchange(t_.lose_answer, false)) return catalog_away("the answer was lost");
    Entry& entry = it->second;
    if (!fresh && entry.reply.empty() && (entry.owner.empty() || entry.owner == replica_)) {
      entry = {body, replica_, ""};
      return SharedReply();
    }
    SharedReply found;
    if (fresh) return found;
    found.outcome = entry.body != body    ? SharedReply::Outcome::kMismatch
                    : entry.reply.empty() ? SharedReply::Outcome::kInProgress
                                          : SharedReply::Outcome::kReplay;
    if (found.outcome == SharedReply::Outcome::kReplay) found.reply = entry.reply;
    return found;
  }
  /// Returns whether a change may be made for the request of this thread, if there is one.
  Status check_request() {
    const Digest* const slot = RequestFence::current();
    if (slot == nullptr) return {};
    const std::lock_guard lock(t_.mu);
    const auto it = t_.replies.find(*slot);
    const bool own = it != t_.replies.end() && it->second.owner == replica_;
    return own && it->second.reply.empty() ? Status() : request_taken_over();
  }
  Status complete(const Digest& slot, std::string_view reply) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.replies.find(slot);
    if (it == t_.replies.end() || it->second.owner != replica_)
      return Status::precondition("another replica has the request");
    it->second.reply = reply;
    return {};
  }
  Status forget(const Digest& slot) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.replies.find(slot);
    if (it != t_.replies.end() && it->second.owner == replica_ && it->second.reply.empty())
      t_.replies.erase(it);
    return {};
  }
  Status purge(std::chrono::seconds) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    ++t_.purges;
    return {};
  }

 private:
  Table& t_;
  const std::string replica_;
  const std::function<Status()> call_;
};

}  // namespace quire::test
