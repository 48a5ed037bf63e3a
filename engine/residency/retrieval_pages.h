/// RetrievalPages cuts the rows of one layer of a working cache into the pages that a retriever
/// selects.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// ContextRows says which positions a context has in the prompt.
struct ContextRows {
  std::int64_t first_position = 0, num_tokens = 0;
};

/// RetrievalPages cuts pages of at most page_tokens consecutive rows of the layer. Pages of a
/// context begin at its start (position first + n * page_tokens), so a page never holds rows of two
/// contexts; if blocks were dropped it may be short. Rows are only added at the end: the last page
/// grows until it is full, every other page is complete.
class RetrievalPages {
 public:
  /// Makes an empty list of pages. `contexts` ascend and do not overlap.
  RetrievalPages(std::int32_t page_tokens, std::vector<ContextRows> contexts)
      : page_tokens_(page_tokens), contexts_(std::move(contexts)) {}

  /// Adds the rows of the layer that are new since the last call.
  void extend(std::span<const std::int32_t> positions);

  std::int32_t page_tokens() const { return page_tokens_; }
  std::int64_t num_rows() const { return num_rows_; }
  std::int32_t size() const { return static_cast<std::int32_t>(pages_.size()); }
  /// Returns the number of pages that will not change any more: all, or all but the last.
  std::int32_t complete() const {
    return pages_.empty() || full(pages_.back()) ? size() : size() - 1;
  }
  const RowRange& operator[](std::int32_t page) const { return pages_[at(page)]; }
  std::span<const RowRange> all() const { return pages_; }

 private:
  struct Key {
    std::int64_t part = -1, page = 0;
    bool operator==(const Key&) const = default;
  };
  Key key_of(std::int32_t position) const;
  bool full(const RowRange& page) const { return page.end - page.begin == page_tokens_; }

  const std::int32_t page_tokens_;
  const std::vector<ContextRows> contexts_;
  std::vector<RowRange> pages_;
  Key last_;
  std::int64_t num_rows_ = 0;
};

}  // namespace quire
