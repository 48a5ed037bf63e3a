#include "engine/answer/decode_batch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <new>
#include <numeric>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/compute/compute.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Appends one row in every layer, or in none. A device's tables get room for it here, where a lack
/// of memory concerns this sequence alone.
Status add_row(WorkingCache& cache, std::int32_t position) {
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    const auto added = cache.add_rows(layer, std::span(&position, 1));
    const Status status = added.ok() ? cache.make_table_room(layer) : added.status();
    if (status.ok()) continue;
    for (std::int32_t l = 0; l < layer + (added.ok() ? 1 : 0); ++l)
      cache.truncate(l, cache.num_rows(l) - 1);
    return status;
  }
  return {};
}

void drop_row(WorkingCache& cache) {
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer)
    cache.truncate(layer, cache.num_rows(layer) - 1);
}

/// Turns std::bad_alloc into a status, so that only the request that needed the memory fails.
template <class Fn>
Status caught(const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status::exhausted("out of memory");
  }
}

HeadDriven::TokenInput token_input(const DecodeRow& row) {
  const auto* driven = capability<HeadDriven>(*row.retriever);
  return driven != nullptr ? driven->token_input() : HeadDriven::TokenInput{};
}

struct Took {
  double ms = 0, wall_ms = 0;  ///< time of a call, and its share of the elapsed time
};

/// Calls fn(i) for every i in [0, n). As many calls as there are threads run at once, each on one
/// thread; the remaining ones run one after another with all threads.
std::vector<Took> beside_each_other(std::int64_t n, const std::function<void(std::int64_t)>& fn) {
  std::vector<Took> took(to_size(n));
  const std::int64_t together = num_threads() > 1 ? n - n % num_threads() : 0;
  const auto timed = [&](std::int64_t i) {
    const Stopwatch watch;
    fn(i);
    took[at(i)].ms = took[at(i)].wall_ms = watch.ms();
  };
  const Stopwatch all;
  parallel_tasks(together, timed);
  const double passed = all.ms(),
               sum = std::accumulate(took.begin(), took.end(), 0.0,
                                     [](double ms, const Took&t) { return ms + t.ms; });
  for (std::int64_t i = 0; i < together; ++i) took[at(i)].wall_ms *= sum > 0 ? passed / sum : 1;
  for (std::int64_t i = together; i < n; ++i) timed(i);
  return took;
}

}  // namespace

Status DecodeBatch::step(std::span<DecodeRow> rows) {
  begin(rows, false);
  return end();
}

void DecodeBatch::begin(std::span<DecodeRow> rows, bool mix) {
  active_.clear();
  mixing_ = within_ = false;
  next_layer_ = 0;
  mixed_status_ = {};
  begin_rows(rows);
  for (DecodeRow& row : rows) {
    if (row.status.ok()) row.status = add_row(*row.cache, row.position);
    if (row.status.ok()) active_.push_back(&row);
  }
  if (!mix || active_.empty() || count_of(active_) > most_) return;
  // Where this fails end() runs the whole step, and says what its rows lack.
  const Status ready = caught([&]() -> Status {
    QUIRE_RETURN_IF_ERROR(reserve(active_, 0));
    QUIRE_RETURN_IF_ERROR(refresh_tables(active_));
    return model_.embed(ids_, x_.data());
  });
  mixing_ = ready.ok();
}

Status DecodeBatch::end() {
  std::vector<DecodeRow*> rows = std::exchange(active_, {});
  mixing_ = false;
  if (rows.empty()) return {};
  Status status = caught([&]() -> Status {
    read_.resize(rows.size() * to_size(model_.config().vocab_size));
    return {};
  });
  if (status.ok()) status = run_parts(rows, 0);
  for (DecodeRow* row : rows) {
    if (!status.ok() || !row->status.ok()) drop_row(*row->cache);
  }
  return status;
}

std::int64_t DecodeBatch::waiting(const Model& model, std::int32_t layer) const {
  const bool waits = mixing_ && !within_ && mixed_status_.ok() && &model == &model_ &&
                     layer == next_layer_;
  return waits ? count_of(active_) : 0;
}

