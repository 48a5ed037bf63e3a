#include "engine/supply/kv_supply.h"

#include <algorithm>

#include "base/clock.h"
#include "base/index.h"
#include "base/log.h"
#include "engine/api/query_stats.h"
#include "engine/plan/plan_builder.h"
#include "engine/supply/write_computed.h"

namespace quire {
namespace {

std::vector<SegmentHandle> segments_of(const Execution& execution) {
  std::vector<SegmentHandle> segments;
  for (const ContextWork& work : execution.work) segments.push_back(work.segment);
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

KvSupply::KvSupply(QueryRun& run, std::unique_ptr<EarlyContexts> early)
    : run_(run),
      fetch_(*run.core.store, run.core.waker, segments_of(run.execution)),
      entries_(run.execution.work.size()),
      early_(std::move(early)) {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    const KvLayout& layout = run_.work(i).layout;
    const auto values = at(layout.num_blocks() * layout.num_groups());
    entry(i).values.resize(values);
    entry(i).asked.resize(values);
  }
  if (early_ && missing_left())
    rows_ = early_->take_rows();
  else
    early_.reset();
}

bool KvSupply::has_rows(std::int32_t context) const {
  const ContextSource source = run_.work(context).source;
  return source == ContextSource::kStored || source == ContextSource::kAlone;
}

void KvSupply::begin_round() {
  const double now = ms_between(fetch_.started(), Clock::now());
  rounds_.push_back({now, now});
}

void KvSupply::ask_records(const RecordKind& kind) {
  kinds_.push_back(&kind);
  begin_round();
  std::vector<FetchItem> wanted;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    entry(i).records.emplace_back();
    if (run_.work(i).source != ContextSource::kStored) continue;
    if (run_.work(i).segment->layout.num_sketches > kind.index())
      wanted.push_back({i, static_cast<std::int32_t>(kind.index()), FetchItem::kRecord});
    else if (kind.required())
      make_useless(i, kind, "it was stored without one");
    else
      entry(i).records.back().settled = true;
  }
  fetch_.start(std::move(wanted));
  poll();
}

void KvSupply::ask_blocks(const Selection& selection) {
  begin_round();
  std::vector<FetchItem> wanted;
  std::int32_t most_groups = 0;
  for (const ContextWork& work : run_.execution.work)
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
  turn_into_miss(run_, context, reason);
  Entry& e = entry(context);
  std::fill(e.values.begin(), e.values.end(), std::span<const std::byte>());
  e.owners.clear();
  for (Record& record : e.records) record = {};  // of the replaced segment
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
    if (arrived.item.group == FetchItem::kRecord)
      take_record(std::move(arrived));
    else
      take_value(arrived);
  }
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kStored || entry(i).released) continue;
    const MissReason failure = fetch_.failure(i);
    if (failure == MissReason::kNone) continue;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k]->required() && !entry(i).records[k].settled) {
        ++run_.stats.sketch_misses;
        break;
      }
    }
    make_miss(i, failure);
  }
}

void KvSupply::take_value(const Fetch::Arrived& arrived) {
  const FetchItem& item = arrived.item;
  const KvLayout& layout = run_.work(item.context).layout;
  read_bytes_[at(arrived.tier)] += count_of(arrived.bytes);
  if (count_of(arrived.bytes) != layout.value_bytes(item.block, item.group)) {
    log_warning(
        "cached document has a value of impossible size, computing it again",
        {{"block", std::to_string(item.block)}, {"bytes", std::to_string(arrived.bytes.size())}});
    return make_miss(item.context, MissReason::kCorrupt);
  }
  Entry& e = entry(item.context);
  e.values[at(item.block * layout.num_groups() + item.group)] = arrived.bytes.bytes();
  e.owners.push_back(arrived.bytes);
  PlannedBlock& block = run_.planned(item.context).blocks[at(item.block)];
  if (block.tier == Tier::kRemote) recalled_bytes_[at(arrived.tier)] += count_of(arrived.bytes);
  block.tier = std::max(block.tier, arrived.tier);
  block.load_ms = std::max(block.load_ms, arrived.ms);
}

/// Makes the context a miss because a record is missing or unusable; all of it is computed anew.
void KvSupply::make_useless(std::int32_t context, const RecordKind& kind, const std::string& why) {
  log_info("cached document lacks a record that this query needs, computing it again",
           {{"record", std::string(kind.name())}, {"reason", why}});
  ++run_.stats.sketch_misses;
  // These are intact bytes of an older build. They are removed, so that the newly computed KV is
  // stored with its records.
  if (run_.work(context).writable) discard(context);
  make_miss(context, MissReason::kRecordMissing);
}

