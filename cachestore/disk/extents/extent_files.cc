#include "cachestore/disk/extents/extent_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::size_t kMaxBuffers = 8;
constexpr std::size_t kMaxOpenFiles = 256;
constexpr std::string_view kSuffix = ".extent";

std::uint64_t round_up(std::uint64_t n) {
  return (n + kExtentPage - 1) / kExtentPage * kExtentPage;
}

Status failed(const char* what, int error) {
  const std::string message = std::string("cannot ") + what + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT)
    return Status::exhausted("cannot " + std::string(what) +
                             ": the disk is full; free some space or lower disk.max_bytes");
  return Status::io(message);
}

/// Takes ownership of a descriptor.
std::shared_ptr<const int> owned(int fd) {
  return std::shared_ptr<const int>(new int(fd), [](const int* p) {
    if (*p >= 0) ::close(*p);
    delete p;
  });
}

/// Returns the number in "00000012.extent"; 0 if the name is another one.
std::uint32_t number_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) return 0;
  name.remove_suffix(kSuffix.size());
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? number : 0;
}

Status write_all(int fd, const std::byte* bytes, std::size_t count, std::uint64_t offset) {
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, bytes, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("write a segment", n == 0 ? EIO : errno);
    bytes += n;
    count -= to_size(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

// ---- opening ----

Result<std::unique_ptr<ExtentFiles>> ExtentFiles::open(std::string folder,
                                                       const ExtentOptions& options,
                                                       std::span<const ExtentRange> live) {
  std::unique_ptr<ExtentFiles> files(new ExtentFiles(std::move(folder), options));
  if (!options.read_only) QUIRE_RETURN_IF_ERROR(files->find_out_about_holes());
  QUIRE_RETURN_IF_ERROR(files->recover(live));
  return files;
}

ExtentFiles::~ExtentFiles() = default;

/// Punches a hole into a small file of its own.
Status ExtentFiles::find_out_about_holes() {
  if (punches_) {
    const std::string path = folder_ + "/probe";
    const auto fd = owned(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (*fd < 0) return failed("write to the extents", errno);
    const std::array<char, 2 * kExtentPage> page{};
    if (::write(*fd, page.data(), page.size()) == std::ssize(page)) punch(*fd, 0, kExtentPage);
    ::unlink(path.c_str());
  }
  if (!punches_) extent_bytes_ = std::min(extent_bytes_, kExtentBytesWithoutHoles);
  return {};
}

std::string ExtentFiles::path_of(std::uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof name, "/%08u", number);
  return folder_ + name + std::string(kSuffix);
}

Status ExtentFiles::recover(std::span<const ExtentRange> live) {
  std::lock_guard lock(mu_);
  DIR* dir = ::opendir(folder_.c_str());
  if (!dir)
    return errno == ENOENT && options_.read_only ? Status() : failed("open the extents", errno);
  std::vector<std::uint32_t> found;
  errno = 0;
  for (; const dirent* e = ::readdir(dir); errno = 0) {
    if (const std::uint32_t number = number_of(e->d_name); number > 0) found.push_back(number);
  }
  const int error = errno;
  ::closedir(dir);
  // An extent that is not listed would be taken for a lost one.
  if (error != 0) return failed("list the extents", error);
  for (const std::uint32_t number : found) {
    struct stat st;
    if (::stat(path_of(number).c_str(), &st) != 0) continue;
    Extent& extent = extents_[number];
    extent.end = static_cast<std::uint64_t>(st.st_size);
    next_number_ = std::max(next_number_, number + 1);
  }
  std::map<std::uint32_t, std::vector<ExtentRange>> by_extent;
  for (const ExtentRange& range : live) {
    // A number is not given again while a lost file may come back.
    next_number_ = std::max(next_number_, range.extent + 1);
    auto it = extents_.find(range.extent);
    if (it == extents_.end() || range.offset + range.bytes > round_up(it->second.end)) continue;
    it->second.live += range.bytes;
    by_extent[range.extent].push_back(range);
  }
  for (auto it = extents_.begin(); it != extents_.end();) {
    const std::uint32_t number = it->first;
    Extent& extent = it->second;
    auto& ranges = by_extent[number];
    if (ranges.empty() && !options_.read_only) {
      ::unlink(path_of(number).c_str());
      it = extents_.erase(it);
      continue;
    }
    ++it;
    if (options_.read_only) {
      struct stat st;
      if (::stat(path_of(number).c_str(), &st) == 0) {
        extent.allocated = static_cast<std::uint64_t>(st.st_blocks) * 512;
        allocated_ += extent.allocated;
      }
      live_ += extent.live;
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const auto fd, file_of(number, false));
    measure(extent);
    std::sort(ranges.begin(), ranges.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    std::uint64_t end = 0, gaps = 0;
    for (const auto& range : ranges) {
      gaps += range.offset > end ? range.offset - end : 0;
      end = std::max(end, range.offset + range.bytes);
    }
    // What a crash left behind the last range, and between ranges. Holes do not count as allocated.
    if (extent.end > end && ::ftruncate(*fd, static_cast<off_t>(end)) == 0) extent.end = end;
    measure(extent);
    if (gaps > 0 && extent.allocated > extent.live) {
      end = 0;
      for (const auto& range : ranges) {
        if (range.offset > end) punch(*fd, end, range.offset - end);
        end = std::max(end, range.offset + range.bytes);
      }
      measure(extent);
    }
    live_ += extent.live;
    if (extent.end < extent_bytes_ / 2) active_ = number;
  }
  return {};
}

bool ExtentFiles::contains(const ExtentRange& range) const {
  std::lock_guard lock(mu_);
  const auto it = extents_.find(range.extent);
  return it != extents_.end() && range.offset + range.bytes <= round_up(it->second.end);
}

/// Returns the open file of an extent. The least recently used file is closed when too many are
/// open; who still reads it keeps its descriptor.
Result<std::shared_ptr<const int>> ExtentFiles::file_of(std::uint32_t number, bool create) {
  const auto it = extents_.find(number);
  if (it == extents_.end()) return Status::not_found("an extent is missing");
  Extent& extent = it->second;
  extent.last_use = ++use_clock_;
  if (extent.fd) return extent.fd;
  const int flags = (options_.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC |
                    (options_.direct_io ? O_DIRECT : 0) | (create ? O_CREAT | O_EXCL : 0);
  const int fd = ::open(path_of(number).c_str(), flags, 0600);
  if (fd < 0) {
    if (errno == ENOENT) return Status::not_found("an extent is missing");
    return failed("open an extent", errno);
  }
  extent.fd = owned(fd);
  const auto result = extent.fd;
  std::size_t open = 0;
  Extent* oldest = nullptr;
  for (auto& [other, e] : extents_) {
    if (!e.fd) continue;
    ++open;
    // A dirty file stays open, because an error of its sync is told through this descriptor.
    if (other != number && !e.dirty && (!oldest || e.last_use < oldest->last_use)) oldest = &e;
  }
  if (open > kMaxOpenFiles && oldest) oldest->fd.reset();
  return result;
}

void ExtentFiles::measure(Extent& extent) {
  if (!extent.fd) return;
  struct stat st;
  if (::fstat(*extent.fd, &st) != 0) return;
  const std::uint64_t now = static_cast<std::uint64_t>(st.st_blocks) * 512;
  allocated_ += now - extent.allocated;
  extent.allocated = now;
}

void ExtentFiles::punch(int fd, std::uint64_t offset, std::uint64_t bytes) {
  if (!punches_) return;
  if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0)
    return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    log_warning("space of a freed segment was not returned; the next start tries again",
                {{"reason", std::string(std::strerror(errno))}});
    return;
  }
  punches_ = false;
  log_info("the file system cannot punch holes: freed space returns when its extent is rewritten",
           {{"path", folder_}});
}

// ---- writing ----

ExtentFiles::Pages ExtentFiles::take_buffer() {
  {
    std::lock_guard lock(mu_);
    if (!buffers_.empty()) {
      Pages buffer = std::move(buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  try {
    return allocate_value_memory(kWriteBytes);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void ExtentFiles::give_buffer(Pages buffer) {
  std::lock_guard lock(mu_);
  if (buffer && buffers_.size() < kMaxBuffers) buffers_.push_back(std::move(buffer));
}

ExtentFiles::Writer::Writer(ExtentFiles& files, ExtentRange range, std::shared_ptr<const int> fd,
                            Pages buffer)
    : files_(&files), range_(range), fd_(std::move(fd)), buffer_(std::move(buffer)) {}

ExtentFiles::Writer::Writer(Writer&& o) noexcept
    : files_(std::exchange(o.files_, nullptr)),
      range_(o.range_),
      fd_(std::move(o.fd_)),
      buffer_(std::move(o.buffer_)),
      behind_(std::move(o.behind_)),
      pending_(std::move(o.pending_)),
      filled_(o.filled_),
      written_(o.written_),
      flushed_(o.flushed_) {}

ExtentFiles::Writer::~Writer() {
  if (!files_) return;
  (void)wait();  // the range is freed whatever became of it
  files_->give_buffer(std::move(buffer_));
  files_->give_buffer(std::move(behind_));
  files_->free(range_);
}

Status ExtentFiles::Writer::write(std::span<const std::byte> bytes) {
  if (bytes.size() > range_.bytes - written_)
    return Status::exhausted("a segment has more bytes than were reserved for it");
  written_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kWriteBytes - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), n);
    filled_ += n;
    bytes = bytes.subspan(n);
    if (filled_ == kWriteBytes) QUIRE_RETURN_IF_ERROR(flush_behind());
  }
  return {};
}

Status ExtentFiles::Writer::write_zeros(std::uint64_t count) {
  static constexpr std::byte kZeros[kExtentPage] = {};
  while (count > 0) {
    const std::uint64_t n = std::min<std::uint64_t>(count, sizeof kZeros);
    QUIRE_RETURN_IF_ERROR(write(std::span(kZeros, to_size(n))));
    count -= n;
  }
  return {};
}

Status ExtentFiles::Writer::wait() { return pending_.valid() ? pending_.get() : Status(); }

Status ExtentFiles::Writer::flush_behind() {
  QUIRE_RETURN_IF_ERROR(wait());
  if (!behind_) behind_ = files_->take_buffer();
  if (!behind_) return flush();  // no memory for a second buffer
  std::swap(buffer_, behind_);
  pending_ = std::async(
      std::launch::async | std::launch::deferred,
      [fd = fd_, bytes = behind_.get(), count = filled_, offset = range_.offset + flushed_] {
        return write_all(*fd, bytes, count, offset);
      });
  flushed_ += filled_;
  filled_ = 0;
  return {};
}

Status ExtentFiles::Writer::flush() {
  QUIRE_RETURN_IF_ERROR(wait());
  QUIRE_RETURN_IF_ERROR(write_all(*fd_, buffer_.get(), filled_, range_.offset + flushed_));
  flushed_ += filled_;
  filled_ = 0;
  return {};
}

Result<ExtentRange> ExtentFiles::Writer::finish() {
  QUIRE_CHECK(files_ != nullptr, "the writer is finished already");
  QUIRE_RETURN_IF_ERROR(write_zeros(round_up(written_) - written_));
  QUIRE_RETURN_IF_ERROR(filled_ > 0 ? flush() : wait());
  ExtentRange used = range_;
  used.bytes = flushed_;
  files_->give_buffer(std::move(buffer_));
  files_->give_buffer(std::move(behind_));
  std::exchange(files_, nullptr)->finished(range_, used);
  return used;
}

Result<ExtentFiles::Writer> ExtentFiles::begin(std::uint64_t bytes) {
  bytes = round_up(std::max<std::uint64_t>(bytes, 1));
  Pages buffer = take_buffer();
  if (!buffer) return Status::exhausted("not enough memory to write a segment");
  std::lock_guard lock(mu_);
  auto it = extents_.find(active_);
  if (it != extents_.end() && it->second.end > 0 && it->second.end + bytes > extent_bytes_)
    it = extents_.end();
  const bool create = it == extents_.end();
  if (create) it = extents_.try_emplace(next_number_++).first;
  auto fd = file_of(it->first, create);
  if (!fd.ok()) {
    if (create) extents_.erase(it);
    return fd.status();
  }
  active_ = it->first;
  Extent& extent = it->second;
  const ExtentRange range{it->first, extent.end, bytes};
  extent.end += bytes;
  extent.live += bytes;
  live_ += bytes;
  folder_dirty_ |= create;
  return Writer(*this, range, std::move(*fd), std::move(buffer));
}

void ExtentFiles::finished(const ExtentRange& reserved, const ExtentRange& used) {
  std::lock_guard lock(mu_);
  Extent& extent = extents_.at(used.extent);
  const std::uint64_t rest = reserved.bytes - used.bytes;
  extent.live -= rest;
  live_ -= rest;
  if (extent.end == reserved.offset + reserved.bytes) extent.end -= rest;
  extent.dirty = true;
  ++num_finished_;
  measure(extent);
}

Status ExtentFiles::sync() {
  std::unique_lock lock(mu_);
  const std::uint64_t wanted = num_finished_;
  for (;;) {
    if (num_synced_ >= wanted) return {};
    if (!syncing_) break;
    synced_.wait(lock);
  }
  syncing_ = true;
  const std::uint64_t covered = num_finished_;
  const bool folder = std::exchange(folder_dirty_, false);
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const int>>> dirty;
  for (auto& [number, extent] : extents_) {
    if (!extent.dirty) continue;
    extent.dirty = false;
    if (extent.fd) dirty.emplace_back(number, extent.fd);
  }
  lock.unlock();
  int error = 0;
  for (const auto& [number, fd] : dirty) {
    if (::fdatasync(*fd) != 0) error = errno;
  }
  if (folder) {
    const int fd = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ::fsync(fd) != 0) error = errno;
    if (fd >= 0) ::close(fd);
  }
  lock.lock();
  syncing_ = false;
  if (error == 0) {
    num_synced_ = std::max(num_synced_, covered);
  } else {
    folder_dirty_ |= folder;
    for (const auto& [number, fd] : dirty) {
      if (auto it = extents_.find(number); it != extents_.end()) it->second.dirty = true;
    }
  }
  synced_.notify_all();
  return error == 0 ? Status() : failed("write segments to stable storage", error);
}

// ---- reading ----

Result<std::shared_ptr<const int>> ExtentFiles::open_file(std::uint32_t number) {
  std::lock_guard lock(mu_);
  return file_of(number, false);
}

namespace {

/// Fills at least `needed` of the `bytes` at `to`, which are whole pages.
Status read_pages(int fd, std::byte* to, std::size_t bytes, std::size_t needed,
                  std::uint64_t offset) {
  for (std::size_t got = 0; got < needed;) {
    const ssize_t n = ::pread(fd, to + got, bytes - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read a segment", errno);
    if (n == 0) return Status::not_found("an extent ends before the value");
    got += to_size(n);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<ValueBuffer>> ExtentFiles::read(const ExtentRange& range,
                                                       std::uint64_t header,
                                                       std::uint32_t payload_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const auto fd, open_file(range.extent));
  const std::uint64_t begin = (range.offset + header) / kExtentPage * kExtentPage,
                      end = range.offset + header + record::kValueHeaderBytes + payload_bytes;
  const std::size_t lead = to_size(range.offset + header + record::kValueHeaderBytes - begin);
  const std::size_t total = to_size(round_up(end - begin));
  auto out = ValueBuffer::for_pages(lead, payload_bytes, total);
  QUIRE_RETURN_IF_ERROR(read_pages(*fd, out->memory(), total, to_size(end - begin), begin));
  return out;
}

Result<std::vector<std::shared_ptr<ValueBuffer>>> ExtentFiles::read_run(
    std::uint32_t extent, std::span<const ValuePlace> places) {
  QUIRE_ASSIGN_OR_RETURN(const auto fd, open_file(extent));
  const std::uint64_t begin = places.front().header / kExtentPage * kExtentPage;
  std::uint64_t end = begin;
  for (const ValuePlace& p : places)
    end = std::max(end, p.header + record::kValueHeaderBytes + p.payload_bytes);
  QUIRE_CHECK(round_up(end - begin) <= kWriteBytes, "a run of values is longer than a buffer");
  Pages buffer = take_buffer();
  if (!buffer) return Status::exhausted("not enough memory to read values");
  const Status s = read_pages(*fd, buffer.get(), to_size(round_up(end - begin)),
                              to_size(end - begin), begin);
  std::vector<std::shared_ptr<ValueBuffer>> out;
  if (s.ok()) {
    out.reserve(places.size());
    for (const ValuePlace& p : places) {
      // Each value gets memory of its own, so that memory is freed value by value.
      auto value = std::make_shared<ValueBuffer>(p.payload_bytes);
      const auto stored = value->stored();
      std::memcpy(stored.data(), buffer.get() + (p.header - begin), stored.size());
      out.push_back(std::move(value));
    }
  }
  give_buffer(std::move(buffer));
  QUIRE_RETURN_IF_ERROR(s);
  return out;
}

Result<ExtentRange> ExtentFiles::copy(const ExtentRange& range) {
  QUIRE_ASSIGN_OR_RETURN(const auto fd, open_file(range.extent));
  QUIRE_ASSIGN_OR_RETURN(Writer writer, begin(range.bytes));
  Pages buffer = take_buffer();
  if (!buffer) return Status::exhausted("not enough memory to move a segment");
  for (std::uint64_t done = 0; done < range.bytes;) {
    const std::size_t want = to_size(std::min<std::uint64_t>(kWriteBytes, range.bytes - done));
    const ssize_t n = ::pread(*fd, buffer.get(), want, static_cast<off_t>(range.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read a segment", errno);
    if (n == 0) return Status::not_found("an extent ends before its segment");
    QUIRE_RETURN_IF_ERROR(writer.write(std::span(buffer.get(), to_size(n))));
    done += static_cast<std::uint64_t>(n);
  }
  give_buffer(std::move(buffer));
  return writer.finish();
}

// ---- freeing ----

/// Deletes an extent without ranges in use, also the one that is written to.
bool ExtentFiles::drop_if_unused(std::uint32_t number) {
  const auto it = extents_.find(number);
  if (it == extents_.end() || it->second.live > 0) return false;
  if (number == active_) active_ = 0;
  allocated_ -= it->second.allocated;
  extents_.erase(it);
  ::unlink(path_of(number).c_str());
  return true;
}

void ExtentFiles::free(const ExtentRange& range) {
  std::shared_ptr<const int> fd;
  {
    std::lock_guard lock(mu_);
    const auto it = extents_.find(range.extent);
    if (it == extents_.end()) return;
    it->second.live -= range.bytes;
    live_ -= range.bytes;
    if (drop_if_unused(range.extent)) return;
    auto opened = file_of(range.extent, false);
    if (!opened.ok() || !punches_) return;
    fd = std::move(*opened);
  }
  punch(*fd, range.offset, range.bytes);
  std::lock_guard lock(mu_);
  if (const auto it = extents_.find(range.extent); it != extents_.end()) measure(it->second);
}

ExtentUsage ExtentFiles::usage() const {
  std::lock_guard lock(mu_);
  return {allocated_, live_, extents_.size(), punches_};
}

std::vector<std::uint32_t> ExtentFiles::sparse(double live_share) const {
  std::vector<std::pair<double, std::uint32_t>> found;
  std::lock_guard lock(mu_);
  for (const auto& [number, extent] : extents_) {
    if (number == active_ || extent.end == 0) continue;
    const double share = static_cast<double>(extent.live) / static_cast<double>(extent.end);
    if (share < live_share) found.emplace_back(share, number);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::uint32_t> numbers;
  for (const auto& [share, number] : found) numbers.push_back(number);
  return numbers;
}

}  // namespace quire
