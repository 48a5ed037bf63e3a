#include "engine/pipeline/query_task.h"

#include <algorithm>
#include <numeric>

#include "engine/pipeline/held_kv.h"
#include "engine/pipeline/kv_writer.h"
#include "engine/pipeline/placement.h"
#include "kernels/base/log.h"

namespace quire {
namespace {

/// Newly computed contexts waiting to be written; beyond this they are not kept (they stay a miss, no query waits for the disk).
constexpr std::size_t kMaxPendingWrites = 64;

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

/// The answer's token at `at`: forced, or sampled. Shows the logits to a sink that wants them.
std::int32_t next_token(QuerySink& sink, const SamplingOptions& options, Sampler& sampler, std::int64_t at, std::span<const float> logits) {
  if (sink.wants_logits()) sink.on_logits(logits);
  const auto i = static_cast<std::size_t>(at);
  return i < options.forced_tokens.size() ? options.forced_tokens[i] : sampler.sample(logits);
}

}  // namespace

QueryTask::QueryTask(EngineCore& core, QueryRequest request, std::shared_ptr<QuerySink> sink, std::shared_ptr<std::atomic<bool>> cancelled,
                     Clock::time_point received)
    : core_(core), request_(std::move(request)), sink_(std::move(sink)), cancelled_(std::move(cancelled)), received_(received) {
  plan_.plan.query_id = request_.id;
  plan_.plan.strategy_asked = request_.cache.strategy;
}

QueryTask::~QueryTask() = default;

std::int64_t QueryTask::working_bytes(const EngineCore& core, const QueryRequest& request) {
  const auto size = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  std::int64_t prompt = size(request.prefix_ids) + size(request.suffix_ids), longest = 0;
  for (const QueryContext& c : request.contexts) {
    prompt += size(c.token_ids);
    longest = std::max(longest, size(c.token_ids));
  }
  const std::int64_t rows = std::min<std::int64_t>(prompt + request.sampling.max_tokens, std::max(core.facts.window, prompt));
  const auto pages = [](std::int64_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  // A fault may make the longest document be computed alone, in a cache of its own.
  const std::int64_t alone = longest > 0 ? pages(longest + size(core.facts.ingest_prefix)) : 0;
  return (pages(rows) + alone) * core.pool->format().page_bytes() * core.facts.shape.num_layers;
}

std::optional<Status> QueryTask::verdict(Clock::time_point now) const {
  if (done_) return std::nullopt;
  if (cancelled_->load(std::memory_order_relaxed)) return Status::cancelled("the query was cancelled");
  if (now >= request_.deadline) return Status::deadline("the query did not finish within its time limit");
  return std::nullopt;
}

void QueryTask::count_in(std::atomic<std::int64_t>& running) {
  running_ = &running;
  running.fetch_add(1);
}

void QueryTask::start() {
  const auto started = Clock::now();
  stats_.queue_ms = ms_between(received_, started);
  auto planned = build_plan(core_.facts, request_, store_lookup(*core_.store, LookupKind::kUse), core_.meter->speeds());
  stats_.lookup_ms = ms_between(started, Clock::now());
  if (!planned.ok()) return finish(planned.status(), FinishReason::kError);
  plan_ = std::move(*planned);
  add_span("queue", received_, started);
  add_span("lookup", started, Clock::now());
  auto recomputer = make_recomputer(plan_.strategy.recomputer);
  auto compressor = make_compressor(plan_.plan.compress);
  auto retriever = make_retriever(plan_.plan.decode);
  for (const Status& s : {recomputer.status(), compressor.status(), retriever.status()}) {
    if (!s.ok()) return finish(s, FinishReason::kError);
  }
  recomputer_ = std::move(*recomputer);
  compressor_ = std::move(*compressor);
  retriever_ = std::move(*retriever);
  cache_.emplace(*core_.pool, core_.facts.shape.num_layers);
  alone_.resize(plan_.work.size());
  placed_.resize(plan_.work.size());
  if (recomputer_->has_pass()) held_ = std::make_unique<HeldKv>(plan_.work.size());
  build_items();
  start_fetch();
  sink_->on_plan(plan_.plan);
}

void QueryTask::build_items() {
  const auto compute = [this](std::span<const std::int32_t> ids, std::int64_t first_position) {
    if (ids.empty()) return;
    if (items_.empty() || items_.back().context >= 0) items_.emplace_back();
    Item& item = items_.back();
    item.ids.insert(item.ids.end(), ids.begin(), ids.end());
    for (std::size_t i = 0; i < ids.size(); ++i) item.positions.push_back(static_cast<std::int32_t>(first_position) + static_cast<std::int32_t>(i));
  };
  compute(request_.prefix_ids, 0);
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    switch (plan_.work[i].source) {
      case ContextSource::kNothing: break;
      case ContextSource::kInPlace: compute(request_.contexts[i].token_ids, plan_.plan.contexts[i].offset); break;
      case ContextSource::kStored:
      case ContextSource::kAlone: items_.emplace_back().context = static_cast<std::int32_t>(i); break;
    }
  }
  add_question();
}

void QueryTask::add_question() {
  const auto& suffix = request_.suffix_ids;
  const bool apart = recomputer_->has_pass() || compressor_->observer() != nullptr;
  const bool after_run = !items_.empty() && items_.back().context < 0;
  next_position_ = plan_.suffix_position + static_cast<std::int32_t>(suffix.size());
  if (suffix.empty() && !after_run) {
    // No question at all: the last kept document token runs once more, now seeing everything before it (algorithms §9).
    const std::int32_t context = items_.back().context;
    const std::int32_t block = plan_.selection.kept(0, context).back();
    const PlannedBlock& b = plan_.plan.contexts[idx(context)].blocks[idx(block)];
    Item item;
    item.ids = {request_.contexts[idx(context)].token_ids[idx(b.first_token + b.num_tokens - 1)]};
    item.positions = {plan_.work[idx(context)].block_position[idx(block)] + b.num_tokens - 1};
    item.replaces_last_row = true;
    items_.push_back(std::move(item));
  } else if (!suffix.empty()) {
    if (!after_run || apart) items_.emplace_back();
    Item& item = items_.back();
    item.ids.insert(item.ids.end(), suffix.begin(), suffix.end());
    for (std::size_t i = 0; i < suffix.size(); ++i) item.positions.push_back(plan_.suffix_position + static_cast<std::int32_t>(i));
  }
  items_.back().question = true;
}

void QueryTask::start_fetch() {
  fetch_.emplace(static_cast<std::int32_t>(plan_.work.size()));
  std::vector<FetchItem> wanted;
  std::vector<SegmentHandle> segments;
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    const ContextWork& work = plan_.work[i];
    segments.push_back(work.segment);
    if (work.source != ContextSource::kStored) continue;
    const auto context = static_cast<std::int32_t>(i);
    for (const std::int32_t block : plan_.selection.kept_in_any_layer(context)) {
      for (std::int32_t g = 0; g < work.layout.num_groups(); ++g) {
        bool needed = plan_.selection.same_in_all_layers();
        for (std::int32_t l = 0; l < work.layout.layers_in(g) && !needed; ++l) {
          const auto kept = plan_.selection.kept(g * work.layout.layers_per_group() + l, context);
          needed = std::binary_search(kept.begin(), kept.end(), block);
        }
        if (needed) wanted.push_back({context, block, g});
      }
    }
  }
  fetch_->start(*core_.store, core_.waker, segments, std::move(wanted));
}

