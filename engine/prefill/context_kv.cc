#include "engine/prefill/context_kv.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "base/index.h"
#include "engine/prefill/context_capture.h"
#include "engine/prefill/record_kind.h"

namespace quire {

ContextPrefill::ContextPrefill(PassResources& core, const ContextTokens& tokens,
                               PrefillRecords records, std::unique_ptr<PrefilledRows> rows)
    : core_(core),
      token_ids_(tokens.ids),
      left_context_(tokens.left_context),
      kv_(std::make_shared<ContextKv>()),
      cache_(rows != nullptr ? std::move(rows->cache)
                             : WorkingCache(*core.pool, core.facts.shape.num_layers)),
      keep_statistics_(records != PrefillRecords::kNone),
      statistics_(kv_layout(core.facts, count_of(tokens.ids)), core.facts.num_heads) {
  QUIRE_CHECK(!token_ids_.empty(), "a context needs a token");
  workspace_.beside = core.workspace.beside;
  if (rows != nullptr) {
    const auto prefix = count_of(core.facts.ingest_prefix);
    const auto same = std::ranges::mismatch(rows->ids, left_context_).in1 - rows->ids.begin();
    // Without any equal row the ingest prefix is computed anew with the first of them.
    cache_.truncate_all(same > 0 ? prefix + same : 0);
  }
  kv_->layout = kv_layout(core.facts, count_of(token_ids_));
  const KvLayout& layout = kv_->layout;
  kv_->values.resize(to_size(layout.num_blocks() * layout.num_groups()));
  kv_->local_query.resize(to_size(layout.shape().num_layers) * to_size(core.facts.num_heads) *
                          to_size(layout.shape().head_dim));
  if (records == PrefillRecords::kNone) return;
  for (const auto& kind : all_record_kinds()) {
    const auto& more = core.more_records;
    const bool requested = records == PrefillRecords::kRequested &&
                           std::ranges::find(more, kind->name()) != more.end();
    if (!kind->always() && !requested) continue;
    auto observer = kind->observe({core, layout, token_ids_, rows_before()});
    if (observer == nullptr) continue;
    QUIRE_CHECK(tap_ == nullptr || observer->tap() == nullptr, "two observers tap one pass");
    if (observer->tap() != nullptr) tap_ = observer->tap();
    observers_.push_back({kind->index(), std::move(observer)});
  }
}

ContextPrefill::~ContextPrefill() = default;

struct ContextPrefill::Chunk {
  std::vector<std::int32_t> ids, positions;
  std::int64_t tokens = 0;  ///< tokens of the context, without those before it
  double ms = 0, slowest_layer_ms = 0;
  std::optional<ContextCapture> capture;  ///< outlives the pass
  std::optional<ForwardPass> pass;
};

std::int64_t ContextPrefill::rows_before() const {
  return count_of(core_.facts.ingest_prefix) + count_of(left_context_);
}

/// Begins a chunk of rows before the context's; nothing of them is kept.
void ContextPrefill::begin_left_chunk(std::int32_t max_tokens) {
  const auto prefix = count_of(core_.facts.ingest_prefix);
  const std::int64_t done = std::max<std::int64_t>(0, cache_.num_rows(0) - prefix);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(core_.chunk_tokens, max_tokens));
  const auto next = left_context_.subspan(to_size(done),
                                          to_size(std::min(most, count_of(left_context_) - done)));
  chunk_ = std::make_unique<Chunk>();
  if (done == 0) chunk_->ids = core_.facts.ingest_prefix;
  chunk_->ids.insert(chunk_->ids.end(), next.begin(), next.end());
  run_chunk(nullptr, nullptr);
}

void ContextPrefill::begin_chunk(std::int32_t max_tokens) {
  const KvLayout& layout = kv_->layout;
  const std::int64_t prefix = cache_.num_rows(0) == 0 ? count_of(core_.facts.ingest_prefix) : 0;
  const std::int64_t most = std::max(layout.block_tokens(),
                                     std::min(core_.chunk_tokens, max_tokens));
  chunk_ = std::make_unique<Chunk>();
  chunk_->tokens = std::min<std::int64_t>(most - most % layout.block_tokens(),
                                          count_of(token_ids_) - next_);
  std::vector<std::int32_t>& ids = chunk_->ids;
  if (prefix > 0) ids = core_.facts.ingest_prefix;
  ids.insert(ids.end(), token_ids_.begin() + next_, token_ids_.begin() + next_ + chunk_->tokens);
  const std::int64_t end = next_ + chunk_->tokens;
  for (std::int64_t b = next_ / layout.block_tokens();
       b < layout.num_blocks() && layout.first_token(static_cast<std::int32_t>(b)) < end; ++b) {
    for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
      kv_->values[at(b * layout.num_groups() + g)] = std::make_shared<ValueBuffer>(
          to_size(layout.value_bytes(static_cast<std::int32_t>(b), g)));
    }
  }
  chunk_->capture.emplace(core_, kv_, keep_statistics_ ? &statistics_ : nullptr, observers_,
                          ChunkRows{prefix, next_, rows_before()});
  run_chunk(&*chunk_->capture, tap_);
}

