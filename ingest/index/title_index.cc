#include "ingest/index/title_index.h"

#include <algorithm>

namespace quire {
namespace {

/// Of the nodes of both maps, roughly.
constexpr std::int64_t kNodeBytes = 160;

std::int64_t bytes_of(std::string_view id, std::string_view name) {
  return kNodeBytes + static_cast<std::int64_t>(2 * (id.size() + name.size()));
}

void append(std::string& name, std::string_view word) { name.append(word).push_back(' '); }

}  // namespace

void TitleIndex::put(const std::string& id, std::span<const std::string> title) {
  remove(id);
  if (title.empty() || title.size() > kMostWords) return;
  std::string name;
  for (const std::string& word : title) append(name, word);
  by_name_[name].insert(id);
  bytes_ += bytes_of(id, name);
  names_.emplace(id, std::move(name));
}

void TitleIndex::remove(std::string_view id) {
  const auto known = names_.find(id);
  if (known == names_.end()) return;
  const auto same = by_name_.find(known->second);
  same->second.erase(same->second.find(id));
  if (same->second.empty()) by_name_.erase(same);
  bytes_ -= bytes_of(id, known->second);
  names_.erase(known);
}

std::vector<std::string> TitleIndex::named_in(std::span<const std::string> words,
                                              std::string_view own) const {
  const auto known = names_.find(own);
  std::set<std::string> found;
  std::string name;
  for (std::size_t begin = 0; begin < words.size() && !by_name_.empty(); ++begin) {
    name.clear();
    for (std::size_t i = begin; i < std::min(begin + kMostWords, words.size()); ++i) {
      append(name, words[i]);
      const auto named = by_name_.find(name);
      if (named == by_name_.end() || named->second.size() > kMostDocuments ||
          (known != names_.end() && known->second == name))
        continue;
      found.insert(named->second.begin(), named->second.end());
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace quire
