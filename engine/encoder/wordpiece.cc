#include "engine/encoder/wordpiece.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <utility>

#include "base/json_object.h"
#include "base/json_reader.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::int32_t kMostPieces = 1 << 22;
constexpr std::size_t kLongestWord = 1000;  // of max_input_chars_per_word

Status read_if_there(const std::filesystem::path& path, std::optional<std::string>& out) {
  auto text = read_json_file(path);
  if (text.code() == Code::kNotFound) return {};
  QUIRE_RETURN_IF_ERROR(text.status());
  out = std::move(*text);
  return {};
}

/// Returns the spelling of a special token, which is a string or an object with `content`.
std::optional<std::string> spelling(const json::object& config, std::string_view key) {
  if (auto text = string_at(config, key)) return text;
  const json::object* token = object_at(config, key);
  return token ? string_at(*token, "content") : std::nullopt;
}

Status unsupported(const std::string& file, const std::string& what) {
  return Status(Code::kUnimplemented, file + ": " + what, file);
}

/// Checks that `object`[key] is an object of this type.
Result<const json::object*> part_of_type(const json::object& object, std::string_view key,
                                         std::string_view type) {
  const json::object* part = object_at(object, key);
  const auto name = part ? string_at(*part, "type") : std::nullopt;
  if (!name || *name != type)
    return unsupported("tokenizer.json", std::string(key) + " is " + name.value_or("missing") +
                                             "; this build reads encoders with " +
                                             std::string(type));
  return part;
}

}  // namespace

Result<WordPieceFiles> WordPieceFiles::read(const std::filesystem::path& folder) {
  WordPieceFiles out;
  QUIRE_RETURN_IF_ERROR(read_if_there(folder / "tokenizer.json", out.tokenizer_json));
  QUIRE_RETURN_IF_ERROR(read_if_there(folder / "vocab.txt", out.vocab_txt));
  QUIRE_RETURN_IF_ERROR(read_if_there(folder / "tokenizer_config.json", out.tokenizer_config));
  return out;
}

/// Fills a WordPiece from files.
struct WordPiece::Builder {
  WordPiece out;
  std::string prefix = "##";
  std::string cls = "[CLS]", sep = "[SEP]", unknown = "[UNK]";

  void add(std::string_view piece, std::int32_t id) {
    out.vocab_size_ = std::max(out.vocab_size_, id + 1);
    const bool continues = !prefix.empty() && piece.size() > prefix.size() &&
                           piece.starts_with(prefix);
    const std::string_view text = continues ? piece.substr(prefix.size()) : piece;
    out.longest_ = std::max(out.longest_, text.size());
    (continues ? out.next_ : out.first_).insert_or_assign(std::string(text), id);
  }

  Status read_vocab_txt(std::string_view text) {
    for (std::int32_t id = 0; !text.empty(); ++id) {
      if (id >= kMostPieces) return Status::invalid("vocab.txt", "vocab.txt has too many lines");
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) add(line, id);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return {};
  }

  Status read_config(std::string_view text, bool with_rules) {
    QUIRE_ASSIGN_OR_RETURN(const json::object config,
                           parse_json_object("tokenizer_config.json", text));
    cls = spelling(config, "cls_token").value_or(cls);
    sep = spelling(config, "sep_token").value_or(sep);
    unknown = spelling(config, "unk_token").value_or(unknown);
    if (!with_rules) return {};
    out.rules_.lower_case = bool_at(config, "do_lower_case").value_or(true);
    out.rules_.strip_accents = bool_at(config, "strip_accents").value_or(out.rules_.lower_case);
    out.rules_.split_han = bool_at(config, "tokenize_chinese_chars").value_or(true);
    return {};
  }

