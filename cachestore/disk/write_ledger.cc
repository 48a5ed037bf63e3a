#include "cachestore/disk/write_ledger.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace quire {
namespace {

/// Number, time, families, padding, XXH3-64 of these; integers little-endian.
constexpr std::size_t kEntryBytes = 32, kHashedBytes = 24;
using EntryBytes = std::array<char, kEntryBytes>;

void put(char* out, std::uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<char>(v >> (8 * i));
}
std::uint64_t take(const char* in, int bytes) {
  std::uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; --i) v = v << 8 | static_cast<unsigned char>(in[i]);
  return v;
}

Status failed(const std::string& path) {
  return Status(Code::kIo, "cannot write '" + path + "': " + std::strerror(errno), "disk.path");
}

int open_file(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

}  // namespace

WriteLedger::~WriteLedger() {
  for (const File& file : files_) {
    (void)::fdatasync(file.fd);
    ::close(file.fd);
  }
}

Status WriteLedger::open(const std::string& path, std::uint64_t compared, const std::string& twin) {
  const int fd = open_file(path);
  if (fd < 0) return failed(path);
  files_.push_back({path, fd});
  if (!twin.empty()) {
    if (const int second = open_file(twin); second >= 0)
      files_.push_back({twin, second});
    else
      log_warning("acknowledged writes are noted in one place only",
                  {{"path", path}, {"reason", failed(twin).message()}});
  }
  read(compared);
  return {};
}

void WriteLedger::read_file(const File& file, std::vector<Entry>* out) {
  std::array<char, kEntries * kEntryBytes> bytes;
  std::size_t size = 0;
  for (ssize_t n = 0; size < bytes.size(); size += static_cast<std::size_t>(n)) {
    n = ::pread(file.fd, bytes.data() + size, bytes.size() - size, static_cast<off_t>(size));
    if (n <= 0) break;
  }
  const auto entries = parse({bytes.data(), size});
  out->insert(out->end(), entries.begin(), entries.end());
}

void WriteLedger::read(std::uint64_t compared) {
  entries_.clear();
  for (const File& file : files_) read_file(file, &entries_);
  std::erase_if(entries_, [compared](const Entry& e) { return e.number <= compared; });
  std::ranges::sort(entries_, {}, &Entry::number);
  const auto same = [](const Entry& a, const Entry& b) { return a.number == b.number; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  last_ = std::max(last_.load(), compared);
}

std::vector<WriteLedger::Entry> WriteLedger::parse(std::string_view file) {
  std::vector<Entry> out;
  for (; file.size() >= kEntryBytes; file.remove_prefix(kEntryBytes)) {
    const char* entry = file.data();
    if (take(entry + kHashedBytes, 8) != XXH3_64bits(entry, kHashedBytes)) continue;
    const Entry e{take(entry, 8), static_cast<std::int64_t>(take(entry + 8, 8)),
                  static_cast<Families>(take(entry + 16, 4))};
    if (e.number > 0) out.push_back(e);
  }
  return out;
}

std::vector<std::uint64_t> WriteLedger::numbers_in(std::string_view log) {
  std::vector<std::uint64_t> out;
  // In a batch a put is: length of the key, key, length of the value, value.
  const std::string begin = {2, '\0'};
  for (std::size_t at = log.find(begin); at != std::string_view::npos;
       at = log.find(begin, at + 1)) {
    if (log.size() - at < 12) break;
    const std::uint64_t number = take(log.data() + at + 4, 8);
    if (log[at + 3] == 8 && number % kSlots == static_cast<unsigned char>(log[at + 2]))
      out.push_back(number);
  }
  return out;
}

std::uint64_t WriteLedger::last_in_log(std::string_view log, std::uint64_t last) {
  // Numbers are not given anew, and few are under way at once.
  constexpr std::uint64_t kFarthest = 1u << 20;
  std::uint64_t found = last;
  for (const std::uint64_t number : numbers_in(log))
    if (number - last <= kFarthest) found = std::max(found, number);
  return found;
}

std::uint64_t WriteLedger::last_present(int num_families, const SlotReader& read) {
  std::uint64_t last = 0;
  for (int f = 0; f < num_families; ++f) {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      const std::uint64_t number = read(f, slot);
      if (number != kUnreadable) last = std::max(last, number);
    }
  }
  return last;
}

LostWrites WriteLedger::compare(int num_families, const SlotReader& read) {
  std::vector<std::array<std::uint64_t, kSlots>> present(static_cast<std::size_t>(num_families));
  std::uint64_t last = 0;
  for (int f = 0; f < num_families; ++f) {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      const std::uint64_t number = read(f, slot);
      present[static_cast<std::size_t>(f)][slot] = number;
      if (number != kUnreadable) last = std::max(last, number);
    }
  }
  LostWrites lost;
  for (const Entry& e : entries_) {
    last = std::max(last, e.number);
    bool missing = false;
    for (int f = 0; f < num_families; ++f)
      missing = missing || ((e.families >> f & 1) != 0 &&
                            present[static_cast<std::size_t>(f)][e.number % kSlots] < e.number);
    if (!missing) continue;
    ++lost.count;
    lost.first_ms = lost.first_ms == 0 ? e.ms : std::min(lost.first_ms, e.ms);
    lost.last_ms = std::max(lost.last_ms, e.ms);
  }
  lost.at_least = lost.count >= kEntries;
  last_ = std::max(last_.load(), last);
  return lost;
}

Status WriteLedger::forget() {
  entries_.clear();
  Status status;
  for (const File& file : files_)
    if (::ftruncate(file.fd, 0) != 0 || ::fsync(file.fd) != 0) status = failed(file.path);
  return status;
}

WriteLedger::Turn WriteLedger::next() {
  for (;;) {
    const std::uint64_t number = ++last_;
    Slot& slot = slots_[number % kSlots];
    std::unique_lock lock(slot.mu);
    if (number < slot.taken) continue;  // a later write was first
    slot.taken = number;
    return {number, std::move(lock)};
  }
}

void WriteLedger::add(std::uint64_t number, Families families, std::int64_t now_ms) {
  EntryBytes bytes{};
  put(bytes.data(), number, 8);
  put(bytes.data() + 8, static_cast<std::uint64_t>(now_ms), 8);
  put(bytes.data() + 16, families, 4);
  put(bytes.data() + kHashedBytes, XXH3_64bits(bytes.data(), kHashedBytes), 8);
  for (const File& file : files_)
    (void)!::pwrite(file.fd, bytes.data(), bytes.size(),
                    static_cast<off_t>(number % kEntries * kEntryBytes));
}

std::string WriteLedger::slot_key(std::size_t slot) { return {'\0', static_cast<char>(slot)}; }

std::string WriteLedger::slot_value(std::uint64_t number) {
  std::string value(8, '\0');
  put(value.data(), number, 8);
  return value;
}

std::uint64_t WriteLedger::slot_number(std::string_view value) {
  return value.size() == 8 ? take(value.data(), 8) : 0;
}

}  // namespace quire
