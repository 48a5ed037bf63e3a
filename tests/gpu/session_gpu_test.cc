// Sessions of the loaded libquire_cuda.so on a GPU: what the emulated device of the engine's tests cannot show.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/backend/loader.h"
#include "tests/kernels/kernel_test_support.h"

namespace quire::cuda {
namespace {

Result<std::shared_ptr<DeviceOps>> open_ops() {
  QUIRE_ASSIGN_OR_RETURN(const auto library, BackendLibrary::load({QUIRE_CUDA_LIBRARY_FILE}));
  QUIRE_ASSIGN_OR_RETURN(const DeviceProperties device, choose_device(library->probe(), 0));
  return library->open(device);
}

/// Shared memory of a session.
template <class T>
class Shared {
 public:
  Shared(std::shared_ptr<DeviceOps> ops, const std::vector<T>& values) : ops_(std::move(ops)) {
    auto p = ops_->allocate(MemoryKind::kShared, static_cast<std::int64_t>(values.size() * sizeof(T)));
    EXPECT_TRUE(p.ok());
    if (!p.ok()) return;
    data_ = static_cast<T*>(*p);
    std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  ~Shared() {
    if (data_ != nullptr) (void)ops_->release(MemoryKind::kShared, data_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* data() { return data_; }

 private:
  std::shared_ptr<DeviceOps> ops_;
  T* data_ = nullptr;
};

TEST(GpuSession, ProductsAreThoseOfPlainLoopsAlsoOnTopOfWhatIsThere) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const std::shared_ptr<DeviceOps> ops = *opened;
  struct Shape {
    std::int64_t rows, n, k;
  };
  for (const Shape& s : {Shape{1, 24, 64}, Shape{3, 129, 576}, Shape{17, 256, 64}, Shape{130, 96, 1024}, Shape{513, 4096, 256}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto x = rounded(random_floats(s.rows * s.k, 1), dtype), w = rounded(random_floats(s.n * s.k, 2), dtype), y = random_floats(s.rows * s.n, 3);
      Shared<std::byte> dx(ops, to_bytes(x, dtype)), dw(ops, to_bytes(w, dtype));
      for (const bool accumulate : {false, true}) {
        Shared<float> dy(ops, y);
        ASSERT_OK(ops->run(MatmulArgs{dx.data(), dw.data(), dtype, s.rows, s.n, s.k, dy.data(), s.n, accumulate}));
        ASSERT_OK(ops->settle());
        std::vector<float> expected(y.size());
        for (std::int64_t r = 0; r < s.rows; ++r) {
          for (std::int64_t o = 0; o < s.n; ++o) {
            double sum = accumulate ? y[static_cast<std::size_t>(r * s.n + o)] : 0.0;
            for (std::int64_t c = 0; c < s.k; ++c) sum += double{x[static_cast<std::size_t>(r * s.k + c)]} * w[static_cast<std::size_t>(o * s.k + c)];
            expected[static_cast<std::size_t>(r * s.n + o)] = static_cast<float>(sum);
          }
        }
        // Sums of k products of at most 1, in f32, in any order.
        expect_close(std::vector<float>(dy.data(), dy.data() + y.size()), expected, 1e-7 * static_cast<double>(s.k), 1e-5, std::string(dtype_name(dtype)) + " " + std::to_string(s.rows));
      }
    }
  }
}

TEST(GpuSession, HostAndDeviceTakeTurnsWithSharedMemory) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const std::shared_ptr<DeviceOps> ops = *opened;
  const std::int64_t rows = 1000, dim = 512;
  Shared<float> x(ops, std::vector<float>(static_cast<std::size_t>(rows * dim), 1.0f)), bias(ops, std::vector<float>(static_cast<std::size_t>(dim), 2.0f));
  float expected = 1.0f;
  for (int turn = 0; turn < 5; ++turn) {
    ASSERT_OK(ops->run(AddBiasArgs{x.data(), bias.data(), rows, dim, dim}));
    ASSERT_OK(ops->settle());
    expected += 2.0f;
    for (std::int64_t i = 0; i < rows * dim; ++i) {
      ASSERT_EQ(x.data()[i], expected);
      x.data()[i] += 0.5f;
    }
    expected += 0.5f;
  }
}

TEST(GpuSession, MoreThanTheDeviceHasIsRefusedAndTheSessionGoesOn) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const auto info = (*opened)->memory();
  ASSERT_OK(info.status());
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kShared}) EXPECT_EQ((*opened)->allocate(kind, 2 * info->total_bytes).status().code(), Code::kResourceExhausted);
  Shared<float> x(*opened, {1.0f}), bias(*opened, {2.0f});
  ASSERT_OK((*opened)->run(AddBiasArgs{x.data(), bias.data(), 1, 1, 1}));
  ASSERT_OK((*opened)->settle());
  EXPECT_EQ(x.data()[0], 3.0f);
}

}  // namespace
}  // namespace quire::cuda
