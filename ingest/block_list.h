/// The blocks of a document with their names, places and characters.
#pragma once

#include <string_view>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/document/document_types.h"

namespace quire {

/// Returns the number of blocks of a chunk.
std::uint64_t blocks_of(const DocumentChunk& chunk);

/// Lists the blocks of a manifest with token ids. `engine` is that of its tokens, `text` the
/// document's text, `tenant` that of its contexts.
std::vector<BlockInfo> list_blocks(Store& store, const Engine& engine,
                                   const DocumentManifest& manifest, std::string_view text,
                                   std::string_view tenant);

}  // namespace quire
