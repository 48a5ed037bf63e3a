#include "engine/gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/index.h"
#include "engine/gguf/gguf_types.h"

namespace quire {
namespace {

// Far above what any model has, and low enough that no file makes us work or store without end.
constexpr std::uint64_t kMaxKeys = 1 << 16;
constexpr std::uint64_t kMaxTensors = 1 << 20;
constexpr std::uint64_t kMaxNameBytes = 1024;
constexpr std::uint64_t kMaxStringBytes = 256 << 20;
constexpr std::uint64_t kMaxArrayValues = 1 << 24;  // of all arrays together
constexpr std::uint64_t kMaxAlignment = 1 << 24;
constexpr std::uint32_t kMaxRank = 4;
constexpr int kMaxNesting = 4;

Status bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// Names come from the file: keep error lines short and printable.
std::string shown(std::string_view name) {
  std::string out = "\"";
  for (const char ch : name.substr(0, 100)) {
    out += (static_cast<unsigned char>(ch) < 0x20 || ch == 0x7f) ? '?' : ch;
  }
  return out + (name.size() > 100 ? "...\"" : "\"");
}

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
constexpr std::uint32_t kNumValueTypes = 13;
constexpr std::string_view kValueNames[kNumValueTypes] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
/// The least a value takes: all of a number, the length of a string, type and length of an array.
constexpr std::uint64_t kLeastBytes[kNumValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

/// Takes values off the front of a file.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  /// Whether so many more values of arrays may be kept.
  bool spend(std::uint64_t values) {
    if (values > values_left_) return false;
    values_left_ -= values;
    return true;
  }

  template <class T>
  bool take(T& out) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&out, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  bool take_string(std::uint64_t most, std::string_view& out) {
    std::uint64_t size = 0;
    if (!take(size) || size > left() || size > most) return false;
    out = {reinterpret_cast<const char*>(bytes_.data()) + at_, to_size(size)};
    at_ += size;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t values_left_ = kMaxArrayValues;
};

Status cut_off(const Cursor& in, const std::string& what) {
  return bad(what + " at byte " + std::to_string(in.at()) +
             " does not fit into the file: it is truncated or damaged");
}

template <class T>
bool take_integer(Cursor& in, std::int64_t& out) {
  T value = 0;
  if (!in.take(value)) return false;
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    value = std::min<std::uint64_t>(value, std::numeric_limits<std::int64_t>::max());
  }
  out = static_cast<std::int64_t>(value);
  return true;
}

/// An integer or a bool; the caller knows that `type` is one.
bool take_integer(Cursor& in, std::uint32_t type, std::int64_t& out) {
  switch (type) {
    case kU8:
    case kBool:
      return take_integer<std::uint8_t>(in, out);
    case kI8:
      return take_integer<std::int8_t>(in, out);
    case kU16:
      return take_integer<std::uint16_t>(in, out);
    case kI16:
      return take_integer<std::int16_t>(in, out);
    case kU32:
      return take_integer<std::uint32_t>(in, out);
    case kI32:
      return take_integer<std::int32_t>(in, out);
    case kU64:
      return take_integer<std::uint64_t>(in, out);
    default:
      return take_integer<std::int64_t>(in, out);
  }
}

bool take_real(Cursor& in, std::uint32_t type, double& out) {
  if (type == kF64) return in.take(out);
  float value = 0;
  if (!in.take(value)) return false;
  out = static_cast<double>(value);
  return true;
}

bool is_real(std::uint32_t type) { return type == kF32 || type == kF64; }

Result<GgufArray> take_array(Cursor& in, const std::string& who, int depth);

/// The values of an array of `size` of one type, all of which are in the file.
Status take_elements(Cursor& in, std::uint32_t type, const std::string& who, int depth,
                     GgufArray& out) {
  for (std::uint64_t i = 0; i < out.size; ++i) {
    if (type == kString) {
      std::string_view text;
      if (!in.take_string(kMaxStringBytes, text)) return cut_off(in, "a string of " + who);
      out.strings.push_back(text);
    } else if (type == kArray) {
      QUIRE_ASSIGN_OR_RETURN(const GgufArray inner, take_array(in, who, depth + 1));
      (void)inner;  // checked; no model needs it
    } else if (is_real(type)) {
      double value = 0;
      if (!take_real(in, type, value)) return cut_off(in, "a value of " + who);
      out.reals.push_back(value);
    } else {
      std::int64_t value = 0;
      if (!take_integer(in, type, value)) return cut_off(in, "a value of " + who);
      out.integers.push_back(value);
    }
  }
  return {};
}

Result<GgufArray> take_array(Cursor& in, const std::string& who, int depth) {
  if (depth > kMaxNesting) {
    return bad(who + " nests arrays deeper than " + std::to_string(kMaxNesting) + " levels");
  }
  std::uint32_t type = 0;
  GgufArray out;
  if (!in.take(type) || !in.take(out.size)) return cut_off(in, "the array of " + who);
  if (type >= kNumValueTypes) {
    return bad(who + " is an array of the unknown type " + std::to_string(type));
  }
  if (out.size > in.left() / kLeastBytes[type]) {
    return bad(who + " claims " + std::to_string(out.size) +
               " values, more than the rest of the file holds: it is truncated or damaged");
  }
  if (!in.spend(out.size)) {
    return bad(who + " has " + std::to_string(out.size) + " values; all arrays together may have " +
               std::to_string(kMaxArrayValues));
  }
  out.element_type = kValueNames[type];
  QUIRE_RETURN_IF_ERROR(take_elements(in, type, who, depth, out));
  return out;
}

Result<GgufValue> take_value(Cursor& in, std::uint32_t type, const std::string& who) {
  if (type >= kNumValueTypes) return bad(who + " has the unknown type " + std::to_string(type));
  if (type == kArray) {
    QUIRE_ASSIGN_OR_RETURN(GgufArray array, take_array(in, who, 1));
    return GgufValue(std::move(array));
  }
  if (type == kString) {
    std::string_view text;
    if (!in.take_string(kMaxStringBytes, text)) return cut_off(in, "the string of " + who);
    return GgufValue(text);
  }
  if (is_real(type)) {
    double value = 0;
    if (!take_real(in, type, value)) return cut_off(in, "the value of " + who);
    return GgufValue(value);
  }
  std::int64_t value = 0;
  if (!take_integer(in, type, value)) return cut_off(in, "the value of " + who);
  if (type == kBool) return GgufValue(value != 0);
  return GgufValue(value);
}

Status take_metadata(Cursor& in, std::uint64_t count, GgufMetadata& out) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    std::uint32_t type = 0;
    if (!in.take_string(kMaxNameBytes, key)) return cut_off(in, "the name of a metadata key");
    const std::string who = "the metadata key " + shown(key);
    if (!in.take(type)) return cut_off(in, "the type of " + who);
    QUIRE_ASSIGN_OR_RETURN(GgufValue value, take_value(in, type, who));
    if (!out.emplace(key, std::move(value)).second) return bad(who + " is there twice");
  }
  return {};
}

