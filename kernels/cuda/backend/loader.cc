#include "kernels/cuda/backend/loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "kernels/cuda/backend/entry.h"

namespace quire::cuda {
namespace {

template <std::size_t kBytes>
std::string text_of(const char (&chars)[kBytes]) {
  return std::string(chars, strnlen(chars, kBytes));
}

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};

Status status_of(std::int32_t code, const std::string& message) {
  if (code == 0) return {};
  return Status(code > 0 && code <= static_cast<std::int32_t>(Code::kInternal)
                    ? static_cast<Code>(code)
                    : Code::kInternal,
                message);
}

/// A session of the loaded library.
class LoadedOps final : public DeviceOps {
 public:
  LoadedOps(std::shared_ptr<BackendLibrary> library, const QuireCudaEntry* entry,
            QuireCudaSession* session, std::string description)
      : library_(std::move(library)),
        entry_(entry),
        session_(session),
        description_(std::move(description)) {}
  ~LoadedOps() override { entry_->close(session_); }

  std::string description() const override { return description_; }
  Result<MemoryInfo> memory() override {
    MemoryInfo info;
    QUIRE_RETURN_IF_ERROR(call([&](QuireCudaMessage* m) {
      return entry_->memory(session_, &info.free_bytes, &info.total_bytes, m);
    }));
    return info;
  }
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    void* p = nullptr;
    QUIRE_RETURN_IF_ERROR(call([&](QuireCudaMessage* m) {
      return entry_->allocate(session_, static_cast<std::uint32_t>(kind), bytes, &p, m);
    }));
    return p;
  }
  Status release(MemoryKind kind, void* p) override {
    return call([&](QuireCudaMessage* m) {
      return entry_->release(session_, static_cast<std::uint32_t>(kind), p, m);
    });
  }
  Status synchronize() override {
    return call([&](QuireCudaMessage* m) { return entry_->synchronize(session_, m); });
  }
  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override {
    return call([&](QuireCudaMessage* m) {
      return entry_->enqueue(session_, static_cast<std::uint32_t>(code), args, bytes, m);
    });
  }

 private:
  template <class Call>
  Status call(Call make) {
    std::lock_guard lock(mu_);
    QuireCudaMessage message;
    message.text[0] = 0;
    const std::int32_t code = make(&message);
    return code == 0 ? Status() : status_of(code, text_of(message.text));
  }
  const std::shared_ptr<BackendLibrary> library_;
  const QuireCudaEntry* const entry_;
  QuireCudaSession* const session_;
  const std::string description_;
  std::mutex mu_;  // one call at a time
};

class LoadedLibrary final : public BackendLibrary {
 public:
  LoadedLibrary(std::string file, std::unique_ptr<void, CloseLibrary> handle,
                const QuireCudaEntry* entry)
      : file_(std::move(file)), handle_(std::move(handle)), entry_(entry) {}

  const std::string& file() const override { return file_; }

  DeviceReport probe() const override {
    auto raw = std::make_unique<QuireCudaReport>();
    entry_->probe(raw.get());
    DeviceReport out;
    out.driver_version = raw->driver_version;
    out.toolkit_version = raw->toolkit_version;
    out.error = text_of(raw->error);
    for (std::int32_t i = 0; i < std::min<std::int32_t>(raw->num_devices, QUIRE_CUDA_MOST_DEVICES);
         ++i) {
      const QuireCudaDevice& d = raw->devices[i];
      out.devices.push_back({.index = d.index,
                             .name = text_of(d.name),
                             .major = d.major,
                             .minor = d.minor,
                             .multiprocessors = d.multiprocessors,
                             .threads_per_multiprocessor = d.threads_per_multiprocessor,
                             .shared_bytes_per_block = d.shared_bytes_per_block,
                             .shared_bytes_per_multiprocessor = d.shared_bytes_per_multiprocessor,
                             .l2_bytes = d.l2_bytes,
                             .total_bytes = d.total_bytes});
    }
    return out;
  }

  Status self_test(const DeviceProperties& device) const override {
    char message[512] = {};
    const std::int32_t code = entry_->self_test(device.index, message, sizeof message);
    return status_of(code, text_of(message));
  }