bool DecodeBatch::enter(float* x) {
  const std::int64_t size = model_.config().hidden_size;
  mixed_status_ = compute_.linear().copy_rows(x_.data(), count_of(active_), size, size, x);
  return mixed_status_.ok();
}

bool DecodeBatch::attends_in(DType dtype) {
  return dtype == DType::kF32 || attend_as_one(next_layer_, active_);
}

bool DecodeBatch::attend(const QkvRows& qkv, void* out, DType dtype) {
  within_ = true;
  mixed_status_ = caught([&] { return attend_mixed(qkv, out, dtype); });
  return mixed_status_.ok();
}

Status DecodeBatch::attend_mixed(const QkvRows& qkv, void* out, DType dtype) {
  QUIRE_RETURN_IF_ERROR(rotate_and_write(next_layer_, active_, qkv));
  attended_ = static_cast<float*>(out);
  attention_dtype_ = dtype;
  return attend(next_layer_, active_);
}

void DecodeBatch::leave(const float* x) {
  const std::int64_t size = model_.config().hidden_size;
  mixed_status_ = caught([&]() -> Status {
    QUIRE_RETURN_IF_ERROR(show_hidden(next_layer_, active_));
    QUIRE_RETURN_IF_ERROR(compute_.linear().copy_rows(x, count_of(active_), size, size, x_.data()));
    // What follows the last layer is enqueued before the pass waits for its own results.
    return ++next_layer_ < model_.config().num_layers ? Status() : sample_all(active_, 0);
  });
  within_ = false;
}

/// Runs what passes have left of a mixed step.
Status DecodeBatch::run_mixed_rest(std::span<DecodeRow*> rows) {
  QUIRE_RETURN_IF_ERROR(mixed_status_);
  if (within_) return Status::exhausted("the pass that a decode step ran beside has failed");
  const std::int32_t layers = model_.config().num_layers;
  if (next_layer_ == layers) return {};
  for (; next_layer_ < layers; ++next_layer_) QUIRE_RETURN_IF_ERROR(run_layer(next_layer_, rows));
  return sample_all(rows, 0);
}

/// Runs the rows together or, where there is no memory for all of them, in two parts one after the
/// other, so that a row fails only if it finds none by itself. The logits of the first row are the
/// `first` ones of the step.
Status DecodeBatch::run_parts(std::span<DecodeRow*> rows, std::size_t first) {
  const bool was_mixed = mixed();
  Status status = caught([&] { return run(rows, first); });
  const Status settled = compute_.synchronize();
  if (status.ok()) status = settled;
  if (status.ok()) {
    hand_out_hidden();
    return {};
  }
  for (DecodeRow* row : rows) {
    row->cache->forget_tables();
    for (std::size_t step = 0; step < followed_; ++step) drop_row(*row->cache);
    row->drawn = -1;
    row->drawn_ahead.clear();
  }
  followed_ = 0;
  if (status.code() != Code::kResourceExhausted) return status;
  if (repeatable_ && was_mixed) return run_parts(rows, first);
  if (repeatable_ && rows.size() > 1) {
    const std::size_t half = rows.size() / 2;
    QUIRE_RETURN_IF_ERROR(run_parts(rows.first(half), first));
    return run_parts(rows.subspan(half), first + half);
  }
  for (DecodeRow* row : rows) {
    if (row->status.ok()) row->status = status;
  }
  return {};
}

