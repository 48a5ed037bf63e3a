#include "engine/prefill/kv_writer.h"

#include <algorithm>

#include "base/clock.h"
#include "base/index.h"
#include "base/status.h"
#include "engine/prefill/context_kv.h"
#include "engine/prefill/record_kind.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// How long another writer of the same context is waited for, and how often it is looked at.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPause{5};
/// Most KV that waits to be written, as a part of the store's memory tier and in bytes.
constexpr std::uint64_t kWaitingPart = 8, kMostWaiting = std::uint64_t{1} << 30;

}  // namespace

KvWriter::KvWriter(Store& store, const RopeTable& rope, std::int32_t num_heads,
                   std::string fingerprint)
    : store_(store),
      rope_(rope),
      num_heads_(num_heads),
      fingerprint_(std::move(fingerprint)),
      max_bytes_(static_cast<std::int64_t>(
          std::min(store.options().dram_bytes / kWaitingPart, kMostWaiting))),
      thread_([this] { run(); }) {}

KvWriter::~KvWriter() { stop(); }

void KvWriter::submit(Job job) {
  const std::int64_t bytes = job.kv->layout.total_bytes();
  {
    std::lock_guard lock(mu_);
    jobs_.push_back(std::move(job));
    bytes_ += bytes;
  }
  cv_.notify_one();
}

std::size_t KvWriter::pending() const {
  std::lock_guard lock(mu_);
  return jobs_.size() + running_;
}

std::int64_t KvWriter::pending_bytes() const {
  std::lock_guard lock(mu_);
  return bytes_;
}

bool KvWriter::has_room(std::int64_t bytes) const {
  std::lock_guard lock(mu_);
  return bytes_ == 0 || bytes_ + bytes <= max_bytes_;
}

void KvWriter::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  cv_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void KvWriter::run() {
  // The kernels' thread pool belongs to the engine thread.
  set_num_threads(1);
  std::unique_lock lock(mu_);
  for (;;) {
    cv_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = 1;
    lock.unlock();
    Result<WrittenContext> written = try_write(job);
    const std::int64_t bytes = job.kv->layout.total_bytes();
    job.kv.reset();
    lock.lock();
    running_ = 0;
    bytes_ -= bytes;
    lock.unlock();
    // The job is no longer counted as pending, so that `done` may submit again.
    try {
      job.done(std::move(written));
    } catch (...) {
      (void)exception_status("what follows the writing of a context");
    }
    lock.lock();
  }
}

/// Records take many megabytes, so that memory may run out. Later jobs may need less.
Result<WrittenContext> KvWriter::try_write(const Job& job) noexcept {
  try {
    return write(job);
  } catch (...) {
    return exception_status("the writing of a context");
  }
}

bool KvWriter::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mu_);
  return !cv_.wait_for(lock, time, [this] { return stopping_; });
}

Result<WrittenContext> KvWriter::write(const Job& job) {
  const auto started = Clock::now();
  const KvLayout& layout = job.kv->layout;
  WrittenContext out;
  // By their index in the segment; an index below the last that has no record holds one byte.
  std::vector<std::vector<std::byte>> records;
  for (const auto& kind : all_record_kinds()) {
    QUIRE_ASSIGN_OR_RETURN(std::vector<std::byte> record, kind->build(*job.kv, num_heads_, rope_));
    if (record.empty()) continue;
    records.resize(kind->index() + 1, std::vector<std::byte>(1));
    records.back() = std::move(record);
  }
  for (const auto& record : records) out.sketch_bytes += count_of(record);
  const auto bytes = static_cast<std::uint64_t>(layout.total_bytes() + out.sketch_bytes);
  const auto begin = [&] {
    return store_.begin_segment(job.key,
                                layout.segment(static_cast<std::uint32_t>(records.size()) - 1),
                                bytes, job.tenant, fingerprint_);
  };
  auto writer = begin();
  // An import or a recall may be writing the same context. Its copy is as good as this one.
  const auto patience = Clock::now() + kPatience;
  while (writer.code() == Code::kUnavailable && Clock::now() < patience && wait(kPause))
    writer = begin();
  if (!writer.ok()) {
    if (writer.code() != Code::kAlreadyExists) return writer.status();
    auto found = store_.find_segment(job.key);
    if (!found)
      return Status::unavailable("the stored copy of this context was evicted just now; try again");
    out.segment = std::move(*found);
    out.already_cached = true;
    out.ms = ms_between(started, Clock::now());
    return out;
  }
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
      QUIRE_RETURN_IF_ERROR((*writer)->take_value(static_cast<std::uint32_t>(b),
                                                  static_cast<std::uint32_t>(g),
                                                  job.kv->values[at(b * layout.num_groups() + g)]));
    }
  }
  for (std::uint32_t i = 0; i < records.size(); ++i)
    QUIRE_RETURN_IF_ERROR((*writer)->put_sketch(i, records[i]));
  QUIRE_ASSIGN_OR_RETURN(out.segment, (*writer)->finish());
  out.ms = ms_between(started, Clock::now());
  return out;
}

}  // namespace quire
