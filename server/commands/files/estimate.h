/// What an ingest will take, before it begins.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

struct IngestEstimate {
  std::int64_t files = 0, tokens = 0;
  std::int64_t kv_bytes = 0;  ///< 0: unknown
  double seconds = 0;         ///< 0: unknown
};

/// Returns about how many tokens a file of this size has. How much text is in a byte of it depends
/// on its format, which the ending of its name tells.
std::int64_t estimated_tokens(std::string_view name, std::uint64_t bytes);

/// Returns "about 12 files, 48,000 tokens, 1.1 GB of KV, 3 minutes (a guess from their sizes)".
std::string to_text(const IngestEstimate& estimate);

/// Returns "5 s", "3 minutes", "2 hours".
std::string duration_text(double seconds);
/// Returns the number with a comma between thousands.
std::string grouped(std::int64_t number);

}  // namespace quire
