/// This file names the attention heads of a model that find what a question asks for (retrieval
/// heads, Wu et al., arXiv 2404.15574). Selection ranks blocks by what these heads attend to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire {

/// The calibrated heads of one model; empty: it was not calibrated, or no head stood out.
struct SelectionHeads {
  struct Head {
    std::int32_t layer = 0, head = 0;  ///< 0-based; `head` counts query heads
    bool operator==(const Head&) const = default;
  };
  /// Which tokens ask: the question's own words, averaged, or the prompt's last token.
  enum class Asks : std::uint8_t { kWords, kLastToken };
  /// A KV head of a layer, whose keys selection reads.
  struct Pair {
    std::int32_t layer = 0, kv_head = 0;
    auto operator<=>(const Pair&) const = default;
  };

  std::vector<Head> heads;  ///< best first
  Asks asks = Asks::kWords;

  bool empty() const { return heads.empty(); }
  bool operator==(const SelectionHeads&) const = default;
  /// Returns the highest layer, which is the last that the query pass runs; -1: empty.
  std::int32_t last_layer() const {
    std::int32_t last = -1;
    for (const Head& h : heads) last = std::max(last, h.layer);
    return last;
  }
  /// Returns the KV heads behind the heads, ascending, each once. `group` is the number of query
  /// heads that share a KV head.
  std::vector<Pair> pairs(std::int32_t group) const {
    std::vector<Pair> out;
    for (const Head& h : heads) out.push_back({h.layer, h.head / group});
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
};

}  // namespace quire
