#include "engine/device/device_tables.h"

#include <span>
#include <utility>

#include "base/index.h"
#include "engine/device/device_weights.h"

namespace quire {

Result<std::shared_ptr<const void>> DeviceTables::add(const RopeTable& table) {
  const RopeConfig& c = table.config();
  const std::size_t n = to_size(table.max_positions()) * to_size(c.rotary_dim / 2);
  using Halves = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  Halves halves;
  QUIRE_ASSIGN_OR_RETURN(halves.first,
                         upload(memory_, std::as_bytes(std::span(table.cos_row(0), n))));
  QUIRE_ASSIGN_OR_RETURN(halves.second,
                         upload(memory_, std::as_bytes(std::span(table.sin_row(0), n))));
  const auto* key = &table;
  {
    const std::lock_guard lock(mu_);
    tables_[key] = {static_cast<const float*>(halves.first.get()),
                    static_cast<const float*>(halves.second.get()),
                    table.max_positions(),
                    c.head_dim,
                    c.rotary_dim,
                    c.interleaved};
  }
  return std::shared_ptr<const void>(new Halves(std::move(halves)),
                                     [self = shared_from_this(), key](const void* p) {
                                       {
                                         const std::lock_guard lock(self->mu_);
                                         self->tables_.erase(key);
                                       }
                                       delete static_cast<const Halves*>(p);
                                     });
}

cuda::DeviceRopeTable DeviceTables::of(const RopeTable& table) {
  const std::lock_guard lock(mu_);
  return tables_.at(&table);
}

}  // namespace quire
