/// The index of words as the finder of related chunks.
#pragma once

#include "ingest/document/related_chunks.h"
#include "ingest/search/retrieval.h"

namespace quire {

/// Returns a finder over a retrieval, which must outlive it. It ranks by words alone.
FindChunks find_chunks_in(Retrieval& retrieval);

}  // namespace quire
