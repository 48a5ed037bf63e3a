// Two stores over one shared tier: what one has committed, the other recalls. Whatever is wrong in
// the tier is a miss that is deleted and counted, never wrong bytes and never an error of a commit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "base/index.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/remote/remote_keys.h"
#include "tests/support/harness/memory_remote.h"
#include "tests/support/harness/remote_replica.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using test::MemoryRemote;
using test::MemoryShared;
using test::recall_of;
using test::turn_for;
using testing::soon;

class StoreRemoteTest : public ::testing::Test {
 protected:
  StoreRemoteTest() { open_both(); }

  /// Opens two stores with a tier each over `shared`. Writing through makes their order certain.
  void open_both(RemoteOptions options = {}) {
    options.write_through = true;
    a.reset();
    b.reset();
    a = open(disk_a, options);
    b = open(disk_b, options);
  }
  std::unique_ptr<AdminStore> open(const std::shared_ptr<test::MemoryDisk>& disk,
                                   const RemoteOptions& remote) {
    StoreOptions options;
    options.remote = remote;
    RemoteCache::Tiers tiers;
    tiers.push_back(std::make_unique<MemoryRemote>(shared));
    auto opened = open_store_on(options, std::make_unique<test::MemoryTier>(disk),
                                std::move(tiers));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  }
  static Result<SegmentHandle> recall(Store& store, RecallRequest request) {
    std::promise<Result<SegmentHandle>> promise;
    store.recall_async(std::move(request),
                       [&](Result<SegmentHandle> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  static Result<SegmentHandle> recall(Store& store, std::uint64_t key) {
    return recall(store, recall_of(key));
  }
  static std::string name_of(std::uint64_t key) { return remote_name(test::key_of(key), "m-test"); }
  RemoteTierStats counts(const std::unique_ptr<AdminStore>& store) {
    return store->remote_stats().tiers.at(0);
  }

  std::shared_ptr<MemoryShared> shared = std::make_shared<MemoryShared>();
  std::shared_ptr<test::MemoryDisk> disk_a = std::make_shared<test::MemoryDisk>(),
                                    disk_b = std::make_shared<test::MemoryDisk>();
  std::unique_ptr<AdminStore> a, b;
};

TEST_F(StoreRemoteTest, WhatOneStoreCommitsTheOtherRecalls) {
  ASSERT_OK(test::put_document(*a, "d", {1, 2}));
  EXPECT_EQ(counts(a).written, 2u);
  EXPECT_TRUE(a->is_shared(test::key_of(1)));
  EXPECT_FALSE(b->find_segment(test::key_of(1)));
  const auto segment = recall(*b, 1);
  ASSERT_OK(segment);
  EXPECT_OK(test::check_segment(*b, *segment, 1));
  EXPECT_EQ((*segment)->fingerprint, "m-test");
  EXPECT_EQ(counts(b).hits, 1u);
  EXPECT_TRUE(b->is_shared(test::key_of(1)));
  EXPECT_EQ(recall(*b, 9).code(), Code::kNotFound);
  EXPECT_EQ(counts(b).misses, 1u);
}

TEST_F(StoreRemoteTest, ARecalledSegmentStaysWhileADocumentNamesIt) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  {
    const auto segment = recall(*b, 1);
    ASSERT_OK(segment);
    ASSERT_OK(b->commit_document(test::manifest_of("d", {1}), test::text_of("d"),
                                 std::span(&*segment, 1)));
  }
  EXPECT_EQ(shared->puts, 1) << "the tier has it already";
  b.reset();
  b = open(disk_b, {});
  const auto segment = b->find_segment(test::key_of(1));
  ASSERT_TRUE(segment);
  EXPECT_OK(test::check_segment(*b, *segment, 1));
}

TEST_F(StoreRemoteTest, WhatTheTierHasIsNotSentAgain) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  ASSERT_OK(test::put_document(*b, "d", {1, 2})) << "b has computed both";
  EXPECT_EQ(shared->puts, 2);
  EXPECT_TRUE(b->is_shared(test::key_of(1)));
  // A record that cannot be read is none.
  disk_b = std::make_shared<test::MemoryDisk>();
  open_both();
  {
    const std::lock_guard lock(shared->mu);
    shared->segments.at(name_of(1)).record.clear();
  }
  ASSERT_OK(test::put_document(*b, "e", {1}));
  EXPECT_EQ(shared->puts, 3);
}

TEST_F(StoreRemoteTest, WhatWasEvictedHereComesBackAndIsKept) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  EvictRequest all;
  ASSERT_OK(a->evict(all));
  ASSERT_FALSE(a->peek_segment(test::key_of(1)));
  ASSERT_OK(recall(*a, 1));
  a.reset();
  a = open(disk_a, {});
  const auto segment = a->find_segment(test::key_of(1));
  ASSERT_TRUE(segment) << "a document names it, so it is in the catalog";
  EXPECT_OK(test::check_segment(*a, *segment, 1));
}

