#include "engine/cache/prompt_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/format/byte_io.h"

namespace quire {
namespace {

constexpr std::string_view kFileMagic = "QUIREPRM";
constexpr std::uint32_t kSlotMagic = 0x4d525051;  // "QPRM"
constexpr std::uint32_t kVersion = 1;
/// Bytes of the file's header and of a slot's, which end with a hash of what is before.
constexpr std::size_t kFileHead = 96, kSlotHead = 160;
static_assert(4 + 2 * 32 + 16 + 4 * kPageTokens + 8 <= kSlotHead);
constexpr std::int64_t kAlignment = 4096;

std::uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string sealed(ByteWriter out, std::size_t bytes) {
  std::string text = out.take();
  text.resize(bytes - sizeof(std::uint64_t));
  ByteWriter seal;
  seal.number(hash_of(text));
  return text + seal.take();
}

/// Returns the bytes without the hash behind them; empty: they do not match it.
std::string_view unsealed(std::string_view bytes) {
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(std::uint64_t));
  ByteReader seal(bytes.substr(body.size()));
  return seal.number<std::uint64_t>() == hash_of(body) ? body : std::string_view();
}

std::string file_head(const PromptFile::Shape& shape) {
  ByteWriter out;
  out.raw(kFileMagic);
  out.number(kVersion);
  out.digest(shape.fingerprint);
  out.number(shape.page.num_kv_heads);
  out.number(shape.page.head_dim);
  out.number(static_cast<std::uint32_t>(shape.page.dtype));
  out.number(static_cast<std::uint32_t>(kPageTokens));
  out.number(shape.num_layers);
  return sealed(std::move(out), kFileHead);
}

std::string slot_head(const PromptPage& page) {
  const XXH128_hash_t rows = XXH3_128bits(page.rows.data(), page.rows.size());
  ByteWriter out;
  out.number(kSlotMagic);
  out.digest(page.key);
  out.digest(page.parent);
  out.number(rows.low64);
  out.number(rows.high64);
  for (const std::int32_t id : page.token_ids) out.number(id);
  return sealed(std::move(out), kSlotHead);
}

struct SlotHead {
  PromptPage page;  ///< without rows
  XXH128_hash_t rows{};
};

std::optional<SlotHead> read_slot_head(std::string_view bytes) {
  ByteReader in(unsealed(bytes));
  SlotHead out;
  if (in.number<std::uint32_t>() != kSlotMagic) return std::nullopt;
  out.page.key = in.digest();
  out.page.parent = in.digest();
  out.rows.low64 = in.number<std::uint64_t>();
  out.rows.high64 = in.number<std::uint64_t>();
  for (int i = 0; i < kPageTokens; ++i) out.page.token_ids.push_back(in.number<std::int32_t>());
  if (!in.ok()) return std::nullopt;
  return out;
}

bool read_at(int fd, void* to, std::size_t bytes, std::int64_t at) {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, out, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out += n, at += n, bytes -= to_size(n);
  }
  return true;
}

bool write_at(int fd, const void* from, std::size_t bytes, std::int64_t at) {
  const auto* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, in, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    in += n, at += n, bytes -= to_size(n);
  }
  return true;
}

Status io_error(const std::string& path, const char* what) {
  return Status(Code::kIo, path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<PromptFile>> PromptFile::open(const std::string& path, const Shape& shape,
                                                     std::int64_t max_bytes,
                                                     std::shared_ptr<Waker> waker) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (std::filesystem::create_directory(folder, ignored))
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, ignored);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return io_error(path, "cannot be opened");
  std::unique_ptr<PromptFile> file(new PromptFile(fd, path, shape, max_bytes, std::move(waker)));
  if (file->num_slots_ == 0) {
    return Status::invalid("disk.prompt_bytes", "holds not one page of a prompt, which takes " +
                                                    std::to_string(file->slot_bytes_) +
                                                    " bytes with this model");
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) return io_error(path, "cannot be read");
  if (!file->header_fits()) {
    if (info.st_size > 0)
      log_info("kept prompts are of another model and start anew", {{"file", path}});
    QUIRE_RETURN_IF_ERROR(file->start_anew());
  } else if (info.st_size > file->offset(file->num_slots_)) {
    if (::ftruncate(fd, file->offset(file->num_slots_)) != 0)
      return io_error(path, "cannot be shortened");
    file->bytes_ = file->offset(file->num_slots_);
  } else {
    file->bytes_ = info.st_size;
  }
  file->thread_ = std::thread([raw = file.get()] { raw->run(); });
  return file;
}

