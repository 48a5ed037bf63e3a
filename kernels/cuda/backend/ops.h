/// This file declares one opened device for its users: memory, operations enqueued in order on one
/// stream, and concurrent copies on two others (runtime/lanes.h).
///
/// An operation is a plain struct of arguments (kernels/cuda/args.h and the kernels' own headers)
/// with an operation code. All operations thus pass through one call, which may also be an entry of
/// a C table in a loaded library (entry.h).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/attention/attention_scores.h"
#include "kernels/attention/attention_stats.h"
#include "kernels/choice/candidates.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/page_choice.h"
#include "kernels/choice/page_slots.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/voted_lists.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/op_list.h"
#include "kernels/cuda/runtime/driver.h"
#include "kernels/cuda/runtime/lanes.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/kv_gather.h"

namespace quire::cuda {

struct CopyArgs {
  void* to;
  const void* from;
  std::int64_t bytes;
};
struct RotateRowsArgs {
  DeviceRopeTable table;
  RopeRotateArgs rows;
};
struct PlaceRowsArgs {
  DeviceRopeTable table;
  KvPlaceArgs rows;
};
struct WriteNewRowsArgs {
  DeviceRopeTable table;
  NewRowsArgs rows;
};
struct ScoreDocumentsArgs {
  DeviceRopeTable table;
  SamkvScoresArgs scores;
};
struct SummariseBlocksArgs {
  DeviceRopeTable table;
  BlockSummariesArgs blocks;
};

/// The number of events that order the streams. An event covers what was enqueued on a stream when
/// it was last recorded; an event that was never recorded has completed.
inline constexpr std::int32_t kEvents = 512;

/// Enqueues a copy from or to pinned memory beside the computation.
struct CopyAsyncArgs {
  void* to;
  const void* from;
  std::int64_t bytes;
  Lane lane;
};
/// Copies rows between caches on any stream. Pages of one side may be pinned memory, which
/// kernels read and write across the bus.
struct GatherRowsArgs {
  KvGatherArgs rows;
  Lane lane;
};
/// Fills slots on any stream.
struct FillSlotsOnArgs {
  FillSlotsArgs slots;
  Lane lane;
};
struct RecordEventArgs {
  std::int32_t event;
  Lane lane;
};
/// Makes later work on `lane` wait for the event.
struct HoldArgs {
  std::int32_t event;
  Lane lane;
};
/// Blocks the calling thread until the event has completed.
struct WaitEventArgs {
  std::int32_t event;
};

enum class OpCode : std::uint32_t;
struct StepOp {
  OpCode code;
  const void* args;
  std::int64_t bytes;
};
/// Runs many operations of Lane::kCompute as one graph. The graph of `bucket` is captured if
/// `version` differs from the one that it was captured for; otherwise it is launched unchanged.
/// Equal versions mean equal operations, arguments and addresses, which must have run one by one
/// before. After any error but kDeviceLost nothing was enqueued, and the caller runs them one by
/// one.
struct StepArgs {
  std::int64_t bucket;
  std::uint64_t version;
  const StepOp* ops;
  std::int64_t num_ops;
};

enum class OpCode : std::uint32_t {
  kNone,  ///< no operation
#define QUIRE_ROW(code, ...) code,
  QUIRE_CUDA_OPS(QUIRE_ROW, QUIRE_ROW, QUIRE_ROW)
#undef QUIRE_ROW
};

/// op_code() returns the operation code of arguments.
#define QUIRE_ROW(code, Args, ...) \
  constexpr OpCode op_code(const Args*) { return OpCode::code; }
QUIRE_CUDA_OPS(QUIRE_ROW, QUIRE_ROW, QUIRE_ROW)
#undef QUIRE_ROW

/// Calls visit(const Args&) with the arguments of `code`. Errors: kInvalidArgument (an unknown
/// code, or arguments of another size), those of visit.
template <class Visit>
Status visit_op(OpCode code, const void* args, std::int64_t bytes, Visit&& visit) {
  const auto as = [&]<class Args>(const Args*) {
    if (bytes != static_cast<std::int64_t>(sizeof(Args)))
      return Status::invalid("bytes", "arguments of operation " +
                                          std::to_string(static_cast<std::uint32_t>(code)) +
                                          " have another size");
    return visit(*static_cast<const Args*>(args));
  };
  switch (code) {
    case OpCode::kNone:
      break;
#define QUIRE_ROW(code, Args, ...) \
  case OpCode::code:               \
    return as(static_cast<const Args*>(nullptr));
      QUIRE_CUDA_OPS(QUIRE_ROW, QUIRE_ROW, QUIRE_ROW)
#undef QUIRE_ROW
  }
  return Status::invalid(
      "code", "there is no operation " + std::to_string(static_cast<std::uint32_t>(code)));
}

/// Computes on one opened device. Threads: any; calls are serialized. Errors of every call:
/// kDeviceLost (nothing works afterwards), kResourceExhausted (memory), kInternal. An error may
/// come from work enqueued earlier.
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  /// Returns the name of the device for logs.
  virtual std::string description() const = 0;
  virtual Result<MemoryInfo> memory() = 0;
  /// Allocates `bytes` > 0, aligned to at least 64, contents undefined. Errors: kResourceExhausted,
  /// which leaves the device unchanged.
  virtual Result<void*> allocate(MemoryKind kind, std::int64_t bytes) = 0;
  /// Releases memory that no enqueued work may still use.
  virtual Status release(MemoryKind kind, void* p) = 0;
  /// Blocks until everything enqueued on all streams has run.
  virtual Status synchronize() = 0;

  /// Enqueues an operation. The arguments are copied; they point to device memory, or
  /// to pinned memory, which kernels reach across the bus. Errors: also kInvalidArgument.
  template <class Args>
  Status run(const Args& args) {
    return enqueue(op_code(&args), &args, static_cast<std::int64_t>(sizeof args));
  }
  virtual Status enqueue(OpCode code, const void* args, std::int64_t bytes) = 0;
};

}  // namespace quire::cuda
