/// Ranges and lists of cache rows, by which operations say which rows they work on.
#pragma once

#include <cstdint>

namespace quire {

/// A range of cache rows [begin, end) of one layer.
struct RowRange {
  std::int64_t begin, end;
};

/// The rows that one KV head works on; `rows` [length] are indices of cache rows.
struct RowList {
  const std::int32_t* rows;
  std::int64_t length;
};

/// The order of the rows in a RowList.
enum class RowOrder : std::uint8_t {
  kAscending,  ///< strictly ascending; checked
  kAny         ///< no row occurs twice; the caller guarantees it
};

}  // namespace quire
