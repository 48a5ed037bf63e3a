/// The choosing operations of the CPU. Internal to engine/compute.
#pragma once

#include "engine/compute/choice_ops.h"

namespace quire {

/// Stateless.
class CpuChoice final : public ChoiceOps {
 public:
  Status page_bounds(const PageBoundsArgs& args) override { return quire::page_bounds(args); }
  Status page_scores(const PageScoresArgs& args) override { return quire::page_scores(args); }
  Status key_products(const KeyProductsArgs& args) override { return quire::key_products(args); }
  Status candidate_votes(const CandidateVotesArgs& args) override;
  Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t ld,
                         std::int64_t k, std::int32_t* chosen) override;
  Status candidate_rows(const CandidateRowsArgs& args) override;
  Status list_union(const ListUnionArgs& args) override { return quire::list_union(args); }
  Status voted_lists(const VotedListsArgs& args, std::int64_t /*at_once*/) override {
    return quire::voted_lists(args);
  }
  Status choose_pages(const ChoosePagesArgs&, std::span<const SequencePages>) override {
    return Status::unimplemented("pages are chosen in ordinary memory");
  }
  Status fill_slots(const FillSlotsArgs&, std::span<const SequenceSlots>) override {
    return Status::unimplemented("slots are filled in ordinary memory");
  }
  Status fill_slots_beside(const FillSlotsArgs& args,
                           std::span<const SequenceSlots> sequences) override {
    return fill_slots(args, sequences);
  }
  Status wait_for_slots() override { return {}; }
  Status score_blocks(const RopeTable&, std::int32_t, std::int32_t,
                      std::span<const ScoredBlocks>) override {
    return Status::unimplemented("blocks are scored in ordinary memory");
  }
};

}  // namespace quire
