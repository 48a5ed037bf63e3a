/// Vectors of texts from the loaded model's own states.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "ingest/embed/embedder.h"

namespace quire {

/// Returns a text's ids for the model, after a BOS if the model expects one.
std::vector<std::int32_t> embedding_ids(const Tokenizer& tokenizer, std::string_view text);

/// Makes the embedder that asks Engine::embed() for one text after the other, at the priority of
/// ingest. Of a text longer than the window its first tokens count; a text without tokens, or too
/// long for the engine's memory, has no vector. Calls must not come from the engine thread, which
/// must outlive it.
std::shared_ptr<Embedder> make_engine_embedder(Engine& engine);

}  // namespace quire
