#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

/// What a retriever did for one answer, over all layers.
struct RetrieveStats {
  std::int64_t sparse_steps = 0;  ///< layer steps that attended to a part of the rows only
  /// Times a layer's rows or pages were scored; once a step where one choice serves all layers
  std::int64_t selections = 0;
  /// KV heads chosen again before attention, and those that went by the query before
  std::int64_t heads_corrected = 0, heads_kept = 0;
  /// Per KV head and layer step; the difference was on the device already
  std::int64_t pages_wanted = 0, pages_copied = 0;
  std::int64_t rows_wanted = 0, rows_copied = 0;  ///< the same of retrievers that bring single rows
  /// Per KV head, of retrievers that choose single rows by a step's query: multiplied with it, and
  /// chosen
  std::int64_t rows_scored = 0, rows_attended = 0;
  /// To the device: pages or rows brought, and rows of new tokens
  std::int64_t bytes_copied = 0, bytes_appended = 0;
  /// To the host: of layers that left a device of its own memory
  std::int64_t bytes_offloaded = 0;
  std::int64_t copies = 0;          ///< pieces of work given to the lane of copies
  std::int64_t waits = 0;           ///< of them, those that a layer step had to wait for
  double copy_ms = 0, wait_ms = 0;  ///< the lane's time for them, and the steps' waiting
  /// Of the steps' time: choosing rows or pages and having them brought, attention to them apart
  double choose_ms = 0;
  std::int64_t device_bytes = 0;  ///< held on the device at most: rows, and what stands for them
  /// Where a device computes: of its memory, taken at most to choose, the centroids of device_bytes
  /// and keys of a head among them
  std::int64_t choosing_bytes = 0;
  std::int64_t layers_offloaded = 0;  ///< whose rows had left the device by the end of the answer
  std::string note;                   ///< why it did not work as its name says; empty: it did

  /// Share of the copying that no step waited for. None: nothing was copied beside the computation,
  /// or it was by a device, whose copies are not timed.
  std::optional<double> overlap() const {
    if (copy_ms <= 0) return std::nullopt;
    return wait_ms >= copy_ms ? 0 : 1 - wait_ms / copy_ms;
  }
};

}  // namespace quire
