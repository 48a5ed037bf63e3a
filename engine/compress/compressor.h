/// This socket decides which kept KV stays hot, or stays at all, for decoding. It runs once, after
/// the question's prefill.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/plug/plug_registry.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/rows/rope.h"

namespace quire {

/// Describes the rows of one layer of the assembled cache, in row order.
struct LayerRows {
  std::int64_t num_rows = 0;
  RowRange prefix{0, 0};  ///< system prefix
  /// One range per context with rows, ascending; pooling of scores never crosses their borders.
  std::vector<RowRange> contexts;
  /// Ranges within contexts that a selector that drops blocks always keeps; ascending.
  std::vector<RowRange> anchors;
  RowRange question{0, 0};  ///< after all other rows
};

/// Rule for vertical-slash attention within a prompt. Each tile of 64 rows attends to the `band`
/// rows before it and, before the band, to `columns` rows per KV head.
struct SparseRule {
  std::int64_t band = 0;  ///< multiple of 64
  std::int64_t columns = 0;
};

/// Reports how sparsely a prompt attended.
struct SparseReport {
  std::int64_t rows = 0;  ///< rows that had rows before their band
  /// Share of their preceding keys that rows before the window attended to, over layers and KV
  /// heads.
  double attended_share = 1;
};

/// Inputs that are known before the question runs. The objects it points to must outlive the
/// compressor.
struct CompressSetup {
  const RopeTable* rope = nullptr;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  /// Positions [question_begin, question_end) of the last prompt tokens, which the question's pass
  /// runs.
  std::int32_t question_begin = 0, question_end = 0;
  /// If true, the whole prompt runs in one pass at positions 0, 1, ... with the attention of
  /// sparse_prefill(), which the observer computes. Else its attention is dense.
  bool sparse = false;
  /// With `sparse`: range of each context in that prompt, ascending.
  std::vector<RowRange> contexts;
};

struct CompressInput {
  const WorkingCache* cache = nullptr;  ///< after the question's prefill
  std::span<const LayerRows> layers;    ///< [num_layers]
};

/// Most rows of a look-ahead. They use the pages reserved for the first tokens of the answer for a
/// time.
inline constexpr std::int32_t kMostLookAhead = 64;

/// The hot rows of every layer and KV head; none: every row is hot.
struct RetainedRows {
  /// Rows per [layer][kv head]: first those that always stay, then by descending importance.
  std::vector<std::vector<std::vector<std::int32_t>>> hot;
  /// If true, the other rows leave the cache for good. Else they are demoted: they stay, and a
  /// retriever may copy them back.
  bool drop = false;
};

/// A compressor; one object per query, made with its options. Threads: the engine thread.
class Compressor : public NamedPlug<Compressor> {
 public:
  virtual ~Compressor() = default;
  /// Returns true if every row always stays hot; begin() and compress() then need not be called.
  virtual bool keeps_everything() const { return false; }
  /// Is called once, before the question's pass.
  virtual Status begin(const CompressSetup&) { return {}; }
  /// Returns a hook for the question's pass that observes its rows; null: none needed. Valid after
  /// begin(); owned by the compressor.
  virtual ForwardHook* observer() { return nullptr; }
  /// Returns true if the observer must see every row computed in prompt order, not only the
  /// question's.
  virtual bool observes_prompt() const { return false; }
  /// Returns the sparse attention rule for a prompt that is computed from beginning to end; none:
  /// dense attention.
  virtual std::optional<SparseRule> sparse_prefill() const { return std::nullopt; }
  /// Returns the report of a sparse pass, after it.
  virtual SparseReport sparse_report() const { return {}; }
  /// Returns how many tokens of a draft's answer should run after the question for the observer to
  /// see, at most kMostLookAhead. Fewer, or none, may come.
  virtual std::int32_t lookahead_tokens() const { return 0; }
  /// Returns whether rows that are not hot leave the cache (RetainedRows::drop).
  virtual bool drops_rows() const { return false; }
  /// Returns the retained rows, after the question's pass; none if the capacity covers every
  /// layer's rows.
  virtual Result<RetainedRows> compress(const CompressInput& input) = 0;
};

void register_plugs(PlugRegistry<Compressor>& plugs);
/// The compressors of this build: the files in engine/compress/plugs.
inline const PlugRegistry<Compressor>& compressors() {
  return built_plugs<Compressor>({.field = "cache.compress", .also = "auto, "});
}

}  // namespace quire
