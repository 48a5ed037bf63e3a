/// Device memory and launches for the parity tests of kernels/cuda, under the emulation of
/// tests/support/simt.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "kernels/cuda/args.h"
#include "tests/support/harness/kernel_test_support.h"
#include "tests/support/simt/simt.h"

namespace quire::cuda {

/// Buffers that a kernel may touch. Every upload is a separate copy, so that only what was uploaded
/// is in bounds.
class TestDevice {
 public:
  template <class T>
  const T* upload(const std::vector<T>& x, const std::string& name) {
    auto* p = static_cast<T*>(keep(x.size() * sizeof(T)));
    std::copy(x.begin(), x.end(), p);
    memory_.add(name, p, x.size() * sizeof(T), simt::Access::kRead);
    return p;
  }
  /// Returns a writable buffer that starts as a copy of `x`.
  template <class T>
  T* output(const std::vector<T>& x, const std::string& name) {
    auto* p = static_cast<T*>(keep(x.size() * sizeof(T)));
    std::copy(x.begin(), x.end(), p);
    memory_.add(name, p, x.size() * sizeof(T), simt::Access::kReadWrite);
    return p;
  }
  /// Returns floats that are NaN until written.
  float* output(std::int64_t n, const std::string& name) {
    return output(
        std::vector<float>(static_cast<std::size_t>(n), std::numeric_limits<float>::quiet_NaN()),
        name);
  }
  template <class T>
  static std::vector<T> download(const T* p, std::int64_t n) {
    return std::vector<T>(p, p + n);
  }
  DeviceRopeTable upload(const RopeTable& table) {
    const RopeConfig& c = table.config();
    const std::int64_t n = table.max_positions() * (c.rotary_dim / 2);
    return {upload(std::vector<float>(table.cos_row(0), table.cos_row(0) + n), "cos"),
            upload(std::vector<float>(table.sin_row(0), table.sin_row(0) + n), "sin"),
            table.max_positions(),
            c.head_dim,
            c.rotary_dim,
            c.interleaved};
  }
  /// Registers the pages in place, read-only. Slots past the last row are not registered.
  KvView upload(const KvView& kv) {
    KvView out = kv;
    const std::int64_t num_pages = (kv.num_rows + kPageTokens - 1) / kPageTokens;
    out.pages = upload(std::vector<const void*>(kv.pages, kv.pages + num_pages), "pages");
    out.positions = upload(std::vector<std::int32_t>(kv.positions, kv.positions + kv.num_rows),
                           "positions");
    const auto row_bytes = static_cast<std::size_t>(kv.head_dim) * dtype_bytes(kv.dtype);
    for (std::int64_t part = 0; part < 2; ++part) {
      for (std::int64_t head = 0; head < kv.num_kv_heads; ++head) {
        for (std::int64_t row = 0; row < kv.num_rows; ++row) {
          const auto* p = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                          part * kv.kv_stride + head * kv.head_stride +
                          row % kPageTokens * kv.token_stride;
          memory_.add(part == 0 ? "a key" : "a value", p, row_bytes, simt::Access::kRead);
        }
      }
    }
    return out;
  }
  /// Registers whole pages in place, writable.
  MutableKvView attach(const MutableKvView& kv) {
    MutableKvView out = kv;
    const std::int64_t num_pages = (kv.num_rows + kPageTokens - 1) / kPageTokens;
    out.pages = upload(std::vector<void*>(kv.pages, kv.pages + num_pages), "pages");
    for (std::int64_t p = 0; p < num_pages; ++p)
      memory_.add("a page", kv.pages[p], page_bytes(kv), simt::Access::kReadWrite);
    return out;
  }
  /// Ensures that `kv` holds what kernels wrote into attached pages; here it does already.
  static void bring_back(const MutableKvView&, const MutableKvView&) {}
  simt::Launcher launcher() const { return simt::Launcher(memory_); }

 private:
  static std::size_t page_bytes(const MutableKvView& kv) {
    return std::size_t{2} * kPageTokens * static_cast<std::size_t>(kv.num_kv_heads * kv.head_dim) *
           dtype_bytes(kv.dtype);
  }
  void* keep(std::size_t bytes) {
    buffers_.emplace_back((bytes + sizeof(Pack<float>) - 1) / sizeof(Pack<float>));
    return buffers_.back().data();
  }
  std::deque<std::vector<Pack<float>>> buffers_;
  simt::GlobalMemory memory_;
};

}  // namespace quire::cuda
