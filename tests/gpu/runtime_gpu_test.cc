// Tests the device runtime on a GPU, where the fake device of tests/unit/kernels/cuda/runtime is
// not enough.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/backend/loader.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/guarded_driver.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire::cuda {
namespace {

/// Device 0 with a stream and pools of 64 MiB.
struct Opened {
  DeviceProperties properties;
  std::unique_ptr<DeviceDriver> inner;
  std::unique_ptr<GuardedDriver> driver;
  Stream stream;
  std::unique_ptr<MemoryPool> device, pinned;

  static Result<Opened> open() {
    Opened o;
    QUIRE_ASSIGN_OR_RETURN(o.properties, choose_device(probe_devices(), 0));
    QUIRE_ASSIGN_OR_RETURN(o.inner, open_device(o.properties));
    o.driver = std::make_unique<GuardedDriver>(*o.inner);
    QUIRE_ASSIGN_OR_RETURN(o.stream, create_stream(*o.driver));
    o.device = std::make_unique<MemoryPool>(*o.driver, MemoryKind::kDevice, std::int64_t{64} << 20);
    o.pinned = std::make_unique<MemoryPool>(*o.driver, MemoryKind::kPinned, std::int64_t{64} << 20);
    return o;
  }
};

constexpr std::int64_t kFloats = 100'003, kBytes = kFloats * 4;

TEST(GpuRuntime, CopiesThroughPinnedMemoryAndBack) {
  auto o = Opened::open();
  ASSERT_OK(o.status());
  auto host = o->pinned->allocate(kBytes, o->stream.get()),
       there = o->device->allocate(kBytes, o->stream.get()),
       back = o->pinned->allocate(kBytes, o->stream.get());
  ASSERT_OK(host.status());
  ASSERT_OK(there.status());
  ASSERT_OK(back.status());
  const auto values = random_floats(kFloats, 1);
  std::memcpy(host->data(), values.data(), kBytes);
  std::memset(back->data(), 0xff, kBytes);
  ASSERT_OK(o->driver->copy(there->data(), host->data(), kBytes, o->stream.get()));
  ASSERT_OK(o->driver->copy(back->data(), there->data(), kBytes, o->stream.get()));
  ASSERT_OK(o->driver->wait_for(o->stream.get()));
  EXPECT_EQ(std::memcmp(back->data(), values.data(), kBytes), 0);
}

TEST(GpuRuntime, AStreamHeldForAnEventComesAfterIt) {
  auto o = Opened::open();
  ASSERT_OK(o.status());
  auto other = create_stream(*o->driver);
  auto event = create_event(*o->driver);
  ASSERT_OK(other.status());
  ASSERT_OK(event.status());
  auto a = o->device->allocate(kBytes, o->stream.get()),
       b = o->device->allocate(kBytes, other->get());
  auto host = o->pinned->allocate(kBytes, o->stream.get()),
       back = o->pinned->allocate(kBytes, other->get());
  ASSERT_OK(a.status());
  ASSERT_OK(b.status());
  ASSERT_OK(host.status());
  ASSERT_OK(back.status());
  for (int round = 0; round < 50; ++round) {
    const auto values = random_floats(kFloats, static_cast<std::uint32_t>(round));
    std::memcpy(host->data(), values.data(), kBytes);
    ASSERT_OK(o->driver->copy(a->data(), host->data(), kBytes, o->stream.get()));
    ASSERT_OK(o->driver->record(event->get(), o->stream.get()));
    ASSERT_OK(o->driver->hold(other->get(), event->get()));
    ASSERT_OK(o->driver->copy(b->data(), a->data(), kBytes, other->get()));
    ASSERT_OK(o->driver->copy(back->data(), b->data(), kBytes, other->get()));
    ASSERT_OK(o->driver->wait_for(other->get()));
    ASSERT_EQ(std::memcmp(back->data(), values.data(), kBytes), 0);
    EXPECT_TRUE(*o->driver->passed(event->get()));
  }
}

TEST(GpuRuntime, AGraphComputesAgainOverWhatItsMemoryHoldsNow) {
  auto o = Opened::open();
  ASSERT_OK(o.status());
  constexpr std::int64_t kRows = 5, kDim = 1000;
  auto x = o->device->allocate(kRows * kDim * 4, o->stream.get()),
       weight = o->device->allocate(kDim * 4, o->stream.get()),
       out = o->device->allocate(kRows * kDim * 4, o->stream.get());
  auto host = o->pinned->allocate(kRows * kDim * 4, o->stream.get());
  ASSERT_OK(x.status());
  ASSERT_OK(weight.status());
  ASSERT_OK(out.status());
  ASSERT_OK(host.status());
  const auto w = random_floats(kDim, 3);
  std::memcpy(host->data(), w.data(), kDim * 4);
  ASSERT_OK(o->driver->copy(weight->data(), host->data(), kDim * 4, o->stream.get()));
  ASSERT_OK(o->driver->wait_for(o->stream.get()));
  GraphCache graphs(*o->driver, 2);
  const auto record = [&](StreamHandle stream) {
    return rms_norm({{static_cast<float*>(x->data()), static_cast<float*>(weight->data()),
                      static_cast<float*>(out->data()), kRows, kDim, 1e-6f},
                     nullptr},
                    stream);
  };
  for (int round = 0; round < 4; ++round) {
    const auto values = random_floats(kRows * kDim, static_cast<std::uint32_t>(10 + round));
    std::memcpy(host->data(), values.data(), kRows * kDim * 4);
    ASSERT_OK(o->driver->copy(x->data(), host->data(), kRows * kDim * 4, o->stream.get()));
    ASSERT_OK(graphs.run(8, 1, o->stream.get(), record));
    ASSERT_OK(o->driver->copy(host->data(), out->data(), kRows * kDim * 4, o->stream.get()));
    ASSERT_OK(o->driver->wait_for(o->stream.get()));
    std::vector<float> expected(kRows * kDim);
    ASSERT_OK(rms_norm_reference({values.data(), w.data(), expected.data(), kRows, kDim, 1e-6f}));
    const auto* actual = static_cast<const float*>(host->data());
    expect_close(std::vector<float>(actual, actual + kRows * kDim), expected, 1e-6, 1e-5, "graph");
  }
  EXPECT_EQ(graphs.stats().captures, 1);
  EXPECT_EQ(graphs.stats().launches, 4);
}

TEST(GpuRuntime, MoreMemoryThanTheCardHasIsOneErrorAndNotTheLast) {
  auto o = Opened::open();
  ASSERT_OK(o.status());
  const auto memory = o->driver->memory();
  ASSERT_OK(memory.status());
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  EXPECT_EQ(pool_budget(*memory, memory->total_bytes + 1, "model.device_cache_bytes").code(),
            Code::kResourceExhausted);
  MemoryPool huge(*o->driver, MemoryKind::kDevice, 4 * memory->total_bytes);
  EXPECT_EQ(huge.allocate(2 * memory->total_bytes, o->stream.get()).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(huge.stats().held_bytes(), 0);
  EXPECT_TRUE(huge.allocate(1 << 20, o->stream.get()).ok());
  EXPECT_FALSE(o->driver->lost());
}

/// A step whose graph could not be made runs its operations one by one.
TEST(GpuRuntime, AFailedCallIsNotReportedAgainByTheNextLaunch) {
  auto o = Opened::open();
  ASSERT_OK(o.status());
  auto x = o->device->allocate(4096, o->stream.get());
  ASSERT_OK(x.status());
  auto* const values = static_cast<float*>(x->data());
  const auto expect_launched_after = [&](const Status& failed) {
    EXPECT_FALSE(failed.ok());
    EXPECT_OK(rms_norm({{values, values, values, 1, 64, 1e-6f}, nullptr}, o->stream.get()));
  };
  expect_launched_after(o->inner->launch(GraphHandle{}, o->stream.get()));
  expect_launched_after(o->inner->record(EventHandle{}, o->stream.get()));
  expect_launched_after(o->inner->end_capture(o->stream.get()).status());
  EXPECT_OK(o->inner->wait_for(o->stream.get()));
}

TEST(GpuRuntime, TheLoadedBackendSeesAndTestsTheDevice) {
  const auto library = BackendLibrary::load(backend_library_files());
  ASSERT_OK(library.status());
  const auto device = choose_device((*library)->probe(), 0);
  ASSERT_OK(device.status());
  std::cout << "        " << describe(*device) << std::endl;
  ASSERT_OK((*library)->self_test(*device));
  EXPECT_EQ(choose_device((*library)->probe(), 4096).status().field(), "model.device");
}

/// Every copy of a team over two GPUs, with several rounds in flight before anybody waits.
TEST(GpuRuntime, TwoGpusSendToEachOther) {
  const auto library = BackendLibrary::load(backend_library_files());
  ASSERT_OK(library.status());
  const DeviceReport report = (*library)->probe();
  if (report.devices.size() < 2) GTEST_SKIP() << "there is one GPU";
  auto opened = (*library)->open_team({report.devices[0], report.devices[1]});
  ASSERT_OK(opened.status());
  constexpr std::int64_t kSentBytes = 1 << 20, kHalf = kSentBytes / 2, kOdd = 4096;
  std::byte *on[2], *host = nullptr;
  for (std::size_t r = 0; r < 2; ++r) {
    auto p = opened->devices[r]->allocate(MemoryKind::kDevice, kSentBytes);
    ASSERT_OK(p.status());
    on[r] = static_cast<std::byte*>(*p);
  }
  auto pinned = opened->devices[0]->allocate(MemoryKind::kPinned, kSentBytes);
  ASSERT_OK(pinned.status());
  host = static_cast<std::byte*>(*pinned);
  for (std::int64_t i = 0; i < kSentBytes; ++i) host[i] = std::byte(i * 7 % 251);
  const std::vector<std::byte> sent(host, host + kSentBytes);
  DeviceOps& leader = *opened->devices[0];
  Communicator& team = *opened->communicator;
  ASSERT_OK(leader.run(CopyArgs{on[0], host, kSentBytes}));
  void* const to[] = {nullptr, on[1]};
  std::byte* const whole[] = {on[0], on[1]};
  const std::int64_t even[] = {0, kHalf, kSentBytes}, odd[] = {0, kOdd, kSentBytes};
  const Communicator::Part parts[] = {{}, {on[1] + kHalf, on[0], kHalf}};
  for (int round = 0; round < 5; ++round) {
    ASSERT_OK(team.broadcast(on[0], to, kSentBytes));
    ASSERT_OK(team.all_gather(whole, even));
    ASSERT_OK(team.all_gather(whole, odd));
  }
  ASSERT_OK(team.gather(parts));
  ASSERT_OK(leader.run(CopyArgs{host, on[0], kSentBytes}));
  ASSERT_OK(leader.synchronize());
  ASSERT_OK(team.status());
  for (std::int64_t i = 0; i < kSentBytes; ++i)
    ASSERT_EQ(host[i], sent[static_cast<std::size_t>(i < kHalf ? kHalf + i : i)]) << i;
  ASSERT_OK(opened->devices[1]->synchronize());
  ASSERT_OK(leader.release(MemoryKind::kPinned, host));
  for (std::size_t r = 0; r < 2; ++r)
    ASSERT_OK(opened->devices[r]->release(MemoryKind::kDevice, on[r]));
}

}  // namespace
}  // namespace quire::cuda
