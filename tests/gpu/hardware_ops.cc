// The device of the engine's tests on hardware. It wraps the session of the loaded library, counts
// its calls and makes them fail like the emulated device.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/backend/loader.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::simt {
namespace {

using namespace quire::cuda;

class HardwareOps final : public EmulatedOps {
 public:
  HardwareOps(std::shared_ptr<DeviceOps> session, const EmulatedOpsOptions& options)
      : session_(std::move(session)), options_(options) {}

  std::string description() const override { return session_->description(); }
  Result<MemoryInfo> memory() override {
    if (lost_) return lost();
    std::lock_guard lock(mu_);
    return MemoryInfo{options_.memory_bytes - in_use_, options_.memory_bytes};
  }
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    if (lost_) return lost();
    std::lock_guard lock(mu_);
    const bool fails = failing_ == 0;
    if (failing_ >= 0) --failing_;
    const bool counts = kind != MemoryKind::kPinned;
    if (fails || (counts && in_use_ + bytes > options_.memory_bytes))
      return Status::exhausted("the test's share of the device has no " + std::to_string(bytes) +
                               " bytes left");
    QUIRE_ASSIGN_OR_RETURN(void* p, session_->allocate(kind, bytes));
    if (counts) {
      in_use_ += bytes;
      bytes_[p] = bytes;
    }
    return p;
  }
  Status release(MemoryKind kind, void* p) override {
    std::lock_guard lock(mu_);
    if (const auto found = bytes_.find(p); found != bytes_.end()) {
      in_use_ -= found->second;
      bytes_.erase(found);
    }
    return session_->release(kind, p);
  }
  Status synchronize() override {
    if (lost_) return lost();
    if (enqueued_.exchange(false)) ++waits_;
    return session_->synchronize();
  }
  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override {
    if (lost_) return lost();
    const bool beside = code == OpCode::kCopyAsync ||
                        (code == OpCode::kGatherRows &&
                         static_cast<const GatherRowsArgs*>(args)->lane == Lane::kCopies);
    if (beside && copies_until_failure_.fetch_sub(1) == 0) return Status::internal("a copy failed");
    ++runs_.at(static_cast<std::size_t>(code));
    if (code == OpCode::kStep)
      QUIRE_RETURN_IF_ERROR(look_at_step(*static_cast<const StepArgs*>(args)));
    enqueued_ = true;
    return session_->enqueue(code, args, bytes);
  }

  std::int64_t runs(OpCode code) const override { return runs_.at(static_cast<std::size_t>(code)); }
  std::int64_t waits() const override { return waits_; }
  std::int64_t bytes_in_use() const override {
    std::lock_guard lock(mu_);
    return in_use_;
  }
  void fail_allocation(std::int64_t n) override {
    std::lock_guard lock(mu_);
    failing_ = n;
  }
  void fail_copy(std::int64_t n) override { copies_until_failure_ = n < 0 ? -1 : n; }
  void fail_recording(bool fails) override { no_recording_ = fails; }
  std::int64_t recordings() const override { return recordings_; }
  void lose() override { lost_ = true; }
  // Mails go by way of the host, one after the other.
  Status send(const void* from, std::int64_t bytes, std::shared_ptr<Mail> mail) override {
    if (lost_) return lost();
    const Pinned pinned(*session_, bytes);
    QUIRE_RETURN_IF_ERROR(pinned.status);
    QUIRE_RETURN_IF_ERROR(session_->run(CopyArgs{pinned.p, from, bytes}));
    QUIRE_RETURN_IF_ERROR(session_->synchronize());
    const auto* begin = static_cast<const std::byte*>(pinned.p);
    mail->bytes.assign(begin, begin + bytes);
    mail->sent = true;
    return {};
  }
  Status receive(void* to, std::int64_t bytes, std::shared_ptr<Mail> mail, EmulatedOps&) override {
    if (lost_) return lost();
    if (!mail->sent) return Status::internal("nothing was sent");
    const Pinned pinned(*session_, bytes);
    QUIRE_RETURN_IF_ERROR(pinned.status);
    std::memcpy(pinned.p, mail->bytes.data(), mail->bytes.size());
    QUIRE_RETURN_IF_ERROR(session_->run(CopyArgs{to, pinned.p, bytes}));
    return session_->synchronize();
  }
  Status run_until_sent(const Mail&) override { return lost_ ? lost() : Status(); }

 private:
  /// Pinned memory for one copy, which is waited for.
  struct Pinned {
    Pinned(DeviceOps& of, std::int64_t bytes) : session(of) {
      auto given = session.allocate(MemoryKind::kPinned, bytes);
      status = given.ok() ? Status() : given.status();
      if (given.ok()) p = *given;
    }
    ~Pinned() {
      if (p != nullptr) (void)session.release(MemoryKind::kPinned, p);
    }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    DeviceOps& session;
    void* p = nullptr;
    Status status;
  };
  /// Counts what the session will record and run.
  Status look_at_step(const StepArgs& step) {
    std::lock_guard lock(mu_);
    auto& version = versions_[step.bucket];
    if (version != step.version) {
      version = 0;
      if (no_recording_) return Status::internal("the recording was invalidated");
      version = step.version;
      ++recordings_;
    }
    for (const StepOp* op = step.ops; op != step.ops + step.num_ops; ++op)
      ++runs_.at(static_cast<std::size_t>(op->code));
    return {};
  }
  static Status lost() { return Status(Code::kDeviceLost, "the device is said to be gone"); }

  const std::shared_ptr<DeviceOps> session_;
  const EmulatedOpsOptions options_;
  mutable std::mutex mu_;
  std::map<void*, std::int64_t> bytes_;             // guarded by mu_
  std::int64_t in_use_ = 0, failing_ = -1;          // guarded by mu_
  std::map<std::int64_t, std::uint64_t> versions_;  // recorded versions, by bucket; guarded by mu_
  std::array<std::atomic<std::int64_t>, 64> runs_{};
  std::atomic<std::int64_t> recordings_{0}, copies_until_failure_{-1};
  std::atomic<bool> no_recording_{false};
  std::atomic<std::int64_t> waits_{0};
  std::atomic<bool> enqueued_{false}, lost_{false};
};

Result<std::shared_ptr<DeviceOps>> open_session() {
  QUIRE_ASSIGN_OR_RETURN(const auto library, BackendLibrary::load(backend_library_files()));
  QUIRE_ASSIGN_OR_RETURN(const DeviceProperties device, choose_device(library->probe(), 0));
  return library->open(device);
}

}  // namespace

std::shared_ptr<EmulatedOps> make_emulated_ops(const EmulatedOpsOptions& options) {
  auto session = open_session();
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().to_string().c_str());
    std::exit(1);  // no test of the engine can go on without a session
  }
  return std::make_shared<HardwareOps>(std::move(*session), options);
}

}  // namespace quire::simt
