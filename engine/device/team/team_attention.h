/// The attention operations of several devices that have KV by head. Internal to
/// engine/device/team.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device_attention.h"
#include "engine/device/team/team_split.h"

namespace quire {

/// Queries and results lie on the leader. It broadcasts the queries, each rank attends with its
/// heads to its parts of the pages, and the leader gathers and joins the results. A head's results
/// do not depend on other heads, so they have the bits of one device.
///
/// statistics() averages over all heads: for it the leader collects the pages. Caches whose pages
/// are not TeamPages lie on the leader, which attends to them alone. Errors: also kUnimplemented
/// (lists in memory).
class TeamAttention final : public AttentionOps {
 public:
  /// `leader` works in the memory of rank 0 and must outlive this object.
  TeamAttention(std::shared_ptr<const TeamSplit> split, DeviceAttention& leader);

  Status refresh(std::span<const KvView> views) override;
  Status rotate(const RopeTable& table, const RopeRotateArgs& args) override {
    return leader_.rotate(table, args);
  }
  Status attend(const AttentionArgs& args, DType to) override;
  Status attend_each(const AttentionArgs& args, std::span<const SequenceAttention> sequences,
                     DType to) override;
  Status scores(const AttentionScoresArgs& args) override;
  Status mass(const AttentionMassArgs& args) override;
  Status statistics(const AttentionStatsArgs& args) override;

 private:
  /// What a rank attends with.
  struct Rank {
    explicit Rank(const std::shared_ptr<DeviceMemory>& memory)
        : stage(memory),
          q(memory, cuda::MemoryKind::kDevice),
          lse(memory, cuda::MemoryKind::kDevice),
          out(memory, cuda::MemoryKind::kDevice) {}
    ArgumentStage stage;
    std::unique_ptr<DeviceAttention> own;  ///< null: of the leader
    DeviceBuffer q, lse;                   ///< of the leader's rows
    DeviceBuffer out;                      ///< results of this rank, then its log-sum-exps
    std::vector<std::vector<const void*>> pages;
  };
  DeviceAttention& of(std::int64_t rank) { return rank == 0 ? leader_ : *ranks_[at(rank)]->own; }
  /// Returns a view of a rank's part, as sequence `i` of a call.
  KvView part(std::int64_t rank, const KvView& kv, std::size_t i = 0);
  /// Brings `floats` values of the leader to a buffer of every other rank.
  Status send(const float* from, std::int64_t floats, DeviceBuffer Rank::*to);
  /// Gathers rows of `width` elements a head, [rows, a rank's heads * width], and joins them in y
  /// behind those of the leader's heads.
  Status join(std::int64_t rows, std::int64_t width, DType dtype, void* y, std::int64_t ldy,
              std::span<const std::byte* const> parts);
  template <class Attend>
  Status attend_in_parts(const AttentionArgs& args, DType to, Attend attend);

  const std::shared_ptr<const TeamSplit> split_;
  DeviceAttention& leader_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  DeviceBuffer gathered_;  ///< results of the other ranks, on the leader
  DeviceBuffer scores_;    ///< scores of all heads, on the leader
};

}  // namespace quire
