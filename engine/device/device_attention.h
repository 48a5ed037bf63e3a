/// The attention operations of a device. Internal to engine/device.
#pragma once

#include <memory>
#include <utility>

#include "engine/compute/attention_ops.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_tables.h"

namespace quire {

class DeviceAttention final : public AttentionOps {
 public:
  /// `stage` must outlive this object.
  DeviceAttention(const std::shared_ptr<DeviceMemory>& memory, std::shared_ptr<DeviceTables> tables,
                  ArgumentStage& stage)
      : memory_(memory),
        tables_(std::move(tables)),
        stage_(stage),
        table_stage_(memory),
        scratch_(memory, cuda::MemoryKind::kDevice) {}

  Status refresh(std::span<const KvView> views) override;
  Status rotate(const RopeTable& table, const RopeRotateArgs& args) override;
  Status attend(const AttentionArgs& args, DType to) override;
  Status attend_each(const AttentionArgs& args, std::span<const SequenceAttention> sequences,
                     DType to) override;
  Status scores(const AttentionScoresArgs& args) override;
  Status mass(const AttentionMassArgs& args) override;
  Status statistics(const AttentionStatsArgs& args) override;

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  const std::shared_ptr<DeviceTables> tables_;
  ArgumentStage& stage_;
  ArgumentStage table_stage_;  // apart, so that steps find their arguments in the same places
  DeviceBuffer scratch_;       ///< partial attention
};

}  // namespace quire