TEST_F(StoreRemoteTest, SeveralWhoWantOneContextShareOneRead) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  std::promise<void> go;
  auto gone = go.get_future().share();
  shared->fault = [gone](std::string_view) { return gone.wait(), Status(); };
  std::vector<std::promise<Result<SegmentHandle>>> replies(8);
  for (auto& reply : replies)
    b->recall_async(recall_of(1), [&](Result<SegmentHandle> r) { reply.set_value(std::move(r)); });
  go.set_value();
  for (auto& reply : replies) EXPECT_OK(reply.get_future().get());
  EXPECT_EQ(shared->gets, 1);
}

TEST_F(StoreRemoteTest, AContextThatTwoStoresWantAtOnceIsTheFirstOnesToCompute) {
  shared->leases = true;
  open_both();
  const RecallRequest turn = turn_for(1);
  EXPECT_EQ(recall(*a, turn).code(), Code::kNotFound);
  EXPECT_EQ(a->remote_stats().leases.held, 1u);
  std::promise<Result<SegmentHandle>> at_b;
  b->recall_async(turn, [&](Result<SegmentHandle> r) { at_b.set_value(std::move(r)); });
  while (shared->takes < 3) std::this_thread::yield();
  // A query computes for itself: it does not wait for a turn.
  EXPECT_EQ(recall(*b, 1).code(), Code::kNotFound);
  EXPECT_EQ(b->remote_stats().leases.waiting, 1u);
  const auto segment = test::put_segment(*a, 1);
  ASSERT_OK(segment);
  a->end_turn(turn);
  const auto recalled = at_b.get_future().get();
  ASSERT_OK(recalled);
  EXPECT_OK(test::check_segment(*b, *recalled, 1));
  EXPECT_EQ(b->remote_stats().leases.spared, 1u);
  EXPECT_EQ(counts(a).written, 1u) << "before its document is committed";
}

TEST_F(StoreRemoteTest, ATurnWithoutAResultIsTheNextOnes) {
  shared->leases = true;
  open_both();
  const RecallRequest turn = turn_for(1);
  EXPECT_EQ(recall(*a, turn).code(), Code::kNotFound);
  std::promise<Result<SegmentHandle>> at_b;
  b->recall_async(turn, [&](Result<SegmentHandle> r) { at_b.set_value(std::move(r)); });
  a->end_turn(turn);
  EXPECT_EQ(at_b.get_future().get().code(), Code::kNotFound);
  EXPECT_EQ(b->remote_stats().leases.own, 1u);
  EXPECT_EQ(counts(a).written, 0u);
}

