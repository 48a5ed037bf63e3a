/// Stems of words, so that "invoices" and "invoice" count as one word (Snowball algorithms; Porter,
/// "An algorithm for suffix stripping", 1980).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// Returns the names that Stemmer knows: languages, and "none".
std::vector<std::string_view> stem_languages();
/// Errors: kInvalidArgument, field `field`, naming the languages.
Status check_stem_language(std::string_view language, std::string_view field);

/// Stems words by the rules of their script: those in the script of `language` by its rules, others
/// by English (Latin), Russian (Cyrillic), Greek, Arabic, Hindi (Devanagari), Armenian or Tamil.
/// Words of other scripts are their own stems, and with "none" all words are. Threads: one at a
/// time.
class Stemmer {
 public:
  /// `language` is one of stem_languages(); an unknown one counts as "none".
  explicit Stemmer(std::string_view language);
  ~Stemmer();

  /// Returns whether it changes any word.
  bool works() const;
  /// `word` is folded and composed (NFC).
  std::string stem(std::string_view word);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
