/// Memory, timing and rows of the GPU benchmark.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "bench/gpu/row.h"
#include "bench/gpu/sections.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "kernels/rows/kv.h"

namespace quire::cuda::bench {

/// The rates that a kernel can reach on this device, measured in this run.
struct Ceilings {
  Row copy, read, host_to_device, matmul;
};

/// The least time of a row on this device and the ceiling that sets it; null: no ceiling applies.
struct Least {
  double us = 0;
  const Row* ceiling = nullptr;
};
Least least_time(const Row& row, const Ceilings& ceilings);
/// Prints every row's median and least time to stderr.
void print_shares(const std::vector<Row>& rows, const Ceilings& ceilings);

/// The device, a stream, and memory that lives as long as this object. Any failure ends the program
/// with its message.
class Bench {
 public:
  /// once: measure() runs each operation a single time, for a profiler.
  Bench(std::int64_t device_idx, bool quick, bool once = false);
  const DeviceProperties& device() const { return device_; }
  StreamHandle stream() const { return stream_.get(); }
  DeviceDriver& driver() { return *driver_; }

  /// Returns floats around 0, the same in every run.
  float* floats(std::int64_t n);
  /// Returns n elements of dtype around 0.
  void* elements(std::int64_t n, DType dtype);
  void* bytes(std::int64_t n, MemoryKind kind = MemoryKind::kDevice);
  template <class T>
  T* upload(const std::vector<T>& x) {
    return static_cast<T*>(upload_bytes(x.data(), static_cast<std::int64_t>(x.size() * sizeof(T))));
  }
  /// Returns a cache of `rows` rows with head-major pages and positions 0, 1, ...
  KvView paged_kv(std::int64_t rows, std::int32_t kv_heads, std::int32_t head_dim, DType dtype);
  /// Frees all memory that was handed out so far.
  void release() { buffers_.clear(); }

  /// Returns how many operands of so many bytes take turns so that none is found in the
  /// second-level cache.
  std::int64_t turns(double bytes) const;
  /// `work` enqueues the operation once. measure() runs it until it is warm, then takes samples of
  /// several calls each, timed by events on the stream.
  Row measure(std::string name, std::string shape, double bytes, double flops,
              const std::function<Status()>& work);
  static void check(const Status& status, const std::string& what);

 private:
  void* upload_bytes(const void* data, std::int64_t bytes);

  DeviceProperties device_;
  std::unique_ptr<DeviceDriver> driver_;
  Stream stream_;
  std::unique_ptr<MemoryPool> pools_[2];  // by MemoryKind
  std::vector<Buffer> buffers_;
  const bool quick_, once_;
};

Ceilings measure_ceilings(Bench& bench);
void attention_cases(Bench& bench, const SectionOutput& out);
void row_cases(Bench& bench, const SectionOutput& out);

/// Returns the result file: device, driver, commit, the outcome of each section, ceilings, and rows
/// with their share of the limiting ceiling. A row whose ceiling was not measured has no share.
std::string result_json(const std::vector<SectionResult>& sections, const std::string& commit,
                        const std::string& date, const Ceilings& ceilings,
                        const std::vector<Row>& rows);

/// Returns a row, or the end of a section, as one line of JSON.
std::string row_line(const std::string& section, const Row& row, const Ceilings& ceilings);
std::string section_line(const SectionResult& section);

}  // namespace quire::cuda::bench
