#include "engine/schedule/prefill_recall.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <stop_token>
#include <utility>

#include "base/sha256.h"

namespace quire {
namespace {

/// Tokens that tell one run of contexts from another.
constexpr std::size_t kTurnTokens = 128;

/// Returns the turn of a context: that of the first one in its run. A context goes on from the rows
/// of the one before, so a run that two replicas share out costs more than one that each computes.
/// Runs that begin alike have one turn, and then wait for each other without need, but not for
/// long.
Digest turn_of(const RecallRequest& wanted, const PrefillRequest& request) {
  Sha256 hash;
  hash.update_field("quire-turn").update_field(wanted.tenant);
  hash.update(std::as_bytes(std::span(request.salt_digest)));
  std::size_t left = kTurnTokens;
  for (const auto* ids : {&request.left_context, &request.token_ids}) {
    const std::size_t count = std::min(left, ids->size());
    hash.update(std::as_bytes(std::span(*ids).first(count)));
    left -= count;
  }
  return hash.finish();
}

/// What a stop of one source calls to stop another.
struct RequestStop {
  std::stop_source source;
  void operator()() { source.request_stop(); }
};

}  // namespace

/// State that outlives the object, as the store may reply after it.
struct PrefillRecall::Shared {
  struct Waiting {
    ContextKey key;
    PrefillRequest request;
    PrefillTask::Done done;
    std::stop_source ending{};  ///< ends reading, and waiting for a turn
    std::unique_ptr<std::stop_callback<RequestStop>> on_cancel{};
  };
  std::mutex mu;                             // held while submitting, so that stop() waits for it
  Submit submit;                             // guarded by mu; empty: stopped
  std::map<std::uint64_t, Waiting> waiting;  // guarded by mu
  std::uint64_t next = 0;                    // guarded by mu
};

PrefillRecall::PrefillRecall(Store& store, Submit submit)
    : store_(store), shared_(std::make_shared<Shared>()) {
  shared_->submit = std::move(submit);
}

void PrefillRecall::start(RecallRequest wanted, PrefillRequest request, PrefillTask::Done done) {
  const ContextKey key = wanted.key;
  wanted.turn = turn_of(wanted, request);
  std::stop_source ending;
  wanted.unwanted = ending.get_token();
  auto on_cancel = std::make_unique<std::stop_callback<RequestStop>>(request.cancelled,
                                                                     RequestStop{ending});
  const auto end_turn = [store = &store_, wanted] { store->end_turn(wanted); };
  std::uint64_t id = 0;
  bool stopped = false;
  {
    const std::lock_guard lock(shared_->mu);
    stopped = !shared_->submit;
    id = shared_->next++;
    if (!stopped)
      shared_->waiting.emplace(
          id, Shared::Waiting{key, std::move(request), done, ending, std::move(on_cancel)});
  }
  if (stopped) return done(Status::unavailable("the engine is stopping"));
  store_.recall_async(
      std::move(wanted), [shared = shared_, id, end_turn](Result<SegmentHandle> recalled) {
        const std::lock_guard lock(shared->mu);
        const auto it = shared->waiting.find(id);
        if (it == shared->waiting.end()) return end_turn();
        Shared::Waiting w = std::move(it->second);
        shared->waiting.erase(it);
        // The segment stays pinned until the prefill has found it.
        SegmentHandle segment = recalled.ok() ? std::move(*recalled) : SegmentHandle();
        shared->submit(w.key, std::move(w.request),
                       [segment = std::move(segment), done = std::move(w.done),
                        end_turn](Result<PrefillResult> result) {
                         // The result holds what was computed, so the store still has it.
                         end_turn();
                         done(std::move(result));
                       });
      });
}

void PrefillRecall::stop() {
  std::map<std::uint64_t, Shared::Waiting> waiting;
  {
    const std::lock_guard lock(shared_->mu);
    shared_->submit = nullptr;
    waiting.swap(shared_->waiting);
  }
  for (auto& [id, w] : waiting) {
    w.ending.request_stop();
    w.done(Status::unavailable("the engine is stopping"));
  }
}

}  // namespace quire