/// Projects all rows that need it in one batch, so that a retrieval head's weights are read once.
void DecodeBatch::project_heads(std::span<DecodeRow> rows) {
  using TokenInput = HeadDriven::TokenInput;
  const auto same = [](const TokenInput& a, const TokenInput& b) {
    return a.head == b.head && (a.feature == nullptr) == (b.feature == nullptr);
  };
  std::vector<bool> done(rows.size());
  for (std::size_t first = 0; first < rows.size(); ++first) {
    const TokenInput one = token_input(rows[first]);
    if (one.head == nullptr || done[first]) continue;
    const Stopwatch watch;
    const auto features = to_size(one.head->feature_dim()),
               queries = to_size(one.head->config().query_dim()),
               keys = to_size(one.head->config().key_dim());
    std::vector<std::size_t> members;
    std::vector<std::int32_t> ids;
    head_features_.clear();
    for (std::size_t i = first; i < rows.size(); ++i) {
      const TokenInput row = token_input(rows[i]);
      if (done[i] || !same(row, one)) continue;
      done[i] = true;
      members.push_back(i);
      ids.push_back(rows[i].token_id);
      if (row.feature != nullptr)
        head_features_.insert(head_features_.end(), row.feature, row.feature + features);
    }
    if (members.size() < 2) continue;
    head_queries_.resize(members.size() * queries);
    head_keys_.resize(members.size() * keys);
    // begin_step() reports which token cannot be projected.
    if (!one.head
             ->project(ids, one.feature != nullptr ? head_features_.data() : nullptr,
                       head_queries_.data(), head_keys_.data())
             .ok())
      continue;
    for (std::size_t i = 0; i < members.size(); ++i)
      capability<HeadDriven>(*rows[members[i]].retriever)
          ->take_projection(head_queries_.data() + i * queries, head_keys_.data() + i * keys);
    const double each_ms = watch.ms() / static_cast<double>(members.size());
    for (const std::size_t i : members) rows[i].retriever->took_to_choose(each_ms);
  }
}

/// Has the device score for all rows whose retrievers choose by that before the layers run, so that
/// the host waits once.
void DecodeBatch::score_heads(std::span<DecodeRow> rows) {
  if (compute_.on_host()) return;
  std::vector<Retriever*> scored;
  std::vector<HeadDriven*> driven;
  for (DecodeRow& row : rows) {
    auto* const one = capability<HeadDriven>(*row.retriever);
    if (one == nullptr) continue;
    const Stopwatch watch;
    bool scores = false;
    row.status = caught([&]() -> Status {
      QUIRE_ASSIGN_OR_RETURN(scores, one->take_token(row.token_id, row.position));
      return {};
    });
    row.retriever->took_to_choose(watch.ms());
    if (!row.status.ok() || !scores) continue;
    scored.push_back(row.retriever);
    driven.push_back(one);
  }
  if (driven.size() < 2) return;
  const Stopwatch watch;
  // begin_step() scores where this fails, as for one row alone, and says what its own row lacks.
  (void)caught([&] { return driven.front()->score_together(driven); });
  const double each_ms = watch.ms() / static_cast<double>(scored.size());
  for (Retriever* const one : scored) one->took_to_choose(each_ms);
}

void DecodeBatch::begin_rows(std::span<DecodeRow> rows) {
  for (DecodeRow& row : rows) row.status = {};
  project_heads(rows);
  score_heads(rows);
  const auto begin = [](DecodeRow& row) {
    row.status = caught([&row] { return row.retriever->begin_step(row.token_id, row.position); });
  };
  std::vector<DecodeRow*> beside;
  for (DecodeRow& row : rows) {
    if (!row.status.ok()) continue;
    if (const auto* driven = capability<HeadDriven>(*row.retriever);
        driven != nullptr && driven->begins_in_parallel()) {
      beside.push_back(&row);
      continue;
    }
    const Stopwatch watch;
    begin(row);
    row.retriever->took_to_choose(watch.ms());
  }
  const auto took = beside_each_other(count_of(beside),
                                      [&](std::int64_t i) { begin(*beside[at(i)]); });
  for (std::size_t i = 0; i < beside.size(); ++i)
    beside[i]->retriever->took_to_choose(took[i].wall_ms);
}

