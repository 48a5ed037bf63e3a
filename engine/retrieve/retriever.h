/// Socket: what one decode step attends to, and how it gets onto the device.
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
class TransferLane;

struct RetrieveInput {
  WorkingCache* cache = nullptr;  ///< after compression; the retriever may index it
  /// What compression demoted is not in it; where rows were dropped it is empty. For this call only
  const Heat* heat = nullptr;
  std::span<const ContextRows> contexts;  ///< that have rows, ascending; for this call only
  const PlugOptions* options = nullptr;  ///< checked by check(); null: defaults. For this call only
  /// Those of queries_wanted(), as far as there are; null: none. For this call only, which may take
  /// them out
  PromptQueries* queries = nullptr;
  DevicePool* device = nullptr;  ///< for what is brought to the device; outlives the retriever
  /// Who runs the steps, where that has a memory and hooks(); null: the host. Outlives the
  /// retriever
  Compute* compute = nullptr;
  /// For copies beside the computation; null: they are made at once. Outlives the retriever
  TransferLane* transfers = nullptr;
  /// That share the device: the retriever takes no more than one's part
  std::int32_t device_requests = 1;
  /// For retrievers with wants_head(); outlives the retriever
  const RetrievalHead* head = nullptr;
  /// Chooses where there is no head: a small model with the target's tokens, that computes on the
  /// host; outlives the retriever
  Model* draft = nullptr;
  /// The prompt's tokens as the head sees them; for wants_head() and this call only
  const HeadTrack* prompt = nullptr;
  std::int64_t prompt_tokens = 0;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

/// One layer of one decode step of one sequence. The step's own K and V are in the cache already
/// (its last row).
struct RetrieveStep {
  std::int32_t layer = 0;
  const float* query = nullptr;  ///< [num_heads, head_dim], post-RoPE
  std::int32_t position = 0;
  const WorkingCache* cache = nullptr;
  std::int32_t num_heads = 0, head_dim = 0;
  float* out = nullptr;  ///< [num_heads, head_dim]
  /// Who runs the step, where it has a memory that query and out lie in; null: ordinary memory
  Compute* compute = nullptr;
  /// Gets what choosing takes in place of stats(): the step may run beside those of others; null:
  /// stats() does
  double* choose_ms = nullptr;
};

/// One object per query. Threads: one at a time, the engine thread; where the host computes
/// attend() may run in one of the team's threads (kernels/parallel.h) while those of other
/// retrievers do.
class Retriever {
 public:
  /// What a retrieval head projects for a step's token beside the token itself.
  struct HeadRow {
    const RetrievalHead* head = nullptr;  ///< null: nothing is to be projected
    const float* feature = nullptr;  ///< [feature_dim()] of the token before; null: none is used
  };
  virtual ~Retriever() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// What options() cannot say of one option alone. Errors: kInvalidArgument, field
  /// "cache.options.<name>".
  virtual Status check(const PlugOptions&) const { return {}; }
  /// It keeps rows on the device.
  virtual bool uses_device() const { return false; }
  /// Where a device computes: the most that choosing takes of its memory, beside rows. What
  /// prepare() and steps keep there stays below.
  virtual ChoosingNeed choosing_need(const PlugOptions&, const RetrieveShape&) const { return {}; }
  /// It chooses by the service's retrieval head.
  virtual bool wants_head() const { return false; }
  /// Prompt rows whose queries prepare() reads.
  virtual QueryWish queries_wanted(const PlugOptions&, std::int64_t /*prompt_tokens*/) const {
    return {};
  }
  /// Once, before the first decode step.
  virtual Status prepare(const RetrieveInput&) { return {}; }
  /// prepare() may leave work over, so that others get their turns in between: prepare_more() does
  /// a piece of it, until prepared(). No step before that.
  virtual bool prepared() const { return true; }
  virtual Status prepare_more() { return {}; }
  /// Of the next begin_step(). Whoever runs steps may project the tokens of several requests
  /// together and give each its row; begin_step() projects by itself where that was not done.
  virtual HeadRow head_row() const { return {}; }
  /// Raw query [query_dim()] and key [key_dim()] of the token that begin_step() comes with; for
  /// this call only.
  virtual void take_head_row(const float* /*query*/, const float* /*key*/) {}
  /// Before the layers of a step run: a retriever that chooses by token id alone brings its rows in
  /// now.
  virtual Status begin_step(std::int32_t /*token_id*/, std::int32_t /*position*/) { return {}; }
  /// begin_step() may run in one of the team's threads (kernels/parallel.h) while those of other
  /// retrievers do.
  virtual bool begins_beside() const { return false; }
  /// What begin_step(), what was done for it before, or an attend() with RetrieveStep::choose_ms
  /// took of the step's wall time to choose: less than the call itself where several ran at once.
  /// For stats().
  virtual void took_to_choose(double /*ms*/) {}
  /// Layers whose input take_hidden() gets in every decode step; any order, may repeat. From
  /// prepare() on.
  virtual std::span<const std::int32_t> hidden_layers() const { return {}; }
  /// x: [hidden_size] f32, the step's residual stream entering `layer`; for this call only.
  virtual void take_hidden(std::int32_t /*layer*/, const float* /*x*/) {}
  /// attend() is attention over every row that the cache holds, so that whoever computes the step
  /// may do it for several queries at once instead of calling it.
  virtual bool brings_all() const { return false; }
  /// Whether attend() of this layer reads or writes what the step computed. Where it does not it
  /// enqueues on RetrieveStep::compute, and nobody waits for a device before the call.
  virtual bool looks_at(const RetrieveStep& /*without query and out*/) const { return true; }
  /// softmax attention of the step's query over the rows this retriever brings.
  virtual Status attend(const RetrieveStep& step) = 0;
  /// Returns when nothing reads the cache any more: before its pages move or go.
  virtual void settle() {}
  virtual RetrieveStats stats() const { return {}; }
};

/// What choosing takes at most of the device that computes; `on` none: the host does.
inline std::int64_t choosing_bytes(const std::optional<RetrieveShape>& on,
                                   const Retriever& retriever, const PlugOptions& options,
                                   std::int64_t num_contexts, std::int64_t rows) {
  if (!on) return 0;
  RetrieveShape shape = *on;
  shape.num_contexts = num_contexts;
  return retriever.choosing_need(options, shape).bytes(rows);
}

std::vector<std::string> retriever_names();
/// Errors: kInvalidArgument (field cache.decode) naming the known ones.
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
