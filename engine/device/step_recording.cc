#include "engine/device/step_recording.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {
constexpr std::size_t kAlignment = 16;  // of arguments within a list
}  // namespace

void OpList::add(cuda::OpCode code, const void* args, std::int64_t bytes) {
  const std::size_t begin = (args_.size() + kAlignment - 1) / kAlignment * kAlignment;
  args_.resize(begin + to_size(bytes));
  std::memcpy(args_.data() + begin, args, to_size(bytes));
  ops_.push_back({code, begin, bytes});
}

void OpList::add_upload(const cuda::CopyArgs& upload) {
  for (cuda::CopyArgs& before : uploads_) {
    if (static_cast<std::byte*>(before.to) + before.bytes != upload.to ||
        static_cast<const std::byte*>(before.from) + before.bytes != upload.from)
      continue;
    before.bytes += upload.bytes;
    return;
  }
  uploads_.push_back(upload);
}

bool OpList::operator==(const OpList& other) const {
  const auto same = [](const cuda::CopyArgs& a, const cuda::CopyArgs& b) {
    return a.to == b.to && a.from == b.from && a.bytes == b.bytes;
  };
  return std::ranges::equal(uploads_, other.uploads_, same) && ops_ == other.ops_ &&
         args_ == other.args_;
}

void OpList::clear() {
  uploads_.clear();
  ops_.clear();
  args_.clear();
}

std::vector<cuda::StepOp> OpList::view() const {
  std::vector<cuda::StepOp> out;
  out.reserve(uploads_.size() + ops_.size());
  for (const cuda::CopyArgs& upload : uploads_)
    out.push_back({cuda::OpCode::kCopy, &upload, static_cast<std::int64_t>(sizeof upload)});
  for (const Op& op : ops_) out.push_back({op.code, args_.data() + op.begin, op.bytes});
  return out;
}

void StepRecording::begin(std::int64_t rows, std::int64_t ahead) {
  if (failures_in_a_row_ >= kMostFailures) return;
  active_ = true;
  kind_ = rows << 8 | ahead;
  list_.clear();
}

Status StepRecording::end(cuda::DeviceOps& ops) {
  if (!std::exchange(active_, false)) return {};
  auto known = known_.find(kind_);
  if (known != known_.end() && known->second.list == list_) return run_graph(ops, known->second);
  if (known == known_.end() && known_.size() == kMostSizes) known_.erase(known_.begin());
  Known& now = known_[kind_];
  std::swap(now.list, list_);
  now.version = ++versions_;
  ++stats_.singly;
  return run_singly(ops, now.list);
}

Status StepRecording::interrupt(cuda::DeviceOps& ops) {
  active_ = false;
  ++stats_.singly;
  return run_singly(ops, list_);
}

Status StepRecording::run_singly(cuda::DeviceOps& ops, const OpList& list) {
  for (const cuda::StepOp& op : list.view())
    QUIRE_RETURN_IF_ERROR(ops.enqueue(op.code, op.args, op.bytes));
  return {};
}

Status StepRecording::run_graph(cuda::DeviceOps& ops, const Known& known) {
  const std::vector<cuda::StepOp> list = known.list.view();
  const Status status = ops.run(cuda::StepArgs{kind_, known.version, list.data(), count_of(list)});
  if (status.ok()) {
    failures_in_a_row_ = 0;
    ++stats_.graphs;
    return {};
  }
  if (status.code() == Code::kDeviceLost) return status;
  ++stats_.failures;
  if (++failures_in_a_row_ == kMostFailures)
    log_warning("decode steps run without graphs from now on", {{"reason", status.to_string()}});
  ++stats_.singly;
  return run_singly(ops, known.list);
}

}  // namespace quire
