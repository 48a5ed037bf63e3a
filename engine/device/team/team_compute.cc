#include "engine/device/team/team_compute.h"

#include <utility>
#include <vector>

#include "engine/device/device_compute.h"
#include "engine/device/device_memory.h"
#include "engine/device/team/team_attention.h"
#include "engine/device/team/team_kv.h"
#include "engine/device/team/team_linear.h"
#include "engine/device/team/team_memory.h"
#include "engine/device/team/team_split.h"

namespace quire {
namespace {

class TeamShares final : public DeviceShares {
 public:
  TeamShares(std::shared_ptr<TeamMemory> team, bool split_kv)
      : team_(std::move(team)),
        split_(split_kv ? std::make_shared<const TeamSplit>(team_) : nullptr) {}
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
  bool splits_kv() const override { return split_ != nullptr; }
  std::unique_ptr<AttentionOps> attention(DeviceAttention& leader) const override {
    if (split_ == nullptr) return nullptr;
    return std::make_unique<TeamAttention>(split_, leader);
  }
  std::unique_ptr<KvOps> kv(DeviceKv& leader, LinearOps& linear) const override {
    if (split_ == nullptr) return nullptr;
    return std::make_unique<TeamKv>(split_, leader, linear);
  }
  Result<std::shared_ptr<ComputeMemory>> page_memory(std::int32_t num_kv_heads,
                                                     std::int64_t head_bytes) const override {
    QUIRE_RETURN_IF_ERROR(split_->pages()->set_shape(num_kv_heads, head_bytes));
    return std::shared_ptr<ComputeMemory>(split_->pages());
  }
  Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) const override {
    auto all = std::make_shared<std::vector<std::shared_ptr<const void>>>();
    for (std::int64_t r = 1; r < team_->ranks(); ++r) {
      all->push_back(nullptr);
      QUIRE_ASSIGN_OR_RETURN(all->back(), split_->tables(r)->add(table));
    }
    return std::shared_ptr<const void>(std::move(all));
  }

 private:
  const std::shared_ptr<TeamMemory> team_;
  const std::shared_ptr<const TeamSplit> split_;  ///< null: the leader has all KV
};

}  // namespace

std::shared_ptr<Compute> make_team_compute(cuda::DeviceTeam team, std::string name,
                                           std::shared_ptr<PinnedValues> values,
                                           TeamOptions options) {
  std::vector<std::shared_ptr<DeviceMemory>> ranks;
  for (std::shared_ptr<cuda::DeviceOps>& ops : team.devices)
    ranks.push_back(std::make_shared<DeviceMemory>(std::move(ops), std::exchange(values, nullptr)));
  std::shared_ptr<DeviceMemory> leader = ranks.at(0);
  std::shared_ptr<const DeviceShares> shared;
  if (ranks.size() > 1)
    shared = std::make_shared<TeamShares>(
        std::make_shared<TeamMemory>(std::move(ranks), std::move(team.communicator)),
        options.split_kv);
  return make_device_compute(std::move(leader), std::move(name), std::move(shared));
}

}  // namespace quire
