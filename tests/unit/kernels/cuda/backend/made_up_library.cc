// Replaces libquire_cuda.so; what it reports is chosen when it is compiled.
#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "kernels/cuda/backend/entry.h"
#include "kernels/cuda/backend/ops.h"

namespace {

void probe(QuireCudaReport* report) {
  *report = {};
  report->driver_version = 13000;
  report->toolkit_version = 13000;
  report->num_devices = MADE_UP_DEVICES;
  for (int i = 0; i < MADE_UP_DEVICES; ++i) {
    std::strcpy(report->devices[i].name, "Made-up GPU");
    report->devices[i].index = i;
    report->devices[i].major = 9;
    report->devices[i].total_bytes = std::int64_t{80} << 30;
  }
}

/// Of two devices the second one does not work.
bool is_bad(std::int32_t device) { return MADE_UP_DEVICES == 2 && device == 1; }

std::int32_t self_test(std::int32_t device, char* message, std::int32_t) {
  if (!is_bad(device)) return 0;
  std::strcpy(message, "an illegal memory access");
  return 12;  // Code::kDeviceLost
}

std::int32_t refuse(quire::Code code, const char* why, QuireCudaMessage* message) {
  std::strcpy(message->text, why);
  return static_cast<std::int32_t>(code);
}

/// A session with ordinary memory, in which one copy is the only work. A second copy finds the
/// device lost.
struct Session {
  int enqueued = 0;
  std::int32_t device = 0;
};
Session& of(QuireCudaSession* session) { return *reinterpret_cast<Session*>(session); }

std::int32_t open(std::int32_t device, QuireCudaSession** session, QuireCudaMessage* message) {
  if (is_bad(device))
    return refuse(quire::Code::kUnavailable, "the device is in exclusive use", message);
  *session = reinterpret_cast<QuireCudaSession*>(new Session{0, device});
  return 0;
}
void close(QuireCudaSession* session) { delete reinterpret_cast<Session*>(session); }
std::int32_t memory(QuireCudaSession*, std::int64_t* free_bytes, std::int64_t* total_bytes,
                    QuireCudaMessage*) {
  *free_bytes = std::int64_t{70} << 30;
  *total_bytes = std::int64_t{80} << 30;
  return 0;
}
std::int32_t allocate(QuireCudaSession*, std::uint32_t kind, std::int64_t bytes, void** p,
                      QuireCudaMessage* message) {
  if (bytes > (1 << 20))
    return refuse(quire::Code::kResourceExhausted,
                  kind == 1 ? "out of pinned memory" : "out of memory", message);
  *p = std::malloc(static_cast<std::size_t>(bytes));
  return 0;
}
std::int32_t release(QuireCudaSession*, std::uint32_t, void* p, QuireCudaMessage*) {
  std::free(p);
  return 0;
}
std::int32_t synchronize(QuireCudaSession*, QuireCudaMessage*) { return 0; }
std::int32_t enqueue(QuireCudaSession* session, std::uint32_t op, const void* args,
                     std::int64_t args_bytes, QuireCudaMessage* message) {
  if (op != static_cast<std::uint32_t>(quire::cuda::OpCode::kCopy) ||
      args_bytes != sizeof(quire::cuda::CopyArgs))
    return refuse(quire::Code::kInvalidArgument, "not a copy", message);
  if (++of(session).enqueued > 1)
    return refuse(quire::Code::kDeviceLost, "an illegal memory access", message);
  const auto& copy = *static_cast<const quire::cuda::CopyArgs*>(args);
  std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
  return 0;
}

/// Sessions in ordinary memory. A copy of more than kMost bytes loses them all. The device after
/// the third cannot be connected.
struct Team {
  std::int32_t ranks;
  bool lost = false;
};
constexpr std::int64_t kMost = 64;
Team& of(QuireCudaTeam* team) { return *reinterpret_cast<Team*>(team); }

std::int32_t team_open(QuireCudaSession* const* sessions, std::int32_t count, QuireCudaTeam** team,
                       QuireCudaMessage* message) {
  for (std::int32_t i = 0; i < count; ++i) {
    if (of(sessions[i]).device > 3)
      return refuse(quire::Code::kFailedPrecondition, "libnccl.so.2 cannot be loaded", message);
  }
  *team = reinterpret_cast<QuireCudaTeam*>(new Team{count});
  return 0;
}
void team_close(QuireCudaTeam* team) { delete reinterpret_cast<Team*>(team); }
std::int32_t team_status(QuireCudaTeam* team, QuireCudaMessage* message) {
  return of(team).lost ? refuse(quire::Code::kDeviceLost, "a GPU fell off the bus", message) : 0;
}
std::int32_t team_broadcast(QuireCudaTeam* team, const void* from, void* const* to,
                            std::int64_t bytes, QuireCudaMessage* message) {
  if (bytes > kMost) of(team).lost = true;
  if (const std::int32_t code = team_status(team, message); code != 0) return code;
  for (std::int32_t r = 1; r < of(team).ranks; ++r)
    std::memcpy(to[r], from, static_cast<std::size_t>(bytes));
  return 0;
}
std::int32_t team_gather(QuireCudaTeam* team, const void* const* from, void* const* to,
                         const std::int64_t* bytes, QuireCudaMessage* message) {
  for (std::int32_t r = 1; r < of(team).ranks; ++r)
    std::memcpy(to[r], from[r], static_cast<std::size_t>(bytes[r]));
  return team_status(team, message);
}
std::int32_t team_all_gather(QuireCudaTeam* team, void* const* whole, const std::int64_t* begin,
                             QuireCudaMessage* message) {
  for (std::int32_t r = 0; r < of(team).ranks; ++r) {
    for (std::int32_t other = 0; other < of(team).ranks; ++other) {
      if (other != r)
        std::memcpy(static_cast<char*>(whole[other]) + begin[r],
                    static_cast<char*>(whole[r]) + begin[r],
                    static_cast<std::size_t>(begin[r + 1] - begin[r]));
    }
  }
  return team_status(team, message);
}

}  // namespace

extern "C" const QuireCudaEntry* quire_cuda_entry() {
  static const QuireCudaEntry entry{MADE_UP_VERSION, sizeof(QuireCudaEntry),
                                    &probe,          &self_test,
                                    &open,           &close,
                                    &memory,         &allocate,
                                    &release,        &synchronize,
                                    &enqueue,        &team_open,
                                    &team_close,     &team_broadcast,
                                    &team_gather,    &team_all_gather,
                                    &team_status};
  return &entry;
}
