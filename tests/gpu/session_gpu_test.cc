// Tests sessions of the loaded libquire_cuda.so on a GPU, where the emulated device of the engine's
// tests is not enough.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/backend/loader.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire::cuda {
namespace {

Result<std::shared_ptr<DeviceOps>> open_ops() {
  QUIRE_ASSIGN_OR_RETURN(const auto library, BackendLibrary::load(backend_library_files()));
  QUIRE_ASSIGN_OR_RETURN(const DeviceProperties device, choose_device(library->probe(), 0));
  return library->open(device);
}

/// Values in memory of a session, which the host fills and reads by copies.
template <class T>
class Values {
 public:
  Values(std::shared_ptr<DeviceOps> ops, const std::vector<T>& values)
      : ops_(std::move(ops)), n_(values.size()) {
    auto there = ops_->allocate(MemoryKind::kDevice, bytes());
    auto here = ops_->allocate(MemoryKind::kPinned, bytes());
    EXPECT_TRUE(there.ok() && here.ok());
    if (!there.ok() || !here.ok()) return;
    data_ = static_cast<T*>(*there);
    pinned_ = static_cast<T*>(*here);
    std::memcpy(pinned_, values.data(), values.size() * sizeof(T));
    EXPECT_TRUE(ops_->run(CopyArgs{data_, pinned_, bytes()}).ok());
  }
  ~Values() {
    (void)ops_->synchronize();
    if (data_ != nullptr) (void)ops_->release(MemoryKind::kDevice, data_);
    if (pinned_ != nullptr) (void)ops_->release(MemoryKind::kPinned, pinned_);
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  T* data() { return data_; }
  /// Returns the values after everything enqueued; empty: they cannot be read.
  std::vector<T> read() {
    if (!ops_->run(CopyArgs{pinned_, data_, bytes()}).ok() || !ops_->synchronize().ok()) return {};
    return {pinned_, pinned_ + n_};
  }

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(n_ * sizeof(T)); }
  std::shared_ptr<DeviceOps> ops_;
  const std::size_t n_;
  T *data_ = nullptr, *pinned_ = nullptr;
};

TEST(GpuSession, ProductsAreThoseOfPlainLoopsAlsoOnTopOfWhatIsThere) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const std::shared_ptr<DeviceOps> ops = *opened;
  struct Shape {
    std::int64_t rows, n, k;
  };
  for (const Shape& s : {Shape{1, 24, 64}, Shape{3, 129, 576}, Shape{17, 256, 64},
                         Shape{130, 96, 1024}, Shape{513, 4096, 256}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto x = rounded(random_floats(s.rows * s.k, 1), dtype),
                 w = rounded(random_floats(s.n * s.k, 2), dtype),
                 y = random_floats(s.rows * s.n, 3);
      Values<std::byte> dx(ops, to_bytes(x, dtype)), dw(ops, to_bytes(w, dtype));
      for (const bool accumulate : {false, true}) {
        Values<float> dy(ops, y);
        ASSERT_OK(ops->run(
            MatmulArgs{dx.data(), dw.data(), dtype, s.rows, s.n, s.k, dy.data(), s.n, accumulate}));
        std::vector<float> expected(y.size());
        for (std::int64_t r = 0; r < s.rows; ++r) {
          for (std::int64_t o = 0; o < s.n; ++o) {
            double sum = accumulate ? y[static_cast<std::size_t>(r * s.n + o)] : 0.0;
            for (std::int64_t c = 0; c < s.k; ++c)
              sum += double{x[static_cast<std::size_t>(r * s.k + c)]} *
                     w[static_cast<std::size_t>(o * s.k + c)];
            expected[static_cast<std::size_t>(r * s.n + o)] = static_cast<float>(sum);
          }
        }
        // The tolerance covers sums of k products, of up to about 100 on the way, which tensor
        // cores cut off (not round) to 24 bits at each of k / 16 additions.
        expect_close(dy.read(), expected, 2e-6 * static_cast<double>(s.k), 1e-5,
                     std::string(dtype_name(dtype)) + " " + std::to_string(s.rows));
      }
    }
  }
}

/// Kernels read and write pinned memory in place, and the host between them.
TEST(GpuSession, HostAndDeviceTakeTurnsWithPinnedMemory) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const std::shared_ptr<DeviceOps> ops = *opened;
  const std::int64_t rows = 1000, dim = 512;
  const auto pinned = ops->allocate(MemoryKind::kPinned, rows * dim * 4);
  ASSERT_OK(pinned.status());
  auto* const x = static_cast<float*>(*pinned);
  std::fill_n(x, rows * dim, 1.0f);
  Values<float> bias(ops, std::vector<float>(static_cast<std::size_t>(dim), 2.0f));
  float expected = 1.0f;
  for (int turn = 0; turn < 5; ++turn) {
    ASSERT_OK(ops->run(AddBiasArgs{x, bias.data(), rows, dim, dim}));
    ASSERT_OK(ops->synchronize());
    expected += 2.0f;
    for (std::int64_t i = 0; i < rows * dim; ++i) {
      ASSERT_EQ(x[i], expected);
      x[i] += 0.5f;
    }
    expected += 0.5f;
  }
  ASSERT_OK(ops->release(MemoryKind::kPinned, *pinned));
}