void QueryTask::note_faults() {
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    if (plan_.work[i].source != ContextSource::kStored || placed_[i]) continue;
    const auto context = static_cast<std::int32_t>(i);
    if (fetch_->state(context) == Fetch::State::kFailed) turn_into_miss(plan_, context, fetch_->failure(context));
  }
}

bool QueryTask::context_ready(std::int32_t context) const {
  if (plan_.work[idx(context)].source == ContextSource::kAlone) return alone_[idx(context)] != nullptr;
  return fetch_->state(context) == Fetch::State::kReady;
}

bool QueryTask::item_ready() {
  const Item& item = items_[next_item_];
  return item.context < 0 || context_ready(item.context);
}

bool QueryTask::missing_left() const {
  if (missing_) return true;
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    if (plan_.work[i].source == ContextSource::kAlone && !placed_[i] && !alone_[i]) return true;
  }
  return false;
}

QueryTask::State QueryTask::state() {
  if (done_) return State::kDone;
  if (decoding_) return State::kDecoding;
  note_faults();
  return item_ready() || missing_left() ? State::kRunnable : State::kWaiting;
}

void QueryTask::step() {
  note_faults();
  const Status status = item_ready() ? step_item() : step_missing();
  if (!status.ok()) finish(status, FinishReason::kError);
}

