/// Matrix products through cuBLASLt. For the loaded library alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/status.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/stream.h"

namespace quire::cuda {

/// The products of one stream: a handle, a workspace, and the algorithm for each shape, asked for
/// once. Rows are counted in buckets (few, and powers of two), so that most products of other
/// numbers of rows use the same one. Threads: one call at a time.
class Matmul {
 public:
  /// `workspace` of kWorkspaceBytes on the device must outlive it.
  static Result<std::unique_ptr<Matmul>> create(void* workspace);
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Enqueues. Operands are aligned to 16 bytes. Errors: kInvalidArgument (dtype), kUnimplemented
  /// (no algorithm takes the shape), kInternal, kDeviceLost.
  Status run(const MatmulArgs& args, StreamHandle stream);

 private:
  struct Impl;
  explicit Matmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::cuda
