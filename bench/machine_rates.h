/// What this machine can do at best, measured: the ceilings benchmarks divide by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace quire::bench {

/// Seconds on the clock of a benchmark. With one kernel thread this is CPU time of the calling
/// thread, so that other work on the machine counts little; with more it is wall time.
double now_seconds();
bool uses_cpu_time();

/// Memory read in order by all threads together, with prefetch.
class ReadRate {
 public:
  /// Fills a buffer of `bytes`, which should be several times the last-level cache, and finds the
  /// best prefetch distance.
  explicit ReadRate(std::int64_t bytes);
  ~ReadRate();
  ReadRate(const ReadRate&) = delete;
  ReadRate& operator=(const ReadRate&) = delete;
  /// Bytes per second of one walk over the buffer.
  double measure() const;

 private:
  double measure_at(std::int64_t ahead) const;

  std::byte* buffer_ = nullptr;
  std::int64_t part_ = 0, ahead_ = 1024;
};

/// oneDNN's bf16 matrix product [m, k] x [k, n] with packed weights on all threads. The weights
/// rotate over `num_weights` matrices, so that they come from memory as a model's do.
class OneDnnRate {
 public:
  OneDnnRate(std::int64_t m, std::int64_t k, std::int64_t n, int num_weights);
  ~OneDnnRate();
  /// FLOP/s of one product with each of the weights; 0 where oneDNN has no such product for this
  /// CPU.
  double measure() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::bench
