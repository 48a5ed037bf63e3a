/// RecordCopyState says how the second copy of the records is.
#pragma once

#include <cstdint>

namespace quire {

struct RecordCopyState {
  bool kept = false;  ///< there is one
  /// A write to it failed, a record of it cannot be read, or it could not be opened: it is not
  /// written until the next open, which makes both alike.
  bool behind = false;
  bool read_whole = false;         ///< all of it was read since open
  std::uint64_t brought_back = 0;  ///< records that open took from it, as they were lost
};

}  // namespace quire
