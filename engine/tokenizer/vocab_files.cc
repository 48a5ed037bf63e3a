#include "engine/tokenizer/vocab_files.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <unordered_map>

#include "base/index.h"
#include "base/json_object.h"
#include "engine/tokenizer/config_files.h"
#include "engine/tokenizer/pretokenizer.h"

namespace quire::tokenizer_internal {
namespace json = boost::json;
namespace {

Status at_line(const std::string& file, std::size_t line, const std::string& message) {
  return Status::invalid(file, file + ": line " + std::to_string(line) + ": " + message);
}

std::string in_quotes(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

/// Strict base64 with padding.
bool decode_base64(std::string_view text, std::string& out) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t value = 0;
    if (i + padding < text.size()) {
      value = kAlphabet.find(text[i]);
      if (value == std::string_view::npos) return false;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if (i % 4 == 3) {
      out.push_back(static_cast<char>(bits >> 16 & 0xFF));
      out.push_back(static_cast<char>(bits >> 8 & 0xFF));
      out.push_back(static_cast<char>(bits & 0xFF));
      bits = 0;
    }
  }
  out.resize(out.size() - padding);
  return !out.empty();
}

/// Takes the next line off `rest`, without its end ("\n" or "\r\n").
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Every way to put a token together from two other tokens.
void merges_of_ranks(BpeSpec& spec,
                     const std::unordered_map<std::string_view, std::int32_t>& by_bytes) {
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    const std::string_view token = spec.pieces[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = by_bytes.find(token.substr(0, cut));
      if (left == by_bytes.end()) continue;
      const auto right = by_bytes.find(token.substr(cut));
      if (right == by_bytes.end()) continue;
      spec.merges.push_back({left->second, right->second, static_cast<std::int32_t>(id),
                             static_cast<std::uint32_t>(id)});
    }
  }
}

/// Ids may have holes, but not be absurdly far apart.
bool plausible(std::int64_t id, std::size_t count) {
  return id >= 0 && id < kMaxVocabulary && id < static_cast<std::int64_t>(2 * count + 1024);
}

using RawIds = std::unordered_map<std::string_view, std::int32_t>;

/// Reads {piece: id} into spec.pieces and `raw` (as the file spells them).
Status read_vocabulary(const std::string& file, const json::object& vocab, bool byte_level,
                       BpeSpec& spec, RawIds& raw) {
  if (vocab.empty()) return Status::invalid(file, file + ": the vocabulary is empty");
  raw.reserve(vocab.size());
  for (const auto& entry : vocab) {
    const std::string_view piece(entry.key().data(), entry.key().size());
    const auto id = id_of(entry.value());
    if (!id || !plausible(*id, vocab.size())) {
      return Status::invalid(file, file + ": piece " + in_quotes(piece) + " has no plausible id");
    }
    if (piece.size() > kMaxPieceBytes)
      return Status::invalid(file, file + ": piece " + in_quotes(piece) + "... is absurdly long");
    const auto index = to_size(*id);
    if (index >= spec.pieces.size()) spec.pieces.resize(index + 1);
    if (!spec.pieces[index].empty()) {
      return Status::invalid(file, file + ": id " + std::to_string(*id) + " is given twice, to " +
                                       in_quotes(piece) + " and another piece");
    }
    if (piece.empty()) continue;
    spec.pieces[index] = byte_level ? bytes_of_byte_level(piece) : std::string(piece);
    raw.emplace(piece, *id);
  }
  return {};
}

/// Adds the merge of two pieces spelled as in the file; the joined piece must exist.
Status add_merge(std::string_view left, std::string_view right, const RawIds& raw, BpeSpec& spec) {
  const std::string joined = std::string(left) + std::string(right);
  const auto a = raw.find(left), b = raw.find(right), to = raw.find(joined);
  for (const auto& [it, text] :
       {std::pair{a, left}, std::pair{b, right}, std::pair{to, std::string_view(joined)}}) {
    if (it == raw.end())
      return Status::invalid("",
                             "merge of a piece that is not in the vocabulary: " + in_quotes(text));
  }
  spec.merges.push_back(
      {a->second, b->second, to->second, static_cast<std::uint32_t>(spec.merges.size())});
  return {};
}

}  // namespace

