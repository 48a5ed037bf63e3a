/// This file says what the shared tiers are asked for, and how long the answer is worth waiting
/// for.
#pragma once

#include <cstdint>
#include <string>

#include "cachestore/store.h"
#include "engine/api/facts.h"
#include "engine/api/speed_meter.h"

namespace quire {

/// Returns the request for a context of `num_tokens` tokens whose KV attends to `left_tokens`
/// before it. It is worth the time that computing the context would take at the measured speed.
RecallRequest recall_request(const EngineFacts& facts, const Speeds& speeds, const ContextKey& key,
                             std::int64_t num_tokens, std::int64_t left_tokens, std::string tenant);

}  // namespace quire
