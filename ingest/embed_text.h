/// Texts as the engine embeds them.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/document.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// As the model meets a text: behind a BOS where it expects one.
std::vector<std::int32_t> embedding_ids(const Tokenizer& tokenizer, std::string_view text);

/// A chunk as it is embedded: the title its KV was computed with, then its text. `text`: of the
/// whole document.
std::string embedding_text(const DocumentManifest& manifest, const DocumentChunk& chunk,
                           std::string_view text);

/// Everything a document's vectors depend on: model, title, text, borders of chunks, and how text
/// becomes a vector. Another one is a clean miss.
Digest embedding_source(const EngineInfo& model, const DocumentManifest& manifest);

/// Engine::embed() and the wait for it. When stopped or late, the work is cancelled and its end not
/// waited for. Errors: those of embed(), kUnavailable (stopped), kDeadlineExceeded. Never on the
/// engine thread.
Result<std::vector<float>> embed_and_wait(
    Engine& engine, std::vector<std::int32_t> ids, std::stop_token stop,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());

}  // namespace quire
