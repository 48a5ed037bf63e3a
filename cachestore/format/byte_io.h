/// This file declares the little-endian writer and reader of the fields of stored records. The
/// reader never reads past the end and bounds every length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/index.h"
#include "cachestore/format/key.h"

namespace quire {

class ByteWriter {
 public:
  ByteWriter() = default;
  /// Begins with `header` zero bytes, which the caller fills in, and reserves room for `reserve`
  /// more.
  ByteWriter(std::size_t header, std::size_t reserve) {
    out_.reserve(header + reserve);
    out_.resize(header);
  }

  /// Writes integers and enumerators at their full width.
  template <class T>
  void number(T value) {
    if constexpr (std::is_enum_v<T>) {
      number(static_cast<std::underlying_type_t<T>>(value));
    } else {
      for (std::size_t i = 0; i < sizeof(T); ++i)
        out_.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void flag(bool value) { number<std::uint8_t>(value); }
  /// Writes seven bits per byte; the last byte is below 128.
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) out_.push_back(static_cast<char>(value | 128));
    out_.push_back(static_cast<char>(value));
  }
  /// Writes a varint length, then the bytes.
  void text(std::string_view s) {
    varint(s.size());
    out_.append(s);
  }
  /// Writes a 32-bit length, then the bytes.
  void text32(std::string_view s) {
    number(static_cast<std::uint32_t>(s.size()));
    out_.append(s);
  }
  void raw(std::string_view s) { out_.append(s); }
  void digest(const Digest& d) {
    out_.append(reinterpret_cast<const char*>(d.bytes.data()), d.bytes.size());
  }
  template <class T, class Put>
  void optional(const std::optional<T>& value, Put put) {
    flag(value.has_value());
    if (value) put(*value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads fields. After the first failure every value is zero or empty and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : in_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }
  std::size_t left() const { return in_.size(); }
  void fail() { ok_ = false, in_ = {}; }

  template <class T>
  T number() {
    if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(number<std::underlying_type_t<T>>());
    } else {
      const std::string_view bytes = view(sizeof(T));
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < bytes.size(); ++i)
        value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
      return static_cast<T>(value);
    }
  }
  /// Reads an enumerator up to `last`.
  template <class T>
  T choice(T last) {
    const T value = number<T>();
    if (static_cast<int>(value) > static_cast<int>(last)) fail();
    return ok_ ? value : T{};
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  std::uint64_t varint(std::uint64_t limit) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && ok_; shift += 7) {
      const auto b = number<std::uint8_t>();
      if (!ok_ || (shift == 63 && b > 1)) break;
      value |= std::uint64_t{b & 127u} << shift;
      if (b < 128 && value <= limit) return value;
      if (b < 128) break;
    }
    fail();
    return 0;
  }
  std::string text(std::size_t limit) { return std::string(view(varint(limit))); }
  std::string_view view32() { return view(number<std::uint32_t>()); }
  std::string text32() { return std::string(view32()); }
  /// Reads a 32-bit count of items of at least `least_bytes` each.
  std::uint32_t count(std::size_t least_bytes) {
    const auto n = number<std::uint32_t>();
    if (static_cast<std::uint64_t>(n) * least_bytes > in_.size()) fail();
    return ok_ ? n : 0;
  }
  Digest digest() {
    Digest d;
    const std::string_view bytes = view(d.bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) d.bytes[i] = static_cast<std::byte>(bytes[i]);
    return d;
  }
  std::string_view rest() { return std::exchange(in_, {}); }

 private:
  std::string_view view(std::uint64_t n) {
    if (!ok_ || n > in_.size()) {
      fail();
      return {};
    }
    const std::string_view bytes = in_.substr(0, to_size(n));
    in_.remove_prefix(to_size(n));
    return bytes;
  }
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace quire
