/// Wordpiece tokenization as BERT defines it: text to ids of a vocabulary, without a way back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace quire {

/// How text becomes words (BasicTokenizer of google-research/bert, tokenization.py): control
/// characters go, blanks separate, and each punctuation mark is a word.
struct WordRules {
  bool lower_case = true;
  bool strip_accents = true;
  bool split_han = true;  ///< each Han character is a word
};

/// Splits text, of which bytes that are no UTF-8 are left out. Words are never empty.
std::vector<std::string> split_bert_words(std::string_view text, const WordRules& rules);

/// The files of a folder that say how its text is tokenized. None: there is no such file.
struct WordPieceFiles {
  std::optional<std::string> tokenizer_json, vocab_txt, tokenizer_config;

  /// Errors: kIo, kInvalidArgument (a file is too large).
  static Result<WordPieceFiles> read(const std::filesystem::path& folder);
};

/// WordPiece cuts each word into the longest pieces of the vocabulary, from left to right (Wu et
/// al., "Google's Neural Machine Translation System", 2016, section 4.1, as BERT reads it). A word
/// that cannot be cut is one unknown piece. The text of special tokens is text like any other, so
/// no text of a user becomes a control token. Immutable; threads: any.
class WordPiece {
 public:
  /// Takes tokenizer.json (BertNormalizer, BertPreTokenizer, WordPiece), else vocab.txt with
  /// tokenizer_config.json. Errors: kInvalidArgument and kUnimplemented; field() is the file.
  static Result<WordPiece> make(const WordPieceFiles& files);

  /// Returns the ids of a text without any special token; of a long text at least the first `most`,
  /// and possibly none behind them.
  std::vector<std::int32_t> encode(
      std::string_view text, std::size_t most = std::numeric_limits<std::size_t>::max()) const;

  std::int32_t cls() const { return cls_; }  ///< begins every sequence
  std::int32_t sep() const { return sep_; }  ///< ends every text of a sequence
  std::int32_t unknown() const { return unknown_; }
  /// Returns one more than the largest id.
  std::int32_t vocab_size() const { return vocab_size_; }
  const WordRules& rules() const { return rules_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  using Pieces = std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>>;
  struct Builder;

  void cut(std::string_view word, std::vector<std::int32_t>& out) const;

  WordRules rules_;
  Pieces first_, next_;      ///< pieces that begin a word, and those behind, without their prefix
  std::size_t longest_ = 0;  ///< bytes of the longest piece
  std::size_t max_characters_ = 100;  ///< a longer word is unknown
  std::int32_t cls_ = 0, sep_ = 0, unknown_ = 0, vocab_size_ = 0;
};

}  // namespace quire
