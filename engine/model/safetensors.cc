#include "engine/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "base/index.h"
#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uintmax_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;

struct DTypeRow {
  const char* name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};
constexpr DTypeRow kDTypes[] = {
    {"F32", 32, DType::kF32}, {"F16", 16, DType::kF16}, {"BF16", 16, DType::kBF16},
    {"I8", 8, DType::kI8},    {"F64", 64, {}},          {"I64", 64, {}},
    {"U64", 64, {}},          {"I32", 32, {}},          {"U32", 32, {}},
    {"I16", 16, {}},          {"U16", 16, {}},          {"U8", 8, {}},
    {"BOOL", 8, {}},          {"F8_E4M3", 8, {}},       {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
};

Status bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// Returns a name from the file in quotes, short and printable for error lines.
std::string show_name(std::string_view name) {
  std::string out = "\"";
  for (char ch : name.substr(0, 100))
    out += (static_cast<unsigned char>(ch) < 0x20 || ch == 0x7f) ? '?' : ch;
  return out + (name.size() > 100 ? "...\"" : "\"");
}

Result<json::object> parse_object(std::string_view text, std::string_view what) {
  json::value value;
  if (const auto error = parse_json(text, value)) {
    if (error->kind == JsonTextError::Kind::kRepeatedKey)
      return bad(std::string(what) + " holds " + show_name(error->key) + " twice");
    return bad(std::string(what) + " is not valid JSON: " + error->reason);
  }
  if (!value.is_object()) return bad(std::string(what) + " is not a JSON object");
  return std::move(value.get_object());
}

std::optional<std::uint64_t> as_unsigned(const json::value& v) {
  if (v.is_uint64()) return v.get_uint64();
  if (v.is_int64() && v.get_int64() >= 0) return static_cast<std::uint64_t>(v.get_int64());
  return std::nullopt;
}

Result<TensorEntry> parse_entry(std::string_view name, const json::value& value) {
  TensorEntry entry;
  entry.name = std::string(name);
  const std::string who = "tensor " + show_name(name);
  if (!value.is_object()) return bad(who + " is not described by an object");
  const json::object& object = value.get_object();
  const json::value* dtype = object.if_contains("dtype");
  const json::value* shape = object.if_contains("shape");
  const json::value* offsets = object.if_contains("data_offsets");
  if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets ||
      !offsets->is_array()) {
    return bad(who + " needs dtype (text), shape (list) and data_offsets (list)");
  }
  entry.dtype_name.assign(dtype->get_string().data(), dtype->get_string().size());
  const auto row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                [&](const DTypeRow& r) { return entry.dtype_name == r.name; });
  if (row == std::end(kDTypes))
    return bad(who + " has the unknown dtype " + show_name(entry.dtype_name));
  entry.dtype = row->dtype;

  if (shape->get_array().size() > kMaxRank) return bad(who + " has more than 8 dimensions");
  std::uint64_t bits = row->bits;
  for (const json::value& dim : shape->get_array()) {
    const std::optional<std::uint64_t> n = as_unsigned(dim);
    if (!n || *n > (std::uint64_t{1} << 48))
      return bad(who + " has an impossible dimension " + json::serialize(dim).substr(0, 40));
    if (__builtin_mul_overflow(bits, *n, &bits)) return bad(who + " is too large for any memory");
    entry.shape.push_back(static_cast<std::int64_t>(*n));
  }
  const json::array& range = offsets->get_array();
  const std::optional<std::uint64_t> begin = range.size() == 2 ? as_unsigned(range[0])
                                                               : std::nullopt;
  const std::optional<std::uint64_t> end = range.size() == 2 ? as_unsigned(range[1]) : std::nullopt;
  if (!begin || !end || *begin > *end) return bad(who + " has impossible data_offsets");
  if (*end - *begin != bits / 8) {
    return bad(who + " spans " + std::to_string(*end - *begin) + " bytes but " + entry.dtype_name +
               " " + entry.shape_text() + " needs " + std::to_string(bits / 8));
  }
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

/// Checks that tensors tile [0, data_bytes) exactly, then turns their offsets into offsets in the
/// file.
Status place_entries(std::vector<TensorEntry>& entries, std::uint64_t data_start,
                     std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (TensorEntry& entry : entries) {
    const std::string who = "tensor " + show_name(entry.name);
    if (entry.end > data_bytes) {
      return bad(who + " ends at byte " + std::to_string(entry.end) +
                 " of the data, but the file holds only " + std::to_string(data_bytes) +
                 ": it is truncated or its header lies");
    }
    if (entry.begin < expected) return bad(who + " overlaps the tensor before it");
    if (entry.begin > expected) return bad("a hole of unnamed bytes lies before " + who);
    expected = entry.end;
    entry.begin += data_start;
    entry.end += data_start;
  }
  if (expected != data_bytes) {
    return bad("the tensors end at byte " + std::to_string(expected) +
               " of the data, but the file holds " + std::to_string(data_bytes));
  }
  return {};
}

Result<std::vector<TensorEntry>> parse_header_text(std::string_view text,
                                                   std::uint64_t file_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const json::object header, parse_object(text, "the header"));
  std::vector<TensorEntry> entries;
  entries.reserve(header.size());
  for (const auto& item : header) {
    const std::string_view name(item.key().data(), item.key().size());
    if (name == "__metadata__") continue;
    QUIRE_ASSIGN_OR_RETURN(TensorEntry entry, parse_entry(name, item.value()));
    entries.push_back(std::move(entry));
  }
  const std::uint64_t data_start = 8 + text.size();
  QUIRE_RETURN_IF_ERROR(place_entries(entries, data_start, file_bytes - data_start));
  return entries;
}