  Result<std::shared_ptr<DeviceOps>> open(const DeviceProperties& device) override {
    QuireCudaMessage message;
    message.text[0] = 0;
    QuireCudaSession* session = nullptr;
    const std::int32_t code = entry_->open(device.index, &session, &message);
    QUIRE_RETURN_IF_ERROR(status_of(code, text_of(message.text)));
    return std::shared_ptr<DeviceOps>(
        std::make_shared<LoadedOps>(shared_from_this(), entry_, session, describe(device)));
  }

 private:
  const std::string file_;
  const std::unique_ptr<void, CloseLibrary> handle_;
  const QuireCudaEntry* const entry_;
};

Result<BackendChoice> cuda_choice(std::int64_t device_idx,
                                  const std::vector<std::string>& library_files) {
  QUIRE_ASSIGN_OR_RETURN(auto library, BackendLibrary::load(library_files));
  QUIRE_ASSIGN_OR_RETURN(const DeviceProperties device,
                         choose_device(library->probe(), device_idx));
  QUIRE_RETURN_IF_ERROR(library->self_test(device));
  return BackendChoice{
      .name = "cuda", .cuda = describe(device), .library = std::move(library), .device = device};
}

}  // namespace

Result<std::shared_ptr<BackendLibrary>> BackendLibrary::load(
    const std::vector<std::string>& files) {
  std::string looked;
  for (const std::string& file : files) {
    if (access(file.c_str(), F_OK) != 0) {
      looked += (looked.empty() ? "" : ", ") + file;
      continue;
    }
    std::unique_ptr<void, CloseLibrary> handle(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (handle == nullptr) return Status::precondition(file + " cannot be loaded: " + dlerror());
    using Entry = const QuireCudaEntry* (*)();
    const auto entry_of = reinterpret_cast<Entry>(dlsym(handle.get(), QUIRE_CUDA_ENTRY_SYMBOL));
    if (entry_of == nullptr)
      return Status::precondition(
          file + " is no CUDA backend of this program: it has no " QUIRE_CUDA_ENTRY_SYMBOL);
    const QuireCudaEntry* entry = entry_of();
    if (entry == nullptr || entry->version != QUIRE_CUDA_ENTRY_VERSION ||
        entry->bytes != sizeof(QuireCudaEntry)) {
      return Status::precondition(
          file + " is of another version of this program (its table is version " +
          std::to_string(entry == nullptr ? 0 : entry->version) + ", wanted is " +
          std::to_string(QUIRE_CUDA_ENTRY_VERSION) + "): install both from one build");
    }
    return std::shared_ptr<BackendLibrary>(
        std::make_shared<LoadedLibrary>(file, std::move(handle), entry));
  }
  return Status::not_found("the CUDA backend is not installed (looked for " + looked +
                           "): build with -DQUIRE_CUDA=ON, or name the file in QUIRE_CUDA_LIBRARY");
}

std::vector<std::string> backend_library_files() {
  constexpr const char* kName = "libquire_cuda.so";
  if (const char* named = std::getenv("QUIRE_CUDA_LIBRARY"); named != nullptr && *named != 0)
    return {named};
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) return {};
  const std::string program(path, static_cast<std::size_t>(n)),
      folder = program.substr(0, program.find_last_of('/'));
  return {folder + "/" + kName, folder + "/../lib/" + kName};
}

bool has_device_file() {
  // /dev/dxg exists under WSL
  for (const char* file : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"}) {
    if (access(file, F_OK) == 0) return true;
  }
  return false;
}

Result<BackendChoice> choose_backend(const std::string& asked, std::int64_t device_idx,
                                     bool device_present,
                                     const std::vector<std::string>& library_files) {
  if (asked == "cpu") return BackendChoice{.cuda = "model.backend is cpu"};
  if (asked == "auto" && !device_present)
    return BackendChoice{.cuda = "this machine shows no NVIDIA GPU"};
  auto chosen = cuda_choice(device_idx, library_files);
  if (asked == "auto") {
    return BackendChoice{
        .cuda = chosen.ok() ? chosen->cuda + " is there, and computes when model.backend is cuda"
                            : chosen.status().message(),
        .idle_gpu = true};
  }
  if (chosen.ok()) return chosen;
  const Status& why = chosen.status();
  return Status(why.code(), "model.backend is 'cuda', but " + why.message() + "; use cpu or auto",
                why.field().empty() ? "model.backend" : why.field());
}

}  // namespace quire::cuda
