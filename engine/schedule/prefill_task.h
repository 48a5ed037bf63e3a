/// This file prefills one context for ingest, shared by all callers that request the same content
/// in the meantime.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/index.h"
#include "engine/api/requests.h"
#include "engine/prefill/context_kv.h"
#include "engine/query/query_resources.h"

namespace quire {

struct WrittenContext;

/// Prefills one context; if the draft keeps KV of documents, it reads the context concurrently.
/// Threads: the engine thread; the last callback comes from the writer's thread or the draft's.
class PrefillTask : public std::enable_shared_from_this<PrefillTask> {
 public:
  using Done = std::function<void(Result<PrefillResult>)>;

  PrefillTask(QueryResources& core, ContextKey key, PrefillRequest request, Done done);

  /// Tells a caller; what it throws is logged and keeps nothing from others.
  static void tell(const Done& done, const Result<PrefillResult>& result) noexcept;

  const ContextKey& key() const { return key_; }
  const std::string& tenant() const { return tenant_; }
  PrefillPriority priority() const { return priority_; }
  void raise(PrefillPriority priority) { priority_ = priority; }
  std::int64_t num_tokens() const { return count_of(token_ids_); }
  std::int64_t working_bytes() const { return bytes_with(records()); }
  /// Adds a caller for the same content. Returns false, with the arguments untouched, if the result
  /// was already delivered. They are untouched as well where it throws std::bad_alloc.
  bool join(PrefillRequest& request, Done& done);
  bool completed() const;
  /// Computes one chunk, or some layers of it. Returns true once computing is over (already stored,
  /// failed, cancelled, or handed to the writer).
  bool step(const PieceLimit& limit);
  /// suspend() moves its pages to ordinary memory; resume() moves them back. Errors: those of
  /// WorkingCache; the pages stay where they are.
  Status suspend();
  Status resume();
  /// Returns whether its left context begins with all of these rows.
  bool continues(const PrefilledRows& rows) const;
  /// Lets the first step go on from rows.
  void go_on_from(std::unique_ptr<PrefilledRows> rows) { rows_ = std::move(rows); }
  /// Returns the rows that it computed, or that it did not use; null: none.
  std::unique_ptr<PrefilledRows> take_rows() { return std::move(rows_); }
  /// Fails all remaining callers and releases its pages. Threads: the engine thread.
  void fail(const Status& status);

 private:
  struct Waiter {
    std::stop_token cancelled;
    std::function<void(std::int64_t)> on_progress;
    Done done;
  };
  /// Returns the records to be made: those that cost more rows only where they fit the budget.
  PrefillRecords records() const;
  std::int64_t bytes_with(PrefillRecords records) const;
  bool drop_cancelled();
  void hand_over();
  void ask_draft();
  void draft_done(Result<SegmentHandle> kept);
  void complete(Result<PrefillResult> result);
  PrefillResult result_so_far() const;
  Result<PrefillResult> result_of(Result<WrittenContext> written) const noexcept;

  QueryResources& core_;
  const ContextKey key_;
  const std::vector<std::int32_t> token_ids_, left_context_;
  const std::string tenant_;
  const std::array<std::uint8_t, 32> salt_digest_;
  PrefillPriority priority_;
  mutable std::mutex mu_;
  std::vector<Waiter> waiters_;  // guarded by mu_
  bool completed_ = false;       // guarded by mu_
  bool draft_reads_ = false;     // guarded by mu_; the draft still reads, so the result waits
  SegmentHandle companion_;      // guarded by mu_
  std::optional<Result<PrefillResult>> result_;  // guarded by mu_; set while it waits for the draft
  std::shared_ptr<std::atomic<bool>> draft_unwanted_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<PrefilledRows> rows_;
  std::unique_ptr<ContextPrefill> prefill_;
  std::int64_t reported_tokens_ = 0;
  double prefill_ms_ = 0;
};

}  // namespace quire
