/// The Plan: an immutable value that says, for one request, which documents sit where, which blocks
/// are kept in each layer, which tokens are recomputed and why. Computed, logged, explained and
/// tested without running the model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/segment.h"
#include "engine/plug/plug_options.h"

namespace quire {

/// Where document tokens are placed.
enum class PositionMode : std::uint8_t {
  kGlobal,      ///< offset in the full concatenation, whether neighbours were kept or not
  kCompact,     ///< rank among kept tokens; only when the concatenation exceeds the window
  kLocalNaive,  ///< every document at 0..n-1: only to reproduce the weak Reuse baseline
};

/// What a request asks of the cache. "auto" lets the service decide.
struct CacheOptions {
  std::string strategy = "auto";
  std::optional<PositionMode> positions;  ///< `reuse` only; others are global
  std::optional<double> keep_ratio, recompute_ratio;
  std::string compress = "auto", decode = "auto";
  PlugOptions options;  ///< of the strategy's selector and recomputer, and of the compressor
  /// What shortens uncached text before it is computed (engine/prompt)
  std::string prompt_compression = "none";
  PlugOptions prompt_options;  ///< of that
  bool write = true;           ///< misses computed on the way are stored
  bool dedupe = true;          ///< later copies of the same context in one request are dropped
};

enum class Fate : std::uint8_t { kReused = 0, kRecomputed = 1, kComputed = 2, kDropped = 3 };
std::string_view fate_name(Fate fate);

/// Why cached KV was not used.
enum class MissReason : std::uint8_t {
  kNone,
  kNotCached,
  kEvicted,
  kExpired,
  kModelChanged,
  kSaltMismatch,
  kCorrupt,
  kTierUnavailable,
  kBelowMinTokens,
  kPolicyOff,
};
std::string_view miss_reason_name(MissReason reason);

/// One block of one context.
struct PlannedBlock {
  std::int32_t first_token = 0, num_tokens = 0;  ///< within the context
  Fate action = Fate::kReused;                   ///< recomputed: at least one token was
  std::int32_t kept_layers = 0;
  std::int32_t recomputed_tokens = 0;
  float score = 0;
  Tier tier = Tier::kDisk;  ///< where it was found; meaningless for computed blocks
  double load_ms = 0;
  /// Of its rows over layers and KV heads, what compression left hot
  std::optional<float> hot_share;
  std::array<std::uint8_t, 16> id{};  ///< first bytes of the block key
};

/// Half-open range of tokens.
struct TokenRange {
  std::int32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

/// What prompt compression left of a context, or of the text around them.
struct CutText {
  std::int64_t uncut_tokens = 0;
  std::vector<TokenRange> kept;  ///< of those, ascending, not touching
};

/// One context (document chunk) of the prompt.
struct PlannedContext {
  std::int32_t index = 0;  ///< in QueryRequest::contexts
  std::string document_id;
  std::int32_t chunk = 0;
  /// Offset: position of its first token in the assembled prompt
  std::int64_t num_tokens = 0, offset = 0;
  std::int32_t block_tokens = 0;
  bool cached = false;     ///< found in the store
  bool duplicate = false;  ///< dropped by dedupe
  MissReason miss = MissReason::kNone;
  /// P_i: share of its middle blocks that were candidates (SamKV, Eq. 3)
  std::optional<float> keep_share;
  /// w_i: how far it bent the other documents' queries (SamKV, Eq. 1), mean over layers
  std::optional<float> bias_weight;
  std::vector<PlannedBlock> blocks;
  /// num_tokens and blocks count what was left alone; none: all of it is there
  std::optional<CutText> cut;
};
/// Where this token of the context stood before prompt compression.
std::int32_t uncut_token(const PlannedContext& context, std::int32_t token);
/// From the block's first token to its last, as they stood before prompt compression; tokens in
/// between may be gone.
TokenRange uncut_range(const PlannedContext& context, const PlannedBlock& block);

/// Tokens of one context recomputed in one layer, ascending.
using RecomputeSet = std::vector<std::int32_t>;

struct FateCounts {
  std::int64_t reused = 0, recomputed = 0, computed = 0, dropped = 0;
  std::int64_t total() const { return reused + recomputed + computed + dropped; }
  std::int64_t cached() const { return reused + dropped; }
};

/// What a compressor made of the working cache before the answer began.
struct Compression {
  std::string by;        ///< the compressor
  bool dropped = false;  ///< the rest left the cache; else it is demoted and still there
  std::int64_t rows = 0, hot_rows = 0;  ///< over all layers and KV heads
  std::int64_t lookahead_tokens = 0;    ///< of a draft's answer that ranked with the question
  std::string note;                     ///< why a look-ahead that was wanted did not come
  double ratio() const {
    return rows ? static_cast<double>(hot_rows) / static_cast<double>(rows) : 1;
  }
};

/// Of a prompt that was computed in one pass with its attention to far rows left out. Its KV is
/// that request's alone.
struct SparsePrefill {
  /// Rows before it that a row saw; far rows besides, per layer and KV head
  std::int64_t band = 0, columns = 0;
  std::int64_t tokens = 0;    ///< rows that attended so; 0: none did, and the note says why
  double attended_share = 1;  ///< keys they saw, of those that stand before them
  std::string note;
};

/// What a prompt compressor made of the uncached text.
struct PromptCut {
  enum class Part : std::uint8_t { kPrefix, kContext, kQuestion };
  struct Kept {
    Part part = Part::kPrefix;
    std::int32_t context = -1;  ///< of Plan::contexts
    CutText tokens;
  };
  std::string by;  ///< the compressor
  /// Of the uncached text, copies of a context counted once
  std::int64_t tokens = 0, kept_tokens = 0;
  std::int64_t removed_tokens = 0;    ///< what the prompt lost, in copies too
  std::int64_t lookahead_tokens = 0;  ///< of the draft's answer that ranked with the prompt
  /// The draft had just read this prompt: its scores and answer serve again
  bool read_before = false;
  std::string note;         ///< why the text stayed as it was
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
  std::string strategy_asked, strategy;  ///< strategy: what was really used
  std::string selector, recomputer, compress, decode;
  PlugOptions options;  ///< asked for
  std::string prompt_compression = "none";
  PlugOptions prompt_options;           ///< asked for
  std::optional<std::string> fallback;  ///< why it differs from what was asked
  std::string reason;                   ///< why `auto` chose this
  /// Why cache.decode `auto` became `decode`; empty: it was asked for by name
  std::string decode_reason;
  PositionMode positions = PositionMode::kGlobal;
  /// What of the uncached text stays is not known yet: nothing else is planned
  bool prompt_pending = false;
  /// Blocks outside the first look count as dropped; the question decides when it runs
  bool selection_pending = false;
  std::int32_t num_layers = 0;
  std::int64_t prefix_tokens = 0, suffix_tokens = 0, document_tokens = 0;  ///< of what stays
  std::int64_t prompt_tokens = 0;  ///< those, and what prompt compression took out
  std::vector<PlannedContext> contexts;
  FateCounts fates;  ///< how each token's KV came about; compression happens afterwards
  std::optional<PromptCut> prompt_cut;          ///< where compression of the prompt was asked for
  std::optional<SparsePrefill> sparse_prefill;  ///< where it was asked for
  /// Once the question has run; none: everything stayed hot
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

/// The window check fails with kInvalidArgument, field "document_ids" (or "query"), and these two
/// numbers in its message.
struct WindowExceeded {
  std::int64_t limit = 0, actual = 0;
};
Status window_exceeded_status(const WindowExceeded& window, std::string field);
/// The numbers of such a status; empty for any other.
std::optional<WindowExceeded> parse_window_exceeded(const Status& status);

}  // namespace quire