TEST_F(StoreRemoteTest, WhoDoesNotWantAContextAnyMoreDoesNotWaitForItsTurn) {
  shared->leases = true;
  open_both();
  RecallRequest turn = turn_for(1);
  EXPECT_EQ(recall(*a, turn).code(), Code::kNotFound);
  std::stop_source unwanted;
  turn.unwanted = unwanted.get_token();
  std::promise<Result<SegmentHandle>> at_b;
  b->recall_async(turn, [&](Result<SegmentHandle> r) { at_b.set_value(std::move(r)); });
  while (shared->takes < 2) std::this_thread::yield();
  unwanted.request_stop();
  auto reply = at_b.get_future();
  EXPECT_EQ(reply.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  b.reset();
  EXPECT_EQ(reply.get().code(), Code::kNotFound);
}

TEST_F(StoreRemoteTest, WhoWritesNothingOrHasNoLeasesTakesNoTurns) {
  shared->leases = true;
  RemoteOptions read;
  read.mode = RemoteMode::kRead;
  open_both(read);
  EXPECT_FALSE(a->remote_stats().leases.enabled);
  RemoteOptions off;
  off.lease = std::chrono::milliseconds(0);
  open_both(off);
  EXPECT_FALSE(a->remote_stats().leases.enabled);
  const RecallRequest turn = turn_for(1);
  EXPECT_EQ(recall(*a, turn).code(), Code::kNotFound);
  EXPECT_EQ(shared->takes, 0);
}

TEST_F(StoreRemoteTest, AClosedStoreLeavesNoTurnBehind) {
  shared->leases = true;
  open_both();
  const RecallRequest turn = turn_for(1);
  EXPECT_EQ(recall(*a, turn).code(), Code::kNotFound);
  std::promise<Result<SegmentHandle>> at_b;
  b->recall_async(turn, [&](Result<SegmentHandle> r) { at_b.set_value(std::move(r)); });
  while (shared->takes < 2) std::this_thread::yield();
  b.reset();
  EXPECT_EQ(at_b.get_future().get().code(), Code::kNotFound);
  a.reset();
  EXPECT_TRUE(shared->held.empty());
}

/// Returns the name of a segment that is encrypted with the key of test::keys_of(digit).
std::string sealed_name(std::uint64_t key, char digit) {
  return remote_name(test::key_of(key), "m-test", test::keys_of(digit)->find("default")->id);
}

RemoteOptions with_key(char digit) {
  RemoteOptions options;
  options.keys = test::keys_of(digit);
  return options;
}

TEST_F(StoreRemoteTest, EncryptedValuesComeBackAndShowNothingInTheTier) {
  open_both(with_key('1'));
  ASSERT_OK(test::put_document(*a, "d", {1}));
  const auto segment = recall(*b, 1);
  ASSERT_OK(segment);
  EXPECT_OK(test::check_segment(*b, *segment, 1));
  const MemoryShared::Segment& stored = shared->segments.at(sealed_name(1, '1'));
  const auto value = test::value_of(1, 0, 0, test::SegmentShape().value_bytes);
  const std::string_view plain(reinterpret_cast<const char*>(value.data()), 64);
  EXPECT_EQ(stored.values.at(0).size(), 32 + value.size() + kSealBytes);
  EXPECT_EQ(stored.values.at(0).find(plain), std::string::npos);
}

TEST_F(StoreRemoteTest, ServicesWithDifferentKeysLeaveEachOthersSegmentsAlone) {
  open_both(with_key('1'));
  ASSERT_OK(test::put_document(*a, "d", {1}));
  for (const bool sealed : {true, false}) {
    const std::string own = sealed ? sealed_name(1, '2') : name_of(1);
    disk_b = std::make_shared<test::MemoryDisk>();
    RemoteOptions options = sealed ? with_key('2') : RemoteOptions();
    options.write_through = true;
    b.reset();
    b = open(disk_b, options);
    EXPECT_EQ(recall(*b, 1).code(), Code::kNotFound);
    ASSERT_OK(test::put_document(*b, "d", {1}));
    EXPECT_TRUE(shared->has(own));
    ASSERT_OK(b->delete_document("default", "d"));
    while (shared->has(own)) std::this_thread::yield();
    EXPECT_TRUE(shared->has(sealed_name(1, '1')));
  }
}

TEST_F(StoreRemoteTest, ASegmentUnderTheNameOfAnotherKeyIsAMissThatIsDeletedAndCounted) {
  struct Case {
    const char* what;
    RemoteOptions writer, reader;
    std::string from, to;
  };
  for (const Case& c :
       {Case{"another key", with_key('1'), with_key('2'), sealed_name(1, '1'), sealed_name(1, '2')},
        Case{"no key", with_key('1'), {}, sealed_name(1, '1'), name_of(1)},
        Case{"not encrypted", {}, with_key('1'), name_of(1), sealed_name(1, '1')}}) {
    SCOPED_TRACE(c.what);
    disk_a = std::make_shared<test::MemoryDisk>();
    disk_b = std::make_shared<test::MemoryDisk>();
    open_both(c.writer);
    ASSERT_OK(test::put_document(*a, "d", {1}));
    auto segment = shared->segments.extract(c.from);
    ASSERT_FALSE(segment.empty());
    segment.key() = c.to;
    shared->segments.insert(std::move(segment));
    RemoteOptions reader = c.reader;
    reader.write_through = true;
    b.reset();
    b = open(disk_b, reader);
    EXPECT_EQ(recall(*b, 1).code(), Code::kCorruption);
    EXPECT_EQ(counts(b).bad, 1u);
    EXPECT_FALSE(shared->has(c.to));
  }
}

TEST_F(StoreRemoteTest, TamperedEncryptedValuesAreMisses) {
  // The checksum of a value is inside of what is encrypted, so only the tag can tell.
  for (const std::size_t at : {std::size_t{0}, std::size_t{12}, std::size_t{60}}) {
    SCOPED_TRACE(at);
    disk_a = std::make_shared<test::MemoryDisk>();
    disk_b = std::make_shared<test::MemoryDisk>();
    open_both(with_key('1'));
    ASSERT_OK(test::put_document(*a, "d", {1}));
    shared->segments.at(sealed_name(1, '1')).values.at(2)[at] ^= 1;
    EXPECT_EQ(recall(*b, 1).code(), Code::kCorruption);
    EXPECT_EQ(counts(b).bad, 1u);
    EXPECT_FALSE(shared->has(sealed_name(1, '1')));
  }
  open_both(with_key('1'));
  ASSERT_OK(test::put_document(*a, "e", {5}));
  auto& values = shared->segments.at(sealed_name(5, '1')).values;
  std::swap(values.at(0), values.at(1));
  EXPECT_EQ(recall(*b, 5).code(), Code::kCorruption);
}

/// One way to spoil a stored segment.
struct Damage {
  const char* name;
  void (*spoil)(MemoryShared::Segment& it, MemoryShared::Segment& other);
};
const Damage kDamages[] = {
    {"a flipped bit", [](auto& it, auto&) { it.values[3][100] ^= 1; }},
    {"a flipped bit of a sketch", [](auto& it, auto&) { it.values[6][40] ^= 1; }},
    {"a flipped bit of a checksum", [](auto& it, auto&) { it.values[0][20] ^= 1; }},
    {"a short value", [](auto& it, auto&) { it.values[2].resize(50); }},
    {"an empty value", [](auto& it, auto&) { it.values[2].clear(); }},
    {"a long value", [](auto& it, auto&) { it.values[2] += "more"; }},
    {"a lost value", [](auto& it, auto&) { it.values.erase(4); }},
    {"two values swapped", [](auto& it, auto&) { std::swap(it.values[0], it.values[1]); }},
    {"a value of another context", [](auto& it, auto& other) { it.values[0] = other.values[0]; }},
    {"all of another context", [](auto& it, auto& other) { it = other; }},
    {"values of another context", [](auto& it, auto& other) { it.values = other.values; }},
    {"a flipped bit of the record", [](auto& it, auto&) { it.record[20] ^= 1; }},
    {"an empty record", [](auto& it, auto&) { it.record.clear(); }},
    {"a short record", [](auto& it, auto&) { it.record.pop_back(); }},
};

TEST_F(StoreRemoteTest, WhateverIsWrongIsAMissThatIsDeletedCountedAndWrittenAgain) {
  std::uint64_t bad = 0;
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.name);
    ASSERT_OK(test::put_document(*a, "d", {1}));
    ASSERT_OK(test::put_document(*a, "e", {2}));
    {
      const std::lock_guard lock(shared->mu);
      damage.spoil(shared->segments.at(name_of(1)), shared->segments.at(name_of(2)));
    }
    EXPECT_EQ(recall(*b, 1).code(), Code::kCorruption);
    EXPECT_FALSE(b->peek_segment(test::key_of(1)));
    EXPECT_FALSE(shared->has(name_of(1)));
    EXPECT_EQ(counts(b).bad, ++bad);
    EXPECT_TRUE(counts(b).up) << "the tier answers, however wrong";
    EXPECT_EQ(recall(*b, 1).code(), Code::kNotFound) << "the next one is an ordinary miss";
    ASSERT_OK(test::put_document(*b, "d", {1})) << "b computes it";
    EXPECT_TRUE(shared->has(name_of(1)));
    ASSERT_OK(b->delete_document("default", "d", {}));
    ASSERT_OK(a->delete_document("default", "d", {}));
    ASSERT_OK(a->delete_document("default", "e", {}));
    open_both();
    bad = 0;
  }
}

