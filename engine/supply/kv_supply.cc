#include "engine/supply/kv_supply.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "engine/api/query_stats.h"
#include "engine/prefill/kv_writer.h"

namespace quire {
namespace {

/// Most newly computed contexts that wait to be written. Beyond this they are not stored and stay a
/// miss, so that no query waits for the disk.
constexpr std::size_t kMaxPendingWrites = 64;

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

std::vector<SegmentHandle> segments_of(const QueryPlan& plan) {
  std::vector<SegmentHandle> segments;
  for (const ContextWork& work : plan.work) segments.push_back(work.segment);
  return segments;
}

/// Returns whether a layer of the group keeps the block.
bool group_keeps(const Selection& selection, const KvLayout& layout, std::int32_t context,
                 std::int32_t block, std::int32_t group) {
  const auto keeps = [&](std::int32_t layer) {
    const auto kept = selection.kept(layer, context);
    return std::binary_search(kept.begin(), kept.end(), block);
  };
  const std::int32_t first = group * layout.layers_per_group();
  if (selection.same_in_all_layers()) return keeps(first);
  for (std::int32_t layer = first; layer < first + layout.layers_in(group); ++layer) {
    if (keeps(layer)) return true;
  }
  return false;
}

}  // namespace

KvSupply::KvSupply(QueryRun& run)
    : run_(run),
      fetch_(*run.core.store, run.core.waker, segments_of(run.plan)),
      entries_(run.plan.work.size()) {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    const KvLayout& layout = run_.work(i).layout;
    const auto values = at(layout.num_blocks() * layout.num_groups());
    entry(i).values.resize(values);
    entry(i).asked.resize(values);
  }
}

bool KvSupply::has_rows(std::int32_t context) const {
  const ContextSource source = run_.work(context).source;
  return source == ContextSource::kStored || source == ContextSource::kAlone;
}

void KvSupply::begin_round() {
  const double now = ms_between(fetch_.started(), Clock::now());
  rounds_.push_back({now, now});
}

void KvSupply::ask_sketches() {
  sketches_wanted_ = true;
  begin_round();
  std::vector<FetchItem> wanted;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source == ContextSource::kStored) wanted.push_back({i, 0, FetchItem::kSketch});
  }
  fetch_.start(std::move(wanted));
  poll();
}

void KvSupply::ask_head_keys() {
  head_keys_wanted_ = true;
  begin_round();
  std::vector<FetchItem> wanted;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kStored) continue;
    if (run_.work(i).segment->layout.num_sketches > kHeadRecordIndex)
      wanted.push_back({i, static_cast<std::int32_t>(kHeadRecordIndex), FetchItem::kSketch});
    else
      make_useless(i, "head keys", "it was stored before a retrieval head was there");
  }
  fetch_.start(std::move(wanted));
  poll();
}

void KvSupply::ask_tail_queries() {
  tail_queries_wanted_ = true;
  begin_round();
  std::vector<FetchItem> wanted;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kStored ||
        run_.work(i).segment->layout.num_sketches <= kTailRecordIndex)
      continue;
    entry(i).tail_asked = true;
    wanted.push_back({i, static_cast<std::int32_t>(kTailRecordIndex), FetchItem::kSketch});
  }
  fetch_.start(std::move(wanted));
  poll();
}

void KvSupply::ask_blocks(const Selection& selection) {
  begin_round();
  std::vector<FetchItem> wanted;
  std::int32_t most_groups = 0;
  for (const ContextWork& work : run_.plan.work)
    most_groups = std::max(most_groups, work.layout.num_groups());
  for (std::int32_t group = 0; group < most_groups; ++group) {
    for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
      const KvLayout& layout = run_.work(i).layout;
      if (run_.work(i).source != ContextSource::kStored || group >= layout.num_groups()) continue;
      for (const std::int32_t block : selection.kept_in_any_layer(i)) {
        std::uint8_t& asked = entry(i).asked[at(block * layout.num_groups() + group)];
        if (asked || !group_keeps(selection, layout, i, block, group)) continue;
        asked = 1;
        wanted.push_back({i, block, group});
      }
    }
  }
  fetch_.start(std::move(wanted));
  poll();
}

void KvSupply::make_miss(std::int32_t context, MissReason reason) {
  turn_into_miss(run_.plan, context, reason);
  Entry& e = entry(context);
  std::fill(e.values.begin(), e.values.end(), std::span<const std::byte>());
  e.owners.clear();
  e.tail_queries.reset();  // from the replaced segment
  ++e.generation;
}

