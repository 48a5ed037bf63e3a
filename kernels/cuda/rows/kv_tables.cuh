/// This file holds single writes to tables of pages and positions.
///
/// Cost: 24 bytes read and 12 written for each new row of a layer. It is bound by its launch.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

struct WriteTablesKernel {
  static constexpr int kThreads = 128;
  WriteTablesArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t i = device.block_idx().x * kThreads + device.thread_idx();
    if (i < a.num_pages) {
      const void** const to = device.load(&a.pages[i].to);
      const void* const page = device.load(&a.pages[i].page);
      device.store(to, page);
    }
    if (i < a.num_positions) {
      std::int32_t* const to = device.load(&a.positions[i].to);
      const std::int64_t position = device.load(&a.positions[i].position);
      device.store(to, static_cast<std::int32_t>(position));
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (negative counts).
template <class Launcher>
Status launch_write_tables(Launcher& launcher, const WriteTablesArgs& a) {
  if (a.num_pages < 0 || a.num_positions < 0)
    return Status::invalid("num_pages", "counts must not be negative");
  const std::int64_t most = a.num_pages > a.num_positions ? a.num_pages : a.num_positions;
  if (most == 0) return {};
  constexpr int kThreads = WriteTablesKernel::kThreads;
  return launcher.launch({{(most + kThreads - 1) / kThreads, 1, 1}, kThreads, 0},
                         WriteTablesKernel{a});
}

}  // namespace quire::cuda
