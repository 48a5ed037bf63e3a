#include "engine/tokenizer/spm_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <new>
#include <unordered_set>

#include "base/utf8.h"

namespace quire::tokenizer_internal {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581

/// The byte a piece like "<0x0A>" stands for, -1 for other spellings.
int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/// What a piece adds to a text.
std::string text_of_piece(const SpmPiece& piece) {
  if (piece.type == SpmPieceType::kByte)
    return std::string(1, static_cast<char>(byte_of_piece(piece.text)));
  if (piece.type == SpmPieceType::kControl || piece.type == SpmPieceType::kUnknown)
    return piece.text;
  std::string text;
  for (std::size_t i = 0; i < piece.text.size();) {
    if (piece.text.compare(i, kMetaSpace.size(), kMetaSpace) == 0) {
      text.push_back(' ');
      i += kMetaSpace.size();
    } else {
      text.push_back(piece.text[i++]);
    }
  }
  return text;
}

class SpmTokenizer final : public TokenizerBase {
 public:
  SpmTokenizer(PieceTable pieces, std::vector<AddedToken> added, TokenizerSettings settings,
               std::string_view model_bytes, const SpmModel& model, bool own_prefix,
               std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : TokenizerBase(std::move(pieces), std::move(added), std::move(settings)),
        own_prefix_(own_prefix),
        processor_(std::move(processor)) {
    is_byte_.resize(model.pieces.size());
    for (std::size_t id = 0; id < model.pieces.size(); ++id)
      is_byte_[id] = model.pieces[id].type == SpmPieceType::kByte;
    Sha256 hash;
    hash.update_field("sentencepiece-1");
    hash.update_field(model_bytes);
    hash.update_u64(static_cast<std::uint64_t>(own_prefix));
    finish_digest(hash);
  }

 protected:
  void encode_plain(std::string_view text, std::size_t base, bool space_first,
                    EncodeSink& out) const override {
    std::string spaced;
    const std::size_t shift = own_prefix_ && space_first ? 1 : 0;  // bytes put in front
    if (shift != 0) {
      spaced = " ";
      spaced += text;
    }
    const std::string_view input = shift != 0 ? std::string_view(spaced) : text;
    if (out.spans == nullptr) {
      std::vector<int> ids;
      const auto status = processor_->Encode({input.data(), input.size()}, &ids);
      if (!status.ok()) ids.assign(1, processor_->unk_id());
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
      return;
    }
    sentencepiece::ImmutableSentencePieceText result;
    const auto status = processor_->Encode({input.data(), input.size()}, result.mutable_proto());
    if (!status.ok()) return out.put(processor_->unk_id(), base, base + text.size());
    const auto place = [&](std::size_t at) { return base + (at > shift ? at - shift : 0); };
    const std::size_t n = result.pieces_size();
    for (std::size_t i = 0; i < n;) {
      std::size_t end = i + 1;
      while (is_byte(result.pieces(static_cast<int>(i)).id()) && end < n &&
             result.pieces(static_cast<int>(end - 1)).begin() ==
                 result.pieces(static_cast<int>(end - 1)).end() &&
             is_byte(result.pieces(static_cast<int>(end)).id())) {
        ++end;
      }
      put_run(result, i, end, place, out);
      i = end;
    }
  }

 private:
  bool is_byte(std::uint32_t id) const { return id < is_byte_.size() && is_byte_[id]; }

  /// Pieces [i, end): one piece, or the byte pieces of one character, whose whole place the library
  /// gives to the last.
  template <class Place>
  void put_run(const sentencepiece::ImmutableSentencePieceText& result, std::size_t i,
               std::size_t end, const Place& place, EncodeSink& out) const {
    const auto last = result.pieces(static_cast<int>(end - 1));
    const std::size_t from = place(last.begin()), to = place(last.end());
    const std::size_t count = end - i;
    for (std::size_t k = 0; k < count; ++k) {
      const auto id = static_cast<std::int32_t>(result.pieces(static_cast<int>(i + k)).id());
      if (count > 1 && to - from == count) {
        out.put(id, from + k, from + k + 1);
      } else {
        out.put(id, from, k + 1 == count ? to : from);
      }
    }
  }

  /// The model's add_dummy_prefix was turned off and is done here, so that it can be left out
  bool own_prefix_;
  std::vector<bool> is_byte_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

/// The library reports most mistakes, and throws on some.
Status load_model(sentencepiece::SentencePieceProcessor& processor, std::string_view bytes) {
  try {
    const auto status = processor.LoadFromSerializedProto({bytes.data(), bytes.size()});
    return status.ok() ? Status() : Status::invalid("", status.ToString());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Status::invalid("", std::string("sentencepiece cannot use it: ") + e.what());
  }
}

Status check_pieces(const std::string& file, const SpmModel& model) {
  std::unordered_set<std::string_view> seen;
  int unknown = 0;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SpmPiece& piece = model.pieces[id];
    if (!seen.insert(piece.text).second) {
      return Status::invalid(file, file + ": piece '" + piece.text +
                                       "' appears twice, again as id " + std::to_string(id));
    }
    if (piece.type == SpmPieceType::kByte && byte_of_piece(piece.text) < 0) {
      return Status::invalid(
          file, file + ": byte piece " + std::to_string(id) + " is spelled '" + piece.text + "'");
    }
    unknown += piece.type == SpmPieceType::kUnknown ? 1 : 0;
  }
  if (unknown != 1)
    return Status::invalid(
        file, file + ": has " + std::to_string(unknown) + " unknown pieces, must have one");
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(std::string file, std::string_view bytes,
                                                      SpmModel model, std::vector<AddedToken> added,
                                                      TokenizerSettings settings) {
  QUIRE_RETURN_IF_ERROR(check_pieces(file, model));
  if (model.whitespace_as_suffix) {
    return Status(Code::kUnimplemented, file + ": treat_whitespace_as_suffix is not supported",
                  file);
  }
  std::unordered_set<std::int32_t> declared;
  for (const AddedToken& token : added) {
    if (token.control()) declared.insert(token.id);
  }
  PieceTable table;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    SpmPiece& piece = model.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    const bool plain = piece.type == SpmPieceType::kNormal || piece.type == SpmPieceType::kByte;
    const AddedToken token{.id = id, .text = piece.text, .special = declared.contains(id)};
    if (piece.type == SpmPieceType::kUserDefined && token.control())
      piece.type = SpmPieceType::kControl;
    const bool control = piece.type == SpmPieceType::kControl ||
                         piece.type == SpmPieceType::kUnknown;
    table.set(id, text_of_piece(piece), control);
    if (control && !plain &&
        std::none_of(added.begin(), added.end(), [&](const AddedToken& t) { return t.id == id; })) {
      added.push_back({.id = id, .text = piece.text, .special = true});
    }
  }
  for (const AddedToken& token : added) {
    if (token.id >= static_cast<std::int32_t>(model.pieces.size()) || table.special(token.id)) {
      table.set(token.id, token.text, token.control() || table.special(token.id));
    }
  }
  // An ordinary piece listed again is found by the library
  std::erase_if(added, [&](const AddedToken& t) {
    return t.id < static_cast<std::int32_t>(model.pieces.size()) && !table.special(t.id);
  });
  settings.strips_first_space = model.add_dummy_prefix || model.remove_extra_whitespaces;
  const bool own_prefix = model.add_dummy_prefix && !model.remove_extra_whitespaces;
  if (own_prefix) model.add_dummy_prefix = false;
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const std::string rewritten = rewrite_spm_model(bytes, model);
  if (Status loaded = load_model(*processor, rewritten); !loaded.ok())
    return loaded.with_context(file).with_field(file);
  return std::unique_ptr<Tokenizer>(
      std::make_unique<SpmTokenizer>(std::move(table), std::move(added), std::move(settings),
                                     rewritten, model, own_prefix, std::move(processor)));
}

}  // namespace quire::tokenizer_internal
