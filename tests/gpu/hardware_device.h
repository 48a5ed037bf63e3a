/// The TestDevice of the parity tests on a GPU. It has the calls of
/// tests/unit/kernels/cuda/emulated_device.h, on device memory.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/args.h"
#include "kernels/cuda/hardware.cuh"
#include "tests/support/harness/kernel_test_support.h"

namespace quire::cuda {

/// Ends the test program on a CUDA error, because a test cannot go on after it.
inline void expect_cuda(cudaError_t error, const char* what) {
  if (const Status status = cuda_status(error, what); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::exit(1);
  }
}

class TestDevice {
 public:
  TestDevice() = default;
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;
  ~TestDevice() {
    for (void* p : buffers_) cudaFree(p);
  }

  template <class T>
  T* output(const std::vector<T>& x, const std::string&) {
    auto* p = static_cast<T*>(allocate(x.size() * sizeof(T)));
    expect_cuda(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice),
                "copying to the device");
    return p;
  }
  template <class T>
  const T* upload(const std::vector<T>& x, const std::string& name) {
    return output(x, name);
  }
  float* output(std::int64_t n, const std::string& name) {
    return output(
        std::vector<float>(static_cast<std::size_t>(n), std::numeric_limits<float>::quiet_NaN()),
        name);
  }
  /// Waits for everything enqueued before.
  template <class T>
  static std::vector<T> download(const T* p, std::int64_t n) {
    std::vector<T> out(static_cast<std::size_t>(n));
    expect_cuda(cudaMemcpy(out.data(), p, out.size() * sizeof(T), cudaMemcpyDeviceToHost),
                "copying from the device");
    return out;
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
  KvView upload(const KvView& kv) {
    KvView out = kv;
    out.pages = upload(std::vector<const void*>(copy_pages(kv.pages, kv.num_rows, page_bytes(kv))),
                       "pages");
    out.positions = upload(std::vector<std::int32_t>(kv.positions, kv.positions + kv.num_rows),
                           "positions");
    return out;
  }
  MutableKvView attach(const MutableKvView& kv) {
    MutableKvView out = kv;
    std::vector<void*> pages;
    for (const void* p : copy_pages(kv.pages, kv.num_rows, page_bytes(kv)))
      pages.push_back(const_cast<void*>(p));
    out.pages = upload(pages, "pages");
    return out;
  }
  static void bring_back(const MutableKvView& device, const MutableKvView& host) {
    const std::int64_t num_pages = (host.num_rows + kPageTokens - 1) / kPageTokens;
    const auto pages = download(device.pages, num_pages);
    for (std::int64_t p = 0; p < num_pages; ++p) {
      expect_cuda(cudaMemcpy(host.pages[p], pages[static_cast<std::size_t>(p)], page_bytes(host),
                             cudaMemcpyDeviceToHost),
                  "copying a page");
    }
  }
  HardwareLauncher launcher() const { return HardwareLauncher(StreamHandle{}); }

 private:
  void* allocate(std::size_t bytes) {
    void* p = nullptr;
    expect_cuda(cudaMalloc(&p, bytes > 0 ? bytes : 1), "allocating");
    buffers_.push_back(p);
    return p;
  }
  template <class View>
  static std::size_t page_bytes(const View& kv) {
    return std::size_t{2} * kPageTokens * static_cast<std::size_t>(kv.num_kv_heads * kv.head_dim) *
           dtype_bytes(kv.dtype);
  }
  template <class Page>
  std::vector<const void*> copy_pages(Page* const* pages, std::int64_t num_rows,
                                      std::size_t bytes) {
    std::vector<const void*> out;
    for (std::int64_t p = 0; p < (num_rows + kPageTokens - 1) / kPageTokens; ++p) {
      void* page = allocate(bytes);
      expect_cuda(cudaMemcpy(page, pages[p], bytes, cudaMemcpyHostToDevice), "copying a page");
      out.push_back(page);
    }
    return out;
  }
  std::vector<void*> buffers_;
};

}  // namespace quire::cuda
