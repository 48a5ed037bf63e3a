/// The C table through which a program uses libquire_cuda.so, so that the program itself starts
/// without toolkit, driver or GPU. A library built from other sources is refused by its version
/// instead of being called.
#pragma once

#include <cstdint>

extern "C" {

/// Raised with every change to this header and to the operations (ops.h).
#define QUIRE_CUDA_ENTRY_VERSION 8u
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

/// An opened device with a stream and what products need. See DeviceOps (ops.h), whose calls the
/// table has one by one.
struct QuireCudaSession;

/// Where a call that fails says why. A call returns 0 when all is well, else a Code.
struct QuireCudaMessage {
  char text[512];
};

struct QuireCudaEntry {
  std::uint32_t version;  ///< QUIRE_CUDA_ENTRY_VERSION; the first field in every version
  std::uint32_t bytes;    ///< of this struct
  /// Lists the devices; opens none. Any thread.
  void (*probe)(QuireCudaReport* report);
  /// Opens the device, runs a kernel over copied data and compares the result. 0 when all is well,
  /// else a Code with the reason in `message`.
  std::int32_t (*self_test)(std::int32_t device, char* message, std::int32_t message_bytes);
  /// A session on the device, to be closed. Any thread; the calls below from any thread too, one at
  /// a time in each session.
  std::int32_t (*open)(std::int32_t device, QuireCudaSession** session, QuireCudaMessage* message);
  /// What was allocated must be released.
  void (*close)(QuireCudaSession* session);
  std::int32_t (*memory)(QuireCudaSession* session, std::int64_t* free_bytes,
                         std::int64_t* total_bytes, QuireCudaMessage* message);
  /// `kind`: a MemoryKind.
  std::int32_t (*allocate)(QuireCudaSession* session, std::uint32_t kind, std::int64_t bytes,
                           void** p, QuireCudaMessage* message);
  std::int32_t (*release)(QuireCudaSession* session, std::uint32_t kind, void* p,
                          QuireCudaMessage* message);
  std::int32_t (*synchronize)(QuireCudaSession* session, QuireCudaMessage* message);
  /// `op`: an OpCode; `args`: `args_bytes` of the struct that belongs to it, which is copied.
  std::int32_t (*enqueue)(QuireCudaSession* session, std::uint32_t op, const void* args,
                          std::int64_t args_bytes, QuireCudaMessage* message);
};

/// The only symbol. The table lives as long as the library is loaded.
const QuireCudaEntry* quire_cuda_entry();

}  // extern "C"
