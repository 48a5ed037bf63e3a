/// This file declares one opened device for its users: memory, operations enqueued in order on one
/// stream, and concurrent copies on another.
///
/// An operation is a plain struct of arguments (kernels/cuda/args.h and the kernels' own headers)
/// with an operation code. All operations thus pass through one call, which may also be an entry of
/// a C table in a loaded library (entry.h).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/attention_mass.h"
#include "kernels/attention_scores.h"
#include "kernels/attention_stats.h"
#include "kernels/candidates.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/runtime/driver.h"
#include "kernels/kv_gather.h"
#include "kernels/page_bounds.h"
#include "kernels/row_products.h"

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
/// Calls prefill_attention(): many rows, f16 or bf16 KV.
struct PrefillAttentionArgs {
  AttentionArgs attention;
};

struct ScoreDocumentsArgs {
  DeviceRopeTable table;
  SamkvScoresArgs scores;
};
struct PlaceRecomputedArgs {
  DeviceRopeTable table;
  RecomputedRowsArgs rows;
};
struct SummariseBlocksArgs {
  DeviceRopeTable table;
  BlockSummariesArgs blocks;
};

/// The two streams of a device. kCompute runs operations in order; kCopies runs copies concurrently
/// with them, in order among themselves.
enum class Lane : std::uint32_t { kCompute, kCopies };
/// The number of events that order the streams. An event covers what was enqueued on a stream when
/// it was last recorded; an event that was never recorded has completed.
inline constexpr std::int32_t kEvents = 512;

/// Enqueues a copy from or to pinned memory on Lane::kCopies.
struct CopyAsyncArgs {
  void* to;
  const void* from;
  std::int64_t bytes;
};
/// Copies rows between caches on either stream. Pages of one side may be pinned memory, which
/// kernels read and write across the bus.
struct GatherRowsArgs {
  KvGatherArgs rows;
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
  kCopy = 1,
  kRmsNorm,
  kSwiglu,
  kEmbedding,
  kConvert,
  kAddBias,
  kMatmul,
  kQkvSplit,
  kRotateRows,
  kKvPack,
  kPlaceRows,
  kDecodeAttention,
  kPrefillAttention,
  kCopyAsync,
  kRecordEvent,
  kHold,
  kWaitEvent,
  kStep,
  kInt8Gemv,
  kInt8Expand,
  kArgmax,
  kSample,
  kColumnSums,
  kSamkvScores,
  kRecomputedRows,
  kAttentionScores,
  kAttentionMass,
  kAttentionStats,
  kBlockSummaries,
  kPageBounds,
  kPageScores,
  kKeyProducts,
  kCandidateVotes,
  kTopK,
  kCandidateRows,
  kGatherRows,
  kListUnion,
  kGroupedGemv,
  kGroupedExpand
};

