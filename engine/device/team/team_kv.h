/// The KV operations of several devices that have KV by head. Internal to engine/device/team.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device_kv.h"
#include "engine/device/team/team_split.h"

namespace quire {

/// New rows lie on the leader, which broadcasts them; each rank rounds and places its heads. Of
/// stored rows, each rank uploads its heads itself. Caches whose pages are not TeamPages lie on the
/// leader. Errors: also kUnimplemented (asynchronous copies of TeamPages).
class TeamKv final : public KvOps {
 public:
  /// `leader` and its linear operations work in the memory of rank 0 and must outlive this object.
  TeamKv(std::shared_ptr<const TeamSplit> split, DeviceKv& leader, LinearOps& linear);

  Status write_rows(const RopeTable& table, const WriteRowsArgs& args) override {
    return rotate_and_write(table, {}, args);
  }
  Status rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                          const WriteRowsArgs& args) override;
  Status place(const RopeTable& table, const MutableKvView& dst,
               std::span<const StoredRows> rows) override;
  Status pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                    std::int32_t head_dim) override;
  void end_packing() override;
  Status blend_stored(const BlendStoredArgs& args) override { return leader_.blend_stored(args); }
  Status pack(const KvPackArgs& args) override { return leader_.pack(args); }
  Status block_means(const RopeTable& table, const BlockMeansArgs& args) override {
    return leader_.block_means(table, args);
  }
  Status gather(const KvGatherArgs& args) override;
  Result<std::int64_t> gather_async(const KvGatherArgs& args) override;
  Status wait_for(std::int64_t copy) override { return leader_.wait_for(copy); }

 private:
  struct Rank {
    Rank(const std::shared_ptr<DeviceMemory>& memory, const std::shared_ptr<DeviceTables>& tables)
        : stage(memory), kv(memory, tables, stage), rows(memory, cuda::MemoryKind::kDevice) {}
    ArgumentStage stage;
    DeviceKv kv;
    DeviceBuffer rows;  ///< the leader's new rows of K, then of V
  };
  KvOps& of(std::int64_t rank) {
    if (rank == 0) return leader_;
    return ranks_[at(rank - 1)]->kv;
  }
  bool splits(const MutableKvView& dst, std::span<const std::int32_t> rows) const {
    return !rows.empty() && split_->pages()->holds(dst.pages[rows[0] / kPageTokens]);
  }

  const std::shared_ptr<const TeamSplit> split_;
  DeviceKv& leader_;
  LinearOps& linear_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< those behind the leader
  DeviceBuffer rows_;                         ///< as Rank::rows, on the leader
  std::vector<std::int32_t> counting_;        ///< 0, 1, 2, ...
};

}  // namespace quire
