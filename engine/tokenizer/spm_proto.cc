#include "engine/tokenizer/spm_proto.h"

#include <cstring>
#include <optional>

#include "engine/tokenizer/tokenizer_base.h"

namespace quire::tokenizer_internal {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr std::uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kSelfTestData = 4,
                        kDenormalizerSpec = 5;
constexpr std::uint32_t kPieceText = 1, kPieceType = 3;
constexpr std::uint32_t kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4;
constexpr std::uint32_t kWhitespaceAsSuffix = 24;

struct Field {
  std::uint32_t number = 0;
  std::uint32_t wire_type = 0;
  std::uint64_t value = 0;  ///< varint
  std::string_view bytes;   ///< length-delimited
  std::string_view whole;   ///< with its tag
};

/// Reads one field after another; `broken` once the bytes make no sense.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool broken() const { return broken_; }

  std::optional<Field> next() {
    if (rest_.empty() || broken_) return std::nullopt;
    const std::string_view from = rest_;
    Field field;
    std::uint64_t tag = 0;
    if (!varint(tag) || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return fail();
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.wire_type = static_cast<std::uint32_t>(tag & 7);
    std::uint64_t length = 0;
    switch (field.wire_type) {
      case 0:
        if (!varint(field.value)) return fail();
        break;
      case 1:
        length = 8;
        break;
      case 2:
        if (!varint(length)) return fail();
        break;
      case 5:
        length = 4;
        break;
      default:
        return fail();
    }
    if (length > rest_.size()) return fail();
    field.bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    field.whole = from.substr(0, from.size() - rest_.size());
    return field;
  }

 private:
  std::optional<Field> fail() {
    broken_ = true;
    return std::nullopt;
  }
  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
  bool broken_ = false;
};

Status wrong(std::string message) { return Status::invalid("", std::move(message)); }
Status truncated() {
  return wrong("is truncated or no sentencepiece model (protobuf fields do not add up)");
}

Result<SpmPiece> parse_piece(std::string_view bytes, std::size_t id) {
  SpmPiece piece;
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == kPieceText && field->wire_type == 2)
      piece.text = std::string(field->bytes);
    if (field->number == kPieceType && field->wire_type == 0) {
      if (field->value < 1 || field->value > 6)
        return wrong("piece " + std::to_string(id) + " has an unknown type");
      piece.type = static_cast<SpmPieceType>(field->value);
    }
  }
  if (reader.broken()) return truncated();
  if (piece.text.empty()) return wrong("piece " + std::to_string(id) + " is empty");
  if (piece.text.find('\0') != std::string::npos)
    return wrong("piece " + std::to_string(id) + " has a zero byte");
  if (piece.text.size() > kMaxPieceBytes)
    return wrong("piece " + std::to_string(id) + " is absurdly long");
  return piece;
}

/// The character map: u32 size of a Darts double array, the array, then zero-terminated
/// replacements its leaves point to. A step of the library goes from unit i to i ^ offset(i) ^
/// byte, for any byte of the text, without a check.
Status check_chars_map(std::string_view map) {
  if (map.empty()) return {};
  const Status bad = wrong("has a damaged character map (normalizer_spec.precompiled_charsmap)");
  std::uint32_t trie_bytes = 0;
  if (map.size() <= sizeof trie_bytes) return bad;
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  const std::string_view rest = map.substr(sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= rest.size()) return bad;
  const std::string_view replacements = rest.substr(trie_bytes);
  if (replacements.back() != '\0') return bad;
  const std::uint32_t num_units = trie_bytes / 4;
  const auto unit_at = [&](std::uint32_t i) {
    std::uint32_t unit = 0;
    std::memcpy(&unit, rest.data() + 4 * std::size_t{i}, sizeof unit);
    return unit;
  };
  for (std::uint32_t i = 0; i < num_units; ++i) {
    const std::uint32_t unit = unit_at(i);
    if (unit >> 31 != 0) continue;  // a leaf: no step begins here
    const std::uint32_t target = i ^ (unit >> 10) << ((unit & (1U << 9)) >> 6);
    if ((target | 0xFF) >= num_units) return bad;
    const bool has_leaf = (unit >> 8 & 1) != 0;
    if (has_leaf && (unit_at(target) & 0x7FFFFFFF) >= replacements.size()) return bad;
  }
  return {};
}

