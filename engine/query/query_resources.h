/// What the stages of every query of one engine share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/waker.h"
#include "cachestore/store.h"
#include "engine/cache/prefix_cache.h"
#include "engine/prefill/pass_resources.h"
#include "engine/query/read_prompts.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

class DevicePool;
class Draft;
class KvWriter;
class ResidentMeans;
class TokenTrie;
class TransferLane;

/// Pointers are never null unless said; what they point to outlives this. Threads: the engine
/// thread.
struct QueryResources : PassResources {
  Store* store = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Draft* draft = nullptr;  ///< null: none
  std::int32_t draft_wait_ms = 0;
  /// The query whose prompt the draft reads now: one at a time, so its KV has a bound; null: none.
  const void* prompt_reader = nullptr;
  ReadPrompts read_prompts;               ///< so that equal prompts are read once
  const TokenTrie* token_trie = nullptr;  ///< of the tokenizer, for answers with a grammar
  PrefixCache* prefixes = nullptr;        ///< null: nothing is kept
  KvWriter* writer = nullptr;
  DevicePool* device = nullptr;       ///< for what retrievers keep on the device
  std::int32_t device_requests = 1;   ///< that share it
  TransferLane* transfers = nullptr;  ///< for their copies
  ResidentMeans* means = nullptr;     ///< null: blocks are scored on the host
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
  std::vector<std::int32_t> stop_ids;  ///< of the model and its prompt format
  std::vector<std::string> stop_strings;
};

}  // namespace quire
