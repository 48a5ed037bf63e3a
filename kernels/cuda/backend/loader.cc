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

  QuireCudaSession* session() const { return session_; }
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

/// Connected sessions of the loaded library.
class LoadedTeam final : public Communicator {
 public:
  LoadedTeam(std::vector<std::shared_ptr<LoadedOps>> ranks, const QuireCudaEntry* entry,
             QuireCudaTeam* team)
      : ranks_(std::move(ranks)), entry_(entry), team_(team) {}
  ~LoadedTeam() override { entry_->team_close(team_); }

  Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) override {
    if (to.size() != ranks_.size()) return Status::invalid("to", "one address a rank");
    return told([&](QuireCudaMessage* m) {
      return entry_->team_broadcast(team_, from, to.data(), bytes, m);
    });
  }
  Status gather(std::span<const Part> parts) override {
    if (parts.size() != ranks_.size()) return Status::invalid("parts", "one a rank");
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<std::int64_t> bytes;
    for (const Part& part : parts) {
      from.push_back(part.from);
      to.push_back(part.to);
      bytes.push_back(part.bytes);
    }
    return told([&](QuireCudaMessage* m) {
      return entry_->team_gather(team_, from.data(), to.data(), bytes.data(), m);
    });
  }
  Status all_gather(std::span<std::byte* const> whole,
                    std::span<const std::int64_t> begin) override {
    if (whole.size() != ranks_.size() || begin.size() != ranks_.size() + 1)
      return Status::invalid("whole", "one address a rank");
    const std::vector<void*> arrays(whole.begin(), whole.end());
    return told([&](QuireCudaMessage* m) {
      return entry_->team_all_gather(team_, arrays.data(), begin.data(), m);
    });
  }
  Status status() const override {
    return told([&](QuireCudaMessage* m) { return entry_->team_status(team_, m); });
  }

 private:
  template <class Call>
  static Status told(Call call) {
    QuireCudaMessage message;
    message.text[0] = 0;
    const std::int32_t code = call(&message);
    return code == 0 ? Status() : status_of(code, text_of(message.text));
  }
  const std::vector<std::shared_ptr<LoadedOps>> ranks_;  // closed after the team
  const QuireCudaEntry* const entry_;
  QuireCudaTeam* const team_;
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
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<LoadedOps> opened, open_session(device));
    return std::shared_ptr<DeviceOps>(std::move(opened));
  }

  Result<DeviceTeam> open_team(const std::vector<DeviceProperties>& devices) override {
    DeviceTeam out;
    std::vector<std::shared_ptr<LoadedOps>> ranks;
    std::vector<QuireCudaSession*> sessions;
    for (const DeviceProperties& device : devices) {
      QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<LoadedOps> opened, open_session(device));
      sessions.push_back(opened->session());
      out.devices.push_back(opened);
      ranks.push_back(std::move(opened));
    }
    if (ranks.size() < 2) return out;
    QuireCudaMessage message;
    message.text[0] = 0;
    QuireCudaTeam* team = nullptr;
    const std::int32_t code = entry_->team_open(
        sessions.data(), static_cast<std::int32_t>(sessions.size()), &team, &message);
    if (code != 0) {
      const Status why = status_of(code, text_of(message.text));
      return why.with_context("model.tensor_parallel = " + std::to_string(devices.size()))
          .with_field("model.tensor_parallel");
    }
    out.communicator = std::make_shared<LoadedTeam>(std::move(ranks), entry_, team);
    return out;
  }

 private:
  Result<std::shared_ptr<LoadedOps>> open_session(const DeviceProperties& device) {
    QuireCudaMessage message;
    message.text[0] = 0;
    QuireCudaSession* session = nullptr;
    const std::int32_t code = entry_->open(device.index, &session, &message);
    QUIRE_RETURN_IF_ERROR(status_of(code, text_of(message.text)));
    return std::make_shared<LoadedOps>(shared_from_this(), entry_, session, describe(device));
  }

  const std::string file_;
  const std::unique_ptr<void, CloseLibrary> handle_;
  const QuireCudaEntry* const entry_;
};

Result<BackendChoice> cuda_choice(std::int64_t device_idx,
                                  const std::vector<std::string>& library_files,
                                  std::int64_t count) {
  QUIRE_ASSIGN_OR_RETURN(auto library, BackendLibrary::load(library_files));
  const DeviceReport report = library->probe();
  BackendChoice out{.name = "cuda"};
  for (std::int64_t i = device_idx; i < device_idx + count; ++i) {
    auto device = choose_device(report, i);
    if (!device.ok() && i > device_idx)
      return Status(device.code(),
                    "model.tensor_parallel = " + std::to_string(count) + " asks for the GPUs " +
                        std::to_string(device_idx) + " to " +
                        std::to_string(device_idx + count - 1) + ", but " +
                        device.status().message(),
                    "model.tensor_parallel");
    if (!device.ok()) return device.status();
    QUIRE_RETURN_IF_ERROR(library->self_test(*device));
    out.cuda += (out.cuda.empty() ? "" : ", ") + describe(*device);
    out.devices.push_back(std::move(*device));
  }
  out.library = std::move(library);
  return out;
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
                                     const std::vector<std::string>& library_files,
                                     std::int64_t count) {
  constexpr const char* kCount = "model.tensor_parallel";
  if (count < 1) return Status::invalid(kCount, "model.tensor_parallel must be at least 1");
  if (count > 1 && asked != "cuda")
    return Status::invalid(kCount, "model.tensor_parallel = " + std::to_string(count) +
                                       " needs as many GPUs, but model.backend is '" + asked +
                                       "', with which the CPU computes; set it to cuda, or "
                                       "model.tensor_parallel to 1");
  if (asked == "cpu") return BackendChoice{.cuda = "model.backend is cpu"};
  if (asked == "auto" && !device_present)
    return BackendChoice{.cuda = "this machine shows no NVIDIA GPU"};
  auto chosen = cuda_choice(device_idx, library_files, count);
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
