#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

/// Counts what a retriever did for one answer, summed over all layers.
struct RetrieveStats {
  std::int64_t sparse_steps = 0;  ///< layer steps that attended to only some of the rows
  /// Number of times rows or pages were scored; counted once per step if one choice serves all
  /// layers.
  std::int64_t selections = 0;
  /// KV heads whose choice was redone before attention, and those that used the previous query's
  /// choice.
  std::int64_t heads_corrected = 0, heads_kept = 0;
  /// Pages wanted and copied per KV head and layer step; the rest was already on the device.
  std::int64_t pages_wanted = 0, pages_copied = 0;
  std::int64_t rows_wanted = 0, rows_copied = 0;  ///< same for retrievers that copy single rows
  /// Per KV head, for retrievers that choose single rows by a step's query: rows scored against it,
  /// and rows attended to.
  std::int64_t rows_scored = 0, rows_attended = 0;
  /// Bytes copied to the device: retrieved pages or rows, and rows of new tokens.
  std::int64_t bytes_copied = 0, bytes_appended = 0;
  /// Bytes copied to the host for layers that were offloaded from a device with its own memory.
  std::int64_t bytes_offloaded = 0;
  std::int64_t copies = 0;  ///< asynchronous copies that were queued
  std::int64_t waits = 0;   ///< queued copies that a layer step had to wait for
  /// `copy_ms` is the time that copies took; `wait_ms` is the time that steps waited for them.
  double copy_ms = 0, wait_ms = 0;
  /// Time in which steps choose rows or pages and have them copied, without attention.
  double choose_ms = 0;
  std::int64_t device_bytes = 0;  ///< peak device memory for rows and their representatives
  /// Peak device memory used to choose rows, including the centroids of device_bytes and the keys
  /// of a retrieval head; only if a device computes.
  std::int64_t choosing_bytes = 0;
  std::int64_t layers_offloaded = 0;  ///< layers offloaded from the device by the end of the answer
  std::string note;                   ///< why it deviated from its method; empty: it did not

  /// Returns the share of copy time that no step waited for. None: nothing was copied
  /// asynchronously, or a device copied, whose copies are not timed.
  std::optional<double> overlap() const {
    if (copy_ms <= 0) return std::nullopt;
    return wait_ms >= copy_ms ? 0 : 1 - wait_ms / copy_ms;
  }
};

}  // namespace quire
