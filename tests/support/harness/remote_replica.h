/// A store in memory over real shared tiers, for tests of what replicas share.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "cachestore/remote/remote_keys.h"
#include "cachestore/remote/remote_tiers.h"
#include "tests/support/harness/test_store.h"

namespace quire::test {

/// Returns the request for a context that put_segment() writes.
inline RecallRequest recall_of(std::uint64_t key, const SegmentShape& shape = {}) {
  RecallRequest r;
  r.key = key_of(key);
  r.layout = shape.layout;
  for (std::uint32_t b = 0; b < shape.layout.num_blocks; ++b)
    for (std::uint32_t g = 0; g < shape.layout.values_per_block; ++g)
      r.value_bytes += value_of(key, b, g, shape.value_bytes).size();
  r.tenant = "default";
  r.fingerprint = "m-test";
  r.worth_ms = 60'000;
  return r;
}

/// The same with a turn, which all contexts of a run have in common.
inline RecallRequest turn_for(std::uint64_t key, std::uint64_t run = 0) {
  RecallRequest r = recall_of(key);
  r.turn = sha256("run " + std::to_string(run));
  return r;
}

/// Returns keys with one for the namespace of test segments, of this digit.
inline std::shared_ptr<const RemoteKeys> keys_of(char digit) {
  auto keys = std::make_shared<RemoteKeys>();
  QUIRE_CHECK(keys->add("default", std::string(64, digit)).ok(), "a good key");
  return keys;
}

/// Commits write through, so that their order is certain.
struct Replica {
  explicit Replica(const std::string& url,
                   std::chrono::milliseconds timeout = std::chrono::seconds(5),
                   std::shared_ptr<const RemoteKeys> keys = nullptr,
                   std::uint64_t quota_bytes = 0) {
    StoreOptions options;
    options.quotas.enabled = quota_bytes > 0;
    options.quotas.others.remote_bytes = quota_bytes;
    options.remote.url = url;
    options.remote.timeout = timeout;
    options.remote.write_through = true;
    options.remote.keys = std::move(keys);
    auto tiers = open_remote_tiers(options.remote);
    QUIRE_CHECK(tiers.ok(), tiers.status().to_string());
    auto opened = open_store_on(
        options, std::make_unique<MemoryTier>(std::make_shared<MemoryDisk>()), std::move(*tiers));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    store = std::move(*opened);
  }
  Result<SegmentHandle> recall(RecallRequest request) {
    std::promise<Result<SegmentHandle>> promise;
    store->recall_async(std::move(request),
                        [&](Result<SegmentHandle> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  /// Recalls a context and compares every byte.
  Status check(std::uint64_t key, const SegmentShape& shape = {}) {
    QUIRE_ASSIGN_OR_RETURN(const SegmentHandle segment, recall(recall_of(key, shape)));
    return check_segment(*store, segment, key, shape);
  }
  RemoteTierStats counts(std::size_t tier = 0) { return store->remote_stats().tiers.at(tier); }

  std::unique_ptr<AdminStore> store;
};

}  // namespace quire::test
