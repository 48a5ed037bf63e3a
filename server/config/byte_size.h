/// Parses human-readable sizes: 512MiB, 4GB, 1.5G.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

/// Parses a number of bytes: digits, an optional fraction and an optional unit in any case, perhaps
/// after a space. B is one byte; KB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB, TiB, and K,
/// M, G, T alone, are powers of 1,024. A minus sign may precede digits without a unit. None: the
/// text is not such a size, or does not fit 63 bits.
std::optional<std::int64_t> parse_byte_size(std::string_view text);

}  // namespace quire
