/// staged_view() and staged_gather() upload the pages and positions of caches for kernels. Internal
/// to engine/device.
#pragma once

#include <span>

#include "base/index.h"
#include "engine/cache/kv_table.h"
#include "engine/device/device_memory.h"
#include "kernels/cuda/args.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// kRowsRoom is the extra room, in rows, of arrays that grow with a cache. It keeps the arguments
/// of most decode steps equal to those of the previous step (step_recording.h).
inline constexpr std::int64_t kRowsRoom = cuda::kDecodeChunk;

/// Sends pages and positions that the view's table does not know, and says that it knows them.
/// Call it after stage.begin(). Errors: kResourceExhausted, kDeviceLost.
inline Status send_table(ArgumentStage& stage, const KvView& kv) {
  KvTable& table = *kv.table;
  QUIRE_RETURN_IF_ERROR(table.reserve(kv.num_rows));
  const std::int64_t pages = (kv.num_rows + kPageTokens - 1) / kPageTokens,
                     first_page = table.known_pages(), first_row = table.known_rows();
  if (first_page < pages)
    QUIRE_RETURN_IF_ERROR(stage.write(
        table.pages() + first_page,
        std::span<const void* const>(kv.pages + first_page, to_size(pages - first_page))));
  if (first_row < kv.num_rows)
    QUIRE_RETURN_IF_ERROR(
        stage.write(table.positions() + first_row,
                    std::span(kv.positions + first_row, to_size(kv.num_rows - first_row))));
  table.know(kv.num_rows);
  return {};
}

/// Returns the view with pages and positions at addresses that kernels read: those of its table, or
/// staged ones. Call it between stage.begin() and stage.send(). Errors: kResourceExhausted,
/// kDeviceLost.
inline Result<KvView> staged_view(ArgumentStage& stage, KvView kv) {
  if (kv.table != nullptr) {
    QUIRE_RETURN_IF_ERROR(send_table(stage, kv));
    kv.pages = kv.table->pages();
    kv.positions = kv.table->positions();
    kv.table = nullptr;
    return kv;
  }
  const std::int64_t pages = (kv.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(
      kv.pages, stage.put(std::span<const void* const>(kv.pages, to_size(pages)),
                          kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  QUIRE_ASSIGN_OR_RETURN(kv.positions,
                         stage.put(std::span(kv.positions, to_size(kv.num_rows)),
                                   kRowsRoom * static_cast<std::int64_t>(sizeof(std::int32_t))));
  return kv;
}

/// Uploads the moves of a gather and the pages that they touch, a separate list for each side in
/// the order of the moves, with the stage's begin() and send(). Errors: those of check_gather(),
/// kResourceExhausted, kDeviceLost.
Result<KvGatherArgs> staged_gather(ArgumentStage& stage, const KvGatherArgs& args);

}  // namespace quire