/// Makes the tier silent until the returned promise is set, with a second way that has what is
/// there now.
std::promise<void> silence(MemoryShared& shared) {
  shared.second_way = std::make_shared<MemoryShared>();
  shared.second_way->segments = shared.segments;
  std::promise<void> end;
  shared.fault = [ended = end.get_future().share()](std::string_view operation) {
    if (operation == "get_record") ended.wait();
    return Status();
  };
  return end;
}

TEST_F(StoreRemoteTest, ASecondWayIsAskedWhileTheTierIsSilent) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  auto end = silence(*shared);
  open_both();
  const auto segment = recall(*b, 1);
  end.set_value();
  ASSERT_OK(segment);
  EXPECT_OK(test::check_segment(*b, *segment, 1));
  EXPECT_EQ(counts(b).hits, 1u);
  EXPECT_EQ(counts(b).second_way_hits, 1u);
  EXPECT_GT(counts(b).read_bytes, 0u);
  EXPECT_EQ(b->remote_stats().hedges_won, 1u);
}

TEST_F(StoreRemoteTest, WhatASecondWayLacksIsNoMissAndWhatIsWrongThereIsDeletedInTheTier) {
  for (const bool lacks : {true, false}) {
    SCOPED_TRACE(lacks);
    shared = std::make_shared<MemoryShared>();
    disk_a = std::make_shared<test::MemoryDisk>();
    disk_b = std::make_shared<test::MemoryDisk>();
    open_both();
    ASSERT_OK(test::put_document(*a, "d", {1}));
    auto end = silence(*shared);
    auto& segments = shared->second_way->segments;
    if (lacks)
      segments.clear();
    else
      segments.at(name_of(1)).values[3][100] ^= 1;
    std::atomic<bool> asked = false;
    shared->second_way->fault = [&asked](std::string_view) { return asked = true, Status(); };
    open_both();
    std::promise<Result<SegmentHandle>> reply;
    b->recall_async(recall_of(1), [&](Result<SegmentHandle> r) { reply.set_value(std::move(r)); });
    while (!asked || counts(b).bad != (lacks ? 0u : 1u)) std::this_thread::yield();
    end.set_value();
    const auto found = reply.get_future().get();
    if (lacks) {
      ASSERT_OK(found);
      EXPECT_OK(test::check_segment(*b, *found, 1));
    }
    // The segment may be deleted before its record is read, before its values are, or after both.
    EXPECT_EQ(counts(b).misses, found.code() == Code::kNotFound ? 1u : 0u);
    EXPECT_EQ(counts(b).second_way_hits, 0u);
    // What is wrong is counted, and then deleted.
    while (shared->has(name_of(1)) != lacks) std::this_thread::yield();
  }
}

