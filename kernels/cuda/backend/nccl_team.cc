#include "kernels/cuda/backend/nccl_team.h"

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kernels/cuda/hardware_status.h"

namespace quire::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
/// How long a lost rank may stay unnoticed by ranks that wait for it.
constexpr std::chrono::milliseconds kLook{20};

/// The functions that are used of the library, which stays loaded.
struct Nccl {
  decltype(&ncclCommInitAll) comm_init_all;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;

  static Result<Nccl> load() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      return Status::precondition(std::string(kLibrary) + " cannot be loaded (" +
                                  (why != nullptr ? why : "no reason given") +
                                  "), which several GPUs need: install NCCL 2 (libnccl2), or put "
                                  "its folder in LD_LIBRARY_PATH");
    }
    Nccl out{};
    std::string missing;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, name));
      if (function == nullptr && missing.empty()) missing = name;
    };
    find("ncclCommInitAll", out.comm_init_all);
    find("ncclCommDestroy", out.comm_destroy);
    find("ncclCommAbort", out.comm_abort);
    find("ncclCommGetAsyncError", out.comm_get_async_error);
    find("ncclGetErrorString", out.get_error_string);
    find("ncclGroupStart", out.group_start);
    find("ncclGroupEnd", out.group_end);
    find("ncclBroadcast", out.broadcast);
    find("ncclAllGather", out.all_gather);
    find("ncclSend", out.send);
    find("ncclRecv", out.recv);
    if (missing.empty()) return out;
    return Status::precondition(std::string(kLibrary) + " has no " + missing +
                                ": several GPUs need NCCL 2.7 or newer");
  }
};

cudaStream_t native(StreamHandle stream) { return static_cast<cudaStream_t>(stream.stream); }

}  // namespace

struct NcclTeam::Impl {
  Nccl nccl;
  std::vector<Rank> ranks;
  std::vector<ncclComm_t> comms;
  std::mutex mu;  // one call at a time; guards comms
  Status loss;    // set once, before `lost`
  std::atomic<bool> lost{false};
  std::condition_variable stops;
  bool stopping = false;  // guarded by mu
  std::thread looks;

  int count() const { return static_cast<int>(ranks.size()); }

  /// Ends all copies, so that nobody waits for a rank that is gone. Call it with mu held.
  Status lose(const std::string& why) {
    if (lost.load(std::memory_order_acquire)) return loss;
    loss = Status(Code::kDeviceLost, "the GPUs of model.tensor_parallel lost each other: " + why);
    lost.store(true, std::memory_order_release);
    for (ncclComm_t& comm : comms) {
      if (comm != nullptr) (void)nccl.comm_abort(std::exchange(comm, nullptr));
    }
    return loss;
  }

  /// Makes the calls as one group. Calls that fail half-way leave ranks that wait for each other.
  ///
  /// Groups of all teams are launched one after the other: two teams on the same GPUs whose copies
  /// start in another order on each could wait for each other.
  template <class Calls>
  Status group(Calls calls) {
    static std::mutex launches;
    std::scoped_lock lock(launches, mu);
    if (lost.load(std::memory_order_acquire)) return loss;
    ncclResult_t first = nccl.group_start();
    if (first == ncclSuccess) {
      first = calls();
      const ncclResult_t end = nccl.group_end();
      if (first == ncclSuccess) first = end;
    }
    return first == ncclSuccess ? Status() : lose(nccl.get_error_string(first));
  }

  /// Returns why a rank is lost; empty: none is.
  std::string look() {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = nccl.comm_get_async_error(comms[r], &error);
      if (asked != ncclSuccess || (error != ncclSuccess && error != ncclInProgress))
        return nccl.get_error_string(asked != ncclSuccess ? asked : error);
      cudaError_t state = cudaSetDevice(ranks[r].device);
      if (state == cudaSuccess) state = cudaStreamQuery(native(ranks[r].stream));
      if (state == cudaSuccess || state == cudaErrorNotReady) continue;
      return cuda_status(state, ("GPU " + std::to_string(ranks[r].device)).c_str()).message();
    }
    return {};
  }
  void keep_looking() {
    std::unique_lock lock(mu);
    while (!stops.wait_for(lock, kLook, [this] { return stopping; })) {
      const std::string why = look();
      if (why.empty()) continue;
      (void)lose(why);
      return;
    }
  }
};

