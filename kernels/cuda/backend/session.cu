#include "kernels/cuda/backend/session.h"

#include <string>
#include <utility>

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul/bf16_gemv.cuh"

namespace quire::cuda {
namespace {

/// Executes each operation.
struct Execute {
  StreamHandle stream;  // of Lane::kCompute
  const LaneStreams& lanes;
  DeviceDriver& driver;
  Matmul& matmul;
  std::array<Event, kEvents>& events;
  GraphCache& graphs;
  const DeviceProperties& device;

  Result<StreamHandle> of(Lane lane) const {
    if (static_cast<std::size_t>(lane) >= kLanes)
      return Status::invalid(
          "lane", "there is no stream " + std::to_string(static_cast<std::uint32_t>(lane)));
    return lanes.of(lane);
  }
  Result<EventHandle> event(std::int32_t i) const {
    if (i < 0 || i >= kEvents)
      return Status::invalid("event", "there is no event " + std::to_string(i));
    return events[static_cast<std::size_t>(i)].get();
  }
#define QUIRE_PLAIN(code, Args, function) \
  Status operator()(const Args& a) const { return function(a, stream); }
#define QUIRE_TABLE(code, Args, function, member) \
  Status operator()(const Args& a) const { return function(a.table, a.member, stream); }
  QUIRE_CUDA_OPS(QUIRE_PLAIN, QUIRE_TABLE, QUIRE_CUDA_NO_ROW)
#undef QUIRE_PLAIN
#undef QUIRE_TABLE
  Status operator()(const CopyAsyncArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const StreamHandle beside, of(a.lane));
    return driver.copy(a.to, a.from, a.bytes, beside);
  }
  Status operator()(const RecordEventArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const EventHandle event, event(a.event));
    QUIRE_ASSIGN_OR_RETURN(const StreamHandle lane, of(a.lane));
    return driver.record(event, lane);
  }
  Status operator()(const HoldArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const EventHandle event, event(a.event));
    QUIRE_ASSIGN_OR_RETURN(const StreamHandle lane, of(a.lane));
    return driver.hold(lane, event);
  }
  Status operator()(const WaitEventArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const EventHandle event, event(a.event));
    return driver.wait_for(event);
  }
  Status operator()(const StepArgs& a) const {
    return graphs.run(a.bucket, a.version, stream, [&](StreamHandle) {
      for (const StepOp* op = a.ops; op != a.ops + a.num_ops; ++op)
        QUIRE_RETURN_IF_ERROR(visit_op(op->code, op->args, op->bytes, *this));
      return Status();
    });
  }
  Status operator()(const CopyArgs& a) const { return driver.copy(a.to, a.from, a.bytes, stream); }
  Status operator()(const MatmulArgs& a) const {
    return bf16_gemv_takes(a) && a.rows > 0 ? bf16_gemv(a, stream) : matmul.run(a, stream);
  }
  Status operator()(const Int8GemvArgs& a) const {
    Int8GemvArgs chosen = a;
    if (a.warps == 0) chosen.warps = int8_gemv_warps(device, dividing_outputs(a), a.k);
    return int8_gemv(chosen, stream);
  }
  Status operator()(const GroupedGemvArgs& a) const {
    GroupedGemvArgs chosen = a;
    const GroupedWeights& w = a.weight;
    if (a.warps == 0) chosen.warps = grouped_gemv_warps(device, w.kind, dividing_outputs(w), w.k);
    return grouped_gemv(chosen, stream);
  }
  Status operator()(const GroupedProductArgs& a) const {
    return grouped_product({a.weight, split(a.rows, a.weight)}, stream);
  }
  Status operator()(const Int8ProductArgs& a) const {
    return int8_product({a.weight, split(a.rows, a.weight)}, stream);
  }
  template <class Weights>
  FewRowsArgs split(FewRowsArgs rows, const Weights& w) const {
    if (rows.splits == 0) rows.splits = few_rows_splits(device, dividing_outputs(w), w.k);
    return rows;
  }
  Status operator()(const DecodeAttentionArgs& a) const {
    DecodeAttentionArgs chosen = a;
    if (a.run_chunks == 0) chosen.run_chunks = decode_run_chunks(device, a);
    return decode_attention(chosen, stream);
  }
  Status operator()(const SampleArgs& a) const {
    SampleArgs chosen = a;
    if (a.parts == 0) chosen.parts = a.scratch != nullptr ? sample_parts(device, a.rows, a.n) : 1;
    return sample(chosen, stream);
  }
  Status operator()(const GatherRowsArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const StreamHandle lane, of(a.lane));
    return kv_gather(a.rows, lane);
  }
  Status operator()(const FillSlotsOnArgs& a) const {
    QUIRE_ASSIGN_OR_RETURN(const StreamHandle lane, of(a.lane));
    return fill_slots(a.slots, lane);
  }
  Status operator()(const PrefillAttentionArgs& a) const { return prefill_attention(a, stream); }
};

Status make_current(const DeviceProperties& device) {
  return cuda_status(cudaSetDevice(device.index), "choosing the device");
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(std::int64_t device_idx) {
  QUIRE_ASSIGN_OR_RETURN(DeviceProperties device, choose_device(probe_devices(), device_idx));
  QUIRE_ASSIGN_OR_RETURN(auto driver, open_device(device));
  std::unique_ptr<Session> session(new Session(std::move(device), std::move(driver)));
  QUIRE_RETURN_IF_ERROR(session->start());
  return Result<std::unique_ptr<Session>>(std::move(session));
}

Status Session::start() {
  QUIRE_ASSIGN_OR_RETURN(lanes_, LaneStreams::create(driver_));
  for (Event& event : events_) {
    QUIRE_ASSIGN_OR_RETURN(event, create_event(driver_));
  }
  QUIRE_ASSIGN_OR_RETURN(auto memory, SessionMemory::create(driver_, lanes_.of(Lane::kCompute)));
  memory_.emplace(std::move(memory));
  QUIRE_ASSIGN_OR_RETURN(workspace_,
                         memory_->allocate(MemoryKind::kDevice, Matmul::kWorkspaceBytes));
  QUIRE_ASSIGN_OR_RETURN(matmul_, Matmul::create(workspace_));
  return {};
}

Session::~Session() {
  (void)make_current(device_);  // a lost device has nothing to release
  (void)lanes_.wait(driver_);
  graphs_.clear();
  matmul_.reset();
  memory_.reset();
}

Result<MemoryInfo> Session::memory() {
  QUIRE_RETURN_IF_ERROR(make_current(device_));
  return memory_->memory();
}

Result<void*> Session::allocate(MemoryKind kind, std::int64_t bytes) {
  QUIRE_RETURN_IF_ERROR(make_current(device_));
  return memory_->allocate(kind, bytes);
}

Status Session::release(MemoryKind kind, void* p) {
  QUIRE_RETURN_IF_ERROR(make_current(device_));
  return memory_->release(kind, p);
}

Status Session::synchronize() {
  QUIRE_RETURN_IF_ERROR(make_current(device_));
  return lanes_.wait(driver_);
}

Status Session::enqueue(OpCode code, const void* args, std::int64_t bytes) {
  QUIRE_RETURN_IF_ERROR(make_current(device_));
  return visit_op(
      code, args, bytes,
      Execute{lanes_.of(Lane::kCompute), lanes_, driver_, *matmul_, events_, graphs_, device_});
}

}  // namespace quire::cuda
