/// The choosing operations of a device. Internal to engine/device.
#pragma once

#include <memory>
#include <utility>

#include "engine/compute/choice_ops.h"
#include "engine/device/block_scoring.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_tables.h"

namespace quire {

class DeviceChoice final : public ChoiceOps {
 public:
  /// `stage` must outlive this object.
  DeviceChoice(const std::shared_ptr<DeviceMemory>& memory, std::shared_ptr<DeviceTables> tables,
               ArgumentStage& stage)
      : memory_(memory),
        tables_(std::move(tables)),
        stage_(stage),
        scoring_(memory),
        scratch_(memory, cuda::MemoryKind::kDevice),
        moves_(memory, cuda::MemoryKind::kDevice),
        moves_beside_(memory, cuda::MemoryKind::kDevice),
        ready_(memory),
        filled_(memory) {}

  Status page_bounds(const PageBoundsArgs& args) override;
  Status page_scores(const PageScoresArgs& args) override { return memory_->run(args); }
  Status key_products(const KeyProductsArgs& args) override;
  Status candidate_votes(const CandidateVotesArgs& args) override { return memory_->run(args); }
  Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t ld,
                         std::int64_t k, std::int32_t* chosen) override;
  Status candidate_rows(const CandidateRowsArgs& args) override;
  Status list_union(const ListUnionArgs& args) override { return memory_->run(args); }
  Status voted_lists(const VotedListsArgs& args, std::int64_t at_once) override;
  Status choose_pages(const ChoosePagesArgs& args,
                      std::span<const SequencePages> sequences) override;
  Status fill_slots(const FillSlotsArgs& args, std::span<const SequenceSlots> sequences) override;
  Status fill_slots_beside(const FillSlotsArgs& args,
                           std::span<const SequenceSlots> sequences) override;
  Status wait_for_slots() override;
  Status score_blocks(const RopeTable& table, std::int32_t num_heads, std::int32_t num_kv_heads,
                      std::span<const ScoredBlocks> documents) override {
    return scoring_.run(tables_->of(table), num_heads, num_kv_heads, documents);
  }

 private:
  Result<FillSlotsArgs> filling(const FillSlotsArgs& args, std::span<const SequenceSlots> sequences,
                                DeviceBuffer& moves);

  const std::shared_ptr<DeviceMemory> memory_;
  const std::shared_ptr<DeviceTables> tables_;
  ArgumentStage& stage_;
  BlockScoring scoring_;
  DeviceBuffer scratch_;  ///< of choose_pages()
  DeviceBuffer moves_;    ///< of fill_slots()
  DeviceBuffer moves_beside_;
  DeviceEvent ready_;    ///< of the computing stream, which filling slots beside it waits for
  DeviceEvent filled_;   ///< of the copy stream
  bool beside_ = false;  ///< slots are filled that nothing has waited for
};

}  // namespace quire
