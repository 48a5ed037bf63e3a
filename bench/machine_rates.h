/// Measured ceilings of this machine, by which benchmarks divide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace quire::bench {

/// Returns seconds on the clock of a benchmark. With one kernel thread this is CPU time of the
/// calling thread, so that other work on the machine counts little. With more threads it is wall
/// time.
double now_seconds();
bool uses_cpu_time();

/// The rate at which all threads together read memory in order, with prefetch.
class ReadRate {
 public:
  /// Fills a buffer of `bytes`, which should be several times the last-level cache, and finds the
  /// best prefetch distance.
  explicit ReadRate(std::int64_t bytes);
  ~ReadRate();
  ReadRate(const ReadRate&) = delete;
  ReadRate& operator=(const ReadRate&) = delete;
  /// Returns the bytes per second of one pass over the buffer.
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
  /// Returns the FLOP/s of one product with each of the weights; 0: oneDNN has no such product for
  /// this CPU.
  double measure() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::bench
