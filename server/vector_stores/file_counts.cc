#include "server/vector_stores/file_counts.h"

namespace quire {

std::optional<FileCounts> FileCountCache::find(const std::string& ns, const std::string& store_id,
                                               std::uint64_t changes, std::int64_t now_ms) const {
  const std::lock_guard lock(mu_);
  const auto at = entries_.find({ns, store_id});
  if (at == entries_.end() || at->second.changes != changes) return std::nullopt;
  const FileCounts& counts = at->second.counts;
  if (counts.until_ms && *counts.until_ms <= now_ms) return std::nullopt;
  return counts;
}

void FileCountCache::keep(const std::string& ns, const std::string& store_id, std::uint64_t changes,
                          const FileCounts& counts) {
  const std::lock_guard lock(mu_);
  if (entries_.size() >= kMost && !entries_.contains({ns, store_id})) entries_.clear();
  entries_[{ns, store_id}] = {changes, counts};
}

}  // namespace quire