/// Returns the operation code of these arguments.
constexpr OpCode op_code(const CopyArgs*) { return OpCode::kCopy; }
constexpr OpCode op_code(const ResidualRmsNormArgs*) { return OpCode::kRmsNorm; }
constexpr OpCode op_code(const SwigluArgs*) { return OpCode::kSwiglu; }
constexpr OpCode op_code(const EmbeddingArgs*) { return OpCode::kEmbedding; }
constexpr OpCode op_code(const ConvertArgs*) { return OpCode::kConvert; }
constexpr OpCode op_code(const AddBiasArgs*) { return OpCode::kAddBias; }
constexpr OpCode op_code(const MatmulArgs*) { return OpCode::kMatmul; }
constexpr OpCode op_code(const QkvSplitArgs*) { return OpCode::kQkvSplit; }
constexpr OpCode op_code(const RotateRowsArgs*) { return OpCode::kRotateRows; }
constexpr OpCode op_code(const KvPackArgs*) { return OpCode::kKvPack; }
constexpr OpCode op_code(const PlaceRowsArgs*) { return OpCode::kPlaceRows; }
constexpr OpCode op_code(const DecodeAttentionArgs*) { return OpCode::kDecodeAttention; }
constexpr OpCode op_code(const PrefillAttentionArgs*) { return OpCode::kPrefillAttention; }
constexpr OpCode op_code(const CopyAsyncArgs*) { return OpCode::kCopyAsync; }
constexpr OpCode op_code(const RecordEventArgs*) { return OpCode::kRecordEvent; }
constexpr OpCode op_code(const HoldArgs*) { return OpCode::kHold; }
constexpr OpCode op_code(const WaitEventArgs*) { return OpCode::kWaitEvent; }
constexpr OpCode op_code(const StepArgs*) { return OpCode::kStep; }
/// `warps` may be 0, which chooses the best number for the device.
constexpr OpCode op_code(const Int8GemvArgs*) { return OpCode::kInt8Gemv; }
constexpr OpCode op_code(const Int8ExpandArgs*) { return OpCode::kInt8Expand; }
constexpr OpCode op_code(const ArgmaxArgs*) { return OpCode::kArgmax; }
constexpr OpCode op_code(const SampleArgs*) { return OpCode::kSample; }
constexpr OpCode op_code(const ColumnSumsArgs*) { return OpCode::kColumnSums; }
constexpr OpCode op_code(const ScoreDocumentsArgs*) { return OpCode::kSamkvScores; }
constexpr OpCode op_code(const PlaceRecomputedArgs*) { return OpCode::kRecomputedRows; }
constexpr OpCode op_code(const AttentionScoresArgs*) { return OpCode::kAttentionScores; }
constexpr OpCode op_code(const AttentionMassArgs*) { return OpCode::kAttentionMass; }
constexpr OpCode op_code(const AttentionStatsArgs*) { return OpCode::kAttentionStats; }
constexpr OpCode op_code(const SummariseBlocksArgs*) { return OpCode::kBlockSummaries; }
constexpr OpCode op_code(const PageBoundsArgs*) { return OpCode::kPageBounds; }
constexpr OpCode op_code(const PageScoresArgs*) { return OpCode::kPageScores; }
constexpr OpCode op_code(const KeyProductsArgs*) { return OpCode::kKeyProducts; }
constexpr OpCode op_code(const CandidateVotesArgs*) { return OpCode::kCandidateVotes; }
constexpr OpCode op_code(const TopKArgs*) { return OpCode::kTopK; }
constexpr OpCode op_code(const CandidateRowsArgs*) { return OpCode::kCandidateRows; }
constexpr OpCode op_code(const GatherRowsArgs*) { return OpCode::kGatherRows; }
constexpr OpCode op_code(const ListUnionArgs*) { return OpCode::kListUnion; }
/// `warps` may be 0 here as well.
constexpr OpCode op_code(const GroupedGemvArgs*) { return OpCode::kGroupedGemv; }
constexpr OpCode op_code(const GroupedExpandArgs*) { return OpCode::kGroupedExpand; }

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
    case OpCode::kCopy:
      return as(static_cast<const CopyArgs*>(nullptr));
    case OpCode::kRmsNorm:
      return as(static_cast<const ResidualRmsNormArgs*>(nullptr));
    case OpCode::kSwiglu:
      return as(static_cast<const SwigluArgs*>(nullptr));
    case OpCode::kEmbedding:
      return as(static_cast<const EmbeddingArgs*>(nullptr));
    case OpCode::kConvert:
      return as(static_cast<const ConvertArgs*>(nullptr));
    case OpCode::kAddBias:
      return as(static_cast<const AddBiasArgs*>(nullptr));
    case OpCode::kMatmul:
      return as(static_cast<const MatmulArgs*>(nullptr));
    case OpCode::kQkvSplit:
      return as(static_cast<const QkvSplitArgs*>(nullptr));
    case OpCode::kRotateRows:
      return as(static_cast<const RotateRowsArgs*>(nullptr));
    case OpCode::kKvPack:
      return as(static_cast<const KvPackArgs*>(nullptr));
    case OpCode::kPlaceRows:
      return as(static_cast<const PlaceRowsArgs*>(nullptr));
    case OpCode::kDecodeAttention:
      return as(static_cast<const DecodeAttentionArgs*>(nullptr));
    case OpCode::kPrefillAttention:
      return as(static_cast<const PrefillAttentionArgs*>(nullptr));
    case OpCode::kCopyAsync:
      return as(static_cast<const CopyAsyncArgs*>(nullptr));
    case OpCode::kRecordEvent:
      return as(static_cast<const RecordEventArgs*>(nullptr));
    case OpCode::kHold:
      return as(static_cast<const HoldArgs*>(nullptr));
    case OpCode::kWaitEvent:
      return as(static_cast<const WaitEventArgs*>(nullptr));
    case OpCode::kStep:
      return as(static_cast<const StepArgs*>(nullptr));
    case OpCode::kInt8Gemv:
      return as(static_cast<const Int8GemvArgs*>(nullptr));
    case OpCode::kInt8Expand:
      return as(static_cast<const Int8ExpandArgs*>(nullptr));
    case OpCode::kArgmax:
      return as(static_cast<const ArgmaxArgs*>(nullptr));
    case OpCode::kSample:
      return as(static_cast<const SampleArgs*>(nullptr));
    case OpCode::kColumnSums:
      return as(static_cast<const ColumnSumsArgs*>(nullptr));
    case OpCode::kSamkvScores:
      return as(static_cast<const ScoreDocumentsArgs*>(nullptr));
    case OpCode::kRecomputedRows:
      return as(static_cast<const PlaceRecomputedArgs*>(nullptr));
    case OpCode::kAttentionScores:
      return as(static_cast<const AttentionScoresArgs*>(nullptr));
    case OpCode::kAttentionMass:
      return as(static_cast<const AttentionMassArgs*>(nullptr));
    case OpCode::kAttentionStats:
      return as(static_cast<const AttentionStatsArgs*>(nullptr));
    case OpCode::kBlockSummaries:
      return as(static_cast<const SummariseBlocksArgs*>(nullptr));
    case OpCode::kPageBounds:
      return as(static_cast<const PageBoundsArgs*>(nullptr));
    case OpCode::kPageScores:
      return as(static_cast<const PageScoresArgs*>(nullptr));
    case OpCode::kKeyProducts:
      return as(static_cast<const KeyProductsArgs*>(nullptr));
    case OpCode::kCandidateVotes:
      return as(static_cast<const CandidateVotesArgs*>(nullptr));
    case OpCode::kTopK:
      return as(static_cast<const TopKArgs*>(nullptr));
    case OpCode::kCandidateRows:
      return as(static_cast<const CandidateRowsArgs*>(nullptr));
    case OpCode::kGatherRows:
      return as(static_cast<const GatherRowsArgs*>(nullptr));
    case OpCode::kListUnion:
      return as(static_cast<const ListUnionArgs*>(nullptr));
    case OpCode::kGroupedGemv:
      return as(static_cast<const GroupedGemvArgs*>(nullptr));
    case OpCode::kGroupedExpand:
      return as(static_cast<const GroupedExpandArgs*>(nullptr));
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
  /// Blocks until everything enqueued on both streams has run.
  virtual Status synchronize() = 0;

  /// Enqueues an operation. The arguments are copied; they point to device or shared memory, for
  /// copies and KV pages also to pinned memory. Errors: also kInvalidArgument.
  template <class Args>
  Status run(const Args& args) {
    return enqueue(op_code(&args), &args, static_cast<std::int64_t>(sizeof args));
  }
  virtual Status enqueue(OpCode code, const void* args, std::int64_t bytes) = 0;
};

}  // namespace quire::cuda
