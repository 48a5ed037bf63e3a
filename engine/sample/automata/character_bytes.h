/// How characters are spelled in bytes: as UTF-8, or escaped in JSON. Internal to sample/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quire {

/// Some characters of equally many bytes: which bytes they have at each place, both ends included.
/// All bytes vary independently.
using BytePiece = std::vector<std::pair<unsigned char, unsigned char>>;

/// Appends the UTF-8 of the characters from `first` to `last`, which are above ASCII. Surrogates
/// are left out. Pieces come in the order of the characters.
void add_utf8(std::uint32_t first, std::uint32_t last, std::vector<BytePiece>& out);

/// Returns whether a JSON string holds the character as an escape.
bool needs_json_escape(std::uint32_t c);
/// Returns the escape of a character that needs one.
std::string json_escape(std::uint32_t c);

}  // namespace quire
