/// SHA-256 over a sequence of fields. Every field is written with its length, so that no two sequences read the same.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace quire::tokenizer_internal {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::string_view field);
  void add(std::uint64_t value);
  std::array<std::uint8_t, 32> finish();

 private:
  void* context_;
};

}  // namespace quire::tokenizer_internal
