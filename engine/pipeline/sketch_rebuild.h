/// Sketches that are lost, or of an older build, made again on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cachestore/key.h"
#include "engine/pipeline/core.h"
#include "kernels/base/status.h"

namespace quire {

/// The context's sketch record: prefills it once more, alone, and keeps nothing else. The record has the bits that ingest would write.
/// Runs to the end: the engine thread. Errors: those of ContextPrefill::step().
Result<std::vector<std::byte>> rebuild_sketch(EngineCore& core, std::span<const std::int32_t> token_ids);

/// rebuild_sketch(), and the stored context is replaced by one with this sketch. Handles keep reading what they hold; from the store's view the old
/// segment is a miss until the new one, written whole and synced, takes its place under the same key. The writer's thread does
/// that later; if it fails or its queue is full, the reply is the same and the log says what happened.
Result<std::vector<std::byte>> complete_sketch(EngineCore& core, const ContextKey& key, std::span<const std::int32_t> token_ids,
                                               const std::string& tenant);

}  // namespace quire