Status parse_normalizer(std::string_view bytes, SpmModel& model) {
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == kCharsMap && field->wire_type == 2)
      QUIRE_RETURN_IF_ERROR(check_chars_map(field->bytes));
    if (field->number == kAddDummyPrefix && field->wire_type == 0)
      model.add_dummy_prefix = field->value != 0;
    if (field->number == kRemoveExtraWhitespaces && field->wire_type == 0)
      model.remove_extra_whitespaces = field->value != 0;
  }
  return reader.broken() ? truncated() : Status();
}

Status parse_trainer(std::string_view bytes, SpmModel& model) {
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == kWhitespaceAsSuffix && field->wire_type == 0)
      model.whitespace_as_suffix = field->value != 0;
  }
  return reader.broken() ? truncated() : Status();
}

Status check_denormalizer(std::string_view bytes) {
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == kCharsMap && !field->bytes.empty()) {
      return Status(
          Code::kUnimplemented,
          "changes texts while decoding (denormalizer_spec), which this build does not do");
    }
  }
  return reader.broken() ? truncated() : Status();
}

void put_varint(std::uint64_t value, std::string& out) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void put_message(std::uint32_t number, std::string_view bytes, std::string& out) {
  put_varint(number << 3 | 2, out);
  put_varint(bytes.size(), out);
  out += bytes;
}

/// `bytes` with every varint field `number` left out and one put at the end.
std::string with_varint(std::string_view bytes, std::uint32_t number, std::uint64_t value) {
  std::string out;
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number != number) out += field->whole;
  }
  put_varint(number << 3, out);
  put_varint(value, out);
  return out;
}

}  // namespace

Result<SpmModel> parse_spm_model(std::string_view bytes) {
  SpmModel model;
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->wire_type != 2) continue;
    switch (field->number) {
      case kPieces: {
        if (model.pieces.size() >= static_cast<std::size_t>(kMaxVocabulary))
          return wrong("has absurdly many pieces");
        QUIRE_ASSIGN_OR_RETURN(SpmPiece piece, parse_piece(field->bytes, model.pieces.size()));
        model.pieces.push_back(std::move(piece));
        break;
      }
      case kTrainerSpec:
        QUIRE_RETURN_IF_ERROR(parse_trainer(field->bytes, model));
        break;
      case kNormalizerSpec:
        QUIRE_RETURN_IF_ERROR(parse_normalizer(field->bytes, model));
        break;
      case kDenormalizerSpec:
        QUIRE_RETURN_IF_ERROR(check_denormalizer(field->bytes));
        break;
      default:
        break;
    }
  }
  if (reader.broken()) return truncated();
  if (model.pieces.empty()) return wrong("has no pieces");
  return model;
}

std::string rewrite_spm_model(std::string_view bytes, const SpmModel& model) {
  std::string out;
  out.reserve(bytes.size() + 2 * model.pieces.size());
  std::size_t id = 0;
  bool normalizer_seen = false;
  Reader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == kPieces && field->wire_type == 2) {
      put_message(
          kPieces,
          with_varint(field->bytes, kPieceType, static_cast<std::uint64_t>(model.pieces[id].type)),
          out);
      ++id;
    } else if (field->number == kNormalizerSpec && field->wire_type == 2) {
      put_message(kNormalizerSpec,
                  with_varint(field->bytes, kAddDummyPrefix, model.add_dummy_prefix ? 1 : 0), out);
      normalizer_seen = true;
    } else if (field->number != kSelfTestData) {
      out += field->whole;
    }
  }
  if (!normalizer_seen)
    put_message(kNormalizerSpec, with_varint({}, kAddDummyPrefix, model.add_dummy_prefix ? 1 : 0),
                out);
  return out;
}

}  // namespace quire::tokenizer_internal
