#include "server/service/spool_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::uint64_t kRoomLeft = 256ull << 20;   // the store needs room to commit and to delete
constexpr std::uint64_t kCheckEvery = 16ull << 20;  // bytes written between two looks at the room

}  // namespace

SpoolFile::SpoolFile(const std::string& folder)
    : fd_(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {}

SpoolFile::~SpoolFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status SpoolFile::append(std::string_view piece) {
  if (fd_ < 0) return Status::io("the store's folder takes no temporary file");
  if (until_check_ < piece.size()) {
    struct statvfs room {};
    if (::fstatvfs(fd_, &room) == 0 &&
        std::uint64_t{room.f_bavail} * room.f_frsize < kRoomLeft + kCheckEvery + piece.size())
      return Status::exhausted("the store's disk has no room to keep the body");
    until_check_ = kCheckEvery + piece.size();
  }
  until_check_ -= piece.size();
  while (!piece.empty()) {
    const auto n = ::write(fd_, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status::io(std::string("the body could not be kept: ") + std::strerror(errno));
    piece.remove_prefix(to_size(n));
  }
  return {};
}

SpoolFile::Source SpoolFile::source() const {
  return [this, at = off_t{0}](std::span<char> out) mutable -> Result<std::size_t> {
    ssize_t n;
    do n = ::pread(fd_, out.data(), out.size(), at);
    while (n < 0 && errno == EINTR);
    if (n < 0)
      return Status::io(std::string("the body could not be read back: ") + std::strerror(errno));
    at += n;
    return to_size(n);
  };
}

HttpResponse SpoolSink::refusal(const Problem& problem) const {
  call_.add_log("error_code", problem.code);
  HttpResponse r = problem_response(problem, call_.style, call_.instance, call_.request_id);
  call_.add_standard_headers(r.headers);
  return r;
}

std::optional<HttpResponse> SpoolSink::write(std::string_view piece) {
  if (call_.body_digest) call_.body_digest->update(piece);
  const Status s = file_->append(piece);
  if (s.ok()) return std::nullopt;
  log_error("a body could not be kept",
            {{"request_id", call_.request_id}, {"reason", s.to_string()}});
  return refusal(problem_of(s, "storage_unavailable"));
}

}  // namespace quire