/// Everything but the place of the bytes: begin is the offset in the data, end its sum with the
/// size.
Result<GgufTensor> take_tensor(Cursor& in) {
  std::string_view name;
  std::uint32_t rank = 0, number = 0;
  if (!in.take_string(kMaxNameBytes, name)) return cut_off(in, "the name of a tensor");
  GgufTensor out;
  out.name = std::string(name);
  const std::string who = "tensor " + shown(name);
  if (!in.take(rank)) return cut_off(in, "the description of " + who);
  if (rank > kMaxRank) {
    return bad(who + " has " + std::to_string(rank) + " dimensions; the format allows 4");
  }
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    std::uint64_t dim = 0;
    if (!in.take(dim)) return cut_off(in, "the description of " + who);
    if (dim == 0 || dim > (std::uint64_t{1} << 48) ||
        __builtin_mul_overflow(elements, dim, &elements) || elements > (std::uint64_t{1} << 56)) {
      return bad(who + " has the impossible dimension " + std::to_string(dim));
    }
    out.shape.insert(out.shape.begin(), static_cast<std::int64_t>(dim));
  }
  if (!in.take(number) || !in.take(out.begin)) return cut_off(in, "the description of " + who);
  auto type = gguf_internal::gguf_type(number);
  if (!type.ok()) return Status(type.code(), who + " " + type.status().message());
  out.type = *type;
  const auto weights = static_cast<std::uint64_t>(out.type.weights);
  const std::uint64_t row = out.shape.empty() ? 1 : static_cast<std::uint64_t>(out.shape.back());
  if (row % weights != 0) {
    return bad(who + " has rows of " + std::to_string(row) +
               " values, which are no whole blocks of " + std::string(out.type.name) + " (" +
               std::to_string(weights) + " values each)");
  }
  std::uint64_t size = 0;
  if (__builtin_mul_overflow(elements / weights, static_cast<std::uint64_t>(out.type.bytes),
                             &size) ||
      __builtin_add_overflow(out.begin, size, &out.end)) {
    return bad(who + " is too large for any memory");
  }
  return out;
}