PromptFile::PromptFile(int fd, std::string path, const Shape& shape, std::int64_t max_bytes,
                       std::shared_ptr<Waker> waker)
    : fd_(fd),
      path_(std::move(path)),
      shape_(shape),
      max_bytes_(max_bytes),
      waker_(std::move(waker)) {
  rows_bytes_ = shape.page.page_bytes() * shape.num_layers;
  const std::int64_t bytes = rows_bytes_ + static_cast<std::int64_t>(kSlotHead);
  slot_bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  num_slots_ = static_cast<std::int32_t>(
      std::clamp<std::int64_t>((max_bytes - kAlignment) / slot_bytes_, 0, std::int64_t{1} << 24));
}

PromptFile::~PromptFile() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  ::close(fd_);
}

std::int64_t PromptFile::offset(std::int32_t slot) const { return kAlignment + slot * slot_bytes_; }

bool PromptFile::header_fits() const {
  std::string head(kFileHead, '\0');
  return read_at(fd_, head.data(), head.size(), 0) && head == file_head(shape_);
}

Status PromptFile::start_anew() {
  const std::string head = file_head(shape_);
  if (::ftruncate(fd_, 0) != 0 || !write_at(fd_, head.data(), head.size(), 0) ||
      ::ftruncate(fd_, kAlignment) != 0)
    return io_error(path_, "cannot be written");
  bytes_ = kAlignment;
  return {};
}

void PromptFile::load(
    const std::function<bool(std::int32_t slot, const PromptPage& page)>& take) const {
  struct Found {
    std::int32_t slot = 0;
    SlotHead head;
  };
  std::multimap<Digest, Found> by_parent;
  const std::int64_t length = bytes();
  std::string bytes(kSlotHead, '\0');
  for (std::int32_t slot = 0; slot < num_slots_ && offset(slot) < length; ++slot) {
    if (!read_at(fd_, bytes.data(), bytes.size(), offset(slot))) continue;
    if (auto head = read_slot_head(bytes)) {
      const Digest parent = head->page.parent;
      by_parent.emplace(parent, Found{slot, std::move(*head)});
    }
  }
  std::deque<Digest> ends = {Digest{}};
  while (!ends.empty()) {
    const auto [first, last] = by_parent.equal_range(ends.front());
    ends.pop_front();
    std::vector<Found> next;
    for (auto it = first; it != last; ++it) next.push_back(std::move(it->second));
    by_parent.erase(first, last);  // a page is read once, also where keys form a circle
    for (Found& found : next) {
      PromptPage& page = found.head.page;
      page.rows.resize(to_size(rows_bytes_));
      const std::int64_t at = offset(found.slot) + static_cast<std::int64_t>(kSlotHead);
      if (!read_at(fd_, page.rows.data(), page.rows.size(), at)) continue;
      const XXH128_hash_t hash = XXH3_128bits(page.rows.data(), page.rows.size());
      if (!XXH128_isEqual(hash, found.head.rows)) continue;
      if (take(found.slot, page)) ends.push_back(page.key);
    }
  }
}

bool PromptFile::ready() const {
  std::lock_guard lock(mu_);
  return !failed() && waiting_.size() < kMaxWaiting;
}

void PromptFile::write(std::int32_t slot, PromptPage page) {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return waiting_.size() < kMaxWaiting; });
  waiting_.emplace_back(slot, std::move(page));
  changed_.notify_all();
}

void PromptFile::flush() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return waiting_.empty() && !writing_; });
}

Status PromptFile::write_slot(std::int32_t slot, const PromptPage& page) {
  const std::string head = slot_head(page);
  std::string bytes(to_size(slot_bytes_), '\0');
  std::copy(head.begin(), head.end(), bytes.begin());
  std::memcpy(bytes.data() + kSlotHead, page.rows.data(), page.rows.size());
  if (!write_at(fd_, bytes.data(), bytes.size(), offset(slot)))
    return io_error(path_, "cannot be written");
  bytes_ = std::max(bytes_.load(), offset(slot) + slot_bytes_);
  return {};
}

/// Writes a page. One for which there is no memory is left out: its slot keeps what it had.
void PromptFile::save(std::int32_t slot, const PromptPage& page) {
  try {
    if (const Status written = write_slot(slot, page); !written.ok()) {
      failed_ = true;
      log_warning("prompts are not kept on disk any more", {{"reason", written.to_string()}});
    }
  } catch (...) {
    (void)exception_status("the saving of a prompt");
  }
}

void PromptFile::run() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [slot, page] = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    lock.unlock();
    if (!failed()) save(slot, page);
    lock.lock();
    writing_ = false;
    changed_.notify_all();
    if (waker_) waker_->wake();
  }
}

}  // namespace quire
