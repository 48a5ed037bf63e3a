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
#include "engine/plug/plug_options.h"
#include "engine/residency/retrieval_pages.h"
#include "engine/retrieve/prompt_queries.h"

namespace quire {

class Compute;
class DevicePool;
class HeadTrack;
class Model;
class RetrievalHead;
class TransferStreams;

struct RetrieveInput {
  WorkingCache* cache = nullptr;  ///< after compression; the retriever may index it
  /// The rows that a compressor ranked as important, without those it demoted; empty where it
  /// dropped rows. Valid for this call only.
  const RetainedRows* retained = nullptr;
  std::span<const ContextRows>
      contexts;  ///< documents that have rows, ascending; for this call only
  const PlugOptions* options = nullptr;  ///< checked by check(); null: defaults. For this call only
  /// The queries that queries_wanted() asked for, as far as they exist; null: none. Valid for this
  /// call only, which may take them out.
  PromptQueries* queries = nullptr;
  DevicePool* device = nullptr;  ///< holds the rows copied to the device; outlives the retriever
  /// The Compute that runs the steps, if it has a memory() and hooks(); null: the host. It outlives
  /// the retriever.
  Compute* compute = nullptr;
  /// The streams for asynchronous copies; null: copies run synchronously. They outlive the
  /// retriever.
  TransferStreams* transfers = nullptr;
  /// The number of requests that share the device. The retriever takes at most one request's part.
  std::int32_t device_requests = 1;
  /// The retrieval head, for retrievers with wants_head(); it outlives the retriever.
  const RetrievalHead* head = nullptr;
  /// The draft model that chooses where there is no head. It is small, has the target's tokens,
  /// computes on the host and outlives the retriever.
  Model* draft = nullptr;
  /// The prompt's tokens as the head sees them. Set for wants_head() only and valid for this call
  /// only.
  const HeadTrack* prompt = nullptr;
  std::int64_t prompt_tokens = 0;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

/// RetrieveStep is one layer of one decode step of one sequence. The step's own K and V are already
/// the last row of the cache.
struct RetrieveStep {
  std::int32_t layer = 0;
  const float* query = nullptr;  ///< [num_heads, head_dim], post-RoPE
  std::int32_t position = 0;
  const WorkingCache* cache = nullptr;
  std::int32_t num_heads = 0, head_dim = 0;
  float* out = nullptr;  ///< [num_heads, head_dim]
  /// The Compute that runs the step, if it has a memory() that holds query and out; null: ordinary
  /// memory.
  Compute* compute = nullptr;
  /// Receives the milliseconds that choosing takes, because the step may run concurrently with
  /// other requests' steps. Null: stats() counts them.
  double* choose_ms = nullptr;
};

/// A retriever serves one query. Threads: one at a time, the engine thread. Where the host
/// computes, attend() may run in a thread of the thread pool (kernels/parallel.h) concurrently with
/// those of other retrievers.
class Retriever {
 public:
  /// HeadRow is the input, besides the token, of a retrieval head's projection of a step's token.
  struct HeadRow {
    const RetrievalHead* head = nullptr;  ///< null: nothing is projected
    const float* feature = nullptr;  ///< [feature_dim()] of the previous token; null: none is used
  };
  virtual ~Retriever() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// Checks what options() cannot express for one option alone. Errors: kInvalidArgument, field
  /// "cache.options.<name>".
  virtual Status check(const PlugOptions&) const { return {}; }
  /// Returns whether the retriever keeps rows on the device.
  virtual bool uses_device() const { return false; }
  /// Returns the upper bound of the device memory that choosing takes besides rows, where a device
  /// computes. What prepare() and steps keep on the device stays below it.
  virtual ChoosingNeed choosing_need(const PlugOptions&, const RetrieveShape&) const { return {}; }
  /// Returns whether the retriever chooses by the service's retrieval head.
  virtual bool wants_head() const { return false; }
  /// Returns the prompt rows whose queries prepare() reads.
  virtual WantedQueries queries_wanted(const PlugOptions&, std::int64_t /*prompt_tokens*/) const {
    return {};
  }
  /// Runs once, before the first decode step.
  virtual Status prepare(const RetrieveInput&) { return {}; }
  /// Returns false while prepare() has left work over, so that other requests get their turns in
  /// between. Each prepare_more() then does one piece; no step runs before this returns true.
  virtual bool prepared() const { return true; }
  virtual Status prepare_more() { return {}; }
  /// Returns the head's input for the next begin_step(). The caller may project the tokens of
  /// several requests in one batch and hand each its row; otherwise begin_step() projects by
  /// itself.
  virtual HeadRow head_row() const { return {}; }
  /// Takes the raw query [query_dim()] and key [key_dim()] of the token that begin_step() will get.
  /// The pointers are valid for this call only.
  virtual void take_head_row(const float* /*query*/, const float* /*key*/) {}
  /// Runs before the layers of a step. A retriever that chooses by token id alone prefetches its
  /// rows here.
  virtual Status begin_step(std::int32_t /*token_id*/, std::int32_t /*position*/) { return {}; }
  /// Returns whether begin_step() may run in a thread of the thread pool (kernels/parallel.h)
  /// concurrently with those of other retrievers.
  virtual bool begins_in_parallel() const { return false; }
  /// Adds to stats() the wall time that choosing took in begin_step(), in the work done for it
  /// before, or in an attend() with RetrieveStep::choose_ms. It is less than the time of the call
  /// itself where several calls ran at once.
  virtual void took_to_choose(double /*ms*/) {}
  /// Returns the layers whose input take_hidden() gets in every decode step, in any order, possibly
  /// repeated. It is valid from prepare() on.
  virtual std::span<const std::int32_t> hidden_layers() const { return {}; }
  /// Takes x, [hidden_size] f32, the step's residual stream entering `layer`. The pointer is valid
  /// for this call only.
  virtual void take_hidden(std::int32_t /*layer*/, const float* /*x*/) {}
  /// Returns whether attend() is attention over every row of the cache. The caller may then compute
  /// it for several queries at once instead of calling attend().
  virtual bool attends_all() const { return false; }
  /// Returns whether attend() of this layer reads or writes the step's results on the host. If not,
  /// it enqueues on RetrieveStep::compute, and the host does not synchronize before the call.
  virtual bool needs_host(const RetrieveStep& /*without query and out*/) const { return true; }
  /// Computes softmax attention of the step's query over the rows that this retriever chooses.
  virtual Status attend(const RetrieveStep& step) = 0;
  /// Returns once nothing reads the cache any more. It is called before the cache's pages move or
  /// are freed.
  virtual void synchronize() {}
  virtual RetrieveStats stats() const { return {}; }
};

/// Returns the upper bound of the device memory that choosing takes; 0 where `on` is empty and the
/// host computes.
inline std::int64_t choosing_bytes(const std::optional<RetrieveShape>& on,
                                   const Retriever& retriever, const PlugOptions& options,
                                   std::int64_t num_contexts, std::int64_t rows) {
  if (!on) return 0;
  RetrieveShape shape = *on;
  shape.num_contexts = num_contexts;
  return retriever.choosing_need(options, shape).bytes(rows);
}

std::vector<std::string> retriever_names();
/// Makes the retriever `name`. Errors: kInvalidArgument (field cache.decode), which names the known
/// retrievers.
Result<std::unique_ptr<Retriever>> make_retriever(std::string_view name);

std::unique_ptr<Retriever> make_arkvale_retriever();
std::unique_ptr<Retriever> make_ctkvr_retriever();
std::unique_ptr<Retriever> make_dense_retriever();
std::unique_ptr<Retriever> make_flat_retriever();
std::unique_ptr<Retriever> make_freekv_retriever();
std::unique_ptr<Retriever> make_magicpig_retriever();
std::unique_ptr<Retriever> make_quest_retriever();
std::unique_ptr<Retriever> make_raas_retriever();
std::unique_ptr<Retriever> make_shadowkv_retriever();
std::unique_ptr<Retriever> make_specontext_retriever();

}  // namespace quire
