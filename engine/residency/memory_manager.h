/// MemoryManager decides by a request's length which layers stay on the device: all layers while
/// they fit, then they leave one by one, the last ones first.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "engine/api/choosing_need.h"
#include "engine/residency/device_pool.h"

namespace quire {

/// MemoryModel gives the bytes on the device as a function of rows and offloaded layers. It assumes
/// that all requests that share the device are alike.
struct MemoryModel {
  double device_bytes = 0;  ///< of all requests together
  double fixed_bytes = 0;   ///< weights and runtime, which also lie on the device
  /// K and V of one row of one layer, times the requests that share the device.
  double row_bytes = 0;
  double retrieval_layers = 0;   ///< bytes that choosing keeps per row, in units of a layer's row
  std::int32_t num_layers = 0;   ///< layers that may leave
  std::int64_t budget_rows = 0;  ///< rows that an offloaded layer keeps on the device

  /// Returns the bytes for `rows` rows with `offloaded` layers on the host.
  double bytes(std::int64_t rows, std::int32_t offloaded) const;
  /// Returns the most rows that fit with `offloaded` layers on the host. It is negative if not even
  /// the budgets of those layers fit.
  std::int64_t threshold(std::int32_t offloaded) const;
  /// Returns the thresholds of 0 to num_layers offloaded layers, [num_layers + 1].
  std::vector<std::int64_t> thresholds() const;
};

/// MemoryManager serves one request. Its decisions depend only on the model and the request's own
/// rows, so that concurrent requests do not change an answer. Threads: one at a time.
class MemoryManager {
 public:
  /// Makes a manager that keeps every layer on the device.
  MemoryManager() = default;
  explicit MemoryManager(const MemoryModel& model);
  /// Makes a manager that offloads every layer, even layers that would fit.
  static MemoryManager offload_all(const MemoryModel& model);

  /// Offloads layers until the rest fits with `rows` rows; an offloaded layer does not return.
  /// Errors: kResourceExhausted (no room even with every layer on the host; nothing changes).
  Status grow(std::int64_t rows);
  std::int32_t offloaded() const { return offloaded_; }
  /// Returns whether `layer`, counted among those that may leave, is on the device.
  bool resident(std::int32_t layer) const { return layer < num_layers_ - offloaded_; }

 private:
  std::int32_t num_layers_ = std::numeric_limits<std::int32_t>::max(), offloaded_ = 0;
  std::vector<std::int64_t> thresholds_;  ///< empty: no limit
};

/// RequestMemory describes what a retriever keeps on the device for one request.
struct RequestMemory {
  std::int64_t device_bytes = 0;         ///< of all requests together; 0: no limit
  std::int32_t requests = 1;             ///< requests that share it: none takes more than its part
  std::int32_t num_layers = 0;           ///< layers that may leave
  std::int64_t row_bytes = 0;            ///< K and V of one row of one layer
  std::int64_t retrieval_row_bytes = 0;  ///< kept on the device for each row, for choosing
  std::int64_t budget_rows = 0;          ///< slots of an offloaded layer
  ChoosingNeed choosing;                 ///< device memory besides all that
};
/// Makes the model of a request, with room for rounding up to whole pages.
MemoryModel memory_model(const RequestMemory& request);

/// Residency says which layers stay on the device: those that fit, or none.
enum class Residency : std::uint8_t { kWhatFits, kNothing };

/// LayerMemory tracks which layers of one request are on the device and counts their bytes against
/// the pool. On the CPU backend nothing is copied when a layer leaves, since the host has every row
/// anyway. Threads: one at a time.
class LayerMemory {
 public:
  LayerMemory() = default;
  /// Makes the memory of a request. `pool` must outlive it.
  LayerMemory(DevicePool& pool, const RequestMemory& request, Residency residency);

  /// Prepares for a step over `rows` rows in every layer, the new one included. Errors:
  /// kInvalidArgument, field cache.options.decode_budget (the budget exceeds the request's part of
  /// the device, so waiting would not help), kResourceExhausted (other requests have the free
  /// memory; nothing changes).
  Status grow(std::int64_t rows);
  /// Returns whether `layer`, counted among those that may leave, is on the device.
  bool resident(std::int32_t layer) const { return manager_.resident(layer); }
  std::int32_t offloaded() const { return manager_.offloaded(); }
  /// Returns the bytes of the layers on the device.
  std::int64_t bytes() const { return claim_.bytes(); }

 private:
  RequestMemory request_;
  MemoryManager manager_;
  DeviceClaim claim_;
};

}  // namespace quire
