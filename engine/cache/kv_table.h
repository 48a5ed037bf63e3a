/// KvTable is a device's copy of the pages and positions of one layer of a WorkingCache. A decode
/// step thus sends one position per layer and sequence, and not all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "kernels/rows/kv.h"

namespace quire {

/// The owner says what changed, at once; the device's Compute sends what is not known and says so.
/// Threads: the engine thread.
class KvTable {
 public:
  /// `memory` must outlive the table.
  explicit KvTable(ComputeMemory& memory) : memory_(memory) {}
  ~KvTable();
  KvTable(const KvTable&) = delete;
  KvTable& operator=(const KvTable&) = delete;

  /// Returns the device memory that the table takes for so many rows, if it never grows.
  static std::int64_t bytes_for(std::int64_t rows);

  /// Forgets positions of rows from `row` on, or pages from `page` on: they were removed or others
  /// came in their place. Rows that are appended need no call.
  void forget_rows(std::int64_t row) {
    rows_ = std::min(rows_, row);
    for (const auto& other : others_)
      if (other != nullptr) other->forget_rows(row);
  }
  void forget_pages(std::int64_t page) {
    num_pages_ = std::min(num_pages_, page);
    for (const auto& other : others_)
      if (other != nullptr) other->forget_pages(page);
  }
  void forget() {
    rows_ = num_pages_ = 0;
    for (const auto& other : others_)
      if (other != nullptr) other->forget();
  }

  /// Makes room for so many rows; what was known is forgotten if the table must move. Errors:
  /// kResourceExhausted, kDeviceLost (the table is empty then).
  Status reserve(std::int64_t rows);
  /// Says that work was enqueued which writes what was not known of the first `rows` rows and
  /// their pages.
  void know(std::int64_t rows) {
    rows_ = std::max(rows_, rows);
    num_pages_ = std::max(num_pages_, (rows + kPageTokens - 1) / kPageTokens);
  }

  bool has_room(std::int64_t rows) const { return rows <= room_; }
  std::int64_t known_rows() const { return rows_; }
  std::int64_t known_pages() const { return num_pages_; }
  /// Device memory, [room].
  const void** pages() { return pages_; }
  std::int32_t* positions() { return positions_; }

  /// Returns the table of another device that has a share of each page, number `i` of them. It is
  /// made when it is first asked for, in `memory`, which must outlive this table.
  KvTable& other(std::size_t i, ComputeMemory& memory) {
    while (others_.size() <= i) others_.push_back(nullptr);
    if (others_[i] == nullptr) others_[i] = std::make_unique<KvTable>(memory);
    return *others_[i];
  }

 private:
  ComputeMemory& memory_;
  const void** pages_ = nullptr;       // the start of one allocation of both
  std::int32_t* positions_ = nullptr;  // behind the pages
  std::int64_t room_ = 0, rows_ = 0, num_pages_ = 0;
  /// Tables that became too small. Enqueued work may read them, and releasing one would wait for
  /// it in the middle of a pass. Each is half as large as the next one at most.
  std::vector<const void**> outgrown_;
  std::vector<std::unique_ptr<KvTable>> others_;
};

}  // namespace quire