/// Takes the rows' ids and positions, and the buffers of a step that `ahead` more follow.
Status DecodeBatch::reserve(std::span<DecodeRow*> rows, std::size_t ahead) {
  repeatable_ = true;
  const ModelConfig& config = model_.config();
  const std::size_t n = rows.size();
  const auto heads = to_size(config.num_heads) * to_size(config.head_dim);
  ids_.clear();
  positions_.clear();
  for (const DecodeRow* row : rows) {
    ids_.push_back(row->token_id);
    positions_.push_back(row->position);
  }
  QUIRE_RETURN_IF_ERROR(x_.reserve(memory_, static_cast<std::int64_t>(n) * config.hidden_size));
  QUIRE_RETURN_IF_ERROR(query_.reserve(memory_, static_cast<std::int64_t>(n * heads)));
  QUIRE_RETURN_IF_ERROR(attention_.reserve(memory_, static_cast<std::int64_t>(n * heads)));
  attended_ = attention_.data();
  const auto vocab = to_size(config.vocab_size);
  QUIRE_RETURN_IF_ERROR(logits_.reserve(memory_, static_cast<std::int64_t>(n * vocab)));
  rules_.clear();
  if (compute_.samples() && vocab < std::size_t{1} << 22 &&
      std::ranges::any_of(rows, [](const DecodeRow* row) { return row->rule.has_value(); })) {
    for (const DecodeRow* row : rows) rules_.push_back(row->rule.value_or(SampleRule{}));
    QUIRE_RETURN_IF_ERROR(tokens_.reserve(memory_, static_cast<std::int64_t>(n * (1 + ahead))));
  }
  shown_.clear();
  driven_.clear();
  joining_.clear();
  for (const DecodeRow* row : rows) {
    driven_.push_back(capability<HeadDriven>(*row->retriever));
    joining_.push_back(capability<AttendsTogether>(*row->retriever));
  }
  std::size_t most = 0;
  for (const HeadDriven* driven : driven_) {
    if (driven != nullptr) most += driven->hidden_layers().size();
  }
  return most == 0 ? Status()
                   : hidden_.reserve(memory_, static_cast<std::int64_t>(most) * config.hidden_size);
}

Status DecodeBatch::run(std::span<DecodeRow*> rows, std::size_t first) {
  followed_ = 0;
  if (mixed()) {
    const Status status = run_mixed_rest(rows);
    next_layer_ = 0;  // should the rows run again they do so alone
    within_ = false;
    return status.ok() ? read_results(rows, first) : status;
  }
  const std::size_t ahead = steps_ahead(rows);
  QUIRE_RETURN_IF_ERROR(reserve(rows, ahead));
  QUIRE_RETURN_IF_ERROR(run_step(rows, 0));
  // A sequence that failed is not followed.
  const bool whole = std::ranges::all_of(rows,
                                         [](const DecodeRow* row) { return row->status.ok(); });
  Status status;
  while (whole && followed_ < ahead && status.ok()) {
    status = run_ahead(rows, followed_);
    if (status.ok()) ++followed_;
  }
  for (DecodeRow* row : rows) row->position -= static_cast<std::int32_t>(followed_);
  // Where a step could not follow the host reads what there is, unless retrievers rely on what of
  // that step did not run.
  const bool lost = !repeatable_ && std::ranges::any_of(rows, [](const DecodeRow* row) {
    return !row->retriever->traits().attends_all;
  });
  return status.code() == Code::kDeviceLost || (!status.ok() && lost) ? status
                                                                      : read_results(rows, first);
}

/// Runs the layers and samples, once. `ahead` steps were enqueued since the host last waited.
Status DecodeBatch::run_step(std::span<DecodeRow*> rows, std::int64_t ahead) {
  const auto n = count_of(rows);
  QUIRE_RETURN_IF_ERROR(refresh_tables(rows));
  compute_.begin_step(n, ahead);
  // What began must end, also where the host has no memory left.
  const Status run = caught([&]() -> Status {
    std::int32_t* const tokens = tokens_.data() + ahead * n;
    QUIRE_RETURN_IF_ERROR(ahead > 0 ? model_.embed_drawn(tokens - n, n, x_.data())
                                    : model_.embed(ids_, x_.data()));
    for (std::int32_t layer = 0; layer < model_.config().num_layers; ++layer)
      QUIRE_RETURN_IF_ERROR(run_layer(layer, rows));
    return sample_all(rows, ahead);
  });
  const Status ended = compute_.end_step();
  // Where an operation was refused those behind it did not run, on whose results retrievers rely.
  if (!ended.ok()) repeatable_ = false;
  return run.ok() ? ended : run;
}