void KvSupply::take_record(Fetch::Arrived arrived) {
  const std::int32_t context = arrived.item.context;
  const auto at_kind = std::ranges::find(kinds_, static_cast<std::uint32_t>(arrived.item.block),
                                         [](const RecordKind* kind) { return kind->index(); });
  const RecordKind& kind = **at_kind;
  Record& record = entry(context).records[at(at_kind - kinds_.begin())];
  auto view = kind.parse(arrived.bytes.bytes(),
                         {run_.core.facts, run_.work(context).layout, run_.core.head});
  if (!view.ok() && kind.required()) return make_useless(context, kind, view.status().message());
  record.settled = true;
  if (!view.ok()) {
    ++run_.stats.sketch_misses;
    return log_warning("a record of a cached document is of no use, doing without",
                       {{"record", std::string(kind.name())}, {"reason", view.status().message()}});
  }
  run_.stats.sketch_bytes += count_of(arrived.bytes);
  record.stored = std::move(arrived.bytes);
  record.view = std::move(*view);
}

bool KvSupply::records_ready() const {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (has_rows(i) &&
        std::ranges::any_of(entry(i).records, [](const Record& r) { return !r.settled; }))
      return false;
  }
  return true;
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
  std::shared_ptr<const ContextKv> kv;
  if (!missing_) {
    missing_context_ = 0;
    while (missing_context_ < run_.num_contexts() && !computed_next(missing_context_))
      ++missing_context_;
    if (missing_context_ == run_.num_contexts()) return {};
    if (early_) kv = early_->take(run_.work(missing_context_).key);
    if (!kv) {
      missing_ = std::make_unique<ContextPrefill>(
          run_.core, ContextTokens{run_.ids(missing_context_), run_.left_context(missing_context_)},
          PrefillRecords::kAlways, std::move(rows_));
    }
  }
  const auto started = Clock::now();
  if (!kv) {
    QUIRE_RETURN_IF_ERROR(missing_->step());
    run_.stats.prefill_ms += ms_between(started, Clock::now());
    if (!missing_->done()) return {};
    kv = missing_->take();
    rows_ = missing_->take_rows();
    missing_.reset();
    const ContextWork& work = run_.work(missing_context_);
    if (work.writable) write_computed(run_, work.key, kv);
  }
  // Copies of the same tokens (dedupe off) are computed once.
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (computed_next(i) && run_.ids(i) == run_.ids(missing_context_) &&
        run_.left_context(i) == run_.left_context(missing_context_))
      QUIRE_RETURN_IF_ERROR(keep_computed(i, kv));
  }
  if (!missing_left()) rows_.reset();
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
  const RecordOwner owner{run_.core.facts, layout, run_.core.head};
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    Record& record = e.records[k];
    if (record.settled) continue;
    record.settled = true;
    QUIRE_ASSIGN_OR_RETURN(
        record.own, kinds_[k]->build(*kv, run_.core.facts.num_heads, run_.core.model->rope()));
    if (record.own.empty()) continue;
    QUIRE_ASSIGN_OR_RETURN(record.view, kinds_[k]->parse(record.own, owner));
  }
  return {};
}

std::int64_t KvSupply::held_bytes() const {
  return missing_ ? missing_->cache().bytes() + missing_->cache().bytes_out() : 0;
}

void KvSupply::suspend() {
  rows_.reset();  // the next context is computed anew rather than moved out and in
  if (missing_ && !missing_->cache().move_out().ok()) missing_.reset();
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
      ++stats.tier_blocks[at(b.tier)];
      stats.tier_tokens[at(b.tier)] += b.num_tokens;
    }
  }
  std::copy(std::begin(read_bytes_), std::end(read_bytes_), std::begin(stats.tier_bytes));
  for (const Tier tier : {Tier::kDram, Tier::kDisk}) {
    stats.tier_bytes[at(tier)] -= recalled_bytes_[at(tier)];
    stats.tier_bytes[at(Tier::kRemote)] += recalled_bytes_[at(tier)];
  }
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
  const auto disk = read_bytes_[at(Tier::kDisk)], dram = read_bytes_[at(Tier::kDram)];
  if (disk + dram == 0) return;
  stats.load_ms = std::max(wait, run_.place_ms);
  if (disk > 0)
    run_.core.meter->add_load(Tier::kDisk, disk, wait + run_.place_ms);
  else
    run_.core.meter->add_load(Tier::kDram, dram, wait + run_.place_ms);
}

}  // namespace quire
