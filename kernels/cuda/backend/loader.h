/// Finding out whether this machine and this build can compute with CUDA, without being linked to
/// it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/backend/ops.h"
#include "kernels/cuda/runtime/properties.h"

namespace quire::cuda {

/// libquire_cuda.so, loaded for as long as this lives. Threads: any.
class BackendLibrary : public std::enable_shared_from_this<BackendLibrary> {
 public:
  /// The first of `files` that exists is loaded. Errors: kNotFound (none exists, with the list),
  /// kFailedPrecondition (it cannot be loaded, or is of another version of this program).
  static Result<std::shared_ptr<BackendLibrary>> load(const std::vector<std::string>& files);
  virtual ~BackendLibrary() = default;

  virtual const std::string& file() const = 0;
  virtual DeviceReport probe() const = 0;
  /// Runs a kernel on the device and checks what it computes. Errors: those of opening a device,
  /// kInternal (wrong results).
  virtual Status self_test(const DeviceProperties& device) const = 0;
  /// Opens the device to compute with it; what is returned keeps the library loaded. Errors:
  /// kUnavailable, kResourceExhausted, kDeviceLost, kInternal.
  virtual Result<std::shared_ptr<DeviceOps>> open(const DeviceProperties& device) = 0;
};

/// Where the library of this program may lie: QUIRE_CUDA_LIBRARY alone when that variable is set,
/// else beside the program and in ../lib.
std::vector<std::string> backend_library_files();

/// Whether the machine shows a GPU of NVIDIA at all. Looks at device files only.
bool has_device_file();

/// What runs models, and why nothing faster does.
struct BackendChoice {
  std::string name = "cpu";  ///< or "cuda"
  std::string cuda;          ///< the device that computes, or why none does
  bool idle_gpu = false;     ///< the machine shows a GPU that does not compute: worth a warning
  std::shared_ptr<BackendLibrary> library;  ///< of "cuda", else null
  DeviceProperties device;                  ///< of "cuda"
};

/// `asked` is auto, cpu or cuda. auto looks for the GPU `device_idx` where `device_present` says
/// that there may be one, and loads nothing elsewhere; it takes the CPU all the same and says what
/// it found, since no GPU has run the CUDA engine yet. cuda takes the GPU if it passes the self
/// test; what keeps it from that is an error: kNotFound, kFailedPrecondition, kUnavailable,
/// kInvalidArgument, or those of the self test (field model.backend or model.device). Opens no
/// session.
Result<BackendChoice> choose_backend(const std::string& asked, std::int64_t device_idx,
                                     bool device_present,
                                     const std::vector<std::string>& library_files);

}  // namespace quire::cuda