/// Returns how many steps may follow before the host reads anything.
std::size_t DecodeBatch::steps_ahead(std::span<DecodeRow*> rows) const {
  if (memory_ == nullptr || !compute_.samples() || model_.config().vocab_size >= 1 << 22) return 0;
  std::size_t most = SIZE_MAX;
  for (const DecodeRow* row : rows) {
    if (!row->status.ok() || !row->rule || !row->retriever->follows_unseen()) return 0;
    most = std::min(most, row->ahead.size());
  }
  return most;
}

/// Enqueues a step of the tokens that the last one samples. On an error all rows are as before it.
Status DecodeBatch::run_ahead(std::span<DecodeRow*> rows, std::size_t step) {
  std::size_t added = 0;
  const Status status = caught([&]() -> Status {
    for (; added < rows.size(); ++added) {
      DecodeRow& row = *rows[added];
      // The token does not matter.
      QUIRE_RETURN_IF_ERROR(row.retriever->begin_step(-1, row.position + 1));
      if (!row.retriever->follows_unseen())
        return Status::unimplemented("the host has to see this step first");
      QUIRE_RETURN_IF_ERROR(add_row(*row.cache, row.position + 1));
      positions_[added] = ++row.position;
      rules_[added] = row.ahead[step];
    }
    QUIRE_RETURN_IF_ERROR(run_step(rows, static_cast<std::int64_t>(step) + 1));
    for (const DecodeRow* row : rows) QUIRE_RETURN_IF_ERROR(row->status);
    return {};
  });
  if (status.ok()) return {};
  for (DecodeRow* row : rows) {
    row->cache->forget_tables();
    row->status = {};
  }
  for (DecodeRow* row : rows.first(added)) {
    drop_row(*row->cache);
    --row->position;
  }
  return status;
}

/// Tells a device the pages and positions that the caches have got since the last step.
Status DecodeBatch::refresh_tables(std::span<DecodeRow*> rows) {
  if (memory_ == nullptr) return {};
  views_.clear();
  for (const DecodeRow* row : rows) {
    for (std::int32_t layer = 0; layer < row->cache->num_layers(); ++layer)
      views_.push_back(row->cache->view(layer));
  }
  return compute_.attention().refresh(views_);
}

/// Reads the sampled tokens, and the logits of the other rows.
Status DecodeBatch::read_results(std::span<DecodeRow*> rows, std::size_t first) {
  const auto vocab = to_size(model_.config().vocab_size);
  const std::size_t n = rows.size();
  float* const read = read_.data() + first * vocab;
  const std::size_t steps = 1 + followed_;
  if (!rules_.empty()) {
    ids_.resize(n * steps);  // [steps, n]
    QUIRE_RETURN_IF_ERROR(compute_.read_bytes(
        tokens_.data(), count_of(ids_) * std::int64_t{sizeof(std::int32_t)}, ids_.data()));
  }
  const auto drawn = [&](std::size_t i) { return !rules_.empty() && rows[i]->rule.has_value(); };
  for (std::size_t i = 0; i < n; ++i) {
    rows[i]->drawn = drawn(i) ? ids_[i] : -1;
    for (std::size_t step = 1; step < steps; ++step)
      rows[i]->drawn_ahead.push_back(ids_[step * n + i]);
  }
  // A range of rows whose logits are wanted.
  for (std::size_t i = 0, end = 0; i < n; i = end + 1) {
    for (end = i; end < n && !drawn(end);) ++end;
    if (end > i)
      QUIRE_RETURN_IF_ERROR(compute_.read(logits_.data() + i * vocab,
                                          static_cast<std::int64_t>((end - i) * vocab),
                                          read + i * vocab));
  }
  for (std::size_t i = 0; i < n; ++i)
    rows[i]->logits = drawn(i) ? std::span<const float>()
                               : std::span<const float>(read + i * vocab, vocab);
  return {};
}

