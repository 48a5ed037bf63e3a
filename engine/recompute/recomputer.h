/// Socket: which kept tokens are computed again, and how new KV meets old.
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
#include "engine/plug/plug_options.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/record/sketch.h"
#include "engine/select/selection.h"

namespace quire {

/// One context as a recomputer sees it, in prompt order.
struct RecomputableContext {
  std::span<const std::int32_t> token_ids;
  std::int64_t offset = 0;  ///< assembled position of its first token
  std::int32_t block_tokens = 0, num_blocks = 0;
  bool exact = false;  ///< its KV prefilled alone is token for token its KV in the concatenation
  /// Assembled position of each block's first token; -1: no layer keeps it. Empty: every block lies
  /// where `offset` puts it.
  std::span<const std::int32_t> block_position = {};
};

/// The stored raw KV of a context, for recomputers that compare or blend (CacheBlend, SamKV fusion,
/// padding).
class StoredKv {
 public:
  virtual ~StoredKv() = default;
  /// Block `block` in `layer`: [num_kv_heads][2][tokens of the block][head_dim]. Valid until the
  /// pass ends. Errors: kNotFound when the block was not loaded.
  virtual Result<RawKvView> block(std::int32_t context, std::int32_t block,
                                  std::int32_t layer) const = 0;
};

struct RecomputeInput {
  std::span<const RecomputableContext> contexts;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::optional<double> recompute_ratio;  ///< asked for, if any
  PlugOptions options;                    ///< checked against options() of the recomputer
  // Null while planning:
  const Selection* selection = nullptr;
  const StoredKv* stored = nullptr;
  const WorkingCache* cache = nullptr;
  const RopeTable* rope = nullptr;
  /// The context's sketch. Null: lost, or this recomputer did not ask for sketches
  /// (needs_sketches).
  std::function<const SketchView*(std::int32_t context)> sketch;

  /// What a pass may keep when prepare() is over: shape, options, `stored` and `rope`.
  RecomputeInput without_request() const {
    RecomputeInput kept = *this;
    kept.contexts = {};
    kept.selection = nullptr;
    kept.cache = nullptr;
    kept.sketch = nullptr;
    return kept;
  }
};

/// Stateless and deterministic. Threads: any for the planning part, the engine thread for
/// prepare().
class Recomputer {
 public:
  virtual ~Recomputer() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// True: blocks_to_load() and prepare() read sketches, so the pipeline loads them first.
  virtual bool needs_sketches() const { return false; }
  /// Stored blocks prepare() reads besides the selected ones, per layer (SamKV's padding); they are
  /// loaded, not placed. Called once the selection is known. Nothing: the selected ones are enough.
  virtual std::optional<Selection> blocks_to_load(const RecomputeInput&) const {
    return std::nullopt;
  }
  /// True: the context is not loaded at all but computed as part of the concatenation, in every
  /// layer. Its rows see the whole prompt before them, so everything behind it in the prompt that
  /// is not exact is better off computed, too.
  virtual bool computes_in_place(const RecomputeInput& input, std::int32_t context) const = 0;
  /// Tokens the pass will compute again, per context, ascending, as far as that is known: more once
  /// `selection` is set. Tokens of empty contexts and of dropped duplicates are not asked for:
  /// their token_ids are empty.
  virtual std::vector<std::vector<std::int32_t>> planned_tokens(const RecomputeInput&) const {
    return {};
  }
  /// After all kept blocks were placed, before the question: the pass over them. Null: nothing to
  /// compute. `stored`, `rope` and the cache must stay until it is done; the rest of the input need
  /// not. Errors: kInternal.
  virtual Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput&) const {
    return std::unique_ptr<RecomputePass>();
  }
  /// Whether prepare() may return a pass: lets the pipeline join neighbouring stages when it
  /// cannot.
  virtual bool has_pass() const { return false; }
};

std::vector<std::string> recomputer_names();
/// Errors: kInvalidArgument naming the known ones.
Result<std::unique_ptr<Recomputer>> make_recomputer(std::string_view name);

std::unique_ptr<Recomputer> make_none_recomputer();
std::unique_ptr<Recomputer> make_full_recomputer();
std::unique_ptr<Recomputer> make_epic_recomputer();
std::unique_ptr<Recomputer> make_inexact_recomputer();
std::unique_ptr<Recomputer> make_cacheblend_recomputer();
std::unique_ptr<Recomputer> make_samkv_overwrite_recomputer();
std::unique_ptr<Recomputer> make_samkv_fusion_recomputer();
std::unique_ptr<Recomputer> make_samkv_kept_recomputer();

}  // namespace quire
