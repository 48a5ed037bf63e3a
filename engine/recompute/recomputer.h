/// This socket decides which kept tokens are computed again, and how new KV is combined with stored
/// KV.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/plug/plug_registry.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/record/sketch.h"
#include "engine/select/selection.h"

namespace quire {

/// One context as a recomputer sees it, in prompt order.
struct RecomputableContext {
  std::span<const std::int32_t> token_ids;
  std::int64_t offset = 0;  ///< assembled position of its first token
  std::int32_t block_tokens = 0, num_blocks = 0;
  bool exact = false;  ///< its KV as stored equals its KV in the concatenation
  /// Assembled position of each block's first token; -1: no layer keeps it. Empty: every block lies
  /// where `offset` puts it.
  std::span<const std::int32_t> block_position = {};
};

/// Gives access to the stored raw KV of contexts, for recomputers that compare or blend
/// (CacheBlend, SamKV fusion, padding).
class StoredKv {
 public:
  virtual ~StoredKv() = default;
  /// Returns a block in one layer, [num_kv_heads][2][tokens of the block][head_dim], valid until
  /// the pass ends. Errors: kNotFound (the block was not loaded).
  virtual Result<RawKvView> block(std::int32_t context, std::int32_t block,
                                  std::int32_t layer) const = 0;
};

struct RecomputeInput {
  std::span<const RecomputableContext> contexts;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::optional<double> recompute_ratio;   ///< as requested, if any
  std::span<const std::int32_t> question;  ///< token ids after the documents; may be empty
  /// Assembled position of the question's first token; known once `selection` is.
  std::int32_t question_position = 0;
  // Null while planning:
  const Selection* selection = nullptr;
  const StoredKv* stored = nullptr;
  const WorkingCache* cache = nullptr;
  const RopeTable* rope = nullptr;
  /// Returns a context's sketch. Null: lost, or the recomputer did not request sketches
  /// (needs_sketches).
  std::function<const SketchView*(std::int32_t context)> sketch;

  /// Returns the parts that a pass may keep after prepare(): shape, `stored` and `rope`.
  RecomputeInput without_request() const {
    RecomputeInput kept = *this;
    kept.contexts = {};
    kept.question = {};
    kept.selection = nullptr;
    kept.cache = nullptr;
    kept.sketch = nullptr;
    return kept;
  }
};

/// Chooses and recomputes tokens; stateless and deterministic. It is made with its options.
/// Threads: any for planning, the engine thread for prepare().
class Recomputer : public NamedPlug<Recomputer> {
 public:
  virtual ~Recomputer() = default;
  /// Returns true if blocks_to_load() and prepare() read sketches, so that the pipeline loads them
  /// first.
  virtual bool needs_sketches() const { return false; }
  /// Returns the stored blocks that prepare() reads besides the selected ones, per layer (SamKV's
  /// padding); they are loaded but not placed. It is called once the selection is known; none: the
  /// selected blocks are enough.
  virtual std::optional<Selection> blocks_to_load(const RecomputeInput&) const {
    return std::nullopt;
  }
  /// Returns true if the context is not loaded but computed in every layer as part of the
  /// concatenation. Its rows then attend to the whole prompt before them, so later contexts that
  /// are not exact should be computed too.
  virtual bool computes_in_place(const RecomputeInput& input, std::int32_t context) const = 0;
  /// Returns the tokens that the pass will compute again, per context, ascending, as far as known;
  /// more are known once `selection` is set. Empty contexts and dropped duplicates have empty
  /// token_ids and are skipped.
  virtual std::vector<std::vector<std::int32_t>> planned_tokens(const RecomputeInput&) const {
    return {};
  }
  /// Prepares the pass after all kept blocks are placed and before the question; null: nothing to
  /// compute. `stored`, `rope` and the cache must outlive the pass, the rest of the input need not.
  /// Errors: kInternal.
  virtual Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput&) const {
    return std::unique_ptr<RecomputePass>();
  }
  /// Returns whether prepare() may return a pass, so that the pipeline can join neighbouring stages
  /// otherwise.
  virtual bool has_pass() const { return false; }
};

void register_plugs(PlugRegistry<Recomputer>& plugs);
/// The recomputers of this build: the files in engine/recompute/plugs.
inline const PlugRegistry<Recomputer>& recomputers() {
  return built_plugs<Recomputer>({.field = "recomputer"});
}

}  // namespace quire
