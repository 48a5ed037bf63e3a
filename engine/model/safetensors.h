/// These functions read safetensors files, one file or an index of shards, by mapping them. Every
/// number in a header is checked before use.
///
/// Format: 8 bytes little-endian length of the header, the header (a JSON object name -> {dtype,
/// shape, data_offsets}), then the tensors' bytes, which cover the rest of the file without holes
/// or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace quire {

/// TensorEntry is one tensor as a header describes it; its bytes are [begin, end) of the file.
struct TensorEntry {
  std::string name;
  std::string dtype_name;      ///< as written: "BF16", "F32", ...
  std::optional<DType> dtype;  ///< none: a type that no supported model uses
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;

  std::string shape_text() const;  ///< "[151936, 896]"
};

/// Parses the header at the start of a file of `file_bytes` bytes; `start` holds at least the whole
/// header. Entries are in the order of their bytes. Reads nothing outside `start`, never throws.
/// Errors: kInvalidArgument with the reason.
Result<std::vector<TensorEntry>> parse_safetensors_header(std::span<const std::byte> start,
                                                          std::uint64_t file_bytes);

/// Parses model.safetensors.index.json: tensor name -> file name. It refuses names that are not
/// plain names of files ending in .safetensors, so nothing outside the model's folder is ever
/// opened.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json);

/// TensorView is a tensor in a mapped file. Valid as long as the TensorFolder lives.
struct TensorView {
  const TensorEntry* entry = nullptr;
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  ///< name of the file, for errors
};

/// TensorFolder holds all tensors of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json lists. Immutable after open. The mapping is read-only and private;
/// the files must not be truncated while it lives.
class TensorFolder {
 public:
  /// Opens the folder. Errors: kNotFound (no such files), kInvalidArgument (malformed; field() is
  /// the file), kIo.
  static Result<std::unique_ptr<TensorFolder>> open(const std::filesystem::path& dir);
  ~TensorFolder();
  TensorFolder(const TensorFolder&) = delete;
  TensorFolder& operator=(const TensorFolder&) = delete;

  /// Returns the tensor, or a null view (entry == nullptr) if there is none of that name.
  TensorView find(std::string_view name) const;
  /// Returns the names of all tensors, ascending.
  std::vector<std::string> names() const;
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Tells the system that a tensor's pages are not needed again soon.
  void drop_pages(const TensorView& view) const;

 private:
  struct File;
  TensorFolder();
  Status add_file(const std::filesystem::path& path);

  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace quire
