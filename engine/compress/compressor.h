/// Socket: which kept KV is hot, or kept at all, for decoding. Runs once, after the question's prefill.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "kernels/base/status.h"

namespace quire {

/// Rows of one context in the assembled cache: pooling of scores never crosses these borders (algorithms §5.7).
struct ContextRows {
  std::int64_t first_position = 0, num_tokens = 0;
};

struct CompressInput {
  WorkingCache* cache = nullptr;             ///< after the question's prefill
  std::span<const ContextRows> contexts;
  std::int64_t prefix_tokens = 0, suffix_tokens = 0, prompt_tokens = 0;
  std::int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

/// What a retriever needs to know of it: per layer and KV head, rows by descending importance. Empty: everything is hot.
struct Heat {
  std::vector<std::vector<std::vector<std::int32_t>>> ranking;  ///< [layer][kv head]
  std::int64_t hot_rows = 0;                                    ///< of each ranking; the rest is demoted
  std::int64_t dropped_rows = 0;                                ///< rows taken out of the cache for good
};

/// One object per query. Threads: the engine thread.
class Compressor {
 public:
  virtual ~Compressor() = default;
  virtual std::string_view name() const = 0;
  /// Hung into the question's prefill to see its rows (window scores); null: not needed. Owned by the compressor.
  virtual ForwardHook* observer() { return nullptr; }
  virtual Result<Heat> compress(const CompressInput& input) = 0;
};

std::vector<std::string> compressor_names();
/// Errors: kInvalidArgument (field cache.compress) naming the known ones.
Result<std::unique_ptr<Compressor>> make_compressor(std::string_view name);

std::unique_ptr<Compressor> make_none_compressor();

}  // namespace quire
