/// RecordCopyState says how the second copy of the records is.
#pragma once

#include <cstdint>

namespace quire {

struct RecordCopyState {
  bool kept = false;               ///< there is one
  bool behind = false;             ///< a write to it failed: it is not written until the next open
  std::uint64_t brought_back = 0;  ///< records that open took from it, as they were lost
};

}  // namespace quire
