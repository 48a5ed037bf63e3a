/// What an ingest will take, before it begins.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace quire {

struct IngestEstimate {
  std::int64_t files = 0, tokens = 0;
  std::int64_t kv_bytes = 0;  ///< 0: unknown
  double seconds = 0;         ///< 0: unknown
  std::int64_t read = 0;      ///< files that were read for it
};

/// Guesses how many tokens a file has from its size. How much text is in a byte of it depends on
/// its format, which the ending of its name tells, and within some formats on the file.
class TextDensities {
 public:
  /// Learns from a file that was read. Files of the same ending are then estimated by it.
  void add(std::string_view name, std::uint64_t file_bytes, std::uint64_t text_bytes);
  std::int64_t tokens(std::string_view name, std::uint64_t file_bytes) const;

 private:
  struct Sum {
    double file_bytes = 0, text_bytes = 0;
  };
  std::map<std::string, Sum> sums_;  ///< by ending
};

/// Returns whether files of this ending differ much in how much text a byte of them holds.
bool density_varies(std::string_view name);
/// Returns the ending of a file's name, in small letters, with its dot.
std::string ending_of(std::string_view name);

/// Returns "12 files, about 48,000 tokens, 1.1 GB of KV, 3 minutes" and where that is from.
std::string to_text(const IngestEstimate& estimate);

/// Returns "5 s", "3 minutes", "2 hours".
std::string duration_text(double seconds);
/// Returns the number with a comma between thousands.
std::string grouped(std::int64_t number);
/// Returns "1 block", "2 blocks".
std::string counted(std::int64_t number, const std::string& unit);

}  // namespace quire
