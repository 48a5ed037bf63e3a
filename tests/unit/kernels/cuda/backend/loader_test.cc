#include "kernels/cuda/backend/loader.h"
#include "kernels/cuda/backend/entry.h"
#include "kernels/cuda/backend/watched_ops.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace quire::cuda {
namespace {

std::string library(const std::string& name) {
  return std::string(QUIRE_MADE_UP_LIBRARIES) + "/libquire_made_up_" + name + ".so";
}

TEST(BackendLibrary, LoadsTheFirstThatExistsAndReadsItsTable) {
  const auto loaded = BackendLibrary::load({"/nowhere/libquire_cuda.so", library("kernels")});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)->file(), library("kernels"));
  const DeviceReport report = (*loaded)->probe();
  EXPECT_EQ(report.driver_version, 13000);
  ASSERT_EQ(report.devices.size(), 2u);
  EXPECT_EQ(report.devices[1].name, "Made-up GPU");
  EXPECT_EQ(report.devices[1].index, 1);
  EXPECT_TRUE((*loaded)->self_test(report.devices[0]).ok());
  const Status lost = (*loaded)->self_test(report.devices[1]);
  EXPECT_EQ(lost.code(), Code::kDeviceLost);
  EXPECT_EQ(lost.message(), "an illegal memory access");
}

TEST(BackendLibrary, WhatCannotBeUsedSaysWhy) {
  const auto missing = BackendLibrary::load({"/nowhere/a.so", "/nowhere/b.so"});
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find(
                "looked for /nowhere/a.so, /nowhere/b.so): build with -DQUIRE_CUDA=ON"),
            std::string::npos)
      << missing.status().message();
  const auto other = BackendLibrary::load({library("other_version")});
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  const std::string versions = "its table is version " +
                               std::to_string(QUIRE_CUDA_ENTRY_VERSION + 4) + ", wanted is " +
                               std::to_string(QUIRE_CUDA_ENTRY_VERSION);
  EXPECT_NE(other.status().message().find(versions + "): install both from one build"),
            std::string::npos)
      << other.status().message();
  const std::string text = testing::TempDir() + "not_a_library.so";
  std::ofstream(text) << "text";
  const auto broken = BackendLibrary::load({text});
  EXPECT_EQ(broken.code(), Code::kFailedPrecondition);
  EXPECT_NE(broken.status().message().find("cannot be loaded"), std::string::npos)
      << broken.status().message();
  const auto foreign = BackendLibrary::load({library("foreign")});
  EXPECT_EQ(foreign.code(), Code::kFailedPrecondition);
  EXPECT_NE(foreign.status().message().find("is no CUDA backend of this program"),
            std::string::npos)
      << foreign.status().message();
}

TEST(BackendLibrary, LiesBesideTheProgramUnlessNamed) {
  const auto beside = backend_library_files();
  ASSERT_EQ(beside.size(), 2u);
  EXPECT_TRUE(beside[0].ends_with("/libquire_cuda.so")) << beside[0];
  setenv("QUIRE_CUDA_LIBRARY", "/opt/x.so", 1);
  EXPECT_EQ(backend_library_files(), std::vector<std::string>{"/opt/x.so"});
  unsetenv("QUIRE_CUDA_LIBRARY");
}

TEST(ChooseBackend, TheCpuNeedsNothing) {
  const auto cpu = choose_backend("cpu", 0, true, {library("kernels")});
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->name, "cpu");
  EXPECT_EQ(cpu->cuda, "model.backend is cpu");
  EXPECT_FALSE(cpu->idle_gpu);
}

TEST(ChooseBackend, AutoLoadsNothingWithoutAGpu) {
  const auto chosen = choose_backend("auto", 0, false, {library("other_version")});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->name, "cpu");
  EXPECT_EQ(chosen->cuda, "this machine shows no NVIDIA GPU");
  EXPECT_FALSE(chosen->idle_gpu);
}

