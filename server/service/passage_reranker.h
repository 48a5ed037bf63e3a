/// Ranks found passages anew by a cross-encoder, which reads question and text together.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "engine/encoder/text_encoder.h"
#include "ingest/search/retrieval.h"

namespace quire {

/// Scores each passage's text, behind its title, and sorts by the score, best first; equal scores
/// stay in order. `score` becomes the cross-encoder's, 0 to 1. Of a text longer than it reads, the
/// beginning counts. Errors: those of CrossEncoder::score(); nothing changes then. Threads: any; it
/// computes on `threads` threads.
Status rerank_passages(const CrossEncoder& reranker, int threads, const std::string& question,
                       std::span<Passage> passages);

}  // namespace quire
