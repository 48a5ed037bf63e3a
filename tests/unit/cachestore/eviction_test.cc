#include "cachestore/eviction.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using Lru = LruPolicy<std::string, std::hash<std::string>>;
using S3 = S3FifoPolicy<std::string, std::hash<std::string>>;
const auto kAny = [](const std::string&) { return true; };

std::string drain(EvictionPolicy<std::string>& p) {
  std::string order;
  while (auto key = p.evict(kAny)) order += *key;
  return order;
}

TEST(LruPolicy, EvictsTheLeastRecentlyUsed) {
  Lru p;
  for (const char* k : {"a", "b", "c", "d"}) p.insert(k, 1);
  p.touch("a");
  p.touch("c");
  p.touch("unknown");
  p.erase("b");
  p.erase("unknown");
  EXPECT_EQ(drain(p), "dac");
  EXPECT_FALSE(p.evict(kAny));
}

TEST(LruPolicy, SkipsWhatMayNotGo) {
  Lru p;
  for (const char* k : {"a", "b", "c"}) p.insert(k, 1);
  EXPECT_EQ(p.evict([](const std::string& k) { return k != "a"; }), "b");
  EXPECT_FALSE(p.evict([](const std::string&) { return false; }));
  EXPECT_EQ(drain(p), "ac");
}

TEST(S3FifoPolicy, UsedKeysMoveToTheMainQueueOthersLeaveInOrder) {
  S3 p;
  for (const char* k : {"a", "b", "c", "d", "e"}) p.insert(k, 1);
  p.touch("b");
  p.touch("b");
  p.touch("d");  // one use is not enough
  EXPECT_EQ(drain(p), "acdeb");
}

TEST(S3FifoPolicy, ARememberedKeyEntersTheMainQueue) {
  S3 p;
  for (int i = 0; i < 20; ++i) p.insert("m" + std::to_string(i), 10);
  EXPECT_EQ(p.evict(kAny), "m0");
  p.insert("m0", 10);  // still remembered, so it goes to the main queue
  // The small queue (19 of 20 keys, far above a tenth) is emptied before the main queue.
  for (int i = 1; i < 18; ++i) EXPECT_EQ(p.evict(kAny), "m" + std::to_string(i));
}

TEST(S3FifoPolicy, AScanDoesNotPushOutWhatIsUsed) {
  S3 p;
  std::set<std::string> present;
  const std::size_t capacity = 100;
  auto access = [&](const std::string& key) {
    if (present.contains(key)) return p.touch(key), true;
    while (present.size() >= capacity) present.erase(*p.evict(kAny));
    present.insert(key);
    p.insert(key, 1);
    return false;
  };
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 50; ++i) access("hot" + std::to_string(i));
  }
  for (int i = 0; i < 1000; ++i) access("scan" + std::to_string(i));
  int kept = 0;
  for (int i = 0; i < 50; ++i) kept += present.contains("hot" + std::to_string(i));
  EXPECT_GE(kept, 45);
}

TEST(S3FifoPolicy, PinnedKeysStayAndTheLoopEnds) {
  S3 p;
  for (int i = 0; i < 50; ++i) {
    p.insert(std::to_string(i), 1 + static_cast<std::uint64_t>(i));
    for (int t = 0; t < i % 5; ++t) p.touch(std::to_string(i));
  }
  EXPECT_FALSE(p.evict([](const std::string&) { return false; }));
  int n = 0;
  while (p.evict([](const std::string& k) { return k.back() != '7'; })) ++n;
  EXPECT_EQ(n, 45);
}

TEST(EvictionPolicies, AgreeWithASetOverRandomWork) {
  Lru lru;
  S3 s3;
  for (EvictionPolicy<std::string>* p : {static_cast<EvictionPolicy<std::string>*>(&lru),
                                         static_cast<EvictionPolicy<std::string>*>(&s3)}) {
    std::mt19937 rng(3);
    std::set<std::string> model;
    for (int step = 0; step < 20000; ++step) {
      const std::string key = std::to_string(rng() % 200);
      const auto what = rng() % 4;
      if (what == 0 && !model.contains(key)) {
        model.insert(key);
        p->insert(key, 1 + rng() % 1000);
      } else if (what == 1) {
        p->touch(key);
      } else if (what == 2 && rng() % 3 == 0) {
        p->erase(key);
        model.erase(key);
      } else if (what == 3) {
        auto victim = p->evict([](const std::string& k) { return k.size() != 1; });
        if (victim) {
          EXPECT_EQ(model.erase(*victim), 1u);
          EXPECT_NE(victim->size(), 1u);
        } else {
          for (const auto& k : model) EXPECT_EQ(k.size(), 1u);
        }
      }
    }
    std::size_t n = 0;
    while (p->evict(kAny)) ++n;
    EXPECT_EQ(n, model.size());
  }
}

TEST(StorePolicy, NamesAndErrors) {
  EXPECT_EQ(*parse_store_policy("lru"), StorePolicy::kLru);
  EXPECT_EQ(*parse_store_policy("s3fifo"), StorePolicy::kS3Fifo);
  EXPECT_EQ(parse_store_policy("fifo").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
