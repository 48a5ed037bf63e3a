/// This file declares copies between several GPUs through NCCL, used only in the loaded library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/backend/communicator.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

/// The communicators of the GPUs of one process. libnccl.so.2 is loaded when the first team is
/// opened, so that one GPU alone needs none.
///
/// A rank that is lost leaves the others waiting for it in their streams. A thread looks for lost
/// ranks and, when it finds one, ends the copies of all, so that waits for a stream return; then
/// status() says why.
class NcclTeam final : public Communicator {
 public:
  struct Rank {
    std::int32_t device;
    StreamHandle stream;  ///< of Lane::kCompute; must outlive the team
  };
  /// Errors: kUnimplemented (built without NCCL's header), kFailedPrecondition (libnccl.so.2 cannot
  /// be loaded), kInternal, kDeviceLost.
  static Result<std::unique_ptr<NcclTeam>> open(std::vector<Rank> ranks);
  /// Waits for the streams.
  ~NcclTeam() override;

  Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) override;
  Status gather(std::span<const Part> parts) override;
  Status all_gather(std::span<std::byte* const> whole,
                    std::span<const std::int64_t> begin) override;
  Status status() const override;

 private:
  struct Impl;
  explicit NcclTeam(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::cuda
