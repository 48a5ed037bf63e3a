#include "engine/schedule/prefill_recall.h"

#include <map>
#include <mutex>
#include <utility>

namespace quire {

/// State that outlives the object, as the store may reply after it.
struct PrefillRecall::Shared {
  struct Waiting {
    ContextKey key;
    PrefillRequest request;
    PrefillTask::Done done;
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
  std::uint64_t id = 0;
  bool stopped = false;
  {
    const std::lock_guard lock(shared_->mu);
    stopped = !shared_->submit;
    id = shared_->next++;
    if (!stopped) shared_->waiting.emplace(id, Shared::Waiting{key, std::move(request), done});
  }
  if (stopped) return done(Status::unavailable("the engine is stopping"));
  store_.recall_async(std::move(wanted), [shared = shared_, id](Result<SegmentHandle> recalled) {
    const std::lock_guard lock(shared->mu);
    const auto it = shared->waiting.find(id);
    if (it == shared->waiting.end()) return;
    Shared::Waiting w = std::move(it->second);
    shared->waiting.erase(it);
    // The segment stays pinned until the prefill has found it.
    SegmentHandle segment = recalled.ok() ? std::move(*recalled) : SegmentHandle();
    shared->submit(w.key, std::move(w.request),
                   [segment = std::move(segment), done = std::move(w.done)](
                       Result<PrefillResult> result) { done(std::move(result)); });
  });
}

void PrefillRecall::stop() {
  std::map<std::uint64_t, Shared::Waiting> waiting;
  {
    const std::lock_guard lock(shared_->mu);
    shared_->submit = nullptr;
    waiting.swap(shared_->waiting);
  }
  for (auto& [id, w] : waiting) w.done(Status::unavailable("the engine is stopping"));
}

}  // namespace quire