Status QueryTask::step_missing() {
  if (!missing_) {
    missing_context_ = -1;
    for (std::size_t i = 0; i < plan_.work.size() && missing_context_ < 0; ++i) {
      if (plan_.work[i].source == ContextSource::kAlone && !placed_[i] && !alone_[i]) missing_context_ = static_cast<std::int32_t>(i);
    }
    if (missing_context_ < 0) return {};
    missing_ = std::make_unique<ContextPrefill>(core_, request_.contexts[idx(missing_context_)].token_ids);
  }
  const auto started = Clock::now();
  QUIRE_RETURN_IF_ERROR(missing_->step());
  stats_.prefill_ms += ms_between(started, Clock::now());
  if (!missing_->done()) return {};
  std::shared_ptr<const ContextKv> kv = missing_->take();
  missing_.reset();
  add_span("compute_missing", started, Clock::now());
  submit_write(missing_context_, kv);
  // Copies of the same tokens (dedupe off) need not be computed twice.
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    if (plan_.work[i].source == ContextSource::kAlone && !placed_[i] &&
        request_.contexts[i].token_ids == request_.contexts[idx(missing_context_)].token_ids) {
      alone_[i] = kv;
    }
  }
  return {};
}

void QueryTask::submit_write(std::int32_t context, const std::shared_ptr<const ContextKv>& kv) {
  const ContextWork& work = plan_.work[idx(context)];
  if (!work.writable || core_.writer->pending() >= kMaxPendingWrites) return;
  stats_.written_tokens += work.layout.num_tokens();
  KvWriter::Job job;
  job.kv = kv;
  job.key = work.key;
  job.tenant = request_.tenant;
  job.done = [store = core_.store](Result<WrittenContext> written) {
    Status status = written.status();
    if (status.ok() && !written->already_cached) status = store->commit_segments(std::span(&written->segment, 1)).status();
    if (!status.ok()) log_warning("recomputed document was not stored again", {{"error", status.to_string()}});
  };
  core_.writer->submit(std::move(job));
}

Status QueryTask::step_item() {
  Item& item = items_[next_item_];
  if (item.question && !recompute_done_) {
    if (recomputer_->has_pass()) return step_recompute();
    recompute_done_ = true;
  }
  if (item.context >= 0) {
    QUIRE_RETURN_IF_ERROR(place(item.context));
    if (placed_[idx(item.context)]) ++next_item_;
    return {};
  }
  return run_chunk(item);
}

Status QueryTask::place(std::int32_t context) {
  const auto started = Clock::now();
  const ContextWork& work = plan_.work[idx(context)];
  PlannedContext& planned = plan_.plan.contexts[idx(context)];
  std::vector<Fetch::Arrived> values;
  std::vector<std::span<const std::byte>> by_place(idx(work.layout.num_blocks() * work.layout.num_groups()));
  const auto at = [&](std::int32_t block, std::int32_t group) -> auto& { return by_place[idx(block * work.layout.num_groups() + group)]; };
  std::shared_ptr<const ContextKv> alone = std::move(alone_[idx(context)]);
  if (alone) {
    for (std::int32_t b = 0; b < work.layout.num_blocks(); ++b) {
      for (std::int32_t g = 0; g < work.layout.num_groups(); ++g) at(b, g) = alone->value(b, g);
    }
  } else {
    values = fetch_->take(context);
    for (const Fetch::Arrived& v : values) {
      at(v.item.block, v.item.group) = v.bytes.bytes();
      PlannedBlock& block = planned.blocks[idx(v.item.block)];
      block.tier = std::max(block.tier, v.tier);
      block.load_ms = std::max(block.load_ms, v.ms);
      loaded_bytes_[static_cast<std::size_t>(v.tier)] += static_cast<std::int64_t>(v.bytes.size());
      load_done_ = std::max(load_done_, fetch_->started() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(v.ms)));
    }
  }
  PlacementInput input;
  input.layout = &work.layout;
  input.selection = &plan_.selection;
  input.context = context;
  input.block_position = work.block_position;
  input.rope = &core_.model->rope();
  input.value = [&at](std::int32_t block, std::int32_t group) { return at(block, group); };
  const Status status = context == distrusted_ ? replace_context(input, *cache_) : place_context(input, *cache_);
  if (status.code() == Code::kCorruption) {
    log_warning("cached document has values of impossible size, computing it again", {{"error", status.to_string()}});
    turn_into_miss(plan_, context, MissReason::kCorrupt);
    return {};
  }
  QUIRE_RETURN_IF_ERROR(status);
  placed_[idx(context)] = 1;
  if (held_) held_->hold(context, work.layout, std::move(by_place), std::move(values), std::move(alone));
  const double ms = ms_between(started, Clock::now());
  place_ms_ += ms;
  add_span("place", started, Clock::now());
  return {};
}