NcclTeam::NcclTeam(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<NcclTeam>> NcclTeam::open(std::vector<Rank> ranks) {
  auto impl = std::make_unique<Impl>();
  QUIRE_ASSIGN_OR_RETURN(impl->nccl, Nccl::load());
  impl->ranks = std::move(ranks);
  std::vector<int> devices;
  for (const Rank& rank : impl->ranks) devices.push_back(rank.device);
  std::vector<ncclComm_t> comms(devices.size());
  const ncclResult_t made = impl->nccl.comm_init_all(comms.data(), impl->count(), devices.data());
  if (made != ncclSuccess)
    return Status::internal(std::string("connecting the GPUs: ") +
                            impl->nccl.get_error_string(made));
  impl->comms = std::move(comms);
  Impl* const raw = impl.get();
  impl->looks = std::thread([raw] { raw->keep_looking(); });
  return std::unique_ptr<NcclTeam>(new NcclTeam(std::move(impl)));
}

NcclTeam::~NcclTeam() {
  for (const Rank& rank : impl_->ranks) {
    (void)cudaSetDevice(rank.device);
    (void)cudaStreamSynchronize(native(rank.stream));
  }
  {
    std::lock_guard lock(impl_->mu);
    impl_->stopping = true;
  }
  impl_->stops.notify_all();
  impl_->looks.join();
  for (const ncclComm_t comm : impl_->comms) {
    if (comm != nullptr) (void)impl_->nccl.comm_destroy(comm);
  }
}

Status NcclTeam::broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) {
  if (to.size() != impl_->ranks.size()) return Status::invalid("to", "one address a rank");
  if (bytes == 0) return {};
  return impl_->group([&] {
    ncclResult_t result = ncclSuccess;
    for (std::size_t r = 0; r < to.size() && result == ncclSuccess; ++r) {
      // In place on the leader, which is not written to.
      void* const there = r == 0 ? const_cast<void*>(from) : to[r];
      result = impl_->nccl.broadcast(there, there, static_cast<std::size_t>(bytes), ncclUint8, 0,
                                     impl_->comms[r], native(impl_->ranks[r].stream));
    }
    return result;
  });
}

Status NcclTeam::gather(std::span<const Part> parts) {
  if (parts.size() != impl_->ranks.size()) return Status::invalid("parts", "one a rank");
  return impl_->group([&] {
    ncclResult_t result = ncclSuccess;
    for (std::size_t r = 1; r < parts.size() && result == ncclSuccess; ++r) {
      const Part& part = parts[r];
      if (part.bytes == 0) continue;
      const auto bytes = static_cast<std::size_t>(part.bytes);
      result = impl_->nccl.send(part.from, bytes, ncclUint8, 0, impl_->comms[r],
                                native(impl_->ranks[r].stream));
      if (result != ncclSuccess) break;
      result = impl_->nccl.recv(part.to, bytes, ncclUint8, static_cast<int>(r), impl_->comms[0],
                                native(impl_->ranks[0].stream));
    }
    return result;
  });
}

Status NcclTeam::all_gather(std::span<std::byte* const> whole,
                            std::span<const std::int64_t> begin) {
  if (whole.size() != impl_->ranks.size() || begin.size() != whole.size() + 1)
    return Status::invalid("whole", "one address a rank");
  const std::int64_t first = begin[1] - begin[0];
  bool even = true;
  for (std::size_t r = 0; r < whole.size(); ++r) even = even && begin[r + 1] - begin[r] == first;
  return impl_->group([&] {
    ncclResult_t result = ncclSuccess;
    for (std::size_t r = 0; r < whole.size() && result == ncclSuccess; ++r) {
      const cudaStream_t stream = native(impl_->ranks[r].stream);
      if (even && first > 0) {
        result = impl_->nccl.all_gather(whole[r] + begin[r], whole[r],
                                        static_cast<std::size_t>(first), ncclUint8, impl_->comms[r],
                                        stream);
        continue;
      }
      for (std::size_t root = 0; root < whole.size() && result == ncclSuccess; ++root) {
        const std::int64_t bytes = begin[root + 1] - begin[root];
        std::byte* const part = whole[r] + begin[root];
        if (bytes > 0)
          result = impl_->nccl.broadcast(part, part, static_cast<std::size_t>(bytes), ncclUint8,
                                         static_cast<int>(root), impl_->comms[r], stream);
      }
    }
    return result;
  });
}

Status NcclTeam::status() const {
  return impl_->lost.load(std::memory_order_acquire) ? impl_->loss : Status();
}

}  // namespace quire::cuda

#else  // no nccl.h

namespace quire::cuda {

struct NcclTeam::Impl {};
NcclTeam::NcclTeam(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclTeam::~NcclTeam() = default;
Result<std::unique_ptr<NcclTeam>> NcclTeam::open(std::vector<Rank>) {
  return Status::unimplemented(
      "libquire_cuda.so was built without nccl.h, which several GPUs need: install the header of "
      "NCCL 2 (libnccl-dev) and build it again");
}
Status NcclTeam::broadcast(const void*, std::span<void* const>, std::int64_t) { return status(); }
Status NcclTeam::gather(std::span<const Part>) { return status(); }
Status NcclTeam::all_gather(std::span<std::byte* const>, std::span<const std::int64_t>) {
  return status();
}
Status NcclTeam::status() const { return Status::unimplemented("there is no NCCL"); }

}  // namespace quire::cuda

#endif
