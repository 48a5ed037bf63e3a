#include "cachestore/disk/rocksdb_value_locator.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "base/index.h"

namespace quire::rocksdb_internal {
namespace {

constexpr char kLocatorVersion = 1;
constexpr std::size_t kEntryBytes = 12;  // u64 offset of the header, u32 payload bytes
constexpr std::size_t kBlockEndBytes = 4 + 4 + 5;

std::size_t varint_bytes(std::uint64_t v) {
  std::size_t n = 1;
  for (; v >= 128; v >>= 7) ++n;
  return n;
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::size_t ValuePlacer::add(std::size_t stored_bytes) {
  fits_ = fits_ && stored_bytes >= kBlockBytes &&
          entries_.size() + kEntryBytes < record::kMaxLocatorBytes;
  if (!fits_) return 0;
  // The filler is part of the value, so it may lengthen the varint of the value's length. The loop
  // finds a fixed point.
  std::size_t filler = 0, start = 0;
  for (int i = 0; i < 3; ++i) {
    start = 2 + varint_bytes(filler + stored_bytes) + key_bytes_ + 8;
    filler = (64 - (offset_ + start + record::kValueHeaderBytes) % 64) % 64;
  }
  last_ = offset_ + start + filler;
  const auto payload = static_cast<std::uint32_t>(stored_bytes - record::kValueHeaderBytes);
  char entry[kEntryBytes];
  std::memcpy(entry, &last_, 8);
  std::memcpy(entry + 8, &payload, 4);
  entries_.append(entry, kEntryBytes);
  offset_ = last_ + stored_bytes + kBlockEndBytes;
  return filler;
}

std::string ValuePlacer::locator() const {
  return fits_ && !entries_.empty() ? kLocatorVersion + entries_ : std::string();
}

void write_filler(std::byte* begin, std::size_t length) {
  if (length == 0) return;
  std::memset(begin, 0, length);
  *begin = static_cast<std::byte>(length);
}

std::span<const std::byte> skip_filler(std::span<const std::byte> entry) {
  if (entry.empty()) return {};
  const auto first = at(entry[0]);
  if (first >= 64) return entry;
  if (first == 0 || first > entry.size()) return {};
  return entry.subspan(first);
}

Result<std::shared_ptr<ValueBuffer>> read_located(const std::string& path, std::string_view locator,
                                                  std::size_t position, bool direct_io) {
  if (locator.size() < 1 + kEntryBytes || locator[0] != kLocatorVersion ||
      position >= (locator.size() - 1) / kEntryBytes) {
    return Status::not_found("no position known");
  }
  std::uint64_t header = 0;
  std::uint32_t payload = 0;
  std::memcpy(&header, locator.data() + 1 + position * kEntryBytes, 8);
  std::memcpy(&payload, locator.data() + 1 + position * kEntryBytes + 8, 4);
  if (payload > record::kMaxValueBytes ||
      (header + record::kValueHeaderBytes) % ValueBuffer::kAlign != 0)
    return Status::not_found("odd position");
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct_io ? O_DIRECT : 0)));
  if (file.fd() < 0) return Status::not_found("no file");
  const std::uint64_t begin = header / ValueBuffer::kPage * ValueBuffer::kPage,
                      end = header + record::kValueHeaderBytes + payload;
  const std::size_t lead = to_size(header + record::kValueHeaderBytes - begin);
  const std::size_t total = (to_size(end - begin) + ValueBuffer::kPage - 1) / ValueBuffer::kPage *
                            ValueBuffer::kPage;
  auto out = ValueBuffer::for_pages(lead, payload, total);
  // The end of the file may shorten the last page
  for (std::size_t got = 0; got < end - begin;) {
    const ssize_t n = ::pread(file.fd(), out->memory() + got, total - got,
                              static_cast<off_t>(begin + got));
    if (n <= 0) return Status::io("short read");
    got += to_size(n);
  }
  return out;
}

}  // namespace quire::rocksdb_internal
