/// Counts of the files of vector stores, remembered as long as no document changes.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace quire {

struct FileCounts {
  std::uint64_t bytes = 0, completed = 0, failed = 0, in_progress = 0;
  /// The first of them to expire does so then, Unix ms; none: none expires.
  std::optional<std::int64_t> until_ms = {};
};

/// Threads: any.
class FileCountCache {
 public:
  /// Returns what was kept with the same number of changes (Retrieval::changes()) and still holds.
  std::optional<FileCounts> find(const std::string& ns, const std::string& store_id,
                                 std::uint64_t changes, std::int64_t now_ms) const;
  /// `changes` is the number before the files were counted.
  void keep(const std::string& ns, const std::string& store_id, std::uint64_t changes,
            const FileCounts& counts);

  static constexpr std::size_t kMost = 4096;  ///< with more of them it begins anew

 private:
  struct Entry {
    std::uint64_t changes = 0;
    FileCounts counts;
  };
  mutable std::mutex mu_;
  std::map<std::pair<std::string, std::string>, Entry> entries_;  // guarded by mu_; ns, id
};

}  // namespace quire
