/// This file declares matrix products through cuBLASLt, used only in the loaded library.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

/// Runs the products of one stream with a handle, a workspace, and an algorithm per shape that is
/// queried once. Row counts are rounded to buckets (few, and powers of two), so that most row
/// counts share an algorithm. Threads: one call at a time.
class Matmul {
 public:
  /// Opens cuBLASLt. `workspace` is kWorkspaceBytes of device memory and must outlive the object.
  static Result<std::unique_ptr<Matmul>> create(void* workspace);
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
  static constexpr std::int64_t kAlignment = 16;  ///< bytes, of every operand and row
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Enqueues the product. Operands are aligned to kAlignment. Errors: kInvalidArgument (dtype),
  /// kUnimplemented (no algorithm supports the shape), kInternal, kDeviceLost.
  Status run(const MatmulArgs& args, StreamHandle stream);

 private:
  struct Impl;
  explicit Matmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::cuda