TEST_F(StoreRemoteTest, WithoutHedgedReadsThereIsNoSecondWay) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  shared->second_way = std::make_shared<MemoryShared>();
  shared->second_way->segments = shared->segments;
  shared->fault = [](std::string_view operation) {
    return operation == "get_record" ? Status::unavailable("away") : Status();
  };
  RemoteOptions options;
  options.hedged_reads = false;
  open_both(options);
  EXPECT_EQ(recall(*b, 1).code(), Code::kUnavailable);
  options.hedged_reads = true;
  open_both(options);
  EXPECT_OK(recall(*b, 1));
}

TEST_F(StoreRemoteTest, AnotherModelOrLayoutDoesNotPass) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  RecallRequest other = recall_of(1);
  other.fingerprint = "m-other";
  EXPECT_EQ(recall(*b, other).code(), Code::kNotFound);
  EXPECT_TRUE(shared->has(name_of(1)));
  other = recall_of(1);
  other.value_bytes += 2;
  EXPECT_EQ(recall(*b, other).code(), Code::kCorruption);
}

TEST_F(StoreRemoteTest, ATierThatFailsCostsNoCommitAndIsLeftAlone) {
  std::atomic<int> calls{0};
  shared->fault = [&](std::string_view) {
    ++calls;
    return Status::unavailable("no route to host");
  };
  for (std::uint64_t k = 1; k <= 20; ++k) {
    ASSERT_OK(test::put_document(*a, "d" + std::to_string(k), {k}));
    EXPECT_FALSE(recall(*a, 100 + k).ok());
  }
  EXPECT_FALSE(counts(a).up);
  EXPECT_GE(calls, CircuitBreaker::kFailures);
  EXPECT_LT(calls, 40) << "then nobody asks for a while";
  EXPECT_EQ(counts(a).write_failures, 20u);
  for (std::uint64_t k = 1; k <= 20; ++k) {
    const auto segment = a->find_segment(test::key_of(k));
    ASSERT_TRUE(segment);
    EXPECT_OK(test::check_segment(*a, *segment, k));
  }
}

