/// What the tasks of one engine thread share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachestore/store.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/prefix_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "engine/pipeline/facts.h"
#include "engine/pipeline/plan_builder.h"
#include "engine/prompt/read_prompts.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

using Clock = std::chrono::steady_clock;
inline double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Wakes the engine thread. Shared, so that a late callback of the store never meets a dead engine. Threads: any.
class Waker {
 public:
  void wake();
  /// Returns once woken (also if that was before the call) or when `until` is reached.
  void wait_until(Clock::time_point until);

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  bool woken_ = false;  // guarded by mu_
};

/// Moving averages of what was measured. Threads: any.
class SpeedMeter {
 public:
  void add_prefill(std::int64_t tokens, double ms);
  void add_decode(std::int64_t tokens, double ms);
  void add_load(Tier tier, std::int64_t bytes, double ms);
  Speeds speeds() const;
  double decode_tokens_per_ms() const { return decode_.load(std::memory_order_relaxed); }

 private:
  static void blend(std::atomic<double>& average, double sample, double weight);
  std::atomic<double> prefill_{0}, decode_{0}, dram_{0}, disk_{0};
};

class Draft;
class DevicePool;
class KvWriter;
class ResidentMeans;
class RetrievalHead;
class TokenTrie;
class TransferLane;

struct EngineCore {
  EngineFacts facts;
  Model* model = nullptr;
  Store* store = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Draft* draft = nullptr;                    ///< null: none
  std::int32_t draft_wait_ms = 0;
  const void* prompt_reader = nullptr;       ///< the query whose prompt the draft's reader reads now: one at a time, so its KV has a bound; null: none
  ReadPrompts read_prompts;                  ///< so that equal prompts are read once
  const TokenTrie* token_trie = nullptr;     ///< of the tokenizer, for answers with a grammar
  PagePool* pool = nullptr;
  PrefixCache* prefixes = nullptr;           ///< null: nothing is kept
  KvWriter* writer = nullptr;
  DevicePool* device = nullptr;              ///< for what retrievers bring to the device
  std::int32_t device_requests = 1;          ///< that share it
  TransferLane* transfers = nullptr;         ///< for their copies
  const RetrievalHead* head = nullptr;       ///< null: none
  ResidentMeans* means = nullptr;            ///< null: blocks are scored on the host
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
  SpeedMeter* meter = nullptr;
  ForwardWorkspace workspace;
  std::string fingerprint_text;              ///< recorded with each segment
  std::vector<std::int32_t> stop_ids;        ///< of the model and its prompt format
  std::vector<std::string> stop_strings;
  std::int32_t chunk_tokens = 512;           ///< rows of the next chunk of a prompt; multiple of 16
};

/// Whether a look at the store counts as a use of what it finds.
enum class LookupKind : std::uint8_t { kUse, kPeek };
/// Asks the store which tier each block is in. Never waits on disk.
LookupContext store_lookup(Store& store, LookupKind kind);

}  // namespace quire
