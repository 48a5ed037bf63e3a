#include "engine/prefill/kv_writer.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "tests/support/engine_harness.h"
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

}  // namespace
}  // namespace quire::testing
