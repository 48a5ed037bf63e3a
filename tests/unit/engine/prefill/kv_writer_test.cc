#include "engine/prefill/kv_writer.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <new>
#include <stdexcept>

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"
#include "tests/support/harness/ingest_harness.h"

namespace quire::testing {
namespace {

TEST(KvWriter, WaitsForAnotherWriterOfTheSameContext) {
  const TempFolder folder;
  const std::unique_ptr<Store> store = open_test_store(folder.path() / "store");
  Ingest ingest(nullptr, 2, DType::kF16);
  const auto kv = ingest.run(40);
  ASSERT_NE(kv, nullptr);
  const ContextKey key = sha256("context");
  const auto bytes = static_cast<std::uint64_t>(kv->layout.total_bytes()) + 1;
  auto other = store->begin_segment(key, kv->layout.segment(0), bytes, "default", "m-test");
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  KvWriter writer(*store, ingest.model->rope(), ingest.core.facts.num_heads, "m-test");
  std::promise<Status> told;
  std::future<Status> result = told.get_future();
  writer.submit({kv, key, "default", [&](Result<WrittenContext> written) {
                   told.set_value(written.ok() ? Status() : written.status());
                 }});
  // The other writer is in the middle of its work.
  EXPECT_EQ(result.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  other->reset();
  const Status status = result.get();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(KvWriter, CountsTheBytesThatWaitAndTellsForHowManyThereIsRoom) {
  const TempFolder folder;
  std::unique_ptr<Store> real = open_test_store(folder.path() / "store", 64u << 20);
  test::FaultyStore store(real);
  Ingest ingest(nullptr, 2, DType::kF16);
  const auto kv = ingest.run(40);
  ASSERT_NE(kv, nullptr);
  const std::int64_t bytes = kv->layout.total_bytes();
  Gate gate;
  store.before_write = [&gate] { gate.pass(); };
  KvWriter writer(store, ingest.model->rope(), ingest.core.facts.num_heads, "m-test");
  const std::int64_t most = writer.max_bytes();
  EXPECT_EQ(most, 8 << 20);
  EXPECT_TRUE(writer.has_room(most + 1)) << "nothing else waits";
  for (const char* name : {"one", "two"})
    writer.submit({kv, sha256(name), "default", [](const Result<WrittenContext>&) {}});
  EXPECT_EQ(writer.pending_bytes(), 2 * bytes);
  EXPECT_TRUE(writer.has_room(most - 2 * bytes));
  EXPECT_FALSE(writer.has_room(most - 2 * bytes + 1));
  gate.open();
  writer.stop();
  EXPECT_EQ(writer.pending_bytes(), 0);
}

TEST(KvWriter, AnExceptionEndsItsContextAlone) {
  const TempFolder folder;
  std::unique_ptr<Store> real = open_test_store(folder.path() / "store");
  test::FaultyStore store(real);
  Ingest ingest(nullptr, 2, DType::kF16);
  const auto kv = ingest.run(40);
  ASSERT_NE(kv, nullptr);
  int writes = 0;
  store.before_write = [&writes] {
    if (++writes == 1) throw std::bad_alloc();
  };
  KvWriter writer(store, ingest.model->rope(), ingest.core.facts.num_heads, "m-test");
  std::vector<Status> ends;
  const auto submit = [&](const char* name, bool throws) {
    writer.submit({kv, sha256(name), "default", [&ends, throws](Result<WrittenContext> written) {
                     ends.push_back(written.status());
                     if (throws) throw std::runtime_error("nobody takes it");
                   }});
  };
  submit("without memory", false);
  submit("nobody takes it", true);
  submit("a third", false);
  writer.stop();
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].code(), Code::kResourceExhausted);
  EXPECT_TRUE(ends[1].ok()) << ends[1].to_string();
  EXPECT_TRUE(ends[2].ok()) << ends[2].to_string();
  EXPECT_EQ(writer.pending(), 0u);
}

}  // namespace
}  // namespace quire::testing
