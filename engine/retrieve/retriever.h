/// The Retriever interface decides which rows one decode step attends to and copies them to the
/// device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/api/choosing_need.h"
#include "engine/api/retrieve_stats.h"
#include "engine/cache/working_cache.h"
#include "engine/compress/compressor.h"
#include "engine/plug/plug_registry.h"
#include "engine/residency/retrieval_pages.h"
#include "engine/retrieve/prompt_queries.h"

namespace quire {

class Compute;
class DevicePool;
class HeadTrack;
class Model;
class RetrievalHead;
class TransferStreams;
enum class HeadInput : std::uint8_t;

/// SequenceContext is what a retriever works with for its whole life; all of it outlives the
/// retriever.
struct SequenceContext {
  WorkingCache* cache = nullptr;  ///< after compression; the retriever may index it
  DevicePool* device = nullptr;   ///< holds the rows copied to the device
  Compute* compute = nullptr;     ///< runs the steps
  /// The streams for asynchronous copies; null: copies run synchronously.
  TransferStreams* transfers = nullptr;
  /// The number of requests that share the device. The retriever takes at most one request's part.
  std::int32_t device_requests = 1;
  const RetrievalHead* head = nullptr;  ///< for a HeadDriven retriever; null: none is loaded
  /// The draft model that chooses where there is no head. It is small, has the target's tokens and
  /// computes on the host.
  Model* draft = nullptr;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

/// AssembledPrompt is what prepare() learns about the rows in the cache. All of it is valid for the
/// call only.
struct AssembledPrompt {
  /// The rows that a compressor ranked as important, without those it demoted; empty where it
  /// dropped rows.
  const RetainedRows* retained = nullptr;
  std::span<const ContextRows> contexts;  ///< documents that have rows, ascending
  /// The queries that a PromptWatcher wanted, as far as they exist; null: none. prepare() may take
  /// them out.
  PromptQueries* queries = nullptr;
  const HeadTrack* head_track = nullptr;  ///< the tokens as the head sees them, if HeadDriven
  std::int64_t num_tokens = 0;
};

/// RetrieveStep is one layer of one decode step of one sequence. The step's own K and V are already
/// the last row of the cache.
struct RetrieveStep {
  std::int32_t layer = 0;
  const float* query = nullptr;  ///< [num_heads, head_dim], post-RoPE
  std::int32_t position = 0;
  const WorkingCache* cache = nullptr;
  std::int32_t num_heads = 0, head_dim = 0;
  float* out = nullptr;           ///< [num_heads, head_dim] of elements of out_dtype
  DType out_dtype = DType::kF32;  ///< may be another in AttendsTogether::attend_together() alone
  Compute* compute = nullptr;     ///< runs the step; its memory holds query and out by default
  /// Receives the milliseconds that choosing takes, because the step may run concurrently with
  /// other requests' steps. Null: stats() counts them.
  double* choose_ms = nullptr;
};

/// RetrieverTraits are what is known of a retriever before it has a sequence.
struct RetrieverTraits {
  bool uses_device = false;  ///< it keeps rows on the device
  /// attend() is attention over every row of the cache. The caller may then compute it for several
  /// queries at once instead of calling attend().
  bool attends_all = false;
};

/// A retriever serves one query. It is made with its options. Threads: one at a time, the engine
/// thread. Where the host computes, attend() may run in a thread of the thread pool
/// (kernels/parallel.h) concurrently with those of other retrievers.
///
/// What only some retrievers can do are interfaces of their own, which a class derives from
/// besides: HeadDriven, PromptWatcher, DeviceBudgeted, PreparesInPieces, AttendsTogether.
/// capability<T>() finds them.
class Retriever : public NamedPlug<Retriever> {
 public:
  virtual ~Retriever() = default;
  const RetrieverTraits& traits() const { return traits_; }
  /// Runs once, before the first decode step.
  virtual Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) = 0;
  /// Runs before the layers of a step. A retriever that chooses by token id alone prefetches its
  /// rows here.
  virtual Status begin_step(std::int32_t /*token_id*/, std::int32_t /*position*/) { return {}; }
  /// Returns whether attend() of this layer works on the host. If so, everything enqueued has run,
  /// query and out lie in ordinary memory, and rows are read by WorkingCache::host_view(). If not,
  /// it enqueues on RetrieveStep::compute, and the host does not synchronize before the call.
  virtual bool needs_host(const RetrieveStep& /*without query and out*/) const { return true; }
  /// Returns whether the next step may be enqueued before the host has seen this one's token. Then
  /// begin_step() does not use the token, and no layer waits for the host. It is asked after
  /// begin_step(). A step that fails is begun again.
  virtual bool follows_unseen() const { return traits_.attends_all; }
  /// Computes softmax attention of the step's query over the rows that this retriever chooses.
  virtual Status attend(const RetrieveStep& step) = 0;
  /// Returns once nothing reads the cache any more. It is called before the cache's pages move or
  /// are freed.
  virtual void synchronize() {}
  virtual RetrieveStats stats() const { return stats_; }
  /// Adds to stats() the wall time that choosing took in begin_step(), in the work done for it
  /// before, or in an attend() with RetrieveStep::choose_ms. It is less than the time of the call
  /// itself where several calls ran at once.
  void took_to_choose(double ms) { stats_.choose_ms += ms; }

 protected:
  explicit Retriever(RetrieverTraits traits) : traits_(traits) {}
  RetrieveStats stats_;

