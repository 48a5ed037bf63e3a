/// Reads the members common to every endpoint that generates text, native and OpenAI-compatible:
/// sampling, cache options, and how to treat documents that are missing or not ready.
#pragma once

#include "base/json_reader.h"
#include "engine/sample/sampler.h"
#include "server/json/query_request.h"

namespace quire {

/// Reads temperature, top_p, top_k, min_p, seed, stop, stop_token_ids, frequency_penalty,
/// presence_penalty, repetition_penalty, logit_bias, allowed_token_ids, ignore_eos, min_tokens.
void read_sampling(JsonReader& r, SamplingOptions& out);
/// Reads logprobs (a boolean) and top_logprobs.
void read_logprobs(JsonReader& r, SamplingOptions& out);
/// Reads cache and cache_salt, on_missing, on_not_ready, explain, citations.
void read_cache_and_policies(JsonReader& r, QueryBody& out);

}  // namespace quire
