// This file implements the table of libquire_cuda.so.
#include "kernels/cuda/backend/entry.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/backend/nccl_team.h"
#include "kernels/cuda/backend/session.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/runtime/driver.h"
#include "kernels/cuda/runtime/memory_pool.h"

namespace quire::cuda {
namespace {

template <std::size_t kBytes>
void write_text(char (&out)[kBytes], const std::string& text) {
  std::snprintf(out, kBytes, "%s", text.c_str());
}

void probe(QuireCudaReport* out) {
  const DeviceReport report = probe_devices();
  *out = {};
  out->driver_version = report.driver_version;
  out->toolkit_version = report.toolkit_version;
  write_text(out->error, report.error);
  for (const DeviceProperties& d : report.devices) {
    if (out->num_devices == QUIRE_CUDA_MOST_DEVICES) break;
    QuireCudaDevice& to = out->devices[out->num_devices++];
    write_text(to.name, d.name);
    to.index = d.index;
    to.major = d.major;
    to.minor = d.minor;
    to.multiprocessors = d.multiprocessors;
    to.threads_per_multiprocessor = d.threads_per_multiprocessor;
    to.shared_bytes_per_block = d.shared_bytes_per_block;
    to.shared_bytes_per_multiprocessor = d.shared_bytes_per_multiprocessor;
    to.l2_bytes = d.l2_bytes;
    to.total_bytes = d.total_bytes;
  }
}

/// Checks the RMS norm of a few rows: copies to the device, runs a kernel and copies back, on its
/// own stream.
Status run_a_kernel(DeviceDriver& driver) {
  constexpr std::int64_t kRows = 7, kDim = 1000,
                         kBytes = kRows * kDim * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(const Stream stream, create_stream(driver));
  MemoryPool device(driver, MemoryKind::kDevice, 4 * kBytes),
      pinned(driver, MemoryKind::kPinned, 4 * kBytes);
  QUIRE_ASSIGN_OR_RETURN(const Buffer host, pinned.allocate(kBytes, stream.get()));
  QUIRE_ASSIGN_OR_RETURN(const Buffer x, device.allocate(kBytes, stream.get()));
  QUIRE_ASSIGN_OR_RETURN(const Buffer out, device.allocate(kBytes, stream.get()));
  auto* values = static_cast<float*>(host.data());
  for (std::int64_t i = 0; i < kRows * kDim; ++i) values[i] = std::sin(static_cast<float>(i));
  const std::vector<float> before(values, values + kRows * kDim);
  QUIRE_RETURN_IF_ERROR(driver.copy(x.data(), values, kBytes, stream.get()));
  // The first row is also the weight.
  const auto* rows = static_cast<const float*>(x.data());
  QUIRE_RETURN_IF_ERROR(rms_norm(
      {{rows, rows, static_cast<float*>(out.data()), kRows, kDim, 1e-5f}, nullptr}, stream.get()));
  QUIRE_RETURN_IF_ERROR(driver.copy(values, out.data(), kBytes, stream.get()));
  QUIRE_RETURN_IF_ERROR(driver.wait_for(stream.get()));
  for (std::int64_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < kDim; ++c)
      squares += double{before[r * kDim + c]} * before[r * kDim + c];
    for (std::int64_t c = 0; c < kDim; ++c) {
      const double expected = before[r * kDim + c] / std::sqrt(squares / kDim + 1e-5) * before[c];
      if (!(std::abs(values[r * kDim + c] - expected) <= 1e-5))
        return Status::internal("the device computes wrong results");
    }
  }
  return {};
}

Status test_device(std::int32_t index) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceProperties device, choose_device(probe_devices(), index));
  QUIRE_ASSIGN_OR_RETURN(const auto driver, open_device(device));
  return run_a_kernel(*driver).with_context("self test of " + describe(device));
}

std::int32_t self_test(std::int32_t device, char* message, std::int32_t message_bytes) {
  const Status status = test_device(device);
  std::snprintf(message, static_cast<std::size_t>(message_bytes), "%s", status.message().c_str());
  return static_cast<std::int32_t>(status.code());
}

std::int32_t answer(const Status& status, QuireCudaMessage* message) {
  if (!status.ok()) write_text(message->text, status.message());
  return static_cast<std::int32_t>(status.code());
}

Session& session_of(QuireCudaSession* session) { return *reinterpret_cast<Session*>(session); }

std::int32_t open(std::int32_t device, QuireCudaSession** session, QuireCudaMessage* message) {
  auto opened = Session::open(device);
  if (opened.ok()) *session = reinterpret_cast<QuireCudaSession*>(opened->release());
  return answer(opened.ok() ? Status() : opened.status(), message);
}

