/// The attention operations of the CPU. Internal to engine/compute.
#pragma once

#include "engine/compute/attention_ops.h"

namespace quire {

/// Stateless.
class CpuAttention final : public AttentionOps {
 public:
  Status rotate(const RopeTable& table, const RopeRotateArgs& args) override {
    return rope_rotate(table, args);
  }
  Status attend(const AttentionArgs& args, DType) override { return quire::attention(args); }
  Status attend_each(const AttentionArgs& args, std::span<const SequenceAttention> sequences,
                     DType to) override;
  Status scores(const AttentionScoresArgs& args) override { return attention_scores(args); }
  Status mass(const AttentionMassArgs& args) override { return attention_mass(args); }
  Status statistics(const AttentionStatsArgs& args) override { return attention_stats(args); }
};

}  // namespace quire
