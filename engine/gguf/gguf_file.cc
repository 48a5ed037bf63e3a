#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/index.h"
#include "engine/gguf/gguf.h"

namespace quire {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kMaxParts = 99999;  // a name has room for five digits

/// "x-00002-of-00003.gguf": x, 2, 3.
struct PartName {
  std::string base;
  std::int64_t number = 0, count = 0;
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool has_gguf_ending(const fs::path& path) { return lower(path.extension().string()) == ".gguf"; }

std::optional<PartName> part_name(const fs::path& path) {
  if (!has_gguf_ending(path)) return std::nullopt;
  const std::string stem = path.stem().string();
  constexpr std::size_t kTail = 15;  // -00002-of-00003
  if (stem.size() <= kTail) return std::nullopt;
  const std::string tail = stem.substr(stem.size() - kTail);
  const auto digits = [&](std::size_t from) {
    return tail.find_first_not_of("0123456789", from) >= from + 5;
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !digits(1) || !digits(10))
    return std::nullopt;
  return PartName{stem.substr(0, stem.size() - kTail), std::stol(tail.substr(1, 5)),
                  std::stol(tail.substr(10, 5))};
}

std::string part_file(const PartName& part, std::int64_t number) {
  char tail[40];
  std::snprintf(tail, sizeof tail, "-%05lld-of-%05lld.gguf", static_cast<long long>(number),
                static_cast<long long>(part.count));
  return part.base + tail;
}

Status io_error(const fs::path& path, const char* what) {
  const int error = errno;
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo;
  return Status(code, std::string(what) + " " + path.string() + ": " + std::strerror(error),
                path.filename().string());
}

}  // namespace

/// One mapped file.
struct GgufFile::Part {
  std::string path;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  GgufHeader header;
  ~Part() {
    if (data != nullptr) ::munmap(const_cast<std::byte*>(data), bytes);
  }
};

GgufFile::GgufFile() = default;
GgufFile::~GgufFile() = default;

const GgufMetadata& GgufFile::metadata() const { return parts_.front()->header.metadata; }
const std::string& GgufFile::path() const { return parts_.front()->path; }

Status GgufFile::add_part(const fs::path& path) {
  auto part = std::make_unique<Part>();
  part->path = path.string();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error(path, "cannot open");
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::kIo, path.string() + " is not a regular file", path.filename().string());
  }
  part->bytes = to_size(info.st_size);
  if (part->bytes > 0) {
    void* map = ::mmap(nullptr, part->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const Status failed = map == MAP_FAILED ? io_error(path, "cannot map") : Status();
    ::close(fd);
    QUIRE_RETURN_IF_ERROR(failed);
    part->data = static_cast<const std::byte*>(map);
  } else {
    ::close(fd);
  }
  auto header = parse_gguf({part->data, part->bytes});
  if (!header.ok()) {
    const Status& s = header.status();
    return Status(s.code(), path.string() + ": " + s.message(), path.filename().string());
  }
  part->header = std::move(*header);
  total_bytes_ += part->bytes;
  parts_.push_back(std::move(part));
  return {};
}