void KvSupply::discard(std::int32_t context) {
  const Status discarded = run_.core.store->discard_segment(run_.work(context).segment);
  if (!discarded.ok())
    log_warning("a segment that is of no use stays in the store",
                {{"error", discarded.to_string()}});
}

Status KvSupply::distrust(std::int32_t context) {
  if (context < 0 || run_.work(context).source != ContextSource::kStored) {
    return Status::internal("layer 0 of context " + std::to_string(context) +
                            " differs between two passes of this process");
  }
  log_warning("cached document holds the KV of other tokens, computing it again",
              {{"context", std::to_string(context)}});
  discard(context);  // even if this request may not write, so that nobody reads it again
  make_miss(context, MissReason::kCorrupt);
  return {};
}

void KvSupply::poll() {
  for (Fetch::Arrived& arrived : fetch_.take()) {
    if (!rounds_.empty()) rounds_.back().end_ms = std::max(rounds_.back().end_ms, arrived.ms);
    if (run_.work(arrived.item.context).source != ContextSource::kStored) continue;
    if (arrived.item.group == FetchItem::kSketch &&
        arrived.item.block == static_cast<std::int32_t>(kHeadRecordIndex))
      take_head_keys(std::move(arrived));
    else if (arrived.item.group == FetchItem::kSketch &&
             arrived.item.block == static_cast<std::int32_t>(kTailRecordIndex))
      take_tail_queries(std::move(arrived));
    else if (arrived.item.group == FetchItem::kSketch)
      take_sketch(std::move(arrived));
    else
      take_value(arrived);
  }
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kStored || entry(i).released) continue;
    const MissReason failure = fetch_.failure(i);
    if (failure == MissReason::kNone) continue;
    if ((sketches_wanted_ && !entry(i).sketch) || (head_keys_wanted_ && !entry(i).head_keys))
      ++run_.stats.sketch_misses;
    make_miss(i, failure);
  }
}

void KvSupply::take_value(const Fetch::Arrived& arrived) {
  const FetchItem& item = arrived.item;
  const KvLayout& layout = run_.work(item.context).layout;
  read_bytes_[static_cast<std::size_t>(arrived.tier)] += static_cast<std::int64_t>(
      arrived.bytes.size());
  if (static_cast<std::int64_t>(arrived.bytes.size()) !=
      layout.value_bytes(item.block, item.group)) {
    log_warning(
        "cached document has a value of impossible size, computing it again",
        {{"block", std::to_string(item.block)}, {"bytes", std::to_string(arrived.bytes.size())}});
    return make_miss(item.context, MissReason::kCorrupt);
  }
  Entry& e = entry(item.context);
  e.values[at(item.block * layout.num_groups() + item.group)] = arrived.bytes.bytes();
  e.owners.push_back(arrived.bytes);
  PlannedBlock& block = run_.planned(item.context).blocks[at(item.block)];
  block.tier = std::max(block.tier, arrived.tier);
  block.load_ms = std::max(block.load_ms, arrived.ms);
}

bool KvSupply::fits(std::int32_t context, const SketchView& s) const {
  const KvLayout& layout = run_.work(context).layout;
  const KvShape& shape = layout.shape();
  return s.num_layers() == shape.num_layers && s.num_kv_heads() == shape.num_kv_heads &&
         s.head_dim() == shape.head_dim && s.num_heads() == run_.core.facts.num_heads &&
         s.num_blocks() == layout.num_blocks() && s.num_tokens() == layout.num_tokens() &&
         s.has(kSketchMeans) && s.has(kSketchLocalQuery);
}

/// Makes the context a miss because a record is missing or unusable; all of it is computed anew.
void KvSupply::make_useless(std::int32_t context, const char* what, const std::string& why) {
  log_warning("cached document has no usable record, computing it again",
              {{"record", what}, {"reason", why}});
  ++run_.stats.sketch_misses;
  // These are intact bytes of an older build. They are removed, so that the newly computed KV is
  // stored with its records.
  if (run_.work(context).writable) discard(context);
  make_miss(context, MissReason::kCorrupt);
}

void KvSupply::take_head_keys(Fetch::Arrived arrived) {
  const std::int32_t context = arrived.item.context;
  const RetrievalHeadConfig& head = run_.core.head->config();
  const HeadRecordShape wanted{head.num_kv_heads, head.head_dim,
                               run_.work(context).layout.num_tokens(), run_.core.head->digest()};
  auto view = HeadRecordView::parse(arrived.bytes.bytes());
  if (!view.ok() || !(view->shape() == wanted))
    return make_useless(context, "head keys",
                        view.ok() ? "they are those of another head" : view.status().to_string());
  run_.stats.sketch_bytes += static_cast<std::int64_t>(arrived.bytes.size());
  entry(context).head_bytes = std::move(arrived.bytes);
  entry(context).head_keys = *view;
}