Result<BpeSpec> parse_ranks(const std::string& file, std::string_view text) {
  BpeSpec spec;
  spec.file = file;
  spec.whole_words = true;
  std::size_t line_idx = 0, count = 0;
  const std::size_t most = text.size() / 6 + 1;  // the shortest line is "QQ== 0"
  std::string bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_line(rest);
    ++line_idx;
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    std::int64_t rank = -1;
    if (space != std::string_view::npos) {
      const auto [end, error] = std::from_chars(line.data() + space + 1, line.data() + line.size(),
                                                rank);
      if (error != std::errc() || end != line.data() + line.size()) rank = -1;
    }
    if (rank < 0) return at_line(file, line_idx, "must be 'base64 rank', is " + in_quotes(line));
    if (!plausible(rank, most))
      return at_line(file, line_idx, "rank " + std::to_string(rank) + " is absurdly high");
    if (!decode_base64(line.substr(0, space), bytes))
      return at_line(file, line_idx, "bad base64: " + in_quotes(line.substr(0, space)));
    if (bytes.size() > kMaxPieceBytes) return at_line(file, line_idx, "token is absurdly long");
    const auto index = to_size(rank);
    if (index >= spec.pieces.size()) spec.pieces.resize(index + 1);
    if (!spec.pieces[index].empty())
      return at_line(file, line_idx, "rank " + std::to_string(rank) + " is given twice");
    spec.pieces[index] = bytes;
    ++count;
  }
  if (count == 0) return Status::invalid(file, file + ": holds no tokens");
  std::unordered_map<std::string_view, std::int32_t> by_bytes;
  by_bytes.reserve(count);
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    if (spec.pieces[id].empty()) continue;
    const auto [it, fresh] = by_bytes.emplace(spec.pieces[id], static_cast<std::int32_t>(id));
    if (!fresh) {
      return Status::invalid(file, file + ": ranks " + std::to_string(it->second) + " and " +
                                       std::to_string(id) + " have the same bytes");
    }
  }
  merges_of_ranks(spec, by_bytes);
  return spec;
}

