/// Vectors of texts from a text encoder of this process.
#pragma once

#include <memory>

#include "engine/encoder/text_encoder.h"
#include "ingest/embed/embedder.h"

namespace quire {

/// Makes the embedder that runs `encoder` on up to `threads` threads a call. It looks at the limits
/// between batches of texts.
std::shared_ptr<Embedder> make_encoder_embedder(std::shared_ptr<const TextEncoder> encoder,
                                                int threads);

}  // namespace quire