Result<std::uint64_t> alignment_of(const GgufMetadata& metadata) {
  GgufFields in(metadata);
  const auto value = static_cast<std::uint64_t>(
      in.integer("general.alignment", 1, static_cast<std::int64_t>(kMaxAlignment), 32));
  if (!in.status().ok()) return in.status();
  if (!std::has_single_bit(value)) {
    return Status::invalid("general.alignment", "general.alignment is " + std::to_string(value) +
                                                    ", but must be a power of two");
  }
  return value;
}

/// Turns offsets in the data into offsets in the file. Gaps are padding; overlaps are damage.
Status place_tensors(std::vector<GgufTensor>& tensors, std::uint64_t header_end,
                     std::uint64_t alignment, std::uint64_t file_bytes) {
  const std::uint64_t start = (header_end + alignment - 1) / alignment * alignment;
  std::vector<GgufTensor*> order;
  for (GgufTensor& t : tensors) {
    const std::string who = "tensor " + shown(t.name);
    if (t.begin % alignment != 0) {
      return bad(who + " begins at byte " + std::to_string(t.begin) +
                 " of the data, which is no multiple of the alignment " +
                 std::to_string(alignment));
    }
    if (start > file_bytes || t.end > file_bytes - start) {
      return bad(who + " ends at byte " + std::to_string(t.end) +
                 " of the data, but the file holds only " +
                 std::to_string(start > file_bytes ? 0 : file_bytes - start) +
                 ": it is truncated (load it again) or damaged");
    }
    t.begin += start;
    t.end += start;
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return std::tie(a->begin, a->end, a->name) < std::tie(b->begin, b->end, b->name);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i]->begin < order[i - 1]->end) {
      return bad("tensor " + shown(order[i]->name) + " overlaps tensor " +
                 shown(order[i - 1]->name));
    }
  }
  return {};
}

/// Says what a file that does not begin with "GGUF" looks like.
Status no_gguf(std::span<const std::byte> file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<std::size_t>(file.size(), 64));
  const std::string_view four = start.substr(0, 4);
  if (four == "lmgg" || four == "fmgg" || four == "tjgg" || four == "algg") {
    return Status::unimplemented("is a ggml file from before GGUF; convert it or load a GGUF file");
  }
  if (start.starts_with("version https://git-lfs")) {
    return bad(
        "is the pointer that Git LFS leaves in place of a file; fetch the file itself (git lfs "
        "pull)");
  }
  return bad(file.empty() ? "is empty" : "does not begin with \"GGUF\": it is no GGUF file");
}

Status check_version(std::uint32_t version) {
  if (version == 2 || version == 3) return {};
  if ((version & 0xffff) == 0 && version != 0) {
    return Status::unimplemented(
        "is a big-endian GGUF file; only little-endian ones are supported");
  }
  return Status::unimplemented("is a GGUF file of version " + std::to_string(version) +
                               "; versions 2 and 3 are supported" +
                               (version < 2 ? ": convert it again with a newer converter" : ""));
}

}  // namespace

Result<GgufHeader> parse_gguf(std::span<const std::byte> file) {
  Cursor in(file);
  char magic[4] = {};
  GgufHeader out;
  if (!in.take(magic) || std::memcmp(magic, "GGUF", 4) != 0) return no_gguf(file);
  if (!in.take(out.version)) return cut_off(in, "the version");
  QUIRE_RETURN_IF_ERROR(check_version(out.version));
  std::uint64_t num_tensors = 0, num_keys = 0;
  if (!in.take(num_tensors) || !in.take(num_keys)) return cut_off(in, "the header");
  if (num_keys > kMaxKeys || num_keys > in.left() / 13) {
    return bad("claims " + std::to_string(num_keys) +
               " metadata keys, more than it can hold: it is truncated or damaged");
  }
  if (num_tensors > kMaxTensors || num_tensors > in.left() / 24) {
    return bad("claims " + std::to_string(num_tensors) +
               " tensors, more than it can hold: it is truncated or damaged");
  }
  QUIRE_RETURN_IF_ERROR(take_metadata(in, num_keys, out.metadata));
  QUIRE_ASSIGN_OR_RETURN(const std::uint64_t alignment, alignment_of(out.metadata));
  std::set<std::string_view> names;
  out.tensors.reserve(to_size(num_tensors));  // the views in `names` stay valid
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    QUIRE_ASSIGN_OR_RETURN(GgufTensor tensor, take_tensor(in));
    out.tensors.push_back(std::move(tensor));
    if (!names.insert(out.tensors.back().name).second) {
      return bad("tensor " + shown(out.tensors.back().name) + " is there twice");
    }
  }
  QUIRE_RETURN_IF_ERROR(place_tensors(out.tensors, in.at(), alignment, file.size()));
  return out;
}

}  // namespace quire