/// Computes logits of the rows behind the last layer, and samples by their rules. `ahead`: as for
/// run_step().
Status DecodeBatch::sample_all(std::span<DecodeRow*> rows, std::int64_t ahead) {
  QUIRE_RETURN_IF_ERROR(model_.logits(x_.data(), count_of(rows), logits_.data()));
  if (rules_.empty()) return {};
  return compute_.sample(logits_.data(), model_.config().vocab_size, rules_,
                         tokens_.data() + ahead * count_of(rows));
}

Status DecodeBatch::run_layer(std::int32_t layer, std::span<DecodeRow*> rows) {
  const auto n = count_of(rows);
  QUIRE_RETURN_IF_ERROR(show_hidden(layer, rows));
  QUIRE_ASSIGN_OR_RETURN(const QkvRows qkv, model_.project_qkv(layer, x_.data(), n));
  QUIRE_RETURN_IF_ERROR(rotate_and_write(layer, rows, qkv));
  attended_ = attention_.data();
  attention_dtype_ = attend_as_one(layer, rows) ? model_.attention_dtype(layer, n) : DType::kF32;
  QUIRE_RETURN_IF_ERROR(attend(layer, rows));
  return model_.finish_layer(layer, x_.data(), attention_.data(), attention_dtype_, n);
}

/// Copies the hidden states that retrievers want; they get them at the end of the step.
Status DecodeBatch::show_hidden(std::int32_t layer, std::span<DecodeRow*> rows) {
  const std::int64_t size = model_.config().hidden_size;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    HeadDriven* const driven = driven_[i];
    if (driven == nullptr) continue;
    const auto wanted = driven->hidden_layers();
    if (std::ranges::find(wanted, layer) == wanted.end()) continue;
    QUIRE_RETURN_IF_ERROR(
        compute_.linear().copy_rows(x_.data() + static_cast<std::int64_t>(i) * size, 1, size, size,
                                    hidden_.data() + count_of(shown_) * size));
    shown_.push_back({driven, layer});
  }
  return {};
}

void DecodeBatch::hand_out_hidden() {
  for (std::size_t i = 0; i < shown_.size(); ++i)
    shown_[i].driven->take_hidden(
        shown_[i].layer,
        hidden_.data() + static_cast<std::int64_t>(i) * model_.config().hidden_size);
}

/// Rotates the step's queries, and writes its rows to the last pages of their caches, which
/// together form one page table. There is one call per page layout in use, as retrievers choose the
/// layout of offloaded layers.
Status DecodeBatch::rotate_and_write(std::int32_t layer, std::span<DecodeRow*> rows,
                                     const QkvRows& qkv) {
  const ModelConfig& config = model_.config();
  RopeRotateArgs queries{.x = qkv.q,
                         .out = query_.data(),
                         .positions = positions_.data(),
                         .rows = count_of(rows),
                         .num_heads = config.num_heads,
                         .ldx = qkv.ld,
                         .ldo = std::int64_t{config.num_heads} * config.head_dim};
  for (const PageLayout layout :
       {PageLayout::kHeadPages, PageLayout::kTokenGranules, PageLayout::kSplit}) {
    from_.clear();
    dst_rows_.clear();
    write_positions_.clear();
    pages_.clear();
    MutableKvView all{};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const DecodeRow& row = *rows[i];
      if (!row.status.ok() || row.cache->layout(layer) != layout) continue;
      const auto last = static_cast<std::int32_t>(row.cache->num_rows(layer) - 1);
      QUIRE_ASSIGN_OR_RETURN(all, row.cache->writable(layer, std::span(&last, 1)));
      from_.push_back(static_cast<std::int32_t>(i));
      dst_rows_.push_back(static_cast<std::int32_t>(pages_.size()) * kPageTokens +
                          last % kPageTokens);
      write_positions_.push_back(row.position);
      pages_.push_back(all.pages[last / kPageTokens]);
    }
    if (from_.empty()) continue;
    all.pages = pages_.data();
    all.num_rows = count_of(pages_) * kPageTokens;
    // Keys are rounded before RoPE, exactly as stored KV is.
    QUIRE_RETURN_IF_ERROR(compute_.kv().rotate_and_write(model_.rope(), queries,
                                                         {.k = qkv.k,
                                                          .v = qkv.v,
                                                          .ld = qkv.ld,
                                                          .from = from_,
                                                          .positions = write_positions_,
                                                          .dst_rows = dst_rows_,
                                                          .raw_dtype = model_.options().kv_dtype,
                                                          .dst = all}));
    queries.rows = 0;  // once is enough
  }
  return queries.rows == 0 ? Status() : compute_.attention().rotate(model_.rope(), queries);
}

