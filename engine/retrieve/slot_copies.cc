#include "engine/retrieve/slot_copies.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/index.h"
#include "engine/compute/compute.h"

namespace quire {
namespace {

KvGatherArgs gather(const KvView& cache, const MutableKvView& slots,
                    const std::vector<KvMove>& moves) {
  KvGatherArgs args{cache, slots, moves.data(), count_of(moves), 0};
  for (const KvMove& move : moves) args.most_rows = std::max(args.most_rows, move.rows);
  return args;
}

}  // namespace

CopyStreams copy_streams(const SequenceContext& sequence) {
  return {&sequence.compute->kv(), sequence.compute->on_host() ? sequence.transfers : nullptr};
}

Status SlotCopies::bring(const CopyStreams& copier, const KvView& cache, const MutableKvView& slots,
                         const std::vector<KvMove>& moves) {
  if (moves.empty()) return {};
  return copier.kv->gather(gather(cache, slots, moves));
}

Status SlotCopies::copy_async(const CopyStreams& copier, const KvView& cache,
                              const MutableKvView& slots, MoveList moves, std::int32_t streams,
                              RetrieveStats& stats) {
  if (moves->empty()) return {};
  if (copier.transfers == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(beside_, copier.kv->gather_async(gather(cache, slots, *moves)));
    ++stats.copies;
    return {};
  }
  const auto pages = std::make_shared<const std::vector<const void*>>(
      cache.pages, cache.pages + (cache.num_rows + kPageTokens - 1) / kPageTokens);
  streams = std::min(streams, copier.transfers->num_streams());
  for (std::int32_t stream = 0; stream < streams; ++stream) {
    MoveList mine = moves;
    if (streams > 1) {
      auto some = std::make_shared<std::vector<KvMove>>();
      std::ranges::copy_if(*moves, std::back_inserter(*some),
                           [&](const KvMove& move) { return move.head % streams == stream; });
      mine = std::move(some);
    }
    if (mine->empty()) continue;
    auto copy = [mine = std::move(mine), cache, slots, pages] {
      KvView from = cache;
      from.pages = pages->data();
      return kv_gather(gather(from, slots, *mine));
    };
    pending_.push_back(copier.transfers->submit(std::move(copy), stream));
    ++stats.copies;
  }
  return {};
}

Status SlotCopies::wait(const CopyStreams& copier, RetrieveStats& stats) {
  if (const std::int64_t copy = std::exchange(beside_, -1); copy >= 0)
    return copier.kv->wait_for(copy);
  Status failed;
  for (const TransferStreams::Ticket& ticket : pending_) {
    const TransferStreams::Outcome outcome = copier.transfers->wait(ticket);
    stats.waits += outcome.waited ? 1 : 0;
    stats.wait_ms += outcome.wait_ms;
    stats.copy_ms += outcome.copy_ms;
    if (!outcome.status.ok()) failed = outcome.status;
  }
  pending_.clear();
  return failed;
}

Status leave_device(const SequenceContext& sequence, std::int32_t layer, PageLayout layout,
                    RetrieveStats& stats) {
  KvOps& kv = sequence.compute->kv();
  return sequence.cache->leave_device(
      layer, layout, [&](const KvView& from, const MutableKvView& to) {
        // Moves of several pages, because all the layers of a step may leave at once, and their
        // lists lie in the device's memory until it has ended.
        constexpr std::int64_t kMoved = 4 * kPageTokens;
        std::vector<KvMove> moves;
        for (std::int64_t row = 0; row < from.num_rows; row += kMoved) {
          const auto first = static_cast<std::int32_t>(row),
                     rows = static_cast<std::int32_t>(
                         std::min<std::int64_t>(kMoved, from.num_rows - row));
          for (std::int32_t head = 0; head < from.num_kv_heads; ++head)
            moves.push_back({head, first, first, rows});
        }
        stats.bytes_offloaded += 2 * from.num_rows * from.num_kv_heads * from.head_dim *
                                 static_cast<std::int64_t>(dtype_bytes(from.dtype));
        return kv.gather(gather(from, to, moves));
      });
}

}  // namespace quire