Result<BpeSpec> parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt) {
  BpeSpec spec;
  spec.file = "vocab.json";
  QUIRE_ASSIGN_OR_RETURN(const json::object vocab, parse_json_object(spec.file, vocab_json));
  RawIds raw;
  QUIRE_RETURN_IF_ERROR(read_vocabulary(spec.file, vocab, /*byte_level=*/true, spec, raw));
  std::size_t line_idx = 0;
  for (std::string_view rest = merges_txt; !rest.empty();) {
    const std::string_view line = take_line(rest);
    ++line_idx;
    if (line.empty() || (line_idx == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      return at_line("merges.txt", line_idx, "must be two pieces, is " + in_quotes(line));
    }
    if (const Status s = add_merge(line.substr(0, space), line.substr(space + 1), raw, spec);
        !s.ok()) {
      return at_line("merges.txt", line_idx, s.message());
    }
  }
  if (spec.merges.empty()) return Status::invalid("merges.txt", "merges.txt: holds no merges");
  return spec;
}

namespace {

constexpr const char* kJsonFile = "tokenizer.json";

Status unsupported(const std::string& what) {
  return Status(Code::kUnimplemented,
                std::string(kJsonFile) + ": " + what + " is not supported by this build",
                kJsonFile);
}
Status bad_json(const std::string& what) {
  return Status::invalid(kJsonFile, std::string(kJsonFile) + ": " + what);
}

/// What normaliser and pre-tokeniser come to.
struct Pipeline {
  std::vector<std::string> patterns;
  bool byte_level = false, nfc = false, byte_level_space = false;
  bool meta_space = false;  ///< spaces become U+2581
  bool prepend_always = false, prepend_first = false;
  bool split_at_spaces = false;
};

/// The steps of a "Sequence", or the one step itself.
Result<std::vector<const json::object*>> steps_of(const json::object& root, std::string_view part,
                                                  std::string_view list) {
  std::vector<const json::object*> steps;
  const json::object* step = object_at(root, part);
  if (step == nullptr) return steps;
  if (string_at(*step, "type") != "Sequence") {
    steps.push_back(step);
    return steps;
  }
  const json::array* items = array_at(*step, list);
  if (items == nullptr)
    return bad_json(std::string(part) + "." + std::string(list) + " must be a list");
  for (const json::value& item : *items) {
    if (!item.is_object())
      return bad_json(std::string(part) + "." + std::string(list) + " must hold objects");
    steps.push_back(&item.get_object());
  }
  return steps;
}

Status read_normalizer(const json::object& root, Pipeline& out) {
  QUIRE_ASSIGN_OR_RETURN(const auto steps, steps_of(root, "normalizer", "normalizers"));
  for (const json::object* step : steps) {
    const std::string type = string_at(*step, "type").value_or("");
    if (type == "NFC") {
      out.nfc = true;
    } else if (type == "Prepend" && string_at(*step, "prepend") == "\xE2\x96\x81") {
      out.prepend_always = true;
    } else if (type == "Replace") {
      const json::object* pattern = object_at(*step, "pattern");
      const bool space = pattern != nullptr && string_at(*pattern, "String") == " ";
      if (!space || string_at(*step, "content") != "\xE2\x96\x81")
        return unsupported("a normalizer of type Replace other than of spaces");
      out.meta_space = true;
    } else {
      return unsupported("normalizer " + in_quotes(type));
    }
  }
  return {};
}

Status read_split(const json::object& step, Pipeline& out) {
  const std::string behavior = string_at(step, "behavior").value_or("");
  const bool invert = bool_at(step, "invert").value_or(false);
  const json::object* pattern = object_at(step, "pattern");
  if (pattern == nullptr) return bad_json("pre_tokenizer Split has no pattern");
  const auto literal = string_at(*pattern, "String");
  if (literal == " " && out.meta_space) return {};  // no spaces are left there
  const auto regex = string_at(*pattern, "Regex");
  if (!regex || !(behavior == "Isolated" || (behavior == "Removed" && invert))) {
    return unsupported("pre_tokenizer Split with behavior " + in_quotes(behavior));
  }
  out.patterns.push_back(*regex);
  return {};
}

Status read_pretokenizer(const json::object& root, Pipeline& out) {
  QUIRE_ASSIGN_OR_RETURN(const auto steps, steps_of(root, "pre_tokenizer", "pretokenizers"));
  for (const json::object* step : steps) {
    const std::string type = string_at(*step, "type").value_or("");
    if (type == "ByteLevel") {
      out.byte_level = true;
      out.byte_level_space = bool_at(*step, "add_prefix_space").value_or(true);
      if (bool_at(*step, "use_regex").value_or(true)) out.patterns.emplace_back(kGpt2Pattern);
    } else if (type == "Split") {
      QUIRE_RETURN_IF_ERROR(read_split(*step, out));
    } else if (type == "Digits") {
      out.patterns.emplace_back(bool_at(*step, "individual_digits").value_or(false) ? R"(\p{N})"
                                                                                    : R"(\p{N}+)");
    } else if (type == "Metaspace") {
      if (string_at(*step, "replacement").value_or("\xE2\x96\x81") != "\xE2\x96\x81")
        return unsupported("Metaspace with another replacement");
      out.meta_space = true;
      const std::string scheme = string_at(*step, "prepend_scheme")
                                     .value_or(bool_at(*step, "add_prefix_space").value_or(true)
                                                   ? "always"
                                                   : "never");
      out.prepend_always = out.prepend_always || scheme == "always";
      out.prepend_first = scheme == "first";
      out.split_at_spaces = bool_at(*step, "split").value_or(true);
    } else {
      return unsupported("pre_tokenizer " + in_quotes(type));
    }
  }
  return {};
}

Status read_added(const json::object& root, BpeSpec& spec) {
  const json::array* list = array_at(root, "added_tokens");
  if (list == nullptr) return {};
  for (const json::value& item : *list) {
    const json::object* token = item.if_object();
    const json::value* id_value = token != nullptr ? token->if_contains("id") : nullptr;
    const auto id = id_value != nullptr ? id_of(*id_value) : std::nullopt;
    const auto content = token != nullptr ? string_at(*token, "content") : std::nullopt;
    if (!id || !content || content->empty() || content->size() > kMaxPieceBytes) {
      return bad_json("added_tokens must hold objects with an id and a content");
    }
    spec.added.push_back({.id = *id,
                          .text = *content,
                          .special = bool_at(*token, "special").value_or(false),
                          .lstrip = bool_at(*token, "lstrip").value_or(false),
                          .rstrip = bool_at(*token, "rstrip").value_or(false),
                          .single_word = bool_at(*token, "single_word").value_or(false)});
  }
  return {};
}

/// The space between the two pieces of a merge: where pieces have spaces themselves, the one with a
/// piece on either side.
std::size_t separator_of(std::string_view line, const RawIds& raw) {
  const std::size_t first = line.find(' ');
  for (std::size_t at = first; at != std::string_view::npos; at = line.find(' ', at + 1)) {
    if (raw.contains(line.substr(0, at)) && raw.contains(line.substr(at + 1))) return at;
  }
  return first;
}

Status read_merges(const json::array& list, const RawIds& raw, BpeSpec& spec) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string_view left, right;
    if (list[i].is_string()) {
      const std::string_view line(list[i].get_string().data(), list[i].get_string().size());
      const std::size_t space = separator_of(line, raw);
      if (space == std::string_view::npos)
        return bad_json("merge " + std::to_string(i) + " must be two pieces");
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (const json::array* pair = list[i].if_array(); pair != nullptr && pair->size() == 2 &&
                                                             (*pair)[0].is_string() &&
                                                             (*pair)[1].is_string()) {
      left = {(*pair)[0].get_string().data(), (*pair)[0].get_string().size()};
      right = {(*pair)[1].get_string().data(), (*pair)[1].get_string().size()};
    } else {
      return bad_json("merge " + std::to_string(i) + " must be two pieces");
    }
    if (const Status s = add_merge(left, right, raw, spec); !s.ok())
      return bad_json("merge " + std::to_string(i) + ": " + s.message());
  }
  return {};
}

/// The token a TemplateProcessing puts first.
void read_post_processor(const json::object& root, TokenizerJson& out) {
  const auto steps = steps_of(root, "post_processor", "processors");
  if (!steps.ok()) return;
  for (const json::object* step : *steps) {
    const json::array* single = array_at(*step, "single");
    if (string_at(*step, "type") != "TemplateProcessing" || single == nullptr || single->empty())
      continue;
    const json::object* first = (*single)[0].if_object();
    const json::object* token = first != nullptr ? object_at(*first, "SpecialToken") : nullptr;
    const auto id = token != nullptr ? string_at(*token, "id") : std::nullopt;
    if (!id) continue;
    out.bos_template = true;
    out.bos = *id;
  }
}

/// The unknown token matters (and changes the digest) only where a byte has no token.
void set_unknown(const json::object& model, const RawIds& raw, BpeSpec& spec) {
  std::array<bool, 256> found{};
  for (const std::string& piece : spec.pieces) {
    if (piece.size() == 1) found[static_cast<unsigned char>(piece[0])] = true;
  }
  const auto unknown = raw.find(string_at(model, "unk_token").value_or(""));
  const bool complete = std::all_of(found.begin(), found.end(), [](bool b) { return b; });
  if (!complete && unknown != raw.end()) spec.unknown_id = unknown->second;
}

}  // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object(kJsonFile, text));
  const json::object* model = object_at(root, "model");
  if (model == nullptr) return bad_json("has no 'model'");
  const std::string type = string_at(*model, "type").value_or("BPE");
  if (type != "BPE")
    return unsupported("model type " + in_quotes(type) +
                       " (a sentencepiece tokenizer.model beside it would be)");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_at(*model, key).value_or("").empty())
      return unsupported(std::string("model.") + key);
  }
  Pipeline pipeline;
  QUIRE_RETURN_IF_ERROR(read_normalizer(root, pipeline));
  QUIRE_RETURN_IF_ERROR(read_pretokenizer(root, pipeline));
  TokenizerJson out;
  BpeSpec& spec = out.spec;
  spec.file = kJsonFile;
  spec.byte_fallback = !pipeline.byte_level;
  if (spec.byte_fallback && !bool_at(*model, "byte_fallback").value_or(false))
    return unsupported("a vocabulary without bytes (neither ByteLevel nor byte_fallback)");
  if (spec.byte_fallback && (!pipeline.meta_space || pipeline.nfc || !pipeline.patterns.empty()))
    return unsupported("this byte_fallback normalizer");
  const json::object* vocab = object_at(*model, "vocab");
  const json::array* merges = array_at(*model, "merges");
  if (vocab == nullptr || merges == nullptr)
    return bad_json("model.vocab and model.merges must be there");
  RawIds raw;
  QUIRE_RETURN_IF_ERROR(read_vocabulary(kJsonFile, *vocab, pipeline.byte_level, spec, raw));
  QUIRE_RETURN_IF_ERROR(read_merges(*merges, raw, spec));
  QUIRE_RETURN_IF_ERROR(read_added(root, spec));
  if (pipeline.byte_level) set_unknown(*model, raw, spec);
  spec.patterns = std::move(pipeline.patterns);
  spec.nfc = pipeline.nfc;
  spec.whole_words = bool_at(*model, "ignore_merges").value_or(false);
  spec.space_first = pipeline.byte_level ? pipeline.byte_level_space
                                         : pipeline.prepend_always || pipeline.prepend_first;
  spec.split_at_spaces = pipeline.split_at_spaces;
  out.space_after_special = pipeline.byte_level ? pipeline.byte_level_space
                                                : pipeline.prepend_always;
  read_post_processor(root, out);
  return out;
}

Result<std::optional<bool>> space_scheme_of_tokenizer_json(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object(kJsonFile, text));
  Pipeline pipeline;
  if (!read_normalizer(root, pipeline).ok() || !read_pretokenizer(root, pipeline).ok())
    return std::optional<bool>();
  return std::optional<bool>(pipeline.prepend_always);
}

}  // namespace quire::tokenizer_internal
