/// Writes small GGUF files for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace quire::test {

/// Assembles a file. The tensors follow one another, each at a multiple of `alignment`.
class GgufWriter {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

  GgufWriter& text(const std::string& key, const std::string& value) {
    return add(key, 8, string(value));
  }
  GgufWriter& u32(const std::string& key, std::uint32_t value) { return add(key, 4, raw(value)); }
  GgufWriter& u16(const std::string& key, std::uint16_t value) { return add(key, 2, raw(value)); }
  GgufWriter& i32(const std::string& key, std::int32_t value) { return add(key, 5, raw(value)); }
  GgufWriter& f32(const std::string& key, float value) { return add(key, 6, raw(value)); }
  GgufWriter& boolean(const std::string& key, bool value) {
    return add(key, 7, std::string(1, value ? '\1' : '\0'));
  }
  GgufWriter& texts(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = raw<std::uint32_t>(8) + raw<std::uint64_t>(values.size());
    for (const std::string& value : values) bytes += string(value);
    return add(key, 9, bytes);
  }
  template <class T>
  GgufWriter& numbers(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
    std::string bytes = raw(type) + raw<std::uint64_t>(values.size());
    for (const T value : values) bytes += raw(value);
    return add(key, 9, bytes);
  }
  /// Adds a value of any type, given as bytes.
  GgufWriter& add(const std::string& key, std::uint32_t type, const std::string& bytes) {
    metadata_ += string(key) + raw(type) + bytes;
    ++num_keys_;
    return *this;
  }
  /// `dims` are in the file's order, innermost first. `type` is ggml's number.
  GgufWriter& tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                     std::uint32_t type, const std::string& bytes) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    describe(name, dims, type, data_.size());
    data_ += bytes;
    return *this;
  }
  GgufWriter& describe(const std::string& name, const std::vector<std::uint64_t>& dims,
                       std::uint32_t type, std::uint64_t offset) {
    tensors_ += string(name) + raw(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors_;
    return *this;
  }

  std::string bytes() const {
    std::string out = "GGUF" + raw(version) + raw(num_tensors_) + raw(num_keys_) + metadata_ +
                      tensors_;
    if (!data_.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }
  void write(const std::filesystem::path& path) const {
    const std::string all = bytes();
    std::ofstream(path, std::ios::binary)
        .write(all.data(), static_cast<std::streamsize>(all.size()));
  }

  template <class T>
  static std::string raw(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
  }
  static std::string string(const std::string& value) {
    return raw<std::uint64_t>(value.size()) + value;
  }

 private:
  std::string metadata_, tensors_, data_;
  std::uint64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace quire::test
