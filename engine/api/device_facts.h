/// What the choice of a retriever needs to know of the machine and the loaded model.
#pragma once

#include <cstdint>

namespace quire {

/// 0: not known.
struct DeviceFacts {
  std::int64_t cache_bytes = 0;  ///< for what retrievers keep there; 0: no limit
  std::int32_t requests = 1;     ///< that share it
  bool is_host = true;  ///< its memory is the host's: what lies there needs no copy to be read
  double read_bytes_per_ms = 0;   ///< of memory, measured at start
  double copy_bytes_per_ms = 0;   ///< from host to device, measured at start
  std::int64_t weight_bytes = 0;  ///< a step reads
  std::int64_t row_bytes = 0;     ///< K and V of one row of one layer
  std::int32_t num_layers = 0;
};

}  // namespace quire