/// Begins the pass of the chunk's ids, behind the rows that the cache holds.
void ContextPrefill::run_chunk(ForwardHook* hook, HiddenTap* tap) {
  chunk_->positions.resize(chunk_->ids.size());
  std::iota(chunk_->positions.begin(), chunk_->positions.end(),
            static_cast<std::int32_t>(cache_.num_rows(0)));
  ForwardRequest request{};
  request.token_ids = chunk_->ids;
  request.positions = chunk_->positions;
  request.cache = &cache_;
  request.hook = hook;
  request.tap = tap;
  chunk_->pass.emplace(*core_.model, request, workspace_);
}

Status ContextPrefill::step(const PieceLimit& limit) {
  const auto started = Clock::now();
  if (next_ == count_of(token_ids_)) return run_more(limit);
  const bool whole = !chunk_ && limit.whole_chunk;
  if (!chunk_) {
    const bool left = !left_context_.empty() && cache_.num_rows(0) < rows_before();
    left ? begin_left_chunk(limit.max_tokens) : begin_chunk(limit.max_tokens);
  }
  double ms = 0;
  do {
    QUIRE_RETURN_IF_ERROR(chunk_->pass->step());
    const double now = ms_between(started, Clock::now());
    chunk_->slowest_layer_ms = std::max(chunk_->slowest_layer_ms, now - ms);
    ms = now;
  } while (!chunk_->pass->done() && (whole || ms + chunk_->slowest_layer_ms <= limit.max_ms));
  chunk_->ms += ms;
  compute_ms_ += ms;
  return chunk_->pass->done() ? end_chunk() : Status();
}

Status ContextPrefill::end_chunk() {
  const auto started = Clock::now();
  if (!chunk_->capture) {
    core_.meter->add_prefill(count_of(chunk_->ids), chunk_->ms);
    chunk_.reset();
    return {};
  }
  next_ += chunk_->tokens;
  for (const ObservedRecord& record : observers_)
    QUIRE_RETURN_IF_ERROR(record.observer->end_chunk(chunk_->ids, chunk_->positions));
  const double statistics_ms = chunk_->capture->statistics_ms();
  statistics_ms_ += statistics_ms;
  core_.meter->add_prefill(count_of(chunk_->ids), chunk_->ms - statistics_ms);
  chunk_.reset();
  if (next_ == count_of(token_ids_) && rows_left() == 0) QUIRE_RETURN_IF_ERROR(finish());
  compute_ms_ += ms_between(started, Clock::now());
  return {};
}

std::int64_t ContextPrefill::rows_left() const {
  std::int64_t rows = 0;
  for (const ObservedRecord& record : observers_) rows += record.observer->rows_left();
  return rows;
}

/// Runs one piece of what an observer still wants to see over the whole context.
Status ContextPrefill::run_more(const PieceLimit& limit) {
  const auto started = Clock::now();
  for (const ObservedRecord& record : observers_) {
    if (record.observer->rows_left() == 0) continue;
    QUIRE_RETURN_IF_ERROR(record.observer->run_more(
        *core_.model, cache_, workspace_,
        std::max<std::int64_t>(1, std::min(core_.chunk_tokens, limit.max_tokens))));
    break;
  }
  const Status status = rows_left() == 0 ? finish() : Status();
  compute_ms_ += ms_between(started, Clock::now());
  return status;
}

/// Ends the context: nothing runs over its cache any more.
Status ContextPrefill::finish() {
  const KvLayout& layout = kv_->layout;
  const std::int32_t first = std::max(0, layout.num_blocks() - 2);
  const auto local = static_cast<float>(layout.num_tokens() - layout.first_token(first));
  for (float& x : kv_->local_query) x /= local;
  kv_->local_sums = ComputeBuffer<float>();
  if (keep_statistics_) kv_->stats = statistics_.finish();
  for (const ObservedRecord& record : observers_) {
    QUIRE_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, record.observer->finish());
    if (!bytes.empty()) kv_->records[record.index] = std::move(bytes);
  }
  finished_ = true;
  return {};
}

std::shared_ptr<const ContextKv> ContextPrefill::take() {
  QUIRE_CHECK(done() && kv_ != nullptr, "prefill not done");
  return std::move(kv_);
}

std::unique_ptr<PrefilledRows> ContextPrefill::take_rows() {
  QUIRE_CHECK(done(), "prefill not done");
  std::vector<std::int32_t> ids(left_context_.begin(), left_context_.end());
  ids.insert(ids.end(), token_ids_.begin(), token_ids_.end());
  return std::make_unique<PrefilledRows>(PrefilledRows{std::move(ids), std::move(cache_)});
}

Result<std::vector<std::byte>> context_sketch(const ContextKv& kv, std::int32_t num_heads,
                                              const RopeTable& rope) {
  return build_sketch({.layout = &kv.layout,
                       .num_heads = num_heads,
                       .values = kv.values,
                       .local_query = kv.local_query,
                       .stats = kv.stats,
                       .means = kv.means,
                       .rope = &rope});
}

}  // namespace quire
