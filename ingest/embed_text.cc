#include "ingest/embed_text.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cachestore/format/key.h"
#include "ingest/prepared_text.h"

namespace quire {
namespace {

/// Must increase with every change in how text becomes a vector.
constexpr std::uint64_t kRecipe = 1;

/// Shared by the waiting thread and the engine's; the last one to release it frees it.
struct Waiting {
  std::mutex mu;
  std::condition_variable_any done;
  std::optional<Result<std::vector<float>>> result;  // guarded by mu
};

}  // namespace

std::vector<std::int32_t> embedding_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> out;
  if (tokenizer.add_bos() && tokenizer.bos_id()) out.push_back(*tokenizer.bos_id());
  const auto ids = tokenizer.encode(text);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

std::string embedding_text(const DocumentManifest& m, const DocumentChunk& c,
                           std::string_view text) {
  std::string out(header_title(m));
  if (!out.empty()) out += '\n';
  if (c.byte_begin <= c.byte_end && c.byte_end <= text.size())
    out += text.substr(c.byte_begin, c.byte_end - c.byte_begin);
  return out;
}

Digest embedding_source(const EngineInfo& model, const DocumentManifest& m) {
  Sha256 hash;
  hash.update_field("quire-embeddings")
      .update_u64(kRecipe)
      .update(std::as_bytes(std::span(model.fingerprint_digest)));
  hash.update_field(header_title(m)).update_field(m.content_hash).update_u64(m.chunks.size());
  for (const DocumentChunk& c : m.chunks) hash.update_u64(c.byte_begin).update_u64(c.byte_end);
  return hash.finish();
}

Result<std::vector<float>> embed_and_wait(Engine& engine, std::vector<std::int32_t> ids,
                                          std::stop_token stop,
                                          std::chrono::steady_clock::time_point deadline) {
  auto waiting = std::make_shared<Waiting>();
  EmbedRequest request;
  request.token_ids = std::move(ids);
  request.cancelled = std::make_shared<std::atomic<bool>>(false);
  const auto cancelled = request.cancelled;
  engine.embed(std::move(request), [waiting](Result<std::vector<float>> vector) {
    {
      const std::lock_guard lock(waiting->mu);
      waiting->result = std::move(vector);
    }
    waiting->done.notify_all();
  });
  std::unique_lock lock(waiting->mu);
  const auto ended = [&waiting] { return waiting->result.has_value(); };
  const bool in_time = deadline == std::chrono::steady_clock::time_point::max()
                           ? waiting->done.wait(lock, stop, ended)
                           : waiting->done.wait_until(lock, stop, deadline, ended);
  if (in_time) return std::move(*waiting->result);
  cancelled->store(true);
  if (stop.stop_requested()) return Status::unavailable("the service is stopping");
  return Status::deadline(
      "the question could not be embedded in time: the engine is busy with queries; ask again, or "
      "use the scorer bm25");
}

}  // namespace quire
