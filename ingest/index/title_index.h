/// Titles of the documents of one namespace, by which texts name them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quire {

/// Threads: const methods concurrently, others exclusively. A document takes about 200 bytes.
class TitleIndex {
 public:
  /// Longer titles are sentences, and a title of more documents is a kind of document.
  static constexpr std::size_t kMostWords = 8, kMostDocuments = 16;

  /// Replaces the document's title, given as title_words() (base/words.h); empty: none.
  void put(const std::string& id, std::span<const std::string> title);
  void remove(std::string_view id);
  /// Returns the documents whose titles stand in the text, word by word, ascending. Documents of
  /// the title of document `own` are left out: a text names its own document everywhere.
  std::vector<std::string> named_in(std::span<const std::string> words, std::string_view own) const;
  std::int64_t memory_bytes() const { return bytes_; }

 private:
  std::map<std::string, std::string, std::less<>> names_;                        ///< by document
  std::unordered_map<std::string, std::set<std::string, std::less<>>> by_name_;  ///< documents
  std::int64_t bytes_ = 0;
};

}  // namespace quire
