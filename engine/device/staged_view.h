/// Pages and positions of a cache on their way to kernels. Internal to engine/device.
#pragma once

#include <span>

#include "engine/device/device_memory.h"
#include "kernels/cuda/args.h"
#include "kernels/kv.h"

namespace quire {

/// Arrays that grow with a cache have room for so many of its rows more, so that most decode steps
/// look like the one before (step_recording.h).
inline constexpr std::int64_t kRowsRoom = cuda::kDecodeChunk;

/// The view with pages and positions where kernels read them. Between stage.begin() and
/// stage.send(). Errors: kResourceExhausted, kDeviceLost.
inline Result<KvView> staged_view(ArgumentStage& stage, KvView kv) {
  const std::int64_t pages = (kv.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(
      kv.pages, stage.put(std::span<const void* const>(kv.pages, static_cast<std::size_t>(pages)),
                          kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  QUIRE_ASSIGN_OR_RETURN(kv.positions,
                         stage.put(std::span(kv.positions, static_cast<std::size_t>(kv.num_rows)),
                                   kRowsRoom * static_cast<std::int64_t>(sizeof(std::int32_t))));
  return kv;
}

}  // namespace quire
