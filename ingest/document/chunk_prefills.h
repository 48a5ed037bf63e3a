/// ChunkPrefills computes the KV of chunks of one document through the engine, some at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace quire {

/// Threads: add() and start() by one thread. The owner's functions are called by it, by the
/// engine's thread and by those that run what was posted. items() and release() by any thread
/// after Owner::prefilled() was called or fail() has returned true, one at a time.
class ChunkPrefills {
 public:
  /// The document whose chunks these are. ChunkPrefills is a part of it, and what runs keeps it.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Returns what the engine computes for a chunk; what it throws is a failure of the document.
    virtual PrefillRequest request_of(std::size_t chunk) = 0;
    /// So many tokens more are done. It must not block.
    virtual void add_tokens_done(std::int64_t tokens) = 0;
    /// Runs a step on another thread, one that may wait.
    virtual void post(std::function<void()> step) = 0;
    /// Nothing runs any longer; called once, unless fail() has returned true. See failure().
    virtual void prefilled() = 0;
  };

  struct Item {
    std::size_t chunk = 0;
    std::int64_t reported = 0;  ///< tokens said to be done
    std::optional<PrefillResult> result;
  };

  explicit ChunkPrefills(Engine& engine) : engine_(engine) {}

  void add(std::size_t chunk) { items_.push_back({.chunk = chunk, .reported = 0, .result = {}}); }
  bool empty() const { return items_.empty(); }
  /// Computes what was added, at most `window` at a time, until one fails or `cancelled`.
  void start(const std::shared_ptr<Owner>& owner, std::size_t window, std::stop_token cancelled);
  /// Starts no more and keeps the first failure. Returns false where what runs will call
  /// Owner::prefilled(), and true where nothing does, so that the caller ends the document.
  bool fail(const Status& failure);
  Status failure() const;

  std::span<const Item> items() const { return items_; }
  /// Lets go of all KV.
  void release();

 private:
  void launch(const std::shared_ptr<Owner>& owner);
  void submit(const std::shared_ptr<Owner>& owner, std::size_t i);
  void report(Owner& owner, std::size_t i, std::int64_t done);
  void finish(std::size_t i, Result<PrefillResult> result);

  Engine& engine_;
  std::vector<Item> items_;
  std::size_t window_ = 1;
  std::stop_token cancelled_;
  mutable std::mutex mu_;
  std::size_t next_ = 0, outstanding_ = 0;  // guarded by mu_
  bool ended_ = false;                      // guarded by mu_: only one caller ends the document
  Status failure_;                          // guarded by mu_
};

}  // namespace quire
