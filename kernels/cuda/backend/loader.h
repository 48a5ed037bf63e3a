/// This file declares how a program that is not linked to CUDA finds out whether it can compute
/// with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/backend/communicator.h"
#include "kernels/cuda/backend/ops.h"
#include "kernels/cuda/runtime/properties.h"

namespace quire::cuda {

/// libquire_cuda.so, loaded as long as this object lives. Threads: any.
class BackendLibrary : public std::enable_shared_from_this<BackendLibrary> {
 public:
  /// Loads the first of `files` that exists. Errors: kNotFound (none exists, with the list),
  /// kFailedPrecondition (it cannot be loaded, or has another version than this program).
  static Result<std::shared_ptr<BackendLibrary>> load(const std::vector<std::string>& files);
  virtual ~BackendLibrary() = default;

  virtual const std::string& file() const = 0;
  virtual DeviceReport probe() const = 0;
  /// Runs a kernel on the device and checks its result. Errors: those of opening a device,
  /// kInternal (wrong results).
  virtual Status self_test(const DeviceProperties& device) const = 0;
  /// Opens the device for computing. The returned object keeps the library loaded. Errors:
  /// kUnavailable, kResourceExhausted, kDeviceLost, kInternal.
  virtual Result<std::shared_ptr<DeviceOps>> open(const DeviceProperties& device) = 0;
  /// Opens devices that compute together, the first of which leads. Errors: also those of
  /// connecting them (field model.tensor_parallel).
  virtual Result<DeviceTeam> open_team(const std::vector<DeviceProperties>& devices) = 0;
};

/// Returns the possible paths of this program's library. They are QUIRE_CUDA_LIBRARY alone if that
/// variable is set, else the program's folder and ../lib.
std::vector<std::string> backend_library_files();

/// Returns whether the machine has device files of an NVIDIA GPU.
bool has_device_file();

/// The backend that runs models, and the reason why no faster one does.
struct BackendChoice {
  std::string name = "cpu";  ///< or "cuda"
  std::string cuda;          ///< name of the device that computes, or why none does
  bool idle_gpu = false;     ///< the machine has a GPU that does not compute; worth a warning
  bool split_kv = false;     ///< several devices hold KV by head; else the first one holds all
  std::shared_ptr<BackendLibrary> library;  ///< set for "cuda", else null
  /// For "cuda": the device that computes, and behind it those that hold shares of its matrices.
  std::vector<DeviceProperties> devices;
};

/// Chooses the backend; `asked` is auto, cpu or cuda. auto always takes the CPU. If
/// `device_present` says that there may be a GPU, it also checks GPU `device_idx` and reports what
/// it found; otherwise it loads nothing. cuda takes `count` GPUs from that one on, if each passes
/// the self test.
///
/// Errors (cuda only, field model.backend or model.device): kNotFound, kFailedPrecondition,
/// kUnavailable, kInvalidArgument, or those of the self test. With a count other than 1 also
/// kInvalidArgument (field model.tensor_parallel: below 1, more GPUs than there are, or the CPU
/// computes). It opens no session.
Result<BackendChoice> choose_backend(const std::string& asked, std::int64_t device_idx,
                                     bool device_present,
                                     const std::vector<std::string>& library_files,
                                     std::int64_t count = 1);

}  // namespace quire::cuda