TEST(ChooseBackend, CudaTakesAGpuThatComputesAndAutoNamesIt) {
  const auto chosen = choose_backend("cuda", 0, false, {library("kernels")});
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  EXPECT_EQ(chosen->name, "cuda");
  EXPECT_EQ(chosen->cuda, "Made-up GPU (device 0, compute capability 9.0, 80.0 GiB)");
  ASSERT_EQ(chosen->devices.size(), 1u);
  EXPECT_EQ(chosen->devices[0].index, 0);
  EXPECT_FALSE(chosen->idle_gpu);
  ASSERT_NE(chosen->library, nullptr);
  const auto found = choose_backend("auto", 0, true, {library("kernels")});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->name, "cpu");
  EXPECT_EQ(found->library, nullptr);
  EXPECT_TRUE(found->idle_gpu);
  EXPECT_EQ(found->cuda,
            "Made-up GPU (device 0, compute capability 9.0, 80.0 GiB) is there, and computes when "
            "model.backend is cuda");
}

TEST(BackendLibrary, ASessionPassesCallsAndTheirErrorsOnAndOutlivesWhoLoadedIt) {
  auto library_of = std::move(*BackendLibrary::load({library("kernels")}));
  const DeviceReport report = library_of->probe();
  const auto refused = library_of->open(report.devices[1]);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_EQ(refused.status().message(), "the device is in exclusive use");
  auto opened = library_of->open(report.devices[0]);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  library_of.reset();
  Status lost;
  int told = 0;
  const std::shared_ptr<DeviceOps> ops = watch(std::move(*opened), [&](const Status& s) {
    lost = s;
    ++told;
  });
  EXPECT_EQ(ops->description(), "Made-up GPU (device 0, compute capability 9.0, 80.0 GiB)");
  EXPECT_EQ(ops->memory()->free_bytes, std::int64_t{70} << 30);
  const auto more = ops->allocate(MemoryKind::kPinned, 2 << 20);
  EXPECT_EQ(more.code(), Code::kResourceExhausted);
  EXPECT_EQ(more.status().message(), "out of pinned memory");
  void* p = *ops->allocate(MemoryKind::kDevice, 8);
  const std::int64_t value = 42;
  ASSERT_TRUE(ops->run(CopyArgs{p, &value, 8}).ok());
  ASSERT_TRUE(ops->synchronize().ok());
  EXPECT_EQ(*static_cast<std::int64_t*>(p), 42);
  EXPECT_EQ(ops->run(RoundedSwigluArgs{}).code(), Code::kInvalidArgument);
  EXPECT_EQ(told, 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ops->run(CopyArgs{p, &value, 8}).code(), Code::kDeviceLost);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(lost.message(), "an illegal memory access");
  EXPECT_TRUE(ops->release(MemoryKind::kDevice, p).ok());
}

TEST(ChooseBackend, SeveralGpusAreTheOnesFromTheChosenOneOn) {
  const auto chosen = choose_backend("cuda", 1, false, {library("several")}, 3);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  ASSERT_EQ(chosen->devices.size(), 3u);
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(chosen->devices[std::size_t(i)].index, 1 + i);
  for (const char* name : {"device 1", "device 2", "device 3"})
    EXPECT_NE(chosen->cuda.find(name), std::string::npos) << chosen->cuda;
}

TEST(ChooseBackend, MoreGpusThanThereAreAndNoneAreRefusedByName) {
  struct Case {
    std::string asked, library;
    std::int64_t device, count;
    std::string reason;
  };
  const Case cases[] = {
      {"cuda", "several", 0, 0, "must be at least 1"},
      {"cuda", "several", 0, -2, "must be at least 1"},
      {"cuda", "several", 2, 4,
       "asks for the GPUs 2 to 5, but there is no GPU number 5; there are: 0 = Made-up GPU"},
      {"cpu", "several", 0, 2, "model.backend is 'cpu', with which the CPU computes"},
      {"auto", "no_gpu", 0, 2, "model.backend is 'auto', with which the CPU computes"},
  };
  for (const Case& c : cases) {
    const auto refused = choose_backend(c.asked, c.device, true, {library(c.library)}, c.count);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << c.reason;
    EXPECT_EQ(refused.status().field(), "model.tensor_parallel") << c.reason;
    EXPECT_NE(refused.status().message().find(c.reason), std::string::npos)
        << refused.status().message();
  }
  const auto none = choose_backend("cuda", 0, false, {library("no_gpu")}, 2);
  EXPECT_EQ(none.code(), Code::kUnavailable);
  const auto broken = choose_backend("cuda", 0, false, {library("kernels")}, 2);
  EXPECT_EQ(broken.code(), Code::kDeviceLost) << "every GPU passes the self test, or none computes";
}

