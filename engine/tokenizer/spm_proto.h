/// The few fields of a sentencepiece ModelProto the tokenizer needs, read from the protobuf bytes,
/// and a way to write them back changed. (The library does not install its protobuf headers.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::tokenizer_internal {

enum class SpmPieceType : unsigned char {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SpmPiece {
  std::string text;
  SpmPieceType type = SpmPieceType::kNormal;
};

struct SpmModel {
  std::vector<SpmPiece> pieces;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool whitespace_as_suffix = false;
};

/// Checks the whole structure, also the parts the library trusts (the trie of the normaliser's
/// character map, which it would follow out of bounds). Errors: kInvalidArgument without a file
/// name: the caller adds it.
Result<SpmModel> parse_spm_model(std::string_view bytes);

/// The same model with other piece types and another add_dummy_prefix; self test samples are left
/// out. `bytes` must be those `model` was parsed from.
std::string rewrite_spm_model(std::string_view bytes, const SpmModel& model);

}  // namespace quire::tokenizer_internal
