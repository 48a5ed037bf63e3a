/// This file holds what planning needs to know of a loaded model, without its weights.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/api/choosing_need.h"
#include "engine/api/context_names.h"
#include "engine/api/device_facts.h"
#include "engine/chat/token_words.h"
#include "engine/record/kv_layout.h"
#include "engine/record/selection_heads.h"
#include "engine/record/stable_layers.h"

namespace quire {

struct EngineFacts {
  KvShape shape;
  std::int32_t num_heads = 0, vocab_size = 0;
  std::int64_t window = 0;  ///< positions a request may use for prompt and answer together
  std::vector<std::int32_t> stop_ids;  ///< ids of the model and its prompt format; they end answers
  /// Tokens put before every context that is prefilled for the store; their rows are not kept.
  std::vector<std::int32_t> ingest_prefix;
  /// Returns the words of a text that is given as tokens; null: each token counts as a word.
  std::function<std::vector<TokenWord>(std::span<const std::int32_t> ids)> words;
  /// Returns the words by which texts name a document of this title (base/words.h); null:
  /// titles are not read.
  std::function<std::vector<std::string>(std::string_view title)> title_words;
  ContextNames names;  ///< keys and block ids; holds the digest of everything that changes KV
  std::int64_t small_context_tokens = 256;
  StableLayers stable_layers;      ///< calibrated, or the default
  SelectionHeads selection_heads;  ///< calibrated; empty: they are not
  bool retrieval_head = false;     ///< a retrieval head is loaded
  /// KV is cut over several devices by head (Compute::splits_kv()): a step attends to all rows.
  bool split_kv = false;
  /// Context window of a draft that can choose rows instead of a retrieval head, on the host, in
  /// the model's tokens. 0: no such draft.
  std::int64_t draft_window = 0;
  DeviceFacts device;                     ///< for cache.decode `auto`
  std::optional<RetrieveShape> choosing;  ///< set if a device computes; none: the host computes

  /// Returns the device memory of each request that shares it; 0: no limit.
  std::int64_t device_part() const { return device.cache_bytes / device.requests; }
};

/// Returns the layout of a context of `num_tokens` tokens.
KvLayout kv_layout(const EngineFacts& facts, std::int64_t num_tokens);

}  // namespace quire