/// parts_ holds the asked part alone, which says that it is one of several: reads the others.
Status GgufFile::add_other_parts(const fs::path& asked) {
  GgufFields in(parts_.front()->header.metadata);
  const std::int64_t count = in.integer("split.count", 0, kMaxParts, 0);
  const std::string file = asked.filename().string();
  if (!in.status().ok()) return in.status().with_context(asked.string()).with_field(file);
  if (count <= 1) return {};
  const auto name = part_name(asked);
  if (!name || name->count != count || name->number < 1 || name->number > count) {
    return Status::invalid(
        file, asked.string() + " is one of " + std::to_string(count) +
                  " parts of a model, but its name does not say which; give the parts back their "
                  "names (NAME-00001-of-" +
                  part_file({"", 1, count}, 1).substr(10));
  }
  std::unique_ptr<Part> known = std::move(parts_.front());
  parts_.clear();
  for (std::int64_t number = 1; number <= count; ++number) {
    const fs::path path = asked.parent_path() / part_file(*name, number);
    if (number == name->number) {
      parts_.push_back(std::move(known));
    } else if (const Status s = add_part(path); !s.ok()) {
      if (s.code() != Code::kNotFound) return s;
      return Status(Code::kNotFound,
                    path.string() + " is missing; " + file + " is one of " + std::to_string(count) +
                        " parts of a model, and all must lie in one folder",
                    path.filename().string());
    }
    GgufFields of(parts_.back()->header.metadata);
    const std::int64_t no = of.integer("split.no", 0, kMaxParts),
                       parts = of.integer("split.count", 0, kMaxParts);
    if (of.status().ok() && no == number - 1 && parts == count) continue;
    return Status::invalid(path.filename().string(),
                           path.string() + " does not say that it is part " +
                               std::to_string(number) + " of " + std::to_string(count) +
                               ": it belongs to another model or was renamed");
  }
  return {};
}

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const fs::path& path) {
  std::shared_ptr<GgufFile> out(new GgufFile());
  QUIRE_RETURN_IF_ERROR(out->add_part(path));
  QUIRE_RETURN_IF_ERROR(out->add_other_parts(path));
  for (const auto& part : out->parts_) {
    for (const GgufTensor& t : part->header.tensors) {
      const GgufView view{&t, {part->data + t.begin, to_size(t.end - t.begin)}, &part->path};
      if (!out->tensors_.emplace(t.name, view).second) {
        return Status::invalid(
            fs::path(part->path).filename().string(),
            part->path + ": tensor " + t.name + " is also in another part of the model");
      }
    }
  }
  GgufFields in(out->metadata());
  const auto tensors = count_of(out->tensors_);
  const std::int64_t said = in.integer("split.tensors.count", 0, std::int64_t{1} << 32, tensors);
  if (out->parts_.size() > 1 && said != tensors) {
    return Status::invalid(path.filename().string(),
                           out->path() + ": the parts hold " + std::to_string(tensors) +
                               " tensors, but split.tensors.count says " + std::to_string(said));
  }
  return std::shared_ptr<const GgufFile>(std::move(out));
}

GgufView GgufFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? GgufView{} : it->second;
}

void GgufFile::drop_pages(const GgufView& view) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(view.bytes.data());
  const auto begin = (first + page - 1) / page * page,
             end = (first + view.bytes.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

namespace {

/// The models of a folder, each by its file or its first part that is there; names in order.
std::vector<fs::path> models_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const fs::path& path = it->path();
    const bool projector = lower(path.filename().string()).starts_with("mmproj");
    if (has_gguf_ending(path) && !projector && it->is_regular_file(ignored)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<fs::path> models;
  std::optional<PartName> last;
  for (const fs::path& file : files) {
    const auto part = part_name(file);
    if (part && last && part->base == last->base && part->count == last->count) continue;
    last = part;
    models.push_back(file);
  }
  return models;
}

}  // namespace

Result<std::optional<fs::path>> find_gguf(const fs::path& path) {
  using Found = std::optional<fs::path>;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::exists(path, error)) {
      std::ifstream in(path, std::ios::binary);
      char magic[4] = {};
      if (has_gguf_ending(path) || (in.read(magic, 4) && std::string_view(magic, 4) == "GGUF"))
        return Found(path);
      return Status::invalid(
          path.filename().string(),
          path.string() +
              " is a file, but no GGUF file; give a .gguf file or the folder of a model");
    }
    if (has_gguf_ending(path))
      return Status(Code::kNotFound, "no file at " + path.string(), path.filename().string());
    return Found();
  }
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, error)) return Found();
  }
  const std::vector<fs::path> models = models_in(path);
  if (models.empty()) return Found();
  if (models.size() == 1) return Found(models.front());
  if (fs::exists(path / "config.json", error)) return Found();
  std::string names;
  for (std::size_t i = 0; i < models.size() && i < 20; ++i)
    names += (i > 0 ? ", " : "") + models[i].filename().string();
  if (models.size() > 20) names += ", ...";
  return Status::invalid(
      "model.path", path.string() + " holds several GGUF models; name one of the files: " + names);
}

}  // namespace quire