TEST_F(StoreRemoteTest, ATierThatIsFullIsReadOnAndKeepsNoPartOfWhatItRefused) {
  ASSERT_OK(test::put_document(*a, "d1", {1}));
  shared->fault = [](std::string_view operation) {
    return operation == "put" ? Status::exhausted("it has no memory") : Status();
  };
  for (std::uint64_t k = 2; k <= 20; ++k)
    ASSERT_OK(test::put_document(*a, "d" + std::to_string(k), {k}));
  EXPECT_EQ(counts(a).write_failures, 19u);
  EXPECT_TRUE(counts(a).up);
  EXPECT_EQ(shared->removes, 19);
  EXPECT_OK(recall(*b, 1));
}

TEST_F(StoreRemoteTest, WaitsInVainCountOnceTheySumUpToTheTimeLimit) {
  RemoteOptions options;
  shared->fault = [](std::string_view) { return Status::deadline("no answer in time"); };
  for (const auto& [limit, up] : {std::pair{std::chrono::milliseconds(600'000), true},
                                  std::pair{std::chrono::milliseconds(0), false}}) {
    options.timeout = limit;
    open_both(options);
    for (std::uint64_t k = 1; k <= 20; ++k) EXPECT_FALSE(recall(*a, k).ok());
    EXPECT_EQ(counts(a).up, up) << limit.count();
    EXPECT_GE(counts(a).timeouts, 5u);
  }
}

TEST_F(StoreRemoteTest, APassedDeadlineAsksNobody) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  RecallRequest late = recall_of(1);
  late.worth_ms = 0;
  EXPECT_EQ(recall(*b, late).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(shared->gets, 0);
}

TEST_F(StoreRemoteTest, DeletingTheDocumentDeletesWhatWasShared) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  ASSERT_TRUE(shared->has(name_of(1)));
  ASSERT_OK(a->delete_document("default", "d", {}));
  while (shared->has(name_of(1))) std::this_thread::yield();
  EXPECT_EQ(shared->removes, 1);
}

/// Evicts all KV of a store from its disk.
void evict_all(AdminStore& store) {
  EvictRequest all;
  all.tier = Tier::kDisk;
  const auto evicted = store.evict(all);
  ASSERT_OK(evicted);
  ASSERT_GT(evicted->contexts, 0u);
}

TEST_F(StoreRemoteTest, DeletingTheDocumentDeletesWhatWasSharedAndIsNoLongerHere) {
  ASSERT_OK(test::put_document(*a, "d", {1, 2}));
  ASSERT_OK(test::put_document(*a, "e", {2}));
  evict_all(*a);
  ASSERT_FALSE(a->find_segment(test::key_of(1)));
  ASSERT_OK(a->delete_document("default", "d", {}));
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(1)); }));
  EXPECT_TRUE(shared->has(name_of(2))) << "a document names it";
  a.reset();
  a = open(disk_a, {});
  ASSERT_OK(a->delete_document("default", "e", {}));
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(2)); })) << "also after a restart";
}

TEST_F(StoreRemoteTest, WhatIsReadWhileItsDocumentIsDeletedIsDeletedThereToo) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  {
    const auto held = a->find_segment(test::key_of(1));
    ASSERT_TRUE(held);
    ASSERT_OK(a->discard_segment(*held));  // it goes with the last that reads it
    ASSERT_OK(a->delete_document("default", "d", {}));
  }
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(1)); }));
}

/// Returns how many deletions a store has noted that are not carried out yet.
std::size_t noted(const std::shared_ptr<test::MemoryDisk>& disk) {
  const std::lock_guard lock(disk->mu);
  return to_size(std::ranges::count_if(disk->records, [](const auto& record) {
    return record.first.first == Family::kMeta && record.first.second.starts_with(kRemovalPrefix);
  }));
}

Status refuse_removals(std::string_view operation) {
  return operation == "remove" ? Status::unavailable("no route to host") : Status();
}

TEST_F(StoreRemoteTest, ADeletionThatWaitsWhenTheStoreClosesIsCarriedOutAfterTheNextStart) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  ASSERT_OK(test::put_document(*a, "e", {2}));
  shared->fault = refuse_removals;
  ASSERT_OK(a->delete_document("default", "d"));
  ASSERT_TRUE(soon([&] { return noted(disk_a) == 1; }));
  a.reset();
  ASSERT_TRUE(shared->has(name_of(1)));
  shared->fault = {};
  a = open(disk_a, {});
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(1)); }));
  EXPECT_TRUE(soon([&] { return noted(disk_a) == 0; }));
  EXPECT_TRUE(shared->has(name_of(2)));
  EXPECT_EQ(shared->removes, 1);
}