Status QueryTask::run_chunk(Item& item) {
  const auto started = Clock::now();
  if (prefill_started_ == Clock::time_point{}) prefill_started_ = started;
  if (item.replaces_last_row) {
    for (std::int32_t layer = 0; layer < cache_->num_layers(); ++layer) {
      const auto rows = cache_->positions(layer);
      if (rows.empty() || rows.back() != item.positions[0]) {
        return Status::invalid("query", "strategy " + plan_.plan.strategy + " needs a question");
      }
      cache_->truncate(layer, cache_->num_rows(layer) - 1);
    }
    item.replaces_last_row = false;
    const std::int32_t context = items_[next_item_ - 1].context;
    PlannedBlock& b = plan_.plan.contexts[idx(context)].blocks[idx(plan_.selection.kept(0, context).back())];
    if (b.recomputed_tokens < b.num_tokens) ++b.recomputed_tokens;
  }
  const std::size_t n = std::min<std::size_t>(static_cast<std::size_t>(core_.chunk_tokens), item.ids.size() - item_done_);
  const bool last = item_done_ + n == item.ids.size();
  const auto last_row = static_cast<std::int32_t>(n) - 1;
  ForwardRequest request{};
  request.token_ids = std::span(item.ids).subspan(item_done_, n);
  request.positions = std::span(item.positions).subspan(item_done_, n);
  request.cache = &*cache_;
  if (item.question) request.hook = compressor_->observer();
  if (last && item.question) {
    logits_.resize(static_cast<std::size_t>(core_.model->config().vocab_size));
    request.logit_rows = std::span(&last_row, 1);
    request.logits = logits_.data();
  }
  QUIRE_RETURN_IF_ERROR(forward(*core_.model, request, core_.workspace));
  const double ms = ms_between(started, Clock::now());
  stats_.prefill_ms += ms;
  core_.meter->add_prefill(static_cast<std::int64_t>(n), ms);
  item_done_ += n;
  if (!last) return {};
  item_done_ = 0;
  ++next_item_;
  return item.question ? begin_decode() : Status();
}

Result<std::unique_ptr<RecomputePass>> QueryTask::prepare_recompute() {
  std::vector<RecomputableContext> contexts;
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    const PlannedContext& c = plan_.plan.contexts[i];
    if (plan_.work[i].source == ContextSource::kNothing) {
      contexts.push_back({{}, c.offset, c.block_tokens, 0, true, {}});
    } else {
      contexts.push_back({request_.contexts[i].token_ids, c.offset, c.block_tokens, static_cast<std::int32_t>(c.blocks.size()), plan_.work[i].exact,
                          plan_.work[i].block_position});
    }
  }
  RecomputeInput input;
  input.contexts = contexts;
  input.num_layers = core_.facts.shape.num_layers;
  input.num_heads = core_.facts.num_heads;
  input.num_kv_heads = core_.facts.shape.num_kv_heads;
  input.head_dim = core_.facts.shape.head_dim;
  input.recompute_ratio = request_.cache.recompute_ratio;
  input.options = request_.cache.options;
  input.selection = &plan_.selection;
  input.stored = held_.get();
  input.cache = &*cache_;
  input.rope = &core_.model->rope();
  return recomputer_->prepare(input);
}