/// Rows are gathered from pinned memory on the copy stream, and a layer is evicted. Kernels read
/// and write host memory across the bus, in the order that events keep.
TEST(GpuSession, RowsAreGatheredFromPinnedMemoryAndBack) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const std::shared_ptr<DeviceOps> ops = *opened;
  constexpr std::int32_t kPages = 64, kHeads = 4, kDim = 128;
  constexpr std::int64_t kRowBytes = kDim * 2, kPageBytes = 2 * kHeads * kPageTokens * kRowBytes,
                         kBytes = kPages * kPageBytes;
  auto pinned = ops->allocate(MemoryKind::kPinned, kBytes),
       back = ops->allocate(MemoryKind::kPinned, kBytes),
       slots = ops->allocate(MemoryKind::kDevice, kBytes);
  ASSERT_OK(pinned.status());
  ASSERT_OK(back.status());
  ASSERT_OK(slots.status());
  for (std::int64_t i = 0; i < kBytes; ++i)
    static_cast<unsigned char*>(*pinned)[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  std::memset(*back, 0, kBytes);
  const auto pages_of = [](void* base) {
    std::vector<void*> pages;
    for (std::int32_t p = 0; p < kPages; ++p)
      pages.push_back(static_cast<std::byte*>(base) + p * kPageBytes);
    return pages;
  };
  Values<void*> from(ops, pages_of(*pinned)), between(ops, pages_of(*slots)),
      to(ops, pages_of(*back));
  std::vector<KvMove> rows, whole;
  for (std::int32_t head = 0; head < kHeads; ++head) {
    // 37 and the number of rows have no common factor, so every row is read once.
    for (std::int32_t row = 0; row < kPages * kPageTokens; ++row)
      rows.push_back({head, row, (row * 37 + head) % (kPages * kPageTokens), 1});
    for (std::int32_t page = 0; page < kPages; ++page)
      whole.push_back({head, page * kPageTokens, page * kPageTokens, kPageTokens});
  }
  Values<KvMove> row_moves(ops, rows), page_moves(ops, whole);
  const auto view = [&](void** pages, bool by_head) {
    return MutableKvView{pages,
                         kPages * kPageTokens,
                         kHeads,
                         kDim,
                         DType::kBF16,
                         by_head ? kPageTokens * kRowBytes : kPageBytes / 2,
                         by_head ? 2 * kPageTokens * kRowBytes : kRowBytes,
                         by_head ? kRowBytes : kHeads * kRowBytes};
  };
  const auto source = [](const MutableKvView& v) {
    return KvView{v.pages, nullptr,     v.num_rows,    v.num_kv_heads, v.head_dim,
                  v.dtype, v.kv_stride, v.head_stride, v.token_stride, false};
  };
  const MutableKvView host = view(from.data(), true), device = view(between.data(), false),
                      returned = view(to.data(), true);
  ASSERT_OK(ops->run(GatherRowsArgs{
      {source(host), device, row_moves.data(), static_cast<std::int64_t>(rows.size()), 1},
      Lane::kCopies}));
  ASSERT_OK(ops->run(RecordEventArgs{3, Lane::kCopies}));
  ASSERT_OK(ops->run(HoldArgs{3, Lane::kCompute}));
  ASSERT_OK(ops->run(GatherRowsArgs{{source(device), returned, page_moves.data(),
                                     static_cast<std::int64_t>(whole.size()), kPageTokens},
                                    Lane::kCompute}));
  ASSERT_OK(ops->synchronize());
  const auto row_at = [&](void* base, std::int32_t head, std::int32_t row, int kv) {
    return static_cast<const std::byte*>(base) + row / kPageTokens * kPageBytes +
           head * 2 * kPageTokens * kRowBytes + kv * kPageTokens * kRowBytes +
           row % kPageTokens * kRowBytes;
  };
  for (const KvMove& move : rows) {
    for (int kv = 0; kv < 2; ++kv)
      ASSERT_EQ(std::memcmp(row_at(*back, move.head, move.to, kv),
                            row_at(*pinned, move.head, move.from, kv), kRowBytes),
                0)
          << "head " << move.head << " row " << move.from;
  }
  ASSERT_OK(ops->release(MemoryKind::kPinned, *pinned));
  ASSERT_OK(ops->release(MemoryKind::kPinned, *back));
  ASSERT_OK(ops->release(MemoryKind::kDevice, *slots));
}

TEST(GpuSession, MoreThanTheDeviceHasIsRefusedAndTheSessionGoesOn) {
  auto opened = open_ops();
  ASSERT_OK(opened.status());
  const auto info = (*opened)->memory();
  ASSERT_OK(info.status());
  EXPECT_EQ((*opened)->allocate(MemoryKind::kDevice, 2 * info->total_bytes).status().code(),
            Code::kResourceExhausted);
  Values<float> x(*opened, {1.0f}), bias(*opened, {2.0f});
  ASSERT_OK((*opened)->run(AddBiasArgs{x.data(), bias.data(), 1, 1, 1}));
  EXPECT_EQ(x.read(), std::vector<float>{3.0f});
}

}  // namespace
}  // namespace quire::cuda