TEST(BackendLibrary, ATeamSendsAndItsLossIsToldOnceAndByTheLeader) {
  const auto library_of = std::move(*BackendLibrary::load({library("several")}));
  const std::vector<DeviceProperties> all = library_of->probe().devices;
  const auto refused = library_of->open_team(all);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.status().field(), "model.tensor_parallel");
  EXPECT_NE(refused.status().message().find("libnccl.so.2 cannot be loaded"), std::string::npos);
  auto alone = library_of->open_team({all[0]});
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  EXPECT_EQ(alone->devices.size(), 1u);
  EXPECT_EQ(alone->communicator, nullptr);

  auto opened = library_of->open_team({all[0], all[1], all[2]});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  int told = 0;
  const DeviceTeam team = watch(std::move(*opened), [&](const Status&) { ++told; });
  ASSERT_EQ(team.devices.size(), 3u);
  Communicator& c = *team.communicator;
  char text[3][8] = {"abcdef", "......", "......"};
  void* const to[] = {nullptr, text[1], text[2]};
  ASSERT_TRUE(c.broadcast(text[0], to, 3).ok());
  EXPECT_STREQ(text[2], "abc...");
  char gathered[8] = "......";
  const Communicator::Part parts[] = {{}, {text[1], gathered, 2}, {text[2] + 1, gathered + 2, 2}};
  ASSERT_TRUE(c.gather(parts).ok());
  EXPECT_STREQ(gathered, "abbc..");
  std::byte whole[3][3] = {{std::byte{1}}, {{}, std::byte{2}}, {{}, {}, std::byte{3}}};
  std::byte* const arrays[] = {whole[0], whole[1], whole[2]};
  const std::int64_t begin[] = {0, 1, 2, 3};
  ASSERT_TRUE(c.all_gather(arrays, begin).ok());
  for (const auto& one : whole) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(one[i], std::byte(i + 1));
  }
  EXPECT_EQ(c.broadcast(text[0], std::span(to, 2), 1).code(), Code::kInvalidArgument);
  EXPECT_TRUE(team.devices[0]->synchronize().ok());
  EXPECT_EQ(told, 0);

  EXPECT_EQ(c.broadcast(text[0], to, 65).code(), Code::kDeviceLost);
  EXPECT_EQ(c.gather(parts).code(), Code::kDeviceLost);
  EXPECT_EQ(team.devices[0]->synchronize().code(), Code::kDeviceLost)
      << "what it waited for may be incomplete";
  EXPECT_EQ(told, 1);
}

TEST(ChooseBackend, AutoFallsBackWithTheReasonAndCudaRefusesWithIt) {
  struct Case {
    std::string library;
    std::int64_t device;
    Code code;
    std::string field, reason;
  };
  const Case cases[] = {
      {"/nowhere/libquire_cuda.so", 0, Code::kNotFound, "model.backend",
       "the CUDA backend is not installed"},
      {library("other_version"), 0, Code::kFailedPrecondition, "model.backend",
       "is of another version"},
      {library("kernels"), 5, Code::kInvalidArgument, "model.device",
       "there is no GPU number 5; there are: 0 = Made-up GPU, 1 = Made-up GPU"},
      {library("no_gpu"), 0, Code::kUnavailable, "model.backend", "no GPU it can use"},
      {library("kernels"), 1, Code::kDeviceLost, "model.backend", "an illegal memory access"},
  };
  for (const Case& c : cases) {
    const auto fallback = choose_backend("auto", c.device, true, {c.library});
    ASSERT_TRUE(fallback.ok()) << c.reason;
    EXPECT_EQ(fallback->name, "cpu");
    EXPECT_TRUE(fallback->idle_gpu);
    EXPECT_NE(fallback->cuda.find(c.reason), std::string::npos) << fallback->cuda;
    const auto refused = choose_backend("cuda", c.device, false, {c.library});
    ASSERT_FALSE(refused.ok()) << c.reason;
    EXPECT_EQ(refused.code(), c.code) << c.reason;
    EXPECT_EQ(refused.status().field(), c.field) << c.reason;
    EXPECT_NE(refused.status().message().find("model.backend is 'cuda', but "), std::string::npos);
    EXPECT_NE(refused.status().message().find(c.reason), std::string::npos)
        << refused.status().message();
    EXPECT_NE(refused.status().message().find("; use cpu or auto"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire::cuda