TEST_F(StoreRemoteTest, ADeletionIsTriedAgainOnceTheTierAnswers) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  const auto refused = std::make_shared<std::atomic<int>>(0);
  shared->fault = [refused](std::string_view operation) {
    return operation == "remove" && ++*refused == 1 ? Status::unavailable("no route to host")
                                                    : Status();
  };
  ASSERT_OK(a->delete_document("default", "d"));
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(1)); }));
  EXPECT_TRUE(soon([&] { return noted(disk_a) == 0; }));
}

TEST_F(StoreRemoteTest, WhatWasInUseWhenTheProcessDiedIsDeletedThereToo) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  auto held = a->find_segment(test::key_of(1));
  ASSERT_OK(a->delete_document("default", "d"));
  auto left = std::make_shared<test::MemoryDisk>();
  {
    const std::lock_guard lock(disk_a->mu);
    left->records = disk_a->records;
    left->segments = disk_a->segments;
  }
  ASSERT_TRUE(shared->has(name_of(1)));
  const auto after = open(left, {});
  EXPECT_TRUE(soon([&] { return !shared->has(name_of(1)); }));
  EXPECT_TRUE(soon([&] { return noted(left) == 0; }));
}

TEST_F(StoreRemoteTest, ADeletionOfBeforeLeavesWhatADocumentNamesByNow) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  shared->fault = refuse_removals;
  ASSERT_OK(a->delete_document("default", "d"));
  ASSERT_TRUE(soon([&] { return noted(disk_a) == 1; }));
  a.reset();
  {
    auto alone = open_store_on({}, std::make_unique<test::MemoryTier>(disk_a));
    ASSERT_OK(alone);
    ASSERT_OK(test::put_document(**alone, "e", {1}));
  }
  shared->fault = {};
  a = open(disk_a, {});
  EXPECT_TRUE(soon([&] { return noted(disk_a) == 0; }));
  EXPECT_TRUE(shared->has(name_of(1)));
}

TEST_F(StoreRemoteTest, WhatADocumentNamesAgainStaysShared) {
  a.reset();
  a = open(disk_a, {});  // it writes behind
  ASSERT_OK(test::put_document(*a, "d", {1}));
  while (!a->is_shared(test::key_of(1))) std::this_thread::yield();
  // The removal waits behind a write until another document has the same context.
  std::promise<void> go;
  const auto gone = go.get_future().share();
  const auto asked = std::make_shared<std::atomic<int>>(0);
  shared->fault = [gone, asked](std::string_view) {
    ++*asked;
    return gone.wait(), Status();
  };
  ASSERT_OK(test::put_document(*a, "e", {2}));
  while (*asked == 0) std::this_thread::yield();
  ASSERT_OK(a->delete_document("default", "d"));
  while (a->remote_stats().queued_writes == 0) std::this_thread::yield();
  ASSERT_OK(test::put_document(*a, "f", {1}));
  go.set_value();
  while (!a->is_shared(test::key_of(1))) std::this_thread::yield();
  EXPECT_EQ(shared->removes, 0);
  EXPECT_TRUE(shared->has(name_of(1)));
}

TEST_F(StoreRemoteTest, AnOutdatedSegmentIsReplacedThere) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  {
    const auto segment = a->find_segment(test::key_of(1));
    ASSERT_OK(a->discard_segment(*segment));
  }
  const auto again = test::put_segment(*a, 1);
  ASSERT_OK(again);
  ASSERT_OK(a->commit_segments(std::span(&*again, 1)));
  EXPECT_EQ(shared->puts, 2);
  EXPECT_TRUE(shared->has(name_of(1)));
}

TEST_F(StoreRemoteTest, ModesReadOrWriteOnly) {
  RemoteOptions options;
  options.mode = RemoteMode::kRead;
  open_both(options);
  ASSERT_OK(test::put_document(*a, "d", {1}));
  EXPECT_EQ(shared->puts, 0);
  options.mode = RemoteMode::kWrite;
  open_both(options);
  ASSERT_OK(test::put_document(*a, "e", {2}));
  EXPECT_EQ(shared->puts, 1);
  EXPECT_FALSE(b->recalls());
  EXPECT_EQ(recall(*b, 2).code(), Code::kNotFound);
  options.mode = RemoteMode::kRead;
  open_both(options);
  {
    const std::lock_guard lock(shared->mu);
    shared->segments.at(name_of(2)).values[0][50] ^= 1;
  }
  EXPECT_EQ(recall(*b, 2).code(), Code::kCorruption);
  EXPECT_EQ(shared->removes, 0) << "a reader deletes nothing";
}

