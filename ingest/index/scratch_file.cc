#include "ingest/index/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/index.h"

namespace quire {
namespace {

Status failed(const char* what, int error) {
  const std::string text = std::string("cannot ") + what +
                           " the index for retrieval on disk: " + std::strerror(error);
  return error == ENOSPC || error == EDQUOT ? Status::exhausted(text) : Status::io(text);
}

}  // namespace

Result<ScratchFile> ScratchFile::create(const std::string& folder) {
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    std::string name = folder + "/index-XXXXXX";
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) return failed("create", errno);
  ScratchFile file;
  file.fd_ = std::shared_ptr<const int>(new int(fd), [](const int* p) {
    ::close(*p);
    delete p;
  });
  return file;
}

Status ScratchFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = ::pread(*fd_, static_cast<char*>(to) + got, bytes - got,
                              static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read", errno);
    if (n == 0) return failed("read", EIO);
    got += to_size(n);
  }
  return {};
}

void ScratchFile::prefetch(std::uint64_t offset, std::size_t bytes) const {
  // Only a hint: a failure changes nothing.
  (void)::posix_fadvise(*fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);
}

Status ScratchFile::write(std::uint64_t offset, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(*fd_, static_cast<const char*>(from) + done, bytes - done,
                               static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("write", errno);
    done += to_size(n);
  }
  return {};
}

Status ScratchFile::resize(std::uint64_t bytes) {
  return ::ftruncate(*fd_, static_cast<off_t>(bytes)) == 0 ? Status() : failed("shorten", errno);
}

}  // namespace quire
