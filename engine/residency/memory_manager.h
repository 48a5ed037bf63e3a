/// Which layers of a request stay on the device, by its length: every layer while all fit, then one
/// after the other leaves, the last ones first.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "engine/api/choosing_need.h"
#include "engine/residency/device_pool.h"

namespace quire {

/// Bytes on the device as a function of rows and of layers that have left. All requests that share
/// the device are taken to be alike.
struct MemoryModel {
  double device_bytes = 0;  ///< of all requests together
  double fixed_bytes = 0;   ///< weights and runtime that lie on the device, too
  /// K and V of one row of one layer, times the requests that share the device
  double row_bytes = 0;
  double retrieval_layers = 0;   ///< what choosing keeps for each row, in rows of a layer
  std::int32_t num_layers = 0;   ///< that may leave
  std::int64_t budget_rows = 0;  ///< that a layer which has left keeps on the device

  /// With so many rows, and `offloaded` layers on the host.
  double bytes(std::int64_t rows, std::int32_t offloaded) const;
  /// Most rows that fit with `offloaded` layers on the host; negative where not even the budgets of
  /// those do.
  std::int64_t threshold(std::int32_t offloaded) const;
  /// [num_layers + 1]
  std::vector<std::int64_t> thresholds() const;
};

/// One request. What it decides depends on nothing but the model and the request's own rows, so
/// that an answer is the same alone and in any company. Threads: one at a time.
class MemoryManager {
 public:
  /// Everything stays.
  MemoryManager() = default;
  explicit MemoryManager(const MemoryModel& model);
  /// Nothing stays, whatever would fit.
  static MemoryManager offload_all(const MemoryModel& model);

  /// The request has so many rows now: layers leave until the rest fits. A layer that has left
  /// stays away. Errors: kResourceExhausted (with every layer on the host there is still no room;
  /// nothing changes).
  Status grow(std::int64_t rows);
  std::int32_t offloaded() const { return offloaded_; }
  /// `layer` of those that may leave.
  bool resident(std::int32_t layer) const { return layer < num_layers_ - offloaded_; }

 private:
  std::int32_t num_layers_ = std::numeric_limits<std::int32_t>::max(), offloaded_ = 0;
  std::vector<std::int64_t> thresholds_;  ///< empty: no limit
};

/// What a retriever keeps on the device for one request.
struct RequestMemory {
  std::int64_t device_bytes = 0;         ///< of all requests together; 0: no limit
  std::int32_t requests = 1;             ///< that share it: none takes more than its part
  std::int32_t num_layers = 0;           ///< that may leave
  std::int64_t row_bytes = 0;            ///< K and V of one row of one layer
  std::int64_t retrieval_row_bytes = 0;  ///< kept on the device for each row, to choose by
  std::int64_t budget_rows = 0;          ///< slots of a layer that has left
  ChoosingNeed choosing;                 ///< beside all that
};
/// With room for what is rounded up to whole pages.
MemoryModel memory_model(const RequestMemory& request);

/// What becomes of layers that would fit.
enum class Residency : std::uint8_t { kWhatFits, kNothing };

/// The layers of one request: which are on the device, and the bytes of those, counted against the
/// pool. On the CPU backend nothing is copied when a layer leaves: the host has every row anyway.
/// Threads: one at a time.
class LayerMemory {
 public:
  LayerMemory() = default;
  /// `pool` must outlive it.
  LayerMemory(DevicePool& pool, const RequestMemory& request, Residency residency);

  /// Before a step over so many rows in every layer, the new one included. Errors:
  /// kInvalidArgument, field cache.options.decode_budget (the budget is more than the request's
  /// part of the device: waiting would not help), kResourceExhausted (others have what is free;
  /// nothing changes).
  Status grow(std::int64_t rows);
  /// `layer` of those that may leave.
  bool resident(std::int32_t layer) const { return manager_.resident(layer); }
  std::int32_t offloaded() const { return manager_.offloaded(); }
  /// Of the layers that stay.
  std::int64_t bytes() const { return claim_.bytes(); }

 private:
  RequestMemory request_;
  MemoryManager manager_;
  DeviceClaim claim_;
};

}  // namespace quire
