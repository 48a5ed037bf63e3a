/// Byte-pair merging over token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::tokenizer_internal {

/// One merge: `left` followed by `right` becomes `to`. Lower ranks are done first; equal ranks from
/// left to right.
struct Merge {
  std::int32_t left, right, to;
  std::uint32_t rank;
};

/// A range of text that is one token so far.
struct Symbol {
  std::int32_t id;
  std::uint32_t num_bytes;  ///< of the text it stands for
};

/// The merges of a vocabulary in a hash table. Immutable, any thread.
class BpeModel {
 public:
  BpeModel() = default;
  /// The first of two merges of the same pair counts.
  explicit BpeModel(std::span<const Merge> merges);

  /// Merges the symbols of one word in place, always the lowest rank and the leftmost of its places
  /// first. n log n in the length of the word.
  void merge(std::vector<Symbol>& word) const;

 private:
  struct Slot {
    std::uint64_t pair = kEmpty;
    std::uint32_t rank = 0;
    std::int32_t to = 0;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  const Slot* find(std::int32_t left, std::int32_t right) const;
  void merge_short(std::vector<Symbol>& word) const;
  void merge_long(std::vector<Symbol>& word) const;

  std::vector<Slot> slots_;  ///< open addressing, a power of two, at most half full
  std::uint64_t mask_ = 0;
};

}  // namespace quire::tokenizer_internal
