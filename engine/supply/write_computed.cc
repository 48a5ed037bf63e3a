#include "engine/supply/write_computed.h"

#include <span>
#include <utility>

#include "base/log.h"
#include "engine/prefill/kv_writer.h"

namespace quire {
namespace {

/// Most newly computed contexts that wait to be written, however small they are.
constexpr std::size_t kMaxPendingWrites = 64;

}  // namespace

void write_computed(QueryRun& run, const ContextKey& key, std::shared_ptr<const ContextKv> kv) {
  KvWriter& writer = *run.core.writer;
  if (writer.pending() >= kMaxPendingWrites || !writer.has_room(kv->layout.total_bytes())) return;
  run.stats.written_tokens += kv->layout.num_tokens();
  KvWriter::Job job;
  job.kv = std::move(kv);
  job.key = key;
  job.tenant = run.request.tenant;
  job.done = [store = run.core.store](Result<WrittenContext> written) {
    Status status = written.status();
    if (status.ok() && !written->already_cached)
      status = store->commit_segments(std::span(&written->segment, 1)).status();
    if (!status.ok())
      log_warning("recomputed document was not stored again", {{"error", status.to_string()}});
  };
  writer.submit(std::move(job));
}

}  // namespace quire
