/// This file holds what the stages of all queries of one engine share.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/waker.h"
#include "cachestore/store.h"
#include "engine/cache/prefix_cache.h"
#include "engine/cache/prompt_file.h"
#include "engine/prefill/pass_resources.h"
#include "engine/query/read_prompts.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

class DevicePool;
class Draft;
class KvWriter;
class ResidentMeans;
class TokenTrie;
class TransferStreams;

/// Resources of queries. Pointers are not null unless stated, and their targets outlive this.
/// Threads: the engine thread.
struct QueryResources : PassResources {
  Store* store = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Draft* draft = nullptr;  ///< null: none
  std::int32_t draft_wait_ms = 0;
  /// The query whose prompt the draft reads now; null: none. There is one at a time, which bounds
  /// the draft's KV.
  const void* prompt_reader = nullptr;
  ReadPrompts read_prompts;               ///< avoids reading equal prompts twice
  const TokenTrie* token_trie = nullptr;  ///< trie of the tokenizer, for answers with a grammar
  PrefixCache* prefixes = nullptr;        ///< null: no prompt prefixes are kept
  /// Bytes of pages that no work under way has reserved, while a query steps.
  std::int64_t unreserved_bytes = std::numeric_limits<std::int64_t>::max();
  PromptFile* prompts = nullptr;  ///< null: prefixes do not survive a restart
  KvWriter* writer = nullptr;
  /// KV of all queries that was computed before their plans and waits for them (EarlyContexts).
  std::int64_t early_bytes = 0;
  DevicePool* device = nullptr;          ///< device memory of retrievers
  std::int32_t device_requests = 1;      ///< requests that share the device
  TransferStreams* transfers = nullptr;  ///< streams for the retrievers' copies
  ResidentMeans* means = nullptr;        ///< null: blocks are scored on the host
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
  std::vector<std::string> stop_strings;  ///< of the prompt format
};

}  // namespace quire
