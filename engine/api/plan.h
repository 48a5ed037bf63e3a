/// This file defines the Plan, an immutable value that describes how one request will be answered.
/// It says which documents sit at which positions, which blocks each layer keeps, which tokens are
/// recomputed, and why. A plan is computed, logged, explained and tested without running the model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/format/segment.h"
#include "engine/plug/plug_options.h"

namespace quire {

/// Selects the positions at which document tokens are placed.
enum class PositionMode : std::uint8_t {
  kGlobal,      ///< offset in the full concatenation, even if blocks before it are dropped
  kCompact,     ///< rank among kept tokens; used only if the concatenation exceeds the window
  kLocalNaive,  ///< every context at 0..n-1, the question where the concatenation has it
  /// Every document right behind the prefix, the question right behind the longest one, as in
  /// Parallel Context Windows (Ratner et al., arXiv 2212.10947).
  kParallel,
};

/// Holds the cache options of a request. "auto" lets the service decide.
struct CacheOptions {
  std::string strategy = "auto";
  std::optional<PositionMode> positions;  ///< `reuse` only; others are global
  std::optional<double> keep_ratio, recompute_ratio;
  std::string compress = "auto", decode = "auto";
  PlugOptions options;  ///< for the strategy's selector and recomputer, and for the compressor
  /// Name of the prompt compressor that shortens uncached text before it is computed
  /// (engine/prompt).
  std::string prompt_compression = "none";
  PlugOptions prompt_options;  ///< for the prompt compressor
  bool write = true;           ///< KV computed for misses is stored
  bool dedupe = true;          ///< later copies of the same context in one request are dropped
};

enum class Fate : std::uint8_t { kReused = 0, kRecomputed = 1, kComputed = 2, kDropped = 3 };
std::string_view fate_name(Fate fate);

/// Why cached KV was not used.
enum class MissReason : std::uint8_t {
  kNone,
  kNotCached,
  kEvicted,
  kModelChanged,
  kSaltMismatch,
  kCorrupt,
  /// It was stored without a record that this query needs, such as before a calibration.
  kRecordMissing,
  kTierUnavailable,
  kPolicyOff,
};
std::string_view miss_reason_name(MissReason reason);

/// One block of one context.
struct PlannedBlock {
  std::int32_t first_token = 0, num_tokens = 0;  ///< within the context
  Fate action = Fate::kReused;                   ///< kRecomputed: at least one token is recomputed
  std::int32_t kept_layers = 0;
  std::int32_t recomputed_tokens = 0;
  float score = 0;
  Tier tier = Tier::kDisk;  ///< tier where it was found; meaningless for computed blocks
  double load_ms = 0;
  /// Share of the block's rows, over layers and KV heads, that stay hot after compression.
  std::optional<float> hot_share;
  std::array<std::uint8_t, 16> id{};  ///< first bytes of the block key
};

/// Half-open range of tokens.
struct TokenRange {
  std::int32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

/// Tokens of a context, or of the text around the contexts, that prompt compression kept.
struct CutText {
  std::int64_t uncut_tokens = 0;
  std::vector<TokenRange> kept;  ///< kept ranges of those tokens, ascending and not touching
};

/// One context (document chunk) of the prompt.
struct PlannedContext {
  std::int32_t index = 0;  ///< index into QueryRequest::contexts
  std::string document_id;
  std::int32_t chunk = 0;
  /// `offset` is the position of its first token in the assembled prompt.
  std::int64_t num_tokens = 0, offset = 0;
  std::int32_t block_tokens = 0;
  bool cached = false;     ///< found in the store
  bool duplicate = false;  ///< dropped by dedupe
  MissReason miss = MissReason::kNone;
  /// P_i: share of its middle blocks that were candidates (SamKV, Eq. 3).
  std::optional<float> keep_share;
  /// Weight w_i with which it biased the other documents' queries (SamKV, Eq. 1), mean over layers.
  std::optional<float> bias_weight;
  std::vector<PlannedBlock> blocks;
  /// Which layers keep which blocks, [block][layer] in one row; empty: all layers keep the same.
  std::vector<bool> kept_in;
  /// Kept ranges after prompt compression; num_tokens and blocks then count only kept tokens. None:
  /// nothing was cut.
  std::optional<CutText> cut;
};
/// Returns the index that this token of the context had before prompt compression.
std::int32_t uncut_token(const PlannedContext& context, std::int32_t token);
/// Returns the range from the block's first to its last token before prompt compression. Tokens in
/// between may have been removed.
TokenRange uncut_range(const PlannedContext& context, const PlannedBlock& block);

/// Tokens of one context recomputed in one layer, ascending.
using RecomputeSet = std::vector<std::int32_t>;

struct FateCounts {
  std::int64_t reused = 0, recomputed = 0, computed = 0, dropped = 0;
  std::int64_t total() const { return reused + recomputed + computed + dropped; }
  std::int64_t cached() const { return reused + dropped; }
};

/// Reports what a compressor did to the working cache before the answer began.
struct Compression {
  std::string by;        ///< the compressor
  bool dropped = false;  ///< other rows left the cache; else they are demoted but still in it
  std::int64_t rows = 0, hot_rows = 0;  ///< over all layers and KV heads
  /// Tokens of the draft's answer that ranked rows along with the question.
  std::int64_t lookahead_tokens = 0;
  std::string note;  ///< why a requested look-ahead is missing
  double ratio() const {
    return rows ? static_cast<double>(hot_rows) / static_cast<double>(rows) : 1;
  }
};

/// Describes a prompt that was prefilled in one pass with sparse attention. Its KV is not shared
/// with other requests.
struct SparsePrefill {
  /// `band` is how many preceding rows each row attends to; `columns` is how many rows before the
  /// band, per layer and KV head.
  std::int64_t band = 0, columns = 0;
  std::int64_t tokens = 0;    ///< rows with sparse attention; 0: none, and `note` says why
  double attended_share = 1;  ///< share of their preceding keys that these rows attended to
  std::string note;
};

/// Reports what a prompt compressor did to the uncached text.
struct PromptCut {
  enum class Part : std::uint8_t { kPrefix, kContext, kQuestion };
  struct Kept {
    Part part = Part::kPrefix;
    std::int32_t context = -1;  ///< index into Plan::contexts; -1: not a context
    CutText tokens;
  };
  std::string by;  ///< the compressor
  /// Tokens of the uncached text before and after the cut; copies of a context count once.
  std::int64_t tokens = 0, kept_tokens = 0;
  std::int64_t removed_tokens = 0;  ///< tokens removed from the prompt, copies included
  /// Tokens of the draft's answer that ranked tokens along with the prompt.
  std::int64_t lookahead_tokens = 0;
  /// The draft had just read this prompt, so its scores and its answer were reused.
  bool read_before = false;
  std::string note;         ///< why the text was left unchanged
  std::vector<Kept> parts;  ///< uncached parts in prompt order
  double ratio() const {
    return tokens ? static_cast<double>(kept_tokens) / static_cast<double>(tokens) : 1;
  }
};

struct Span {
  std::string name;
  double start_ms = 0, ms = 0;
};

struct Plan {
  std::string query_id;
  std::string strategy_asked, strategy;  ///< `strategy` is the one in use
  std::string selector, recomputer, compress, decode;
  PlugOptions options;  ///< options as requested
  std::string prompt_compression = "none";
  PlugOptions prompt_options;           ///< options as requested
  std::optional<std::string> fallback;  ///< why the plan differs from the request
  std::string reason;                   ///< why `auto` chose this
  /// Why cache.decode `auto` resolved to `decode`; empty if it was requested by name.
  std::string decode_reason;
  PositionMode positions = PositionMode::kGlobal;
  /// True while prompt compression has not yet decided which uncached text stays; nothing else is
  /// planned.
  bool prompt_pending = false;
  /// True until the question decides which blocks are kept. Until then, blocks outside the query
  /// pass count as dropped.
  bool selection_pending = false;
  std::int32_t num_layers = 0;
  /// Tokens after prompt compression.
  std::int64_t prefix_tokens = 0, suffix_tokens = 0, document_tokens = 0;
  std::int64_t prompt_tokens = 0;  ///< the same, plus the tokens that prompt compression removed
  std::vector<PlannedContext> contexts;
  FateCounts fates;                     ///< how each token's KV is obtained, before compression
  std::optional<PromptCut> prompt_cut;  ///< set if prompt compression was requested
  std::optional<SparsePrefill> sparse_prefill;  ///< set if it was requested
  /// Result of compression, set once the question has run; none: every row stays hot.
  std::optional<Compression> compression;
  double keep_ratio = 1, recompute_ratio = 0;  ///< shares of document tokens
  double predicted_load_ms = 0, predicted_prefill_ms = 0;
  std::vector<Span> spans;
  void add_fallback(const std::string& why) { fallback = fallback ? *fallback + "; " + why : why; }
  double hit_ratio() const {
    return prompt_tokens ? static_cast<double>(fates.cached()) / static_cast<double>(prompt_tokens)
                         : 0;
  }
};

/// Numbers of a failed window check, which reports kInvalidArgument with the field that is too
/// long. Both numbers are part of its message.
struct WindowExceeded {
  std::int64_t limit = 0, actual = 0;
};
Status window_exceeded_status(const WindowExceeded& window, std::string field);
/// Returns the numbers of such a status; empty for any other.
std::optional<WindowExceeded> parse_window_exceeded(const Status& status);

}  // namespace quire
