#include "engine/device/team/team_compute.h"

#include <utility>
#include <vector>

#include "engine/device/device_compute.h"
#include "engine/device/device_memory.h"
#include "engine/device/team/team_linear.h"
#include "engine/device/team/team_memory.h"

namespace quire {
namespace {

class TeamMatrices final : public SharedMatrices {
 public:
  explicit TeamMatrices(std::shared_ptr<TeamMemory> team) : team_(std::move(team)) {}
  std::int64_t devices() const override { return team_->ranks(); }
  Result<std::int64_t> share_budget(const char* setting) const override {
    return team_->share_budget(setting);
  }
  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format) const override {
    return team_->pack(parts, k, dtype, format, false, {});
  }
  Result<std::unique_ptr<ComputeMatrix>> pack_gate_up(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format,
                                                      std::span<const float> bias) const override {
    return team_->pack(parts, k, dtype, format, true, bias);
  }
  std::unique_ptr<LinearOps> linear(DeviceLinear& leader) const override {
    return std::make_unique<TeamLinear>(team_, leader);
  }

 private:
  const std::shared_ptr<TeamMemory> team_;
};

}  // namespace

std::shared_ptr<Compute> make_team_compute(cuda::DeviceTeam team, std::string name,
                                           std::shared_ptr<PinnedValues> values) {
  std::vector<std::shared_ptr<DeviceMemory>> ranks;
  for (std::shared_ptr<cuda::DeviceOps>& ops : team.devices)
    ranks.push_back(std::make_shared<DeviceMemory>(std::move(ops), std::exchange(values, nullptr)));
  std::shared_ptr<DeviceMemory> leader = ranks.at(0);
  std::shared_ptr<const SharedMatrices> shared;
  if (ranks.size() > 1)
    shared = std::make_shared<TeamMatrices>(
        std::make_shared<TeamMemory>(std::move(ranks), std::move(team.communicator)));
  return make_device_compute(std::move(leader), std::move(name), std::move(shared));
}

}  // namespace quire