bool KvSupply::fits(std::int32_t context, const TailRecordView& tail) const {
  const EngineFacts& facts = run_.core.facts;
  const TailRecordShape& s = tail.shape();
  return s.num_layers == facts.shape.num_layers && s.num_heads == facts.num_heads &&
         s.head_dim == facts.shape.head_dim &&
         s.num_tokens == run_.work(context).layout.num_tokens();
}

void KvSupply::take_tail_queries(Fetch::Arrived arrived) {
  Entry& e = entry(arrived.item.context);
  e.tail_taken = true;
  auto view = TailRecordView::parse(arrived.bytes.bytes());
  if (!view.ok() || !fits(arrived.item.context, *view)) {
    ++run_.stats.sketch_misses;
    return log_warning(
        "stored queries of a cached document are of no use, doing without",
        {{"reason", view.ok() ? "they are those of another context" : view.status().to_string()}});
  }
  run_.stats.sketch_bytes += static_cast<std::int64_t>(arrived.bytes.size());
  e.tail_bytes = std::move(arrived.bytes);
  e.tail_queries = *view;
}

bool KvSupply::tail_queries_ready() const {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source == ContextSource::kStored && entry(i).tail_asked &&
        !entry(i).tail_taken)
      return false;
  }
  return true;
}

const TailRecordView* KvSupply::tail_queries(std::int32_t context) const {
  const auto& tail = entry(context).tail_queries;
  return tail ? &*tail : nullptr;
}

bool KvSupply::head_keys_ready() const {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (has_rows(i) && !entry(i).head_keys) return false;
  }
  return true;
}

const HeadRecordView* KvSupply::head_keys(std::int32_t context) const {
  const auto& keys = entry(context).head_keys;
  return keys ? &*keys : nullptr;
}

void KvSupply::take_sketch(Fetch::Arrived arrived) {
  const std::int32_t context = arrived.item.context;
  auto view = SketchView::parse(arrived.bytes.bytes());
  if (!view.ok() || !fits(context, *view))
    return make_useless(context, "sketch",
                        view.ok() ? "it describes another context" : view.status().to_string());
  run_.stats.sketch_bytes += static_cast<std::int64_t>(arrived.bytes.size());
  entry(context).sketch_bytes = std::move(arrived.bytes);
  entry(context).sketch = *view;
}

bool KvSupply::sketches_ready() const {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (has_rows(i) && !entry(i).sketch) return false;
  }
  return true;
}

const SketchView* KvSupply::sketch(std::int32_t context) const {
  const auto& sketch = entry(context).sketch;
  return sketch ? &*sketch : nullptr;
}

bool KvSupply::ready(std::int32_t context, std::int32_t group) const {
  if (run_.work(context).source == ContextSource::kAlone) return entry(context).alone != nullptr;
  // The value has arrived but was not processed yet: poll() comes first.
  const KvLayout& layout = run_.work(context).layout;
  const Entry& e = entry(context);
  if (!fetch_.complete(context, group)) return false;
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    const auto i = at(b * layout.num_groups() + group);
    if (e.asked[i] && e.values[i].empty()) return false;
  }
  return true;
}

std::span<const std::byte> KvSupply::value(std::int32_t context, std::int32_t block,
                                           std::int32_t group) const {
  return entry(context).values[at(block * run_.work(context).layout.num_groups() + group)];
}

Result<RawKvView> KvSupply::block(std::int32_t context, std::int32_t block,
                                  std::int32_t layer) const {
  const KvLayout& layout = run_.work(context).layout;
  if (block < 0 || block >= layout.num_blocks()) return Status::not_found("no such block");
  const auto bytes = value(context, block, layout.group_of(layer));
  if (bytes.empty()) return Status::not_found("block was not loaded for this layer");
  return layout.view(bytes, block, layer);
}

bool KvSupply::computed_next(std::int32_t context) const {
  return run_.work(context).source == ContextSource::kAlone && !entry(context).alone &&
         !entry(context).released;
}

bool KvSupply::missing_left() const {
  if (missing_) return true;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (computed_next(i)) return true;
  }
  return false;
}

