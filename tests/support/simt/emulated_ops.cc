#include "tests/support/simt/emulated_ops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/attention/attention_scores.cuh"
#include "kernels/cuda/attention/attention_statistics.cuh"
#include "kernels/cuda/attention/voted_lists.cuh"
#include "kernels/cuda/choice/candidates.cuh"
#include "kernels/cuda/choice/page_choice.cuh"
#include "kernels/cuda/choice/page_slots.cuh"
#include "kernels/cuda/choice/pages.cuh"
#include "kernels/cuda/choice/sampling.cuh"
#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/four_bits.cuh"
#include "kernels/cuda/matmul/projections.cuh"
#include "kernels/cuda/rows/kv.cuh"
#include "kernels/cuda/rows/kv_gather.cuh"
#include "kernels/cuda/rows/kv_tables.cuh"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/cuda/rows/samkv.cuh"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/simt.h"

namespace quire::simt {
namespace {

using namespace quire::cuda;

constexpr std::size_t kAlignment = 256;
constexpr int kNaNs = 0xff;

/// Returns the dot product of a row of x and a row of w in eight partial sums, or one after the
/// other.
float dot(const float* a, const float* b, std::int64_t k, bool in_order) {
  if (in_order) {
    float sum = 0;
    for (std::int64_t c = 0; c < k; ++c) sum += a[c] * b[c];
    return sum;
  }
  float sums[8] = {};
  std::int64_t c = 0;
  for (; c + 8 <= k; c += 8) {
    for (int i = 0; i < 8; ++i) sums[i] += a[c + i] * b[c + i];
  }
  for (; c < k; ++c) sums[0] += a[c] * b[c];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void widen(const void* from, DType dtype, std::int64_t n, std::vector<float>& out) {
  out.resize(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) out[static_cast<std::size_t>(i)] = load_f32(from, dtype, i);
}

class EmulatedDevice final : public EmulatedOps {
 public:
  explicit EmulatedDevice(const EmulatedOpsOptions& options)
      : options_(options),
        mu_(options.lock ? options.lock : std::make_shared<std::recursive_mutex>()) {}
  ~EmulatedDevice() override {
    for (const auto& [p, block] : blocks_) {
      if (block.kind == MemoryKind::kPinned) std::free(p);
    }
  }

  std::string description() const override { return "an emulated device"; }
  Result<MemoryInfo> memory() override {
    std::lock_guard lock(*mu_);
    if (lost_) return lost();
    return MemoryInfo{options_.memory_bytes - in_use_, options_.memory_bytes};
  }

  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    std::lock_guard lock(*mu_);
    if (lost_) return lost();
    const bool fails = failing_ == 0;
    if (failing_ >= 0) --failing_;
    const bool counts = kind != MemoryKind::kPinned;
    if (fails || (counts && in_use_ + bytes > options_.memory_bytes))
      return Status::exhausted("the emulated device has no " + std::to_string(bytes) +
                               " bytes left");
    const std::size_t size = (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment *
                             kAlignment;
    void* p = kind == MemoryKind::kPinned ? std::aligned_alloc(kAlignment, size)
                                          : arena_.take(size);
    if (p == nullptr) return Status::exhausted("no memory");
    const Arena::Open works(arena_);
    std::memset(p, kNaNs, size);
    blocks_[p] = {kind, bytes};
    if (counts) in_use_ += bytes;
    // The device can access pinned memory, so it is registered too.
    global_.add(memory_kind_name(kind), p, static_cast<std::size_t>(bytes), Access::kReadWrite);
    return p;
  }

  Status release(MemoryKind kind, void* p) override {
    std::lock_guard lock(*mu_);
    if (!idle()) return Status::internal("memory is released while work is enqueued");
    const auto found = blocks_.find(p);
    if (found == blocks_.end() || found->second.kind != kind)
      return Status::internal("memory is released that is not the device's, or of another kind");
    if (kind != MemoryKind::kPinned) in_use_ -= found->second.bytes;
    global_.remove(p);
    const Arena::Open works(arena_);
    std::memset(p, kNaNs, static_cast<std::size_t>(found->second.bytes));
    if (kind == MemoryKind::kPinned)
      std::free(p);
    else
      arena_.give(p, (static_cast<std::size_t>(found->second.bytes) + kAlignment - 1) / kAlignment *
                         kAlignment);
    blocks_.erase(found);
    return {};
  }

  Status synchronize() override {
    std::lock_guard lock(*mu_);
    if (lost_) return lost();
    if (!idle()) ++waits_;
    return run_until([this] { return idle(); });
  }

  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override {
    std::lock_guard lock(*mu_);
    if (lost_) return lost();
    ++runs_[static_cast<std::size_t>(code)];
    return visit_op(code, args, bytes, [&](const auto& a) { return take(a, code, args, bytes); });
  }

  std::int64_t runs(OpCode code) const override {
    std::lock_guard lock(*mu_);
    return runs_[static_cast<std::size_t>(code)];
  }
  std::int64_t waits() const override {
    std::lock_guard lock(*mu_);
    return waits_;
  }
  std::int64_t bytes_in_use() const override {
    std::lock_guard lock(*mu_);
    return in_use_;
  }
  void fail_allocation(std::int64_t n) override {
    std::lock_guard lock(*mu_);
    failing_ = n;
  }
  void fail_copy(std::int64_t n) override {
    std::lock_guard lock(*mu_);
    failing_copy_ = n;
  }
  void fail_recording(bool fails) override {
    std::lock_guard lock(*mu_);
    no_recording_ = fails;
  }
  std::int64_t recordings() const override {
    std::lock_guard lock(*mu_);
    return recordings_;
  }
  void lose() override {
    std::lock_guard lock(*mu_);
    lost_ = true;
  }
  Status send(const void* from, std::int64_t bytes, std::shared_ptr<Mail> mail) override {
    return call([this, from, bytes, mail = std::move(mail)] {
      QUIRE_RETURN_IF_ERROR(owned(from, bytes, "what is sent"));
      const auto* begin = static_cast<const std::byte*>(from);
      mail->bytes.assign(begin, begin + bytes);
      mail->sent = true;
      return Status();
    });
  }
  Status receive(void* to, std::int64_t bytes, std::shared_ptr<Mail> mail,
                 EmulatedOps& sender) override {
    return call([this, to, bytes, mail = std::move(mail), &sender] {
      QUIRE_RETURN_IF_ERROR(owned(to, bytes, "the place of what is received"));
      QUIRE_RETURN_IF_ERROR(sender.run_until_sent(*mail));
      if (static_cast<std::int64_t>(mail->bytes.size()) != bytes)
        return Status::internal("a device received another number of bytes than was sent");
      std::memcpy(to, mail->bytes.data(), mail->bytes.size());
      return Status();
    });
  }
  Status run_until_sent(const Mail& mail) override {
    std::lock_guard lock(*mu_);
    if (mail.sent) return {};
    if (lost_) return lost();
    if (running_) return Status::internal("devices wait for each other");
    return run_until([&mail] { return mail.sent; });
  }

 private:
  struct Block {
    MemoryKind kind;
    std::int64_t bytes;
  };
  struct Work {
    OpCode code;
    std::vector<std::byte> args;
    std::int64_t event = 0;        ///< the recording of the event that this is or waits for
    std::function<Status()> call;  ///< instead of an operation
  };
  struct Recorded {
    std::uint64_t version;
    std::vector<Work> ops;
  };
  static Status lost() { return Status(Code::kDeviceLost, "the emulated device is gone"); }

  std::deque<Work>& of(Lane lane) { return lanes_.at(static_cast<std::size_t>(lane)); }
  bool idle() const {
    return std::ranges::all_of(lanes_, [](const auto& queue) { return queue.empty(); });
  }
  static Work work(OpCode code, const void* args, std::int64_t bytes) {
    Work out{code, std::vector<std::byte>(static_cast<std::size_t>(bytes))};
    std::memcpy(out.args.data(), args, out.args.size());
    return out;
  }

  Status call(std::function<Status()> function) {
    std::lock_guard lock(*mu_);
    if (lost_) return lost();
    Work work{OpCode::kNone, {}};
    work.call = std::move(function);
    of(Lane::kCompute).push_back(std::move(work));
    return {};
  }

  // take() enqueues an operation.
  template <class Args>
  Status take(const Args&, OpCode code, const void* args, std::int64_t bytes) {
    of(Lane::kCompute).push_back(work(code, args, bytes));
    return {};
  }
  Status take_copy(Lane lane, OpCode code, const void* args, std::int64_t bytes) {
    const bool beside = lane != Lane::kCompute, fails = beside && failing_copy_ == 0;
    if (beside && failing_copy_ >= 0) --failing_copy_;
    if (fails) return Status::internal("a copy failed");
    of(lane).push_back(work(code, args, bytes));
    return {};
  }
  Status take(const CopyAsyncArgs& a, OpCode code, const void* args, std::int64_t bytes) {
    return take_copy(a.lane, code, args, bytes);
  }
  Status take(const GatherRowsArgs& a, OpCode code, const void* args, std::int64_t bytes) {
    return take_copy(a.lane, code, args, bytes);
  }
  Status take(const FillSlotsOnArgs& a, OpCode code, const void* args, std::int64_t bytes) {
    of(a.lane).push_back(work(code, args, bytes));
    return {};
  }
  static Status check_event(std::int32_t event) {
    return event >= 0 && event < kEvents
               ? Status()
               : Status::invalid("event", "there is no event " + std::to_string(event));
  }
  Status take(const RecordEventArgs& a, OpCode code, const void* args, std::int64_t bytes) {
    QUIRE_RETURN_IF_ERROR(check_event(a.event));
    of(a.lane).push_back(work(code, args, bytes));
    of(a.lane).back().event = events_.at(static_cast<std::size_t>(a.event)) = ++settings_;
    return {};
  }
  Status take(const HoldArgs& a, OpCode code, const void* args, std::int64_t bytes) {
    QUIRE_RETURN_IF_ERROR(check_event(a.event));
    of(a.lane).push_back(work(code, args, bytes));
    of(a.lane).back().event = events_.at(static_cast<std::size_t>(a.event));
    return {};
  }
  Status take(const WaitEventArgs& a, OpCode, const void*, std::int64_t) {
    QUIRE_RETURN_IF_ERROR(check_event(a.event));
    const std::int64_t setting = events_.at(static_cast<std::size_t>(a.event));
    return run_until([this, setting] { return passed(setting); });
  }
  Status take(const StepArgs& a, OpCode, const void*, std::int64_t) {
    auto found = graphs_.find(a.bucket);
    if (found == graphs_.end() || found->second.version != a.version) {
      if (found != graphs_.end()) graphs_.erase(found);
      if (no_recording_) return Status::internal("the recording was invalidated");
      QUIRE_RETURN_IF_ERROR(check_lanes(a));
      Recorded recorded{a.version, {}};
      for (const StepOp* op = a.ops; op != a.ops + a.num_ops; ++op)
        recorded.ops.push_back(work(op->code, op->args, op->bytes));
      found = graphs_.emplace(a.bucket, std::move(recorded)).first;
      ++recordings_;
    }
    for (const Work& op : found->second.ops) {
      ++runs_[static_cast<std::size_t>(op.code)];
      of(Lane::kCompute).push_back(op);
    }
    return {};
  }

  /// Returns the stream that runs an operation other than events.
  static Lane lane_of(OpCode code, const void* args) {
    if (code == OpCode::kFillSlots) return static_cast<const FillSlotsOnArgs*>(args)->lane;
    if (code == OpCode::kGatherRows) return static_cast<const GatherRowsArgs*>(args)->lane;
    if (code == OpCode::kCopyAsync) return static_cast<const CopyAsyncArgs*>(args)->lane;
    return Lane::kCompute;
  }
  /// A recording is of one stream. What runs on another one must begin after an event of the
  /// recording, and the recording must wait for it.
  static Status check_lanes(const StepArgs& a) {
    using Counts = std::array<std::int64_t, kLanes>;  // operations, by lane
    std::array<Counts, kLanes> before{};              // what each lane comes after, and its own
    std::array<bool, kLanes> begun{true};
    std::map<std::int32_t, Counts> recorded;  // by event
    for (const StepOp* op = a.ops; op != a.ops + a.num_ops; ++op) {
      if (op->code == OpCode::kRecordEvent) {
        const auto& record = *static_cast<const RecordEventArgs*>(op->args);
        const auto lane = static_cast<std::size_t>(record.lane);
        if (begun[lane])
          recorded[record.event] = before[lane];
        else
          recorded.erase(record.event);
      } else if (op->code == OpCode::kHold) {
        const auto& hold = *static_cast<const HoldArgs*>(op->args);
        const auto event = recorded.find(hold.event);
        if (event == recorded.end())
          return Status::internal("the recording waits for what is not in it");
        const auto lane = static_cast<std::size_t>(hold.lane);
        begun[lane] = true;
        for (std::size_t i = 0; i < kLanes; ++i)
          before[lane][i] = std::max(before[lane][i], event->second[i]);
      } else {
        const auto lane = static_cast<std::size_t>(lane_of(op->code, op->args));
        if (!begun[lane]) return Status::internal("the recording is not of that stream");
        ++before[lane][lane];
      }
    }
    for (std::size_t i = 0; i < kLanes; ++i) {
      if (before[0][i] != before[i][i])
        return Status::internal("the recording does not wait for all its work");
    }
    return {};
  }

  bool passed(std::int64_t setting) const {
    return setting == 0 || settings_passed_.contains(setting);
  }
  /// Returns whether the stream's next operation may run.
  bool ready(Lane lane) {
    const std::deque<Work>& queue = of(lane);
    return !queue.empty() && (queue.front().code != OpCode::kHold || passed(queue.front().event));
  }
  /// Runs one operation after the other until `done`, each time of the first stream that can.
  template <class Done>
  Status run_until(Done done) {
    std::array<Lane, kLanes> order = {Lane::kCompute, Lane::kCopies, Lane::kDownloads};
    if (options_.copies == Copies::kEarly) std::ranges::reverse(order);
    if (done()) return {};
    const Arena::Open works(arena_);
    struct Running {
      bool& flag;
      ~Running() { flag = false; }
    } running{running_};
    running_ = true;
    while (!done()) {
      const auto lane = std::ranges::find_if(order, [this](Lane l) { return ready(l); });
      if (lane == order.end()) return Status::internal("the lanes wait for each other");
      const Work next = std::move(of(*lane).front());
      of(*lane).pop_front();
      if (next.code == OpCode::kRecordEvent) settings_passed_.insert(next.event);
      if (next.code == OpCode::kRecordEvent || next.code == OpCode::kHold) continue;
      const Status status = next.call
                                ? next.call()
                                : visit_op(next.code, next.args.data(),
                                           static_cast<std::int64_t>(next.args.size()),
                                           [this](const auto& args) { return execute(args); });
      if (status.ok()) continue;
      for (auto& queue : lanes_) drop(queue);
      return status;
    }
    return {};
  }
  /// Drops the operations that were enqueued before an error; their events count as passed.
  void drop(std::deque<Work>& queue) {
    for (const Work& one : queue) {
      if (one.code == OpCode::kRecordEvent) settings_passed_.insert(one.event);
    }
    queue.clear();
  }

  template <class Launch>
  Status kernel(Launch launch) {
    Launcher launcher(global_);
    return launch(launcher);
  }
#define QUIRE_PLAIN(code, Args, function)                                \
  Status execute(const Args& a) {                                        \
    return kernel([&](Launcher& l) { return launch_##function(l, a); }); \
  }
#define QUIRE_TABLE(code, Args, function, member)                                        \
  Status execute(const Args& a) {                                                        \
    return kernel([&](Launcher& l) { return launch_##function(l, a.table, a.member); }); \
  }
  QUIRE_CUDA_OPS(QUIRE_PLAIN, QUIRE_TABLE, QUIRE_CUDA_NO_ROW)
#undef QUIRE_PLAIN
#undef QUIRE_TABLE
  Status execute(const Int8GemvArgs& a) {
    Int8GemvArgs chosen = a;
    if (a.warps == 0) chosen.warps = warps_for(dividing_outputs(a));
    return kernel([&](Launcher& l) { return launch_int8_gemv(l, chosen); });
  }
  Status execute(const GroupedProductArgs& a) {
    GroupedProductArgs chosen = a;
    choose_splits(chosen.rows, a.weight);
    return kernel([&](Launcher& l) { return launch_grouped_product(l, chosen); });
  }
  Status execute(const Int8ProductArgs& a) {
    Int8ProductArgs chosen = a;
    choose_splits(chosen.rows, a.weight);
    return kernel([&](Launcher& l) { return launch_int8_product(l, chosen); });
  }
  template <class Weights>
  static void choose_splits(FewRowsArgs& rows, const Weights& w) {
    if (rows.splits == 0)
      rows.splits = dividing_outputs(w) < kFewOutputs
                        ? static_cast<std::int32_t>(few_rows_most_splits(dividing_outputs(w), w.k))
                        : 1;
  }
  /// As on hardware, the outputs of a matrix decide how its sums are divided.
  static std::int32_t warps_for(std::int64_t outputs) { return outputs < kFewOutputs ? 2 : 1; }
  static constexpr std::int64_t kFewOutputs = 128;
  Status execute(const GroupedGemvArgs& a) {
    GroupedGemvArgs chosen = a;
    if (a.warps == 0) chosen.warps = warps_for(dividing_outputs(a.weight));
    return kernel([&](Launcher& l) { return launch_grouped_gemv(l, chosen); });
  }
  Status execute(const SampleArgs& a) {
    SampleArgs chosen = a;
    if (a.parts == 0) chosen.parts = a.scratch != nullptr ? 2 : 1;
    return kernel([&](Launcher& l) { return launch_sample(l, chosen); });
  }
  Status execute(const GatherRowsArgs& a) {
    return kernel([&](Launcher& l) { return launch_kv_gather(l, a.rows); });
  }
  Status execute(const FillSlotsOnArgs& a) {
    return kernel([&](Launcher& l) { return launch_fill_slots(l, a.slots); });
  }
  Status execute(const DecodeAttentionArgs& a) {
    return kernel([&](Launcher& l) {
      const KvView& kv = a.attention.kv;
      return with_kv_element(kv.dtype, kv.head_dim, "kv.dtype",
                             [&]<class E>(E) { return launch_decode_attention<E>(l, a); });
    });
  }
  Status execute(const PrefillAttentionArgs& a) {
    return kernel([&](Launcher& l) {
      const KvView& kv = a.attention.kv;
      return with_kv_element(kv.dtype, kv.head_dim, "kv.dtype", [&]<class E>(E) {
        if constexpr (std::is_same_v<E, float>)
          return Status::invalid("kv.dtype", "prefill attention takes f16, bf16 or f8 KV");
        else
          return launch_prefill_attention<E>(l, a);
      });
    });
  }
  Status execute(const CopyAsyncArgs& a) { return execute(CopyArgs{a.to, a.from, a.bytes}); }
  Status execute(const RecordEventArgs&) { return {}; }
  Status execute(const HoldArgs&) { return {}; }
  Status execute(const WaitEventArgs&) { return {}; }
  Status execute(const StepArgs&) { return Status::internal("a step within a step"); }
  Status execute(const CopyArgs& a) {
    QUIRE_RETURN_IF_ERROR(owned(a.to, a.bytes, "the target of a copy"));
    QUIRE_RETURN_IF_ERROR(owned(a.from, a.bytes, "the source of a copy"));
    std::memcpy(a.to, a.from, static_cast<std::size_t>(a.bytes));
    return {};
  }
  Status execute(const MatmulArgs& a) {
    if (a.dtype != DType::kF32 && a.dtype != DType::kBF16)
      return Status::invalid("dtype", "products take f32 or bf16");
    if (a.ldy < a.n) return Status::invalid("ldy", "must be at least n");
    const auto size = static_cast<std::int64_t>(dtype_bytes(a.dtype));
    QUIRE_RETURN_IF_ERROR(owned(a.x, a.rows * a.k * size, "x of a product"));
    QUIRE_RETURN_IF_ERROR(owned(a.weight, a.n * a.k * size, "the weights of a product"));
    QUIRE_RETURN_IF_ERROR(owned(a.y, ((a.rows - 1) * a.ldy + a.n) * 4, "y of a product"));
    // The outputs of the matrix choose the algorithm, as with cuBLASLt.
    const bool in_order = dividing_outputs(a) < kFewOutputs;
    widen(a.x, a.dtype, a.rows * a.k, inputs_);
    for (std::int64_t o = 0; o < a.n; ++o) {
      widen(static_cast<const std::byte*>(a.weight) + o * a.k * size, a.dtype, a.k, weights_);
      for (std::int64_t r = 0; r < a.rows; ++r) {
        float& y = a.y[r * a.ldy + o];
        const float sum = dot(inputs_.data() + r * a.k, weights_.data(), a.k, in_order);
        y = a.accumulate ? y + sum : sum;
      }
    }
    return {};
  }

  /// Checks that the bytes lie in one block of any kind.
  Status owned(const void* p, std::int64_t bytes, const char* what) const {
    if (bytes <= 0) return {};
    auto next = blocks_.upper_bound(const_cast<void*>(p));
    if (next != blocks_.begin()) {
      --next;
      const auto* begin = static_cast<const std::byte*>(next->first);
      if (static_cast<const std::byte*>(p) + bytes <= begin + next->second.bytes) return {};
    }
    return Status::internal(std::string(what) + " is not in the device's memory");
  }

  /// Twice the memory, as its free parts may lie apart.
  static constexpr std::size_t kAddresses = std::size_t{1} << 34;

  const EmulatedOpsOptions options_;
  const std::shared_ptr<std::recursive_mutex> mu_;  // guards all below
  Arena arena_{kAddresses};
  std::map<void*, Block> blocks_;
  GlobalMemory global_;
  std::array<std::deque<Work>, kLanes> lanes_;
  std::array<std::int64_t, kEvents> events_{};  // the latest recording of each, counted from 1
  std::int64_t settings_ = 0;
  std::set<std::int64_t> settings_passed_;
  std::map<std::int64_t, Recorded> graphs_;
  std::int64_t recordings_ = 0, failing_copy_ = -1;
  bool no_recording_ = false;
  std::array<std::int64_t, 64> runs_{};
  std::int64_t waits_ = 0, in_use_ = 0, failing_ = -1;
  bool lost_ = false, running_ = false;
  std::vector<float> inputs_, weights_;
};

}  // namespace

std::shared_ptr<EmulatedOps> make_emulated_ops(const EmulatedOpsOptions& options) {
  return std::make_shared<EmulatedDevice>(options);
}

}  // namespace quire::simt
