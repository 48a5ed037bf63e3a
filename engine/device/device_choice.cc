#include "engine/device/device_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/device/staged_view.h"

namespace quire {
namespace {

// Pages are added one by one; the room keeps most steps' arrays at the previous step's addresses.
constexpr std::int64_t kUnitsRoom = 64;
// So are candidates; equal numbers of them keep the operation of most steps the same.
constexpr std::int64_t kCandidatesRoom = 64;

/// Gives the scratch memory of the arguments places in `memory` and returns its bytes.
std::int64_t place_scratch(ChoosePagesArgs& a, std::byte* memory) {
  constexpr std::int64_t kAlignment = 64;
  std::int64_t bytes = 0;
  const auto place = [&]<class T>(T*& to, std::int64_t n) {
    to = memory != nullptr ? reinterpret_cast<T*>(memory + bytes) : nullptr;
    bytes += (n * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
  };
  const std::int64_t heads = a.num_sequences * a.num_kv_heads;
  place(a.chooses, heads);
  place(a.scores, a.num_sequences * a.num_heads * a.most_candidates);
  place(a.votes, heads * a.most_candidates);
  place(a.nearest, heads * a.near);
  place(a.picked, heads * a.selected);
  return bytes;
}

/// Returns the view without what differs from step to step, which arguments shall not.
KvView shape_only(KvView kv) {
  kv.pages = nullptr;
  kv.positions = nullptr;
  kv.num_rows = 0;
  kv.sorted = false;
  kv.table = nullptr;
  return kv;
}

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
                                     std::int64_t ld, std::int64_t k, std::int32_t* chosen) {
  return memory_->run(cuda::TopKArgs{.scores = scores,
                                     .rows = rows,
                                     .n = n,
                                     .k = k,
                                     .order = cuda::TopKOrder::kAscendingIndex,
                                     .out = chosen,
                                     .ld = ld});
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

Status DeviceChoice::voted_lists(const VotedListsArgs& args, std::int64_t at_once) {
  if (args.num_groups == 0) return {};
  VotedListsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(const std::int32_t* const limits,
                         stage_.put(std::span(args.limits, to_size(args.num_groups))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  const std::int64_t width = std::int64_t{args.num_heads} * args.kv.head_dim;
  for (std::int64_t first = 0; first < args.num_groups; first += at_once) {
    a.q = args.q + first * width;
    a.lse = args.lse + first * args.num_heads;
    a.limits = limits + first;
    a.num_groups = std::min(at_once, args.num_groups - first);
    a.lists = args.lists + first * args.list_words;
    QUIRE_RETURN_IF_ERROR(memory_->run(a));
  }
  return {};
}

Status DeviceChoice::choose_pages(const ChoosePagesArgs& args,
                                  std::span<const SequencePages> sequences) {
  if (sequences.empty()) return {};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  std::vector<ChoosingSequence> each;
  std::int64_t most = 0;
  for (const SequencePages& s : sequences) {
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, staged_view(stage_, s.kv));
    each.push_back(s.heads);
    each.back().kv_pages = kv.pages;
    most = std::max<std::int64_t>(most, s.heads.candidates_end - args.num_first);
  }
  ChoosePagesArgs a = args;
  const KvView& shape = sequences.front().kv;
  a.num_kv_heads = shape.num_kv_heads;
  a.head_dim = shape.head_dim;
  a.dtype = shape.dtype;
  a.head_stride = shape.head_stride;
  a.token_stride = shape.token_stride;
  a.num_sequences = count_of(sequences);
  a.most_candidates = (most + kCandidatesRoom - 1) / kCandidatesRoom * kCandidatesRoom;
  a.near = static_cast<std::int32_t>(std::min<std::int64_t>(args.near, a.most_candidates));
  QUIRE_ASSIGN_OR_RETURN(a.sequences, stage_.put(std::span<const ChoosingSequence>(each)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  // With room, because memory that grows within a step makes the host wait.
  if (const std::int64_t bytes = place_scratch(a, nullptr); bytes > scratch_.bytes())
    QUIRE_RETURN_IF_ERROR(scratch_.reserve(bytes + bytes / 4));
  place_scratch(a, scratch_.data());
  return memory_->run(a);
}

Status DeviceChoice::fill_slots(const FillSlotsArgs& args,
                                std::span<const SequenceSlots> sequences) {
  if (sequences.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const FillSlotsArgs a, filling(args, sequences, moves_));
  return memory_->run(cuda::FillSlotsOnArgs{a, cuda::Lane::kCompute});
}

Status DeviceChoice::fill_slots_beside(const FillSlotsArgs& args,
                                       std::span<const SequenceSlots> sequences) {
  if (sequences.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const FillSlotsArgs a, filling(args, sequences, moves_beside_));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::RecordEventArgs{ready_.number(), cuda::Lane::kCompute}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{ready_.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::FillSlotsOnArgs{a, cuda::Lane::kCopies}));
  beside_ = true;
  return memory_->run(cuda::RecordEventArgs{filled_.number(), cuda::Lane::kCopies});
}

Status DeviceChoice::wait_for_slots() {
  if (!std::exchange(beside_, false)) return {};
  return memory_->run(cuda::HoldArgs{filled_.number(), cuda::Lane::kCompute});
}

/// Sends the sequences and returns the arguments, with scratch memory in `moves`.
Result<FillSlotsArgs> DeviceChoice::filling(const FillSlotsArgs& args,
                                            std::span<const SequenceSlots> sequences,
                                            DeviceBuffer& moves) {
  FillSlotsArgs a = args;
  const KvView &cache = sequences.front().kv, &slots = sequences.front().slots;
  a.num_sequences = count_of(sequences);
  a.cache = shape_only(cache);
  a.slots = {.pages = nullptr,
             .num_rows = 0,
             .num_kv_heads = slots.num_kv_heads,
             .head_dim = slots.head_dim,
             .dtype = slots.dtype,
             .kv_stride = slots.kv_stride,
             .head_stride = slots.head_stride,
             .token_stride = slots.token_stride};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  std::vector<SlotSequence> each;
  for (const SequenceSlots& s : sequences) {
    QUIRE_ASSIGN_OR_RETURN(const KvView from, staged_view(stage_, s.kv));
    QUIRE_ASSIGN_OR_RETURN(const KvView to, staged_view(stage_, s.slots));
    each.push_back(s.heads);
    each.back().kv_pages = from.pages;
    each.back().slot_pages = const_cast<void* const*>(to.pages);
  }
  QUIRE_ASSIGN_OR_RETURN(a.sequences, stage_.put(std::span<const SlotSequence>(each)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  // Room for a few sequences more, because memory that grows within a step makes the host wait.
  const std::int64_t heads = a.num_sequences * cache.num_kv_heads,
                     move_bytes = heads * a.num_slots * static_cast<std::int64_t>(sizeof(KvMove)),
                     bytes = move_bytes + heads * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (bytes > moves.bytes()) QUIRE_RETURN_IF_ERROR(moves.reserve(bytes + bytes / 4));
  a.moves = reinterpret_cast<KvMove*>(moves.data());
  a.num_moves = reinterpret_cast<std::int32_t*>(moves.data() + move_bytes);
  return a;
}

}  // namespace quire