Status KvSupply::step_missing() {
  if (!missing_) {
    missing_context_ = 0;
    while (missing_context_ < run_.num_contexts() && !computed_next(missing_context_))
      ++missing_context_;
    if (missing_context_ == run_.num_contexts()) return {};
    missing_ = std::make_unique<ContextPrefill>(run_.core, run_.ids(missing_context_));
  }
  const auto started = Clock::now();
  QUIRE_RETURN_IF_ERROR(missing_->step());
  run_.stats.prefill_ms += ms_between(started, Clock::now());
  if (!missing_->done()) return {};
  std::shared_ptr<const ContextKv> kv = missing_->take();
  missing_.reset();
  submit_write(missing_context_, kv);
  // Copies of the same tokens (dedupe off) are computed once.
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (computed_next(i) && run_.ids(i) == run_.ids(missing_context_))
      QUIRE_RETURN_IF_ERROR(keep_computed(i, kv));
  }
  run_.add_span("compute_missing", started, Clock::now());
  return {};
}

Status KvSupply::keep_computed(std::int32_t context, const std::shared_ptr<const ContextKv>& kv) {
  Entry& e = entry(context);
  e.alone = kv;
  const KvLayout& layout = run_.work(context).layout;
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    for (std::int32_t g = 0; g < layout.num_groups(); ++g)
      e.values[at(b * layout.num_groups() + g)] = kv->value(b, g);
  }
  if (head_keys_wanted_) {
    e.own_head_record = kv->head_record;
    QUIRE_ASSIGN_OR_RETURN(e.head_keys, HeadRecordView::parse(e.own_head_record));
  }
  if (tail_queries_wanted_ && !e.tail_queries && !kv->tail_record.empty()) {
    e.own_tail_record = kv->tail_record;
    QUIRE_ASSIGN_OR_RETURN(e.tail_queries, TailRecordView::parse(e.own_tail_record));
  }
  if (!sketches_wanted_ || e.sketch) return {};
  QUIRE_ASSIGN_OR_RETURN(e.own_sketch,
                         context_sketch(*kv, run_.core.facts.num_heads, run_.core.model->rope()));
  QUIRE_ASSIGN_OR_RETURN(e.sketch, SketchView::parse(e.own_sketch));
  return {};
}

void KvSupply::submit_write(std::int32_t context, const std::shared_ptr<const ContextKv>& kv) {
  const ContextWork& work = run_.work(context);
  KvWriter& writer = *run_.core.writer;
  if (!work.writable || writer.pending() >= kMaxPendingWrites) return;
  run_.stats.written_tokens += work.layout.num_tokens();
  KvWriter::Job job;
  job.kv = kv;
  job.key = work.key;
  job.tenant = run_.request.tenant;
  job.done = [store = run_.core.store](Result<WrittenContext> written) {
    Status status = written.status();
    if (status.ok() && !written->already_cached)
      status = store->commit_segments(std::span(&written->segment, 1)).status();
    if (!status.ok())
      log_warning("recomputed document was not stored again", {{"error", status.to_string()}});
  };
  writer.submit(std::move(job));
}

std::int64_t KvSupply::held_bytes() const {
  return missing_ ? missing_->cache().bytes() + missing_->cache().bytes_out() : 0;
}

void KvSupply::suspend() {
  if (missing_) missing_->cache().move_out();
}

Status KvSupply::resume() { return missing_ ? missing_->cache().move_in() : Status(); }

void KvSupply::release(std::int32_t context) {
  Entry& e = entry(context);
  std::fill(e.values.begin(), e.values.end(), std::span<const std::byte>());
  e.owners.clear();
  e.alone.reset();
  e.released = true;
}

void KvSupply::report() {
  QueryStats& stats = run_.stats;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kStored) continue;
    for (const PlannedBlock& b : run_.planned(i).blocks) {
      ++stats.tier_blocks[static_cast<std::size_t>(b.tier)];
      stats.tier_tokens[static_cast<std::size_t>(b.tier)] += b.num_tokens;
    }
  }
  std::copy(std::begin(read_bytes_), std::end(read_bytes_), std::begin(stats.tier_bytes));
  double wait = 0;
  for (const Round& r : rounds_) {
    if (r.end_ms <= r.start_ms) continue;
    wait += r.end_ms - r.start_ms;
    const auto when = [this](double ms) {
      return fetch_.started() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double, std::milli>(ms));
    };
    run_.add_span("load", when(r.start_ms), when(r.end_ms));
  }
  const auto disk = read_bytes_[static_cast<std::size_t>(Tier::kDisk)],
             dram = read_bytes_[static_cast<std::size_t>(Tier::kDram)];
  if (disk + dram == 0) return;
  stats.load_ms = std::max(wait, run_.place_ms);
  if (disk > 0)
    run_.core.meter->add_load(Tier::kDisk, disk, wait + run_.place_ms);
  else
    run_.core.meter->add_load(Tier::kDram, dram, wait + run_.place_ms);
}

}  // namespace quire
