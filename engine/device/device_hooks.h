/// DeviceHooks is the HookCompute of an accelerator. Internal to engine/device.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "engine/device/device_memory.h"
#include "engine/device/fetch_stream.h"
#include "engine/model/hook_compute.h"

namespace quire {

class DeviceHooks final : public HookCompute {
 public:
  using FindTable = std::function<cuda::DeviceRopeTable(const RopeTable&)>;
  DeviceHooks(const std::shared_ptr<DeviceMemory>& memory, FindTable table)
      : memory_(memory),
        table_of_(std::move(table)),
        stage_(memory),
        stream_(memory),
        ready_(memory->new_event()) {
    for (std::int32_t& event : copied_) event = memory->new_event();
  }

  Status attention_scores(const AttentionScoresArgs& args) override;
  Status attention_mass(const AttentionMassArgs& args) override;
  Status attention_stats(const AttentionStatsArgs& args) override;
  Status pack_rows(const KvPackArgs& args) override { return memory_->run(args); }
  Status block_means(const RopeTable& table, const BlockMeansArgs& args) override;
  Status page_bounds(const PageBoundsArgs& args) override;
  Status key_products(const KeyProductsArgs& args) override;
  Status candidate_votes(const CandidateVotesArgs& args) override { return memory_->run(args); }
  Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                         std::int32_t* chosen) override;
  Status candidate_rows(const CandidateRowsArgs& args) override;
  Status list_union(const ListUnionArgs& args) override { return memory_->run(args); }
  Status gather_rows(const KvGatherArgs& args) override;
  Result<std::int64_t> gather_async(const KvGatherArgs& args) override;
  Status hold_for(std::int64_t copy) override;
  Status page_scores(const PageScoresArgs& args) override { return memory_->run(args); }
  Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                   float* out) override {
    return memory_->run(cuda::ConvertArgs{x, rows, dim, ldx, DType::kF32, out});
  }
  Status sum_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                  float* out) override;
  Result<std::byte*> place(std::int64_t bytes) override { return stream_.place(bytes); }
  Status fetch(std::int64_t bytes, Fetched then) override {
    return stream_.fetch(bytes, std::move(then));
  }
  Status deliver() override { return stream_.deliver(); }

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  const FindTable table_of_;
  Result<KvGatherArgs> staged(const KvGatherArgs& args);
  ArgumentStage stage_;
  FetchStream stream_;
  std::int32_t ready_;  ///< event of the computing stream that an asynchronous copy waits for
  /// Events of the copy stream, used in turn by the number of the copy.
  std::array<std::int32_t, 64> copied_{};
  std::int64_t copies_ = 0;
};

}  // namespace quire