/// A chunk of the recompute pass. A context found out to hold other tokens' KV is a miss: computed alone, put into its rows, and
/// the pass begins again.
Status QueryTask::step_recompute() {
  const auto started = Clock::now();
  if (distrusted_ >= 0) {
    if (!alone_[idx(distrusted_)]) return step_missing();
    QUIRE_RETURN_IF_ERROR(place(distrusted_));
    distrusted_ = -1;
    return {};
  }
  if (!recompute_) {
    if (recompute_started_ == Clock::time_point{}) recompute_started_ = started;
    QUIRE_ASSIGN_OR_RETURN(recompute_, prepare_recompute());
  }
  if (recompute_) {
    const Status status = recompute_->step(*core_.model, *cache_, core_.workspace, core_.chunk_tokens);
    stats_.recompute_ms += ms_between(started, Clock::now());
    if (status.code() == Code::kCorruption) return distrust(recompute_->report().wrong_context);
    QUIRE_RETURN_IF_ERROR(status);
    if (!recompute_->done()) return {};
    const RecomputeReport& report = recompute_->report();
    for (std::size_t i = 0; i < report.tokens.size() && i < plan_.work.size(); ++i) {
      PlannedContext& c = plan_.plan.contexts[i];
      for (PlannedBlock& b : c.blocks) b.recomputed_tokens = 0;
      for (const std::int32_t token : report.tokens[i]) ++c.blocks[idx(token / c.block_tokens)].recomputed_tokens;
    }
  }
  recompute_done_ = true;
  recompute_.reset();
  held_.reset();
  add_span("recompute", recompute_started_, Clock::now());
  return {};
}

Status QueryTask::distrust(std::int32_t context) {
  if (plan_.work[idx(context)].source != ContextSource::kStored) {
    return Status::internal("layer 0 of context " + std::to_string(context) + " differs between two passes of this process");
  }
  log_warning("cached document holds the KV of other tokens, computing it again", {{"context", std::to_string(context)}});
  turn_into_miss(plan_, context, MissReason::kCorrupt);
  placed_[idx(context)] = 0;
  distrusted_ = context;
  recompute_.reset();
  return {};
}

Status QueryTask::begin_decode() {
  const auto now = Clock::now();
  add_span("prefill", prefill_started_, now);
  std::vector<ContextRows> rows;
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    if (plan_.work[i].source == ContextSource::kNothing) continue;
    rows.push_back({plan_.plan.contexts[i].offset, plan_.plan.contexts[i].num_tokens});
  }
  CompressInput compress;
  compress.cache = &*cache_;
  compress.contexts = rows;
  compress.prefix_tokens = plan_.plan.prefix_tokens;
  compress.suffix_tokens = plan_.plan.suffix_tokens;
  compress.prompt_tokens = plan_.plan.prompt_tokens;
  compress.num_heads = core_.facts.num_heads;
  compress.num_kv_heads = core_.facts.shape.num_kv_heads;
  compress.head_dim = core_.facts.shape.head_dim;
  QUIRE_ASSIGN_OR_RETURN(const Heat heat, compressor_->compress(compress));
  RetrieveInput retrieve;
  retrieve.cache = &*cache_;
  retrieve.heat = &heat;
  retrieve.contexts = rows;
  retrieve.prompt_tokens = plan_.plan.prompt_tokens;
  retrieve.num_layers = core_.facts.shape.num_layers;
  retrieve.num_heads = core_.facts.num_heads;
  retrieve.num_kv_heads = core_.facts.shape.num_kv_heads;
  retrieve.head_dim = core_.facts.shape.head_dim;
  QUIRE_RETURN_IF_ERROR(retriever_->prepare(retrieve));
  sampler_.emplace(request_.sampling);
  std::vector<std::string> stops = request_.sampling.stop;
  if (!request_.sampling.ignore_eos) stops.insert(stops.end(), core_.stop_strings.begin(), core_.stop_strings.end());
  text_.emplace(*core_.tokenizer, std::move(stops));
  decoding_ = true;
  decode_started_ = Clock::now();
  stats_.ttft_ms = ms_between(received_, decode_started_);
  accept(next_token(*sink_, request_.sampling, *sampler_, stats_.completion_tokens, logits_));
  return {};
}

