#include "readers/formats/zip_file.h"

#include <archive.h>
#include <archive_entry.h>

#include <memory>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::size_t kMaxEntries = 100'000, kMaxTotal = std::size_t{256} << 20, kMaxRatio = 200,
                      kAlwaysFine = std::size_t{16} << 20;

using Archive = std::unique_ptr<archive, decltype(&archive_read_free)>;

Status broken(archive* a) {
  const char* why = archive_error_string(a);
  return Status::invalid("", std::string("is damaged: ") + (why ? why : "the archive ends early"));
}

Result<Archive> open(std::string_view bytes) {
  Archive a(archive_read_new(), &archive_read_free);
  archive_read_support_format_zip_seekable(a.get());
  if (archive_read_open_memory(a.get(), bytes.data(), bytes.size()) != ARCHIVE_OK)
    return broken(a.get());
  return a;
}

/// Calls `visit` for each entry.
template <class Visit>
Status each_entry(std::string_view bytes, Visit visit) {
  QUIRE_ASSIGN_OR_RETURN(const Archive a, open(bytes));
  for (std::size_t n = 0;; ++n) {
    archive_entry* entry = nullptr;
    const int rc = archive_read_next_header(a.get(), &entry);
    if (rc == ARCHIVE_EOF) return {};
    if (rc < ARCHIVE_WARN || !entry) return broken(a.get());
    if (n >= kMaxEntries) return Status::exhausted("holds more than 100000 files");
    const char* name = archive_entry_pathname_utf8(entry);
    if (!name) name = archive_entry_pathname(entry);
    if (!name) continue;
    QUIRE_RETURN_IF_ERROR(visit(a.get(), entry, std::string(name)));
  }
}

}  // namespace

Result<std::vector<std::string>> zip_names(std::string_view bytes) {
  std::vector<std::string> out;
  QUIRE_RETURN_IF_ERROR(each_entry(bytes, [&](archive*, archive_entry*, std::string name) {
    out.push_back(std::move(name));
    return Status();
  }));
  return out;
}

Result<std::map<std::string, std::string>> unzip(std::string_view bytes,
                                                 bool (*wanted)(std::string_view name)) {
  std::map<std::string, std::string> out;
  std::size_t total = 0;
  const auto take = [&](archive* a, archive_entry* entry, std::string name) -> Status {
    if (!wanted(name)) return {};
    if (archive_entry_is_encrypted(entry) != 0)
      return Status::precondition("is protected by a password; save it without one");
    std::string content;
    char buffer[64 << 10];
    for (;;) {
      const auto n = archive_read_data(a, buffer, sizeof buffer);
      if (n < 0) return broken(a);
      if (n == 0) break;
      content.append(buffer, to_size(n));
      total += to_size(n);
      if (total > kMaxTotal ||
          (content.size() > kAlwaysFine && content.size() / kMaxRatio > bytes.size()))
        return Status::exhausted("unpacks to far more than its size (" + name.substr(0, 200) +
                                 "), as a zip bomb does; it is not read");
    }
    out.insert_or_assign(std::move(name), std::move(content));
    return {};
  };
  QUIRE_RETURN_IF_ERROR(each_entry(bytes, take));
  return out;
}

}  // namespace quire
