/// Reading GGUF files: metadata and tensors of one file or of the parts of a split one, mapped.
///
/// Format (versions 2 and 3, little-endian): "GGUF", u32 version, u64 number of tensors, u64 number
/// of keys; then per key its name, u32 type and value; then per tensor its name, u32 number of
/// dimensions, u64 each of them (the innermost first), u32 type and u64 offset in the data. The
/// data begin at the next multiple of the alignment (32, or general.alignment). A string is a u64
/// length and that many bytes; an array a u32 type, a u64 length and the values.
///
/// Every length, offset and product in a file is checked before it is used. Nothing here throws but
/// std::bad_alloc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/matmul/quant_blocks.h"

namespace quire {

/// Values of an array of metadata. Numbers are widened; what an array of arrays holds is checked,
/// but not kept.
struct GgufArray {
  std::uint64_t size = 0;
  std::string_view element_type;          ///< "u32", "string", "array", ...
  std::vector<std::int64_t> integers;     ///< of an array of integers or bools
  std::vector<double> reals;              ///< of an array of f32 or f64
  std::vector<std::string_view> strings;  ///< of an array of strings
};

/// A value of metadata. u64 values above 2^63 - 1 are kept as that.
using GgufValue = std::variant<bool, std::int64_t, double, std::string_view, GgufArray>;

/// The keys of a file. Strings are views into its bytes.
using GgufMetadata = std::map<std::string_view, GgufValue, std::less<>>;

/// How the elements of a tensor are stored.
struct GgufType {
  std::uint32_t number = 0;         ///< as in the file
  std::string_view name;            ///< "F16", "Q4_K", "IQ2_XXS", ...
  std::int64_t weights = 1;         ///< of a block
  std::int64_t bytes = 0;           ///< of a block
  std::optional<DType> dtype;       ///< F32, F16, BF16
  std::optional<BlockType> blocks;  ///< the block types of quant_blocks.h

  /// Whether this build can compute with it.
  bool supported() const { return dtype.has_value() || blocks.has_value(); }
};

/// One tensor as a file describes it; the bytes are [begin, end) of the file.
struct GgufTensor {
  std::string name;
  GgufType type;
  std::vector<std::int64_t> shape;  ///< row-major, outermost dimension first, each at least 1
  std::uint64_t begin = 0, end = 0;
};

/// What stands before the data of a file.
struct GgufHeader {
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  ///< as in the file
};

/// Parses a whole file. The result's views point into `file`. Tensor types of known size that this
/// build cannot compute with are listed like others. Errors: kInvalidArgument (damaged, or no GGUF
/// file), kUnimplemented (another version, big-endian, a tensor type of unknown size).
Result<GgufHeader> parse_gguf(std::span<const std::byte> file);

/// Reads typed keys and remembers the first thing that is wrong with them, after which every read
/// returns its fallback. The metadata must outlive it.
class GgufFields {
 public:
  explicit GgufFields(const GgufMetadata& metadata) : metadata_(metadata) {}

  const Status& status() const { return status_; }
  /// kInvalidArgument with field() = key.
  void fail(std::string_view key, const std::string& message);
  bool has(std::string_view key) const { return metadata_.contains(key); }
  /// A whole number in [low, high]. Without a fallback the key is required.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  /// A finite number.
  double number(std::string_view key, std::optional<double> fallback = {});
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string_view> text(std::string_view key);
  /// Null where the key is missing or no array.
  const GgufArray* array(std::string_view key);

 private:
  const GgufValue* find(std::string_view key) const;

  const GgufMetadata& metadata_;
  Status status_;
};

/// A tensor in a mapped file. Valid as long as the GgufFile lives.
struct GgufView {
  const GgufTensor* tensor = nullptr;
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  ///< path of the file, for errors
};

/// A model: one file, or all parts of a split one (x-00001-of-00003.gguf, ...). Immutable. The
/// mapping is read-only and private; the files must not be truncated while it lives. Any thread.
class GgufFile {
 public:
  /// `path` is the file, or any part. Errors name the file: kNotFound (no such file, a part is
  /// missing), kInvalidArgument (damaged, no GGUF file, parts of different models, two tensors of
  /// one name), kUnimplemented, kIo.
  static Result<std::shared_ptr<const GgufFile>> open(const std::filesystem::path& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  /// Of the first part.
  const GgufMetadata& metadata() const;
  /// Null view (tensor == nullptr) when there is no such tensor.
  GgufView find(std::string_view name) const;
  /// All tensors by name.
  const std::map<std::string_view, GgufView, std::less<>>& tensors() const { return tensors_; }
  /// Path of the first part.
  const std::string& path() const;
  /// Of all parts.
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Tells the system that a tensor's pages are not needed again soon.
  void drop_pages(const GgufView& view) const;

 private:
  struct Part;
  GgufFile();
  Status add_part(const std::filesystem::path& path);
  Status add_other_parts(const std::filesystem::path& asked);

  std::vector<std::unique_ptr<Part>> parts_;  ///< in order; the asked one alone while opening
  std::map<std::string_view, GgufView, std::less<>> tensors_;
  std::uint64_t total_bytes_ = 0;
};

/// The GGUF model that `path` names: the path itself where it is a file, or the one model that a
/// folder holds (its first part) where the folder has no safetensors files. Files mmproj* are
/// passed over. None for any other folder, and for a folder with a config.json and several models.
/// Errors: kNotFound (nothing at a path that ends in .gguf), kInvalidArgument (a file that is no
/// GGUF file; a folder without config.json that holds several models: it lists them).
Result<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& path);

}  // namespace quire
