#include "engine/residency/memory_manager.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/index.h"
#include "kernels/rows/kv.h"

namespace quire {

double MemoryModel::bytes(std::int64_t rows, std::int32_t offloaded) const {
  return fixed_bytes +
         row_bytes * ((num_layers - offloaded + retrieval_layers) * static_cast<double>(rows) +
                      static_cast<double>(offloaded) * static_cast<double>(budget_rows));
}

std::int64_t MemoryModel::threshold(std::int32_t offloaded) const {
  const double left = device_bytes - fixed_bytes -
                      row_bytes * offloaded * static_cast<double>(budget_rows),
               each = row_bytes * (num_layers - offloaded + retrieval_layers);
  if (each <= 0) return left < 0 ? -1 : std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::floor(left / each));
}

std::vector<std::int64_t> MemoryModel::thresholds() const {
  std::vector<std::int64_t> out;
  for (std::int32_t i = 0; i <= num_layers; ++i) out.push_back(threshold(i));
  return out;
}

MemoryManager::MemoryManager(const MemoryModel& model)
    : num_layers_(model.num_layers), thresholds_(model.thresholds()) {}

MemoryManager MemoryManager::offload_all(const MemoryModel& model) {
  MemoryManager all(model);
  all.offloaded_ = model.num_layers;
  return all;
}

Status MemoryManager::grow(std::int64_t rows) {
  if (thresholds_.empty()) return {};
  std::int32_t offloaded = offloaded_;
  while (offloaded < num_layers_ && rows >= thresholds_[at(offloaded)]) ++offloaded;
  if (offloaded == num_layers_ && rows >= thresholds_.back()) {
    return Status::exhausted("the device holds at most " +
                             std::to_string(std::max<std::int64_t>(0, thresholds_.back())) +
                             " rows of this request with every layer on the host, it has " +
                             std::to_string(rows));
  }
  offloaded_ = offloaded;
  return {};
}

MemoryModel memory_model(const RequestMemory& r) {
  MemoryModel model;
  model.device_bytes = r.device_bytes > 0 ? static_cast<double>(r.device_bytes) : 1e18;
  model.row_bytes = static_cast<double>(r.row_bytes) * r.requests;
  model.retrieval_layers = static_cast<double>(r.retrieval_row_bytes + r.choosing.row_bytes) /
                           static_cast<double>(r.row_bytes);
  model.num_layers = r.num_layers;
  model.budget_rows = r.budget_rows;
  model.fixed_bytes = model.row_bytes * kPageTokens * (r.num_layers + model.retrieval_layers) +
                      static_cast<double>(r.choosing.fixed_bytes) * r.requests;
  return model;
}

LayerMemory::LayerMemory(DevicePool& pool, const RequestMemory& request, Residency residency)
    : request_(request), claim_(pool) {
  const MemoryModel model = memory_model(request);
  if (residency == Residency::kNothing)
    manager_ = MemoryManager::offload_all(model);
  else if (request.device_bytes > 0)
    manager_ = MemoryManager(model);
}

Status LayerMemory::grow(std::int64_t rows) {
  if (const Status s = manager_.grow(rows); !s.ok()) {
    const std::int64_t needed = request_.num_layers * request_.budget_rows * request_.row_bytes +
                                rows * request_.retrieval_row_bytes + request_.choosing.bytes(rows);
    return Status::invalid(
        "cache.options.decode_budget",
        "the budget and what it is chosen by need " + std::to_string(needed) +
            " bytes of device memory at " + std::to_string(rows) +
            " tokens, a request has one of " + std::to_string(request_.requests) +
            " parts (model.device_requests) of " + std::to_string(request_.device_bytes) +
            " (model.device_cache_bytes); lower the budget or raise the part");
  }
  const std::int64_t pages = (rows + kPageTokens - 1) / kPageTokens,
                     stay = request_.num_layers - manager_.offloaded();
  return claim_.resize(stay * pages * kPageTokens * request_.row_bytes);
}

}  // namespace quire