TEST_F(StoreRemoteTest, TheSecondTierIsAskedWhenTheFirstHasNothing) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  auto empty = std::make_shared<MemoryShared>();
  RemoteCache::Tiers tiers;
  tiers.push_back(std::make_unique<MemoryRemote>(empty, "redis"));
  tiers.push_back(std::make_unique<MemoryRemote>(shared, "s3"));
  StoreOptions options;
  options.remote.write_through = true;
  auto opened = open_store_on(
      options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()),
      std::move(tiers));
  ASSERT_OK(opened);
  Store& c = **opened;
  {
    const auto segment = recall(c, 1);
    ASSERT_OK(segment);
    EXPECT_OK(test::check_segment(c, *segment, 1));
    ASSERT_OK(c.commit_document(test::manifest_of("d", {1}), test::text_of("d"),
                                std::span(&*segment, 1)));
  }
  EXPECT_EQ(c.remote_stats().tiers.at(0).misses, 1u);
  EXPECT_EQ(c.remote_stats().tiers.at(1).hits, 1u);
  EXPECT_EQ(empty->puts, 1) << "the first tier gets it";
  EXPECT_EQ(shared->puts, 1) << "the second has it";
}

TEST_F(StoreRemoteTest, WritesBehindAreBoundedAndACloseDoesNotWaitForThem) {
  std::promise<void> go;
  auto gone = go.get_future().share();
  shared->fault = [gone](std::string_view) {
    gone.wait();
    return Status::unavailable("closing");
  };
  RemoteOptions behind;
  a.reset();
  a = open(disk_a, behind);
  for (std::uint64_t k = 1; k <= 300; ++k)
    ASSERT_OK(test::put_document(*a, "d" + std::to_string(k), {k}));
  const RemoteStats stats = a->remote_stats();
  EXPECT_GE(stats.queued_writes, 255u);
  EXPECT_LE(stats.queued_writes, 256u);
  EXPECT_GE(stats.dropped_writes, 43u);
  go.set_value();
}

TEST_F(StoreRemoteTest, WhatIsDeletedInBulkIsDeletedThereTooAndHoldsUpNoWrite) {
  constexpr std::uint64_t kDocuments = 700;
  for (std::uint64_t k = 1; k <= kDocuments; ++k)
    ASSERT_OK(test::put_document(*a, "d" + std::to_string(k), {k}));
  a.reset();
  std::promise<void> go;
  const auto gone = go.get_future().share();
  std::atomic<int> removes_before_put = -1;
  shared->fault = [&, gone](std::string_view operation) {
    gone.wait();
    if (operation == "put") removes_before_put = shared->removes.load();
    return Status();
  };
  a = open(disk_a, {});  // it writes behind
  for (std::uint64_t k = 1; k <= kDocuments; ++k)
    ASSERT_OK(a->delete_document("default", "d" + std::to_string(k)));
  ASSERT_OK(test::put_document(*a, "new", {kDocuments + 1}));
  go.set_value();
  while (a->remote_stats().queued_writes > 0) std::this_thread::yield();
  a.reset();  // the last one is over, too
  EXPECT_GE(removes_before_put, 0);
  EXPECT_LE(removes_before_put, 2);
  const std::lock_guard lock(shared->mu);
  EXPECT_TRUE(shared->segments.contains(name_of(kDocuments + 1)));
  EXPECT_EQ(shared->segments.size(), 1u) << "KV of deleted documents stays";
}

TEST(StoreWithoutRemote, HasNothingToRecall) {
  auto store = open_store_on(
      {}, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
  ASSERT_OK(store);
  EXPECT_FALSE((*store)->recalls());
  EXPECT_TRUE((*store)->remote_stats().tiers.empty());
  bool called = false;
  (*store)->recall_async(recall_of(1), [&](Result<SegmentHandle> r) {
    called = true;
    EXPECT_EQ(r.code(), Code::kNotFound);
  });
  EXPECT_TRUE(called);
}

}  // namespace
}  // namespace quire
