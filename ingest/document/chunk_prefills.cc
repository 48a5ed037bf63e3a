#include "ingest/document/chunk_prefills.h"

#include <utility>

#include "base/index.h"

namespace quire {

void ChunkPrefills::start(const std::shared_ptr<Owner>& owner, std::size_t window,
                          std::stop_token cancelled) {
  window_ = window;
  cancelled_ = std::move(cancelled);
  launch(owner);
}

/// Submits as many chunks as may run at once, or ends.
void ChunkPrefills::launch(const std::shared_ptr<Owner>& owner) {
  while (true) {
    std::size_t i = 0;
    {
      const std::lock_guard lock(mu_);
      // A cancel can come at any moment. The caller that finds nothing left to start and nothing
      // outstanding ends the document, once.
      const bool none_left = next_ >= items_.size() || !failure_.ok() ||
                             cancelled_.stop_requested();
      if (none_left && outstanding_ == 0 && !ended_) {
        ended_ = true;
        i = items_.size();
      } else if (none_left || outstanding_ >= window_) {
        return;
      } else {
        i = next_++;
        ++outstanding_;
      }
    }
    if (i == items_.size()) return owner->prefilled();
    try {
      submit(owner, i);
    } catch (...) {
      finish(i, exception_status("the prefill of a chunk"));
    }
  }
}

void ChunkPrefills::submit(const std::shared_ptr<Owner>& owner, std::size_t i) {
  PrefillRequest request = owner->request_of(items_[i].chunk);
  const std::int64_t tokens = count_of(request.token_ids);
  request.cancelled = cancelled_;
  request.on_progress = [this, owner, i](std::int64_t done) { report(*owner, i, done); };
  engine_.prefill(std::move(request), [this, owner, i, tokens](Result<PrefillResult> result) {
    auto shared = std::make_shared<Result<PrefillResult>>(std::move(result));
    owner->post([this, owner, i, tokens, shared] {
      if (shared->ok()) report(*owner, i, tokens);
      finish(i, std::move(*shared));
      launch(owner);
    });
  });
}

void ChunkPrefills::report(Owner& owner, std::size_t i, std::int64_t done) {
  const std::int64_t more = done - items_[i].reported;
  if (more <= 0) return;
  items_[i].reported = done;
  owner.add_tokens_done(more);
}

void ChunkPrefills::finish(std::size_t i, Result<PrefillResult> result) {
  const std::lock_guard lock(mu_);
  if (result.ok()) {
    items_[i].result = std::move(*result);
  } else if (failure_.ok()) {
    failure_ = result.status();
  }
  --outstanding_;
}

bool ChunkPrefills::fail(const Status& failure) {
  const std::lock_guard lock(mu_);
  if (failure_.ok()) failure_ = failure;
  if (outstanding_ > 0) return false;
  ended_ = true;
  return true;
}

Status ChunkPrefills::failure() const {
  const std::lock_guard lock(mu_);
  return failure_;
}

void ChunkPrefills::release() {
  for (Item& item : items_) item.result.reset();
}

}  // namespace quire