AttentionArgs DecodeBatch::attention_args(std::int64_t first, std::int64_t rows) {
  const ModelConfig& config = model_.config();
  const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
  AttentionArgs args{};
  args.q = query_.data() + first * heads;
  args.rows = rows;
  args.ldq = args.ldo = heads;
  args.num_heads = config.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  args.out = result_at(attended_, attention_dtype_, first * heads);
  return args;
}

/// Returns whether no retriever attends by itself, as those write f32: the rows may attend in the
/// dtype that the output projection reads.
bool DecodeBatch::attend_as_one(std::int32_t layer, std::span<DecodeRow*> rows) {
  attention_dtype_ = DType::kF32;  // for step_of()
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = *rows[i];
    if (!row.status.ok() || row.retriever->traits().attends_all) continue;
    const AttendsTogether* const one = joining_[i];
    if (one == nullptr || !one->joins(step_of(layer, row, static_cast<std::int64_t>(i)), *one))
      return false;
  }
  return true;
}

Status DecodeBatch::attend(std::int32_t layer, std::span<DecodeRow*> rows) {
  const auto n = count_of(rows);
  const auto to_all = [](const DecodeRow* row) {
    return row->status.ok() && row->retriever->traits().attends_all;
  };
  // If the host computes, retrievers are independent of each other.
  std::vector<std::int64_t> beside;
  for (std::int64_t i = 0; i < n;) {
    std::int64_t end = i;  // a range of rows that attend in one call
    while (end < n && to_all(rows[at(end)])) ++end;
    if (end > i) {
      QUIRE_RETURN_IF_ERROR(attend_to_all(layer, rows.subspan(at(i), at(end - i)), i));
      i = end;
      continue;
    }
    if (compute_.on_host()) {
      beside.push_back(i++);
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(end, attend_together(layer, rows, i));
    if (end == i) {
      if (rows[at(i)]->status.ok()) repeatable_ = false;
      QUIRE_RETURN_IF_ERROR(attend_to_some(layer, *rows[at(end++)], i, nullptr));
    }
    i = end;
  }
  if (!beside.empty()) repeatable_ = false;
  std::vector<double> choose_ms(beside.size());
  std::vector<Status> status(beside.size());
  const auto took = beside_each_other(std::ssize(beside), [&](std::int64_t k) {
    const std::int64_t row = beside[at(k)];
    status[at(k)] = attend_to_some(layer, *rows[at(row)], row, &choose_ms[at(k)]);
  });
  for (std::size_t k = 0; k < beside.size(); ++k) {
    QUIRE_RETURN_IF_ERROR(status[k]);
    if (took[k].ms > 0)
      rows[at(beside[k])]->retriever->took_to_choose(choose_ms[k] * took[k].wall_ms / took[k].ms);
  }
  return {};
}

RetrieveStep DecodeBatch::step_of(std::int32_t layer, const DecodeRow& row, std::int64_t index) {
  const ModelConfig& config = model_.config();
  const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
  RetrieveStep step;
  step.layer = layer;
  step.query = query_.data() + index * heads;
  step.position = row.position;
  step.cache = row.cache;
  step.num_heads = config.num_heads;
  step.head_dim = config.head_dim;
  step.out = result_at(attended_, attention_dtype_, index * heads);
  step.out_dtype = attention_dtype_;
  step.compute = &compute_;
  return step;
}

/// Attends by the retrievers of the rows from `first` on that attend in one call, and returns the
/// row behind them. Errors: those of the Compute; a retriever's are set in its row, which then is
/// that row.
Result<std::int64_t> DecodeBatch::attend_together(std::int32_t layer, std::span<DecodeRow*> rows,
                                                  std::int64_t first) {
  steps_.clear();
  std::int64_t end = first;
  for (; end < count_of(rows); ++end) {
    DecodeRow& row = *rows[at(end)];
    AttendsTogether* const one = joining_[at(end)];
    if (!row.status.ok() || one == nullptr) break;
    const RetrieveStep step = step_of(layer, row, end);
    if (!one->joins(step, *joining_[at(first)])) break;
    row.status = caught([one, &step] { return one->ready(step); });
    if (!row.status.ok()) break;
    steps_.push_back(step);
  }
  if (end > first)
    QUIRE_RETURN_IF_ERROR(joining_[at(first)]->attend_together(
        steps_, std::span(joining_).subspan(at(first), at(end - first))));
  return end;
}

/// Attends by the row's retriever; `index` is the row's index in the step. Errors: those of the
/// Compute; the retriever's are set in the row.
Status DecodeBatch::attend_to_some(std::int32_t layer, DecodeRow& row, std::int64_t index,
                                   double* choose_ms) {
  const std::int64_t heads = std::int64_t{model_.config().num_heads} * model_.config().head_dim;
  QUIRE_CHECK(!row.status.ok() || attention_dtype_ == DType::kF32,
              "a retriever attends by itself that was to join others");
  RetrieveStep step = step_of(layer, row, index);
  step.choose_ms = choose_ms;
  float* const out = step.out;
  const bool by_host = memory_ != nullptr && row.status.ok() && row.retriever->needs_host(step);
  std::vector<float> host(by_host ? to_size(2 * heads) : 0);
  if (by_host) {
    QUIRE_RETURN_IF_ERROR(compute_.read(step.query, heads, host.data()));
    QUIRE_RETURN_IF_ERROR(compute_.synchronize());
    step.query = host.data();
    step.out = host.data() + heads;
  }
  if (row.status.ok()) row.status = caught([&row, &step] { return row.retriever->attend(step); });
  if (row.status.ok() && !by_host) return {};
  if (!row.status.ok()) {
    host.assign(to_size(2 * heads), 0.0f);
    step.out = host.data();
  }
  return write_memory(memory_.get(), out, step.out,
                      heads * static_cast<std::int64_t>(dtype_bytes(attention_dtype_)));
}

/// Attends densely; `rows` begin at row `first` of the step.
Status DecodeBatch::attend_to_all(std::int32_t layer, std::span<DecodeRow*> rows,
                                  std::int64_t first) {
  const auto kv_heads = to_size(model_.config().num_kv_heads);
  sequences_.assign(rows.size(), {});
  head_rows_.resize(rows.size() * kv_heads);
  lists_.resize(rows.size() * kv_heads);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const WorkingCache& cache = *rows[i]->cache;
    sequences_[i].kv = cache.view(layer);
    sequences_[i].position = rows[i]->position;
    if (!cache.ragged(layer)) continue;
    for (std::size_t m = 0; m < kv_heads; ++m) {
      auto& list = head_rows_[i * kv_heads + m];
      cache.head_rows(layer, static_cast<std::int32_t>(m), list);
      lists_[i * kv_heads + m] = {list.data(), count_of(list)};
    }
    sequences_[i].lists = lists_.data() + i * kv_heads;
  }
  AttentionArgs args = attention_args(first, count_of(rows));
  args.kv = sequences_.front().kv;
  return compute_.attention().attend_each(args, sequences_, attention_dtype_);
}

}  // namespace quire
