/// Socket: which kept KV is hot, or kept at all, for decoding. Runs once, after the question's
/// prefill.
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
#include "engine/plug/plug_options.h"
#include "kernels/attention_mass.h"
#include "kernels/rope.h"

namespace quire {

/// What the rows of one layer of the assembled cache are, in row order.
struct LayerRows {
  std::int64_t num_rows = 0;
  KvStretch prefix{0, 0};  ///< system prefix
  /// One for each context with rows, ascending; pooling of scores never crosses their borders
  std::vector<KvStretch> contexts;
  /// Within contexts: what a selector that drops blocks always keeps; ascending
  std::vector<KvStretch> anchors;
  KvStretch question{0, 0};  ///< behind everything else
};

/// Attention of a prompt's own rows: each tile of 64 rows sees the `band` rows before it and, of
/// those before the band, `columns` per KV head (vertical-slash).
struct SparseRule {
  std::int64_t band = 0;  ///< multiple of 64
  std::int64_t columns = 0;
};

/// What came of it.
struct SparseReport {
  std::int64_t rows = 0;  ///< that had rows before their band
  /// Keys that rows before the window saw, of those that stand before them, over layers and KV
  /// heads
  double attended_share = 1;
};

/// Known before the question runs. What it points to outlives the compressor.
struct CompressSetup {
  const PlugOptions* options = nullptr;  ///< checked against options() and check()
  const RopeTable* rope = nullptr;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  /// Positions of the last prompt tokens that the question's pass runs: [question_begin,
  /// question_end).
  std::int32_t question_begin = 0, question_end = 0;
  /// The whole prompt runs in one pass, at positions 0, 1, ..., and attends by sparse_prefill()'s
  /// rule, which the observer carries out. Else it is dense.
  bool sparse = false;
  /// With `sparse`: where each context stands in that prompt, ascending
  std::vector<KvStretch> contexts;
};

struct CompressInput {
  const WorkingCache* cache = nullptr;  ///< after the question's prefill
  std::span<const LayerRows> layers;    ///< [num_layers]
};

/// Pages for the first tokens of an answer are there before it begins: look-ahead rows stand in
/// them for a time.
inline constexpr std::int32_t kMostLookAhead = 64;

/// The hot rows of every layer and KV head. None: everything is hot.
struct Heat {
  /// [layer][kv head] rows: first those that always stay, then by descending importance
  std::vector<std::vector<std::vector<std::int32_t>>> hot;
  /// The rest leaves the cache for good. Else it is demoted: it stays, for a retriever to bring
  /// back.
  bool drop = false;
};

/// One object per query. Threads: the engine thread.
class Compressor {
 public:
  virtual ~Compressor() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// What options() cannot say of one option alone. Errors: kInvalidArgument, field
  /// "cache.options.<name>".
  virtual Status check(const PlugOptions&) const { return {}; }
  /// Leaves everything hot whatever the prompt: begin() and compress() need not be called.
  virtual bool keeps_everything() const { return false; }
  /// Once, before the question's pass.
  virtual Status begin(const CompressSetup&) { return {}; }
  /// After begin(): hung into the question's pass to see its rows; null: not needed. Owned by the
  /// compressor.
  virtual ForwardHook* observer() { return nullptr; }
  /// The observer sees every row that is computed in prompt order, not just the question's.
  virtual bool observes_prompt() const { return false; }
  /// How the rows of a prompt that is computed from its beginning to its end may attend; none: to
  /// everything.
  virtual std::optional<SparseRule> sparse_prefill(const PlugOptions&) const {
    return std::nullopt;
  }
  /// After a sparse pass.
  virtual SparseReport sparse_report() const { return {}; }
  /// Tokens of a draft's answer that should run behind the question for the observer to see,
  /// kMostLookAhead at most. Fewer, or none, may come.
  virtual std::int32_t lookahead_tokens(const PlugOptions&) const { return 0; }
  /// After the question's pass. A capacity that covers every layer's rows gives no heat.
  virtual Result<Heat> compress(const CompressInput& input) = 0;
};

std::vector<std::string> compressor_names();
/// Errors: kInvalidArgument (field cache.compress) naming the known ones.
Result<std::unique_ptr<Compressor>> make_compressor(std::string_view name);

std::unique_ptr<Compressor> make_none_compressor();
std::unique_ptr<Compressor> make_streamingllm_compressor();
std::unique_ptr<Compressor> make_h2o_compressor();
std::unique_ptr<Compressor> make_snapkv_compressor();
std::unique_ptr<Compressor> make_pyramidkv_compressor();
std::unique_ptr<Compressor> make_adakv_compressor();
std::unique_ptr<Compressor> make_speckv_compressor();
std::unique_ptr<Compressor> make_ada_speckv_compressor();

}  // namespace quire