  Status read_tokenizer_json(std::string_view text) {
    const std::string file = "tokenizer.json";
    QUIRE_ASSIGN_OR_RETURN(const json::object all, parse_json_object(file, text));
    QUIRE_ASSIGN_OR_RETURN(const json::object* normalizer,
                           part_of_type(all, "normalizer", "BertNormalizer"));
    QUIRE_RETURN_IF_ERROR(part_of_type(all, "pre_tokenizer", "BertPreTokenizer").status());
    QUIRE_ASSIGN_OR_RETURN(const json::object* model, part_of_type(all, "model", "WordPiece"));
    if (!bool_at(*normalizer, "clean_text").value_or(true))
      return unsupported(file, "normalizer.clean_text is false; this build always cleans text");
    out.rules_.lower_case = bool_at(*normalizer, "lowercase").value_or(true);
    out.rules_.strip_accents = bool_at(*normalizer, "strip_accents")
                                   .value_or(out.rules_.lower_case);
    out.rules_.split_han = bool_at(*normalizer, "handle_chinese_chars").value_or(true);
    prefix = string_at(*model, "continuing_subword_prefix").value_or(prefix);
    unknown = string_at(*model, "unk_token").value_or(unknown);
    if (const json::value* most = model->if_contains("max_input_chars_per_word")) {
      const auto n = whole_number(*most);
      if (!n || *n < 1 || *n > static_cast<std::int64_t>(kLongestWord))
        return Status::invalid(file, file + ": model.max_input_chars_per_word must be 1 to 1000");
      out.max_characters_ = static_cast<std::size_t>(*n);
    }
    const json::object* vocab = object_at(*model, "vocab");
    if (!vocab) return Status::invalid(file, file + ": model.vocab is missing");
    for (const auto& [piece, value] : *vocab) {
      const auto id = whole_number(value);
      if (!id || *id < 0 || *id >= kMostPieces)
        return Status::invalid(file, file + ": model.vocab has an id that is no number from 0 to " +
                                         std::to_string(kMostPieces - 1));
      if (!piece.empty()) add({piece.data(), piece.size()}, static_cast<std::int32_t>(*id));
    }
    return {};
  }

  Status find(const std::string& file, std::string_view piece, std::int32_t& id) {
    const auto at = out.first_.find(piece);
    if (at == out.first_.end())
      return Status::invalid(file, file + " has no token " + std::string(piece));
    id = at->second;
    return {};
  }
};

Result<WordPiece> WordPiece::make(const WordPieceFiles& files) {
  Builder b;
  const std::string file = files.tokenizer_json ? "tokenizer.json" : "vocab.txt";
  if (!files.tokenizer_json && !files.vocab_txt)
    return Status::invalid("vocab.txt", "the folder has neither tokenizer.json nor vocab.txt");
  if (files.tokenizer_config)
    QUIRE_RETURN_IF_ERROR(b.read_config(*files.tokenizer_config, !files.tokenizer_json));
  QUIRE_RETURN_IF_ERROR(files.tokenizer_json ? b.read_tokenizer_json(*files.tokenizer_json)
                                             : b.read_vocab_txt(*files.vocab_txt));
  QUIRE_RETURN_IF_ERROR(b.find(file, b.cls, b.out.cls_));
  QUIRE_RETURN_IF_ERROR(b.find(file, b.sep, b.out.sep_));
  QUIRE_RETURN_IF_ERROR(b.find(file, b.unknown, b.out.unknown_));
  return std::move(b.out);
}

std::vector<std::int32_t> WordPiece::encode(std::string_view text, std::size_t most) const {
  constexpr std::size_t kPartBytes = 1 << 14;
  constexpr std::string_view kBlanks = " \n";
  std::vector<std::int32_t> out;
  while (!text.empty() && out.size() < most) {
    // No word goes on behind a blank, so parts that end there give the words of the whole.
    std::size_t end = text.size();
    if (end > kPartBytes) end = std::min(text.find_first_of(kBlanks, kPartBytes), text.size());
    for (const std::string& word : split_bert_words(text.substr(0, end), rules_)) cut(word, out);
    text.remove_prefix(end);
  }
  return out;
}

void WordPiece::cut(std::string_view word, std::vector<std::int32_t>& out) const {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const std::size_t before = out.size();
  const bool too_long = static_cast<std::size_t>(std::ranges::count_if(word, begins)) >
                        max_characters_;
  while (!too_long && !word.empty()) {
    const Pieces& pieces = out.size() == before ? first_ : next_;
    std::size_t size = std::min(word.size(), longest_);
    for (; size > 0; --size) {
      if (size < word.size() && !begins(word[size])) continue;
      const auto at = pieces.find(word.substr(0, size));
      if (at == pieces.end()) continue;
      out.push_back(at->second);
      break;
    }
    if (size == 0) break;
    word.remove_prefix(size);
  }
  if (word.empty()) return;
  out.resize(before);
  out.push_back(unknown_);
}

}  // namespace quire
