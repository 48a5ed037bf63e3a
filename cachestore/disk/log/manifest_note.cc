#include "cachestore/disk/log/manifest_note.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "cachestore/disk/log/hex_checksum.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_end.h"

namespace quire {
namespace {

constexpr std::string_view kPrefix = "MANIFEST-";

/// Returns the number in a manifest's name; none: it is no such name.
std::optional<std::uint64_t> number_of(std::string_view name) {
  std::uint64_t number = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
  return error == std::errc() && at == end ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string record_identity(const std::string& db) {
  std::string id = file_bytes(db + "/IDENTITY");
  id.resize(std::min(id.size(), id.find_first_of(" \n")));
  return id;
}

std::string ManifestNote::text() const {
  const std::string noted = manifest + " " + std::to_string(bytes) + " " + record + " ";
  return noted + hex_checksum(noted) + "\n";
}

std::optional<ManifestNote> ManifestNote::parse(std::string_view text) {
  const auto name_end = text.find(' ');
  if (name_end == text.npos) return std::nullopt;
  ManifestNote note{std::string(text.substr(0, name_end))};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + name_end + 1, end, note.bytes);
  if (at != end) {
    const auto begin = static_cast<std::size_t>(at - text.data()) + 1;
    note.record = text.substr(begin, std::min(text.find(' ', begin), text.size()) - begin);
  }
  // The checksum is compared with the rest.
  if (error != std::errc() || !number_of(note.manifest) || !text.starts_with(note.text()))
    return std::nullopt;
  return note;
}

std::optional<ManifestNote> ManifestNote::read(const std::string& path, std::string_view record) {
  auto note = parse(file_bytes(path));
  return note && note->record == record ? note : std::nullopt;
}

void ManifestNote::write(const std::string& path) const {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string line = text();
  (void)!::pwrite(fd, line.data(), line.size(), 0);
  ::close(fd);
}

bool ManifestNote::is_in(std::string_view name, std::string_view content) const {
  const auto number = number_of(name), noted = number_of(manifest);
  const std::uint64_t whole = whole_edits(content);
  if (!number || !noted || whole == 0) return true;
  return *number > *noted || (*number == *noted && whole >= bytes);
}

}  // namespace quire
