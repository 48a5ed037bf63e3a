/// This file declares what a shared tier gives back. It is internal to cachestore.
#pragma once

#include <memory>
#include <vector>

#include "cachestore/format/value_buffer.h"
#include "cachestore/remote/remote_record.h"

namespace quire {

/// A segment that was read from a shared tier, every byte of it checked.
struct RecalledSegment {
  RemoteRecord record;
  std::vector<std::shared_ptr<ValueBuffer>> values;  ///< values and sketches by position
};

}  // namespace quire