Status io_error(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  const Code code = error == ENOENT ? Code::kNotFound : Code::kIo;
  return Status(code, std::string(what) + " " + path.string() + ": " + std::strerror(error),
                path.filename().string());
}

}  // namespace

std::string TensorEntry::shape_text() const {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Result<std::vector<TensorEntry>> parse_safetensors_header(std::span<const std::byte> start,
                                                          std::uint64_t file_bytes) {
  if (start.size() < 8 || file_bytes < 8)
    return bad("the file is too short to hold a safetensors header");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = (length << 8) | std::to_integer<std::uint64_t>(start[at(i)]);
  if (length > kMaxHeaderBytes)
    return bad("the header claims " + std::to_string(length) +
               " bytes; this is no safetensors file");
  if (length > file_bytes - 8 || length > start.size() - 8) {
    return bad("the header claims " + std::to_string(length) +
               " bytes, but the file ends before that: it is truncated");
  }
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + 8, to_size(length));
  try {
    return parse_header_text(text, file_bytes);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return bad(std::string("the header cannot be read: ") + e.what());
  }
}

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text) {
  try {
    QUIRE_ASSIGN_OR_RETURN(const json::object index, parse_object(text, "the index"));
    const json::value* map = index.if_contains("weight_map");
    if (!map || !map->is_object() || map->get_object().empty())
      return bad("the index has no weight_map");
    std::map<std::string, std::string> out;
    for (const auto& item : map->get_object()) {
      const std::string_view name(item.key().data(), item.key().size());
      if (!item.value().is_string())
        return bad("weight_map." + show_name(name) + " is not the name of a file");
      const json::string& value = item.value().get_string();
      const std::string_view file(value.data(), value.size());
      constexpr std::string_view kEnding = ".safetensors";
      const bool plain = file.size() > kEnding.size() && file.size() < 256 &&
                         file.ends_with(kEnding) && file[0] != '.' &&
                         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
      if (!plain)
        return bad("weight_map." + show_name(name) + " names " + show_name(file) +
                   ", which is no plain name of a .safetensors file");
      out.emplace(name, file);
    }
    return out;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return bad(std::string("the index cannot be read: ") + e.what());
  }
}

/// File is one mapped file.
struct TensorFolder::File {
  std::string name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::vector<TensorEntry> entries;
  ~File() {
    if (data) ::munmap(const_cast<std::byte*>(data), bytes);
  }
};

TensorFolder::TensorFolder() = default;
TensorFolder::~TensorFolder() = default;

Status TensorFolder::add_file(const std::filesystem::path& path) {
  auto file = std::make_unique<File>();
  file->name = path.filename().string();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error(path, "cannot open");
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::kIo, path.string() + " is not a regular file", file->name);
  }
  file->bytes = to_size(info.st_size);
  if (file->bytes > 0) {
    void* map = ::mmap(nullptr, file->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const Status failed = map == MAP_FAILED ? io_error(path, "cannot map") : Status();
    ::close(fd);
    QUIRE_RETURN_IF_ERROR(failed);
    file->data = static_cast<const std::byte*>(map);
  } else {
    ::close(fd);
  }
  auto entries = parse_safetensors_header({file->data, file->bytes}, file->bytes);
  if (!entries.ok()) return entries.status().with_context(path.string()).with_field(file->name);
  file->entries = std::move(*entries);
  for (const TensorEntry& entry : file->entries) {
    const TensorView view{
        &entry, {file->data + entry.begin, to_size(entry.end - entry.begin)}, &file->name};
    if (!tensors_.emplace(entry.name, view).second) {
      return Status::invalid(file->name, path.string() + ": tensor " + show_name(entry.name) +
                                             " is also in another file of the model");
    }
  }
  total_bytes_ += file->bytes;
  files_.push_back(std::move(file));
  return {};
}

Result<std::unique_ptr<TensorFolder>> TensorFolder::open(const std::filesystem::path& dir) {
  std::unique_ptr<TensorFolder> folder(new TensorFolder());
  const std::filesystem::path single = dir / "model.safetensors",
                              index_path = dir / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    QUIRE_RETURN_IF_ERROR(folder->add_file(single));
    return folder;
  }
  const std::uintmax_t size = std::filesystem::file_size(index_path, error);
  if (error) {
    return Status(
        Code::kNotFound,
        dir.string() + " holds neither model.safetensors nor model.safetensors.index.json",
        "model.safetensors");
  }
  const std::string index_name = index_path.filename().string();
  if (size > kMaxIndexBytes)
    return Status::invalid(index_name, index_path.string() + " is larger than any index");
  std::string text(to_size(size), '\0');
  std::ifstream stream(index_path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(size)))
    return io_error(index_path, "cannot read");
  auto index = parse_safetensors_index(text);
  if (!index.ok()) return index.status().with_context(index_path.string()).with_field(index_name);

  std::set<std::string> names;
  for (const auto& [tensor, file] : *index) names.insert(file);
  for (const std::string& name : names) QUIRE_RETURN_IF_ERROR(folder->add_file(dir / name));
  for (const auto& [tensor, file] : *index) {
    const TensorView view = folder->find(tensor);
    if (!view.entry || *view.file != file) {
      return Status::invalid(index_name, index_path.string() + ": " + show_name(tensor) +
                                             " is not in " + file + " as the index says");
    }
  }
  return folder;
}

TensorView TensorFolder::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? TensorView{} : it->second;
}

std::vector<std::string> TensorFolder::names() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) out.push_back(name);
  return out;
}

void TensorFolder::drop_pages(const TensorView& view) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(view.bytes.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(view.bytes.data() + view.bytes.size()) / page *
                   page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace quire
