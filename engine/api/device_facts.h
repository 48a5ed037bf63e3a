/// This file describes the machine and the loaded model for choosing a retriever.
#pragma once

#include <cstdint>

namespace quire {

/// Speeds and sizes for choosing a retriever; 0 means unknown unless stated otherwise.
struct DeviceFacts {
  std::int64_t cache_bytes = 0;   ///< device memory for retrievers' data; 0: no limit
  std::int32_t requests = 1;      ///< requests that share cache_bytes
  bool is_host = true;            ///< device memory is host memory, so reading it needs no copy
  double read_bytes_per_ms = 0;   ///< memory bandwidth, measured at start
  double copy_bytes_per_ms = 0;   ///< host-to-device copy bandwidth, measured at start
  std::int64_t weight_bytes = 0;  ///< weight bytes that one decode step reads
  std::int64_t row_bytes = 0;     ///< K and V of one row of one layer
  std::int32_t num_layers = 0;
};

}  // namespace quire
