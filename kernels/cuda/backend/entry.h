/// The C table through which a program uses libquire_cuda.so, so that the program itself starts without toolkit, driver or GPU.
/// A library built from other sources is refused by its version instead of being called.
#pragma once

#include <cstdint>

extern "C" {

/// Raised with every change to this header.
#define QUIRE_CUDA_ENTRY_VERSION 1u
#define QUIRE_CUDA_ENTRY_SYMBOL "quire_cuda_entry"

enum { QUIRE_CUDA_MOST_DEVICES = 64 };

/// See DeviceProperties (kernels/cuda/runtime/properties.h).
struct QuireCudaDevice {
  char name[128];
  std::int32_t index, major, minor, multiprocessors, threads_per_multiprocessor;
  std::int64_t shared_bytes_per_block, shared_bytes_per_multiprocessor, l2_bytes, total_bytes;
};

/// See DeviceReport. Strings end with zero.
struct QuireCudaReport {
  std::int32_t driver_version, toolkit_version, num_devices;
  char error[256];
  QuireCudaDevice devices[QUIRE_CUDA_MOST_DEVICES];
};

struct QuireCudaEntry {
  std::uint32_t version;  ///< QUIRE_CUDA_ENTRY_VERSION; the first field in every version
  std::uint32_t bytes;    ///< of this struct
  /// Lists the devices; opens none. Any thread.
  void (*probe)(QuireCudaReport* report);
  /// Opens the device, runs a kernel over copied data and compares the result. 0 when all is well, else a Code with the reason in `message`.
  std::int32_t (*self_test)(std::int32_t device, char* message, std::int32_t message_bytes);
};

/// The only symbol. The table lives as long as the library is loaded.
const QuireCudaEntry* quire_cuda_entry();

}  // extern "C"
