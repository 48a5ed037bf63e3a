/// Parses JSON text strictly: one value, UTF-8, bounded depth, no repeated keys, finite numbers.
/// Users include <boost/json.hpp> themselves, in .cc files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace boost::json {
class value;
}  // namespace boost::json

namespace quire {

struct JsonLimits {
  std::size_t max_depth = 32;
  /// Whether an object may repeat a key, whose last value then counts. Two readers of such a text
  /// may see different values.
  bool repeated_keys = false;
  /// Elements of the whole text: values that are no object's members count as well as those that
  /// are. None of the bounds below applies unless it is set.
  std::size_t max_values = SIZE_MAX;
  std::size_t max_keys = SIZE_MAX;         ///< keys of all objects together
  std::size_t max_object_keys = SIZE_MAX;  ///< keys of one object
  /// Keys of all objects with more than kWideObjectKeys keys. Keys may be chosen so that their
  /// hashes are equal, and an object then costs the square of their number.
  std::size_t max_wide_keys = SIZE_MAX;
  std::size_t max_key_bytes = SIZE_MAX;  ///< of one key, without escapes
};

constexpr std::size_t kWideObjectKeys = 64;

/// Bounds for a text from outside, checked while it is read and before more is built. A text within
/// them takes at most some tens of milliseconds, and memory of a few times its size and 64 MiB.
constexpr JsonLimits kOutsideJson{.max_values = (1 << 20) + 1024,
                                  .max_keys = 1 << 18,
                                  .max_object_keys = 1024,
                                  .max_wide_keys = 1 << 14,
                                  .max_key_bytes = 4096};

/// JsonTextError says what is wrong with a text, for callers with words of their own.
struct JsonTextError {
  enum class Kind : std::uint8_t {
    kUtf8,         ///< bytes that are no UTF-8
    kEmpty,        ///< nothing but white space
    kUnfinished,   ///< the text ends within the value
    kSyntax,       ///< also a number beyond the range of a double
    kDepth,        ///< more levels than allowed
    kRepeatedKey,  ///< an object holds a key twice
    kTooMany,      ///< more values or keys than allowed, or a longer key
    kTrailing,     ///< more text after the value
  };
  Kind kind = Kind::kSyntax;
  std::size_t byte = 0;  ///< where, from 0; a byte order mark does not count
  std::string reason;    ///< in a few words
  std::string key;       ///< kRepeatedKey: the key
};

/// Parses `text`, with or without a byte order mark, into `out`. Returns what is wrong; `out` is
/// then unchanged.
std::optional<JsonTextError> parse_json(std::string_view text, boost::json::value& out,
                                        const JsonLimits& limits = {});

/// The same. Errors: kInvalidArgument without a field, with line and column in the message.
Result<boost::json::value> parse_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace quire
