#include "engine/device/device_choice.h"

#include "base/index.h"
#include "engine/device/staged_view.h"

namespace quire {
namespace {

// Pages are added one by one; the room keeps most steps' arrays at the previous step's addresses.
constexpr std::int64_t kUnitsRoom = 64;

}  // namespace

Status DeviceChoice::page_bounds(const PageBoundsArgs& args) {
  if (args.num_pages == 0) return {};
  PageBoundsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.pages, stage_.put(std::span(args.pages, to_size(args.num_pages))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceChoice::key_products(const KeyProductsArgs& args) {
  if (args.num_rows == 0) return {};
  KeyProductsArgs a = args;
  const std::int64_t pages = (args.first_row + args.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(
      a.kv.pages, stage_.put(std::span(args.kv.pages, to_size(pages)),
                             kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  a.kv.positions = nullptr;
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceChoice::best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                     std::int64_t k, std::int32_t* chosen) {
  return memory_->run(cuda::TopKArgs{.scores = scores,
                                     .rows = rows,
                                     .n = n,
                                     .k = k,
                                     .order = cuda::TopKOrder::kAscendingIndex,
                                     .out = chosen});
}

Status DeviceChoice::candidate_rows(const CandidateRowsArgs& args) {
  CandidateRowsArgs a = args;
  if (args.units != nullptr) {
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(a.units,
                           stage_.put(std::span(args.units, to_size(args.num_units)),
                                      kUnitsRoom * static_cast<std::int64_t>(sizeof(RowRange))));
    QUIRE_RETURN_IF_ERROR(stage_.send());
  }
  return memory_->run(a);
}

}  // namespace quire
