/// StepRecording records a decode step operation by operation and runs it as one graph once the
/// same step repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cuda/backend/ops.h"

namespace quire {

/// OpList holds operations and the bytes of their arguments, in order.
class OpList {
 public:
  /// Appends an operation. `args` must have no undefined padding bytes, so that equal operations
  /// have equal bytes.
  void add(cuda::OpCode code, const void* args, std::int64_t bytes);
  /// Adds a copy of pinned memory that comes before all operations. One that continues an earlier
  /// one on both sides becomes part of it.
  void add_upload(const cuda::CopyArgs& upload);
  void clear();
  bool empty() const { return ops_.empty() && uploads_.empty(); }
  bool operator==(const OpList& other) const;
  /// Returns uploads and operations; valid until the list changes.
  std::vector<cuda::StepOp> view() const;

 private:
  struct Op {
    cuda::OpCode code;
    std::size_t begin;
    std::int64_t bytes;
    bool operator==(const Op&) const = default;
  };
  std::vector<cuda::CopyArgs> uploads_;
  std::vector<Op> ops_;
  std::vector<std::byte> args_;
};

/// StepStats counts how steps ran so far.
struct StepStats {
  std::int64_t graphs = 0;  ///< run as a graph
  /// Steps run operation by operation: new, interrupted, or no graph could be made.
  std::int64_t singly = 0;
  std::int64_t failures = 0;  ///< graphs that could not be made or launched
};

/// StepRecording remembers the last step of each number of rows, and of steps enqueued since the
/// device was last idle, because their arguments lie behind one another. A step that repeats
/// exactly becomes a graph, and runs as one until it differs. After kMostFailures consecutive
/// failures it makes no more graphs. Threads: the computing thread.
class StepRecording {
 public:
  static constexpr int kMostFailures = 3;
  static constexpr std::size_t kMostSizes = 48;  ///< steps remembered

  bool active() const { return active_; }
  /// `ahead` counts the steps enqueued since the device was last idle, below 2^8.
  void begin(std::int64_t rows, std::int64_t ahead = 0);
  void add(cuda::OpCode code, const void* args, std::int64_t bytes) {
    list_.add(code, args, bytes);
  }
  /// Records a copy of arguments, which nothing of the step reads before it is recorded, so that
  /// the copies of a step are few and come first.
  void add_upload(const cuda::CopyArgs& upload) { list_.add_upload(upload); }
  /// Enqueues the recorded operations. Errors: those of the operations.
  Status end(cuda::DeviceOps& ops);
  /// Enqueues the recorded operations now and the rest of the step as it comes. It is for steps
  /// within which the host must wait.
  Status interrupt(cuda::DeviceOps& ops);
  const StepStats& stats() const { return stats_; }

 private:
  struct Known {
    OpList list;
    std::uint64_t version = 0;
  };
  static Status run_singly(cuda::DeviceOps& ops, const OpList& list);
  Status run_graph(cuda::DeviceOps& ops, const Known& known);

  bool active_ = false;
  std::int64_t kind_ = 0;  ///< the number of rows, and below it that of steps ahead
  int failures_in_a_row_ = 0;
  std::uint64_t versions_ = 0;
  OpList list_;
  std::map<std::int64_t, Known> known_;
  StepStats stats_;
};

}  // namespace quire