 private:
  const RetrieverTraits traits_;
};

/// A retriever that chooses by the service's retrieval head, or by a draft where none is loaded.
class HeadDriven {
 public:
  /// TokenInput is the input, besides the token, of the head's projection of a step's token.
  struct TokenInput {
    const RetrievalHead* head = nullptr;  ///< null: nothing is projected
    const float* feature = nullptr;  ///< [feature_dim()] of the previous token; null: none is used
  };
  virtual ~HeadDriven() = default;
  /// Returns what the head sees of a token, which its options and the head decide.
  virtual HeadInput head_input(const RetrievalHead& head) const = 0;
  /// Returns the head's input for the next begin_step(). The caller may project the tokens of
  /// several requests in one batch and hand each its row; otherwise begin_step() projects by
  /// itself.
  virtual TokenInput token_input() const = 0;
  /// Takes the raw query [query_dim()] and key [key_dim()] of the token that begin_step() will get.
  /// The pointers are valid for this call only.
  virtual void take_projection(const float* query, const float* key) = 0;
  /// Takes in the token of the begin_step() that comes next, which does it by itself otherwise.
  /// Returns whether begin_step() then waits for a device that scores. Its errors concern this
  /// retriever alone, whose step is over.
  virtual Result<bool> take_token(std::int32_t /*token_id*/, std::int32_t /*position*/) {
    return false;
  }
  /// Has the device score for retrievers of this kind that would wait for it, and waits once for
  /// all. The first is this one, whose Compute all have. After an error their begin_step() does it.
  virtual Status score_together(std::span<HeadDriven* const> /*retrievers*/) { return {}; }
  /// Returns whether begin_step() may run in a thread of the thread pool (kernels/parallel.h)
  /// concurrently with those of other retrievers.
  virtual bool begins_in_parallel() const = 0;
  /// Returns the layers whose input take_hidden() gets in every decode step, in any order, possibly
  /// repeated. It is valid from prepare() on.
  virtual std::span<const std::int32_t> hidden_layers() const = 0;
  /// Takes x, [hidden_size] f32, the step's residual stream entering `layer`. The pointer is valid
  /// for this call only.
  virtual void take_hidden(std::int32_t layer, const float* x) = 0;
};

/// A retriever that learns from the queries of prompt rows.
class PromptWatcher {
 public:
  virtual ~PromptWatcher() = default;
  /// Returns the prompt rows whose queries prepare() reads; a count of 0: none.
  virtual WantedQueries queries_wanted(std::int64_t prompt_tokens) const = 0;
};

/// A retriever that keeps more on the device than rows, where a device computes.
class DeviceBudgeted {
 public:
  virtual ~DeviceBudgeted() = default;
  /// Returns the upper bound of the device memory that choosing takes besides rows. What prepare()
  /// and steps keep on the device stays below it.
  virtual ChoosingNeed choosing_need(const RetrieveShape& shape) const = 0;
};

/// A retriever whose prepare() leaves work over, so that other requests get their turns in between.
class PreparesInPieces {
 public:
  virtual ~PreparesInPieces() = default;
  /// Returns false while work is left. No step runs before this returns true.
  virtual bool prepared() const = 0;
  virtual Status prepare_more() = 0;
};

/// A retriever that attends in one call with others of its kind where a device computes, without
/// a wait of the host.
class AttendsTogether {
 public:
  virtual ~AttendsTogether() = default;
  /// Returns whether attend_together() may stand for attend() in this layer of the step, in one
  /// call with `first` and all others that join it; a retriever by itself is its own first. The
  /// answer is the same until its own attend_together().
  virtual bool joins(const RetrieveStep& step, const AttendsTogether& first) const = 0;
  /// Runs before attend_together(), if joins() is true. Its errors concern this retriever alone,
  /// and it then stays out of the call. Where attend_together() finds no memory, both are called
  /// again for the step, with fewer others.
  virtual Status ready(const RetrieveStep& step) = 0;
  /// Enqueues attend() of the retriever of each step, all of the same layer and out_dtype, all
  /// ready, with queries and outputs in consecutive rows. retrievers[0] is this one. Errors: those
  /// of the Compute.
  virtual Status attend_together(std::span<const RetrieveStep> steps,
                                 std::span<AttendsTogether* const> retrievers) = 0;
};

/// Returns the retriever as T, one of the interfaces above; null: it is none.
template <class T>
T* capability(Retriever& retriever) {
  return dynamic_cast<T*>(&retriever);
}
template <class T>
const T* capability(const Retriever& retriever) {
  return dynamic_cast<const T*>(&retriever);
}

/// Prepares a retriever at once, for callers with nothing else to do in between.
inline Status prepare_whole(Retriever& retriever, const SequenceContext& sequence,
                            const AssembledPrompt& prompt) {
  Status status = retriever.prepare(sequence, prompt);
  auto* const pieces = capability<PreparesInPieces>(retriever);
  while (status.ok() && pieces != nullptr && !pieces->prepared()) status = pieces->prepare_more();
  return status;
}

/// Returns the upper bound of the device memory that choosing takes; 0 where `on` is empty and the
/// host computes.
inline std::int64_t choosing_bytes(const std::optional<RetrieveShape>& on,
                                   const Retriever& retriever, std::int64_t num_contexts,
                                   std::int64_t rows) {
  const auto* budgeted = capability<DeviceBudgeted>(retriever);
  if (!on || budgeted == nullptr) return 0;
  RetrieveShape shape = *on;
  shape.num_contexts = num_contexts;
  return budgeted->choosing_need(shape).bytes(rows);
}

void register_plugs(PlugRegistry<Retriever>& plugs);
/// The retrievers of this build: the files in engine/retrieve/plugs.
inline const PlugRegistry<Retriever>& retrievers() {
  return built_plugs<Retriever>({.field = "cache.decode", .also = "auto, "});
}

}  // namespace quire