DecodeRow QueryTask::decode_row() {
  DecodeRow row;
  row.token_id = next_token_;
  row.position = next_position_;
  row.cache = &*cache_;
  row.retriever = retriever_.get();
  return row;
}

void QueryTask::decoded(const DecodeRow& row) {
  if (!row.status.ok()) return finish(row.status, FinishReason::kError);
  ++next_position_;
  accept(next_token(*sink_, request_.sampling, *sampler_, stats_.completion_tokens, row.logits));
}

void QueryTask::accept(std::int32_t token_id) {
  const SamplingOptions& o = request_.sampling;
  ++stats_.completion_tokens;
  const auto contains = [token_id](const std::vector<std::int32_t>& ids) { return std::find(ids.begin(), ids.end(), token_id) != ids.end(); };
  if ((!o.ignore_eos && contains(core_.stop_ids)) || contains(o.stop_token_ids)) {
    const std::string rest = text_->finish();
    if (!rest.empty() && !sink_->on_token(token_id, rest)) cancelled_->store(true);
    return finish({}, FinishReason::kStop);
  }
  std::string text = text_->push(token_id);
  const bool full = stats_.completion_tokens >= o.max_tokens || next_position_ >= core_.facts.window;
  const bool stopped = text_->stopped();
  if (full && !stopped) text += text_->finish();
  if (!sink_->on_token(token_id, text)) {
    return finish(Status::cancelled("the receiver of the answer went away"), FinishReason::kCancelled);
  }
  if (stopped || text_->stopped()) return finish({}, FinishReason::kStop);
  if (full) return finish({}, FinishReason::kLength);
  next_token_ = token_id;
}

void QueryTask::add_span(std::string name, Clock::time_point from, Clock::time_point to) {
  auto& spans = plan_.plan.spans;
  // Many small pieces of one kind become one span from the first to the last.
  const auto same = std::find_if(spans.begin(), spans.end(), [&](const Span& s) { return s.name == name; });
  const double start = ms_between(received_, from), end = ms_between(received_, to);
  if (same == spans.end()) {
    spans.push_back({std::move(name), start, end - start});
  } else {
    same->ms = end - same->start_ms;
  }
}

void QueryTask::collect_tiers() {
  for (std::size_t i = 0; i < plan_.work.size(); ++i) {
    if (plan_.work[i].source != ContextSource::kStored) continue;
    for (const PlannedBlock& b : plan_.plan.contexts[i].blocks) {
      ++stats_.tier_blocks[static_cast<std::size_t>(b.tier)];
      stats_.tier_tokens[static_cast<std::size_t>(b.tier)] += b.num_tokens;
    }
  }
  std::copy(std::begin(loaded_bytes_), std::end(loaded_bytes_), std::begin(stats_.tier_bytes));
  if (load_done_ != Clock::time_point{}) {
    const double wait = ms_between(fetch_->started(), load_done_);
    stats_.load_ms = std::max(wait, place_ms_);
    add_span("load", fetch_->started(), load_done_);
    const auto disk = loaded_bytes_[static_cast<std::size_t>(Tier::kDisk)], dram = loaded_bytes_[static_cast<std::size_t>(Tier::kDram)];
    if (disk > 0) core_.meter->add_load(Tier::kDisk, disk, wait + place_ms_);
    if (dram > 0 && disk == 0) core_.meter->add_load(Tier::kDram, dram, wait + place_ms_);
  }
}

void QueryTask::finish(const Status& status, FinishReason reason) {
  if (done_) return;
  done_ = true;
  const auto now = Clock::now();
  if (decoding_) {
    stats_.decode_ms = ms_between(decode_started_, now);
    add_span("decode", decode_started_, now);
  }
  stats_.total_ms = ms_between(received_, now);
  collect_tiers();
  finish_plan(core_.facts, request_, core_.meter->speeds(), plan_);
  decoding_ = false;
  // Memory and segments go back before anybody is told, not when the last reference to the task goes.
  missing_.reset();
  held_.reset();
  fetch_.reset();
  cache_.reset();
  alone_.clear();
  plan_.work.clear();
  if (running_ != nullptr) running_->fetch_sub(1);
  sink_->on_done(status, plan_.plan, stats_, reason);
  sink_.reset();
}

}  // namespace quire
