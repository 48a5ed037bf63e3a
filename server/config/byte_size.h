/// Sizes as people write them: 512MiB, 4GB, 1.5G.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

/// A number of bytes: digits, perhaps a fraction, perhaps a unit. B is one byte; KB, MB, GB and TB
/// are powers of 1,000; KiB, MiB, GiB, TiB, and K, M, G, T alone, are powers of 1,024. Case does
/// not matter, and a space may stand before the unit. A minus sign is allowed in front of digits
/// alone. None where the text is no such size, or does not fit 63 bits.
std::optional<std::int64_t> parse_byte_size(std::string_view text);

}  // namespace quire
