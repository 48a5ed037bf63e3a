/// This file declares the C table through which a program uses libquire_cuda.so. The program itself
/// thus starts without toolkit, driver or GPU. A library built from other sources is rejected by
/// its version and never called.
#pragma once

#include <cstdint>

extern "C" {

/// Incremented with every change to this header and to the operations (ops.h).
#define QUIRE_CUDA_ENTRY_VERSION 18u
#define QUIRE_CUDA_ENTRY_SYMBOL "quire_cuda_entry"

enum { QUIRE_CUDA_MOST_DEVICES = 64 };

/// See DeviceProperties (kernels/cuda/runtime/properties.h).
struct QuireCudaDevice {
  char name[128];
  std::int32_t index, major, minor, multiprocessors, threads_per_multiprocessor;
  std::int64_t shared_bytes_per_block, shared_bytes_per_multiprocessor, l2_bytes, total_bytes;
};

/// See DeviceReport. Strings are zero-terminated.
struct QuireCudaReport {
  std::int32_t driver_version, toolkit_version, num_devices;
  char error[256];
  QuireCudaDevice devices[QUIRE_CUDA_MOST_DEVICES];
};

/// An opened device with its streams and the state of products. The table has one entry for each
/// call of DeviceOps (ops.h).
struct QuireCudaSession;

/// Sessions on different devices that send to each other (communicator.h).
struct QuireCudaTeam;

/// Receives the reason of a failed call. A call returns 0 on success, else a Code.
struct QuireCudaMessage {
  char text[512];
};

struct QuireCudaEntry {
  std::uint32_t version;  ///< QUIRE_CUDA_ENTRY_VERSION; the first field in every version
  std::uint32_t bytes;    ///< size of this struct
  /// Lists the devices and opens none. Threads: any.
  void (*probe)(QuireCudaReport* report);
  /// Opens the device, runs a kernel over copied data and checks the result. Returns 0 on success,
  /// else a Code with the reason in `message`.
  std::int32_t (*self_test)(std::int32_t device, char* message, std::int32_t message_bytes);
  /// Opens a session on the device, which the caller must close. Threads: any. The calls below may
  /// come from any thread, one at a time per session.
  std::int32_t (*open)(std::int32_t device, QuireCudaSession** session, QuireCudaMessage* message);
  /// Closes the session. The caller must have released all its allocations.
  void (*close)(QuireCudaSession* session);
  std::int32_t (*memory)(QuireCudaSession* session, std::int64_t* free_bytes,
                         std::int64_t* total_bytes, QuireCudaMessage* message);
  /// Allocates memory; `kind` is a MemoryKind.
  std::int32_t (*allocate)(QuireCudaSession* session, std::uint32_t kind, std::int64_t bytes,
                           void** p, QuireCudaMessage* message);
  std::int32_t (*release)(QuireCudaSession* session, std::uint32_t kind, void* p,
                          QuireCudaMessage* message);
  std::int32_t (*synchronize)(QuireCudaSession* session, QuireCudaMessage* message);
  /// Enqueues an operation. `op` is an OpCode; `args` is its struct of `args_bytes` bytes, which is
  /// copied.
  std::int32_t (*enqueue)(QuireCudaSession* session, std::uint32_t op, const void* args,
                          std::int64_t args_bytes, QuireCudaMessage* message);
  /// Connects sessions, the first of which leads. The caller must close the team before them.
  /// Threads: any, also for the calls below.
  std::int32_t (*team_open)(QuireCudaSession* const* sessions, std::int32_t count,
                            QuireCudaTeam** team, QuireCudaMessage* message);
  void (*team_close)(QuireCudaTeam* team);
  /// See Communicator. Arrays have one element a rank, and `begin` one more.
  std::int32_t (*team_broadcast)(QuireCudaTeam* team, const void* from, void* const* to,
                                 std::int64_t bytes, QuireCudaMessage* message);
  std::int32_t (*team_gather)(QuireCudaTeam* team, const void* const* from, void* const* to,
                              const std::int64_t* bytes, QuireCudaMessage* message);
  std::int32_t (*team_all_gather)(QuireCudaTeam* team, void* const* whole,
                                  const std::int64_t* begin, QuireCudaMessage* message);
  std::int32_t (*team_status)(QuireCudaTeam* team, QuireCudaMessage* message);
};

/// Returns the table, which lives as long as the library is loaded. It is the only symbol.
const QuireCudaEntry* quire_cuda_entry();

}  // extern "C"