void close(QuireCudaSession* session) { delete reinterpret_cast<Session*>(session); }

std::int32_t memory(QuireCudaSession* session, std::int64_t* free_bytes, std::int64_t* total_bytes,
                    QuireCudaMessage* message) {
  const auto info = session_of(session).memory();
  if (!info.ok()) return answer(info.status(), message);
  *free_bytes = info->free_bytes;
  *total_bytes = info->total_bytes;
  return 0;
}

std::int32_t allocate(QuireCudaSession* session, std::uint32_t kind, std::int64_t bytes, void** p,
                      QuireCudaMessage* message) {
  const auto given = session_of(session).allocate(static_cast<MemoryKind>(kind), bytes);
  if (!given.ok()) return answer(given.status(), message);
  *p = *given;
  return 0;
}

std::int32_t release(QuireCudaSession* session, std::uint32_t kind, void* p,
                     QuireCudaMessage* message) {
  return answer(session_of(session).release(static_cast<MemoryKind>(kind), p), message);
}

std::int32_t synchronize(QuireCudaSession* session, QuireCudaMessage* message) {
  return answer(session_of(session).synchronize(), message);
}

std::int32_t enqueue(QuireCudaSession* session, std::uint32_t op, const void* args,
                     std::int64_t args_bytes, QuireCudaMessage* message) {
  return answer(session_of(session).enqueue(static_cast<OpCode>(op), args, args_bytes), message);
}

struct Team {
  std::size_t ranks;
  std::unique_ptr<NcclTeam> nccl;
};
Team& team_of(QuireCudaTeam* team) { return *reinterpret_cast<Team*>(team); }

std::int32_t team_open(QuireCudaSession* const* sessions, std::int32_t count, QuireCudaTeam** team,
                       QuireCudaMessage* message) {
  std::vector<NcclTeam::Rank> ranks;
  for (std::int32_t r = 0; r < count; ++r)
    ranks.push_back({session_of(sessions[r]).device(), session_of(sessions[r]).stream()});
  auto opened = NcclTeam::open(std::move(ranks));
  if (!opened.ok()) return answer(opened.status(), message);
  *team = reinterpret_cast<QuireCudaTeam*>(
      new Team{static_cast<std::size_t>(count), std::move(*opened)});
  return 0;
}

void team_close(QuireCudaTeam* team) { delete reinterpret_cast<Team*>(team); }

std::int32_t team_broadcast(QuireCudaTeam* team, const void* from, void* const* to,
                            std::int64_t bytes, QuireCudaMessage* message) {
  Team& t = team_of(team);
  return answer(t.nccl->broadcast(from, {to, t.ranks}, bytes), message);
}

std::int32_t team_gather(QuireCudaTeam* team, const void* const* from, void* const* to,
                         const std::int64_t* bytes, QuireCudaMessage* message) {
  Team& t = team_of(team);
  std::vector<Communicator::Part> parts;
  for (std::size_t r = 0; r < t.ranks; ++r) parts.push_back({from[r], to[r], bytes[r]});
  return answer(t.nccl->gather(parts), message);
}

std::int32_t team_all_gather(QuireCudaTeam* team, void* const* whole, const std::int64_t* begin,
                             QuireCudaMessage* message) {
  Team& t = team_of(team);
  std::vector<std::byte*> arrays;
  for (std::size_t r = 0; r < t.ranks; ++r) arrays.push_back(static_cast<std::byte*>(whole[r]));
  return answer(t.nccl->all_gather(arrays, {begin, t.ranks + 1}), message);
}

std::int32_t team_status(QuireCudaTeam* team, QuireCudaMessage* message) {
  return answer(team_of(team).nccl->status(), message);
}

}  // namespace
}  // namespace quire::cuda

extern "C" __attribute__((visibility("default"))) const QuireCudaEntry* quire_cuda_entry() {
  static const QuireCudaEntry entry{
      QUIRE_CUDA_ENTRY_VERSION,      sizeof(QuireCudaEntry),       &quire::cuda::probe,
      &quire::cuda::self_test,       &quire::cuda::open,           &quire::cuda::close,
      &quire::cuda::memory,          &quire::cuda::allocate,       &quire::cuda::release,
      &quire::cuda::synchronize,     &quire::cuda::enqueue,        &quire::cuda::team_open,
      &quire::cuda::team_close,      &quire::cuda::team_broadcast, &quire::cuda::team_gather,
      &quire::cuda::team_all_gather, &quire::cuda::team_status};
  return &entry;
}
