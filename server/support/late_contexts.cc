#include "server/support/late_contexts.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace quire {

std::unique_ptr<LateContexts> LateContexts::of(const QueryRequest& request, Store& store,
                                               const LatePause& pause) {
  if (request.cache.strategy != "auto") return nullptr;  // others do as their names say
  if (!request.cache.write) return nullptr;              // the caller wants nothing stored
  if (!pause.is_over()) return nullptr;
  auto out = std::make_unique<LateContexts>();
  for (const QueryContext& context : request.contexts) {
    if (!context.key || context.unnamed || store.peek_segment(*context.key)) continue;
    PrefillRequest& one = out->requests_.emplace_back();
    one.token_ids = context.token_ids;
    one.left_context = context.left_context;
    one.tenant = request.tenant;
    one.salt_digest = request.salt_digest;
    one.priority = PrefillPriority::kRecompute;
    out->keys_.push_back(*context.key);
  }
  return out->requests_.empty() ? nullptr : std::move(out);
}

void LateContexts::compute(Engine& engine, Store& store, WorkerPool& workers,
                           const std::shared_ptr<LatePause>& pause) {
  const auto not_kept = [pause](const std::string& reason) {
    if (!pause->begin()) return;
    log_warning(
        "the KV of a document that was asked about could not be kept, and none is computed "
        "behind answers for a minute",
        {{"reason", reason}});
  };
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    // The query itself, or another one, may have computed it meanwhile.
    if (store.peek_segment(keys_[i])) continue;
    // KV that the engine keeps under another name than the document's would be dropped: that of a
    // stale one, or of a question with another cache_salt.
    const PrefillRequest& one = requests_[i];
    if (keys_[i] !=
        engine.names().context_key(one.token_ids, one.tenant, one.salt_digest, one.left_context))
      continue;
    if (!pause->take_place()) break;  // a later query asks again
    engine.prefill(
        std::move(requests_[i]), [&store, &workers, pause, not_kept](Result<PrefillResult> result) {
          pause->leave_place();
          if (!result.ok()) {
            if (result.code() != Code::kCancelled) not_kept(result.status().to_string());
            return;
          }
          std::vector<SegmentHandle> segments{std::move(result->segment)};
          if (result->companion) segments.push_back(std::move(result->companion));
          // It waits on disk, and the engine's thread may not.
          const bool posted = workers.post([&store, not_kept, segments = std::move(segments)] {
            if (const auto kept = store.commit_segments(segments); !kept.ok())
              not_kept(kept.status().to_string());
          });
          if (!posted) not_kept("the workers take no more");
        });
  }
  requests_.clear();
}

}  // namespace quire
