/// Prepares texts for embedding by the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/document.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Returns a text's ids for the model, after a BOS if the model expects one.
std::vector<std::int32_t> embedding_ids(const Tokenizer& tokenizer, std::string_view text);

/// Returns a chunk's text for embedding: the title its KV was computed with, then its text. `text`
/// is that of the whole document.
std::string embedding_text(const DocumentManifest& manifest, const DocumentChunk& chunk,
                           std::string_view text);

/// Returns a digest of everything a document's vectors depend on: model, title, text, chunk
/// borders, and the way from text to vector. With another digest, stored vectors are a clean miss.
Digest embedding_source(const EngineInfo& model, const DocumentManifest& manifest);

/// Calls Engine::embed() and waits. When stopped or late, it cancels the work and does not wait for
/// its end. It must not be called on the engine thread. Errors: those of embed(), kUnavailable
/// (stopped), kDeadlineExceeded.
Result<std::vector<float>> embed_and_wait(
    Engine& engine, std::vector<std::int32_t> ids, std::stop_token stop,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());

}  // namespace quire
