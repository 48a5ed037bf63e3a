#include "engine/pipeline/sketch_rebuild.h"

#include <memory>

#include "engine/pipeline/context_kv.h"
#include "engine/pipeline/kv_writer.h"
#include "kernels/base/log.h"

namespace quire {
namespace {

constexpr std::size_t kMaxPendingWrites = 8;  // each holds the KV of a context

Result<std::shared_ptr<const ContextKv>> prefill_again(EngineCore& core, std::span<const std::int32_t> token_ids) {
  if (token_ids.empty()) return Status::invalid("token_ids", "a context needs a token");
  ContextPrefill prefill(core, token_ids);
  while (!prefill.done()) QUIRE_RETURN_IF_ERROR(prefill.step());
  return prefill.take();
}

void warn(const Status& status) { log_warning("a rebuilt sketch was not stored", {{"error", status.to_string()}}); }

}  // namespace

Result<std::vector<std::byte>> rebuild_sketch(EngineCore& core, std::span<const std::int32_t> token_ids) {
  QUIRE_ASSIGN_OR_RETURN(const auto kv, prefill_again(core, token_ids));
  return context_sketch(*kv, core.facts.num_heads, core.model->rope());
}

Result<std::vector<std::byte>> complete_sketch(EngineCore& core, const ContextKey& key, std::span<const std::int32_t> token_ids,
                                               const std::string& tenant) {
  QUIRE_ASSIGN_OR_RETURN(const auto kv, prefill_again(core, token_ids));
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::byte> record, context_sketch(*kv, core.facts.num_heads, core.model->rope()));
  if (core.writer->pending() >= kMaxPendingWrites) return record;
  if (const auto old = core.store->peek_segment(key)) {
    if (const Status s = core.store->discard_segment(*old); !s.ok()) {
      warn(s);
      return record;
    }
  }
  KvWriter::Job job;
  job.kv = kv;
  job.key = key;
  job.tenant = tenant;
  job.done = [store = core.store](Result<WrittenContext> written) {
    Status status = written.status();
    if (status.ok() && !written->already_cached) status = store->commit_segments(std::span(&written->segment, 1)).status();
    if (!status.ok()) warn(status);
  };
  core.writer->submit(std::move(job));
  return record;
}

}  // namespace quire
