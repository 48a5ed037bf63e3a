#include "engine/stages/query_pass_stage.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "engine/stages/select_stage.h"

namespace quire {

/// Captures queries of the question's rows where they are computed, so that no layer synchronizes.
class QueryPassStage::Capture : public ForwardHook {
 public:
  /// Allocates what the pass needs before the first row. Errors: kResourceExhausted.
  virtual Status begin(const std::shared_ptr<ComputeMemory>& /*memory*/) { return {}; }
  /// Is called before the rows of the question from `first` on.
  virtual void begin_chunk(std::int64_t /*first*/) {}
  /// Enters the result once the last row has run.
  virtual Status read(Compute& compute, QueryPassResult& out) = 0;
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }

 protected:
  static void end_pass(LayerPass& pass) {
    std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
  }
};

/// Sums the raw queries of all rows per layer.
class QueryPassStage::MeanCapture final : public Capture {
 public:
  MeanCapture(std::int64_t dim, std::int32_t num_layers, std::int64_t rows)
      : dim_(dim), num_layers_(num_layers), rows_(rows) {}

  Status begin(const std::shared_ptr<ComputeMemory>& memory) override {
    if (begun_) return {};
    QUIRE_RETURN_IF_ERROR(sums_.reserve(memory, num_layers_ * dim_));
    const std::vector<float> zeros(to_size(num_layers_ * dim_));
    QUIRE_RETURN_IF_ERROR(write_memory(memory.get(), sums_.data(), zeros.data(),
                                       count_of(zeros) * std::int64_t{sizeof(float)}));
    begun_ = true;
    return {};
  }
  Status after_projection(LayerPass& pass) override {
    QUIRE_RETURN_IF_ERROR(
        pass.compute->linear().sum_columns({.x = pass.qkv.q,
                                            .rows = pass.qkv.rows,
                                            .dim = dim_,
                                            .ldx = pass.qkv.ld,
                                            .sums = sums_.data() + pass.layer * dim_}));
    // The last layer's output is not used.
    if (pass.layer == num_layers_ - 1) end_pass(pass);
    return {};
  }
  Status read(Compute& compute, QueryPassResult& out) override {
    out.mean_query.resize(to_size(num_layers_ * dim_));
    QUIRE_RETURN_IF_ERROR(
        compute.read(sums_.data(), count_of(out.mean_query), out.mean_query.data()));
    for (float& x : out.mean_query) x /= static_cast<float>(rows_);
    return {};
  }

 private:
  const std::int64_t dim_;
  const std::int32_t num_layers_;
  const std::int64_t rows_;
  bool begun_ = false;
  ComputeBuffer<float> sums_;  ///< [num_layers, dim]
};

/// Keeps the asking words' queries of the calibrated heads, and what these attend to; the pass ends
/// behind the last such layer.
class QueryPassStage::HeadCapture final : public Capture {
 public:
  /// The words are rows [first, first + count) of the question, whose first row has `position`.
  HeadCapture(const SelectionHeads& heads, std::int32_t num_heads, std::int32_t head_dim,
              std::int64_t first, std::int64_t count, std::int32_t position)
      : heads_(heads),
        num_heads_(num_heads),
        dim_(head_dim),
        first_(first),
        count_(count),
        last_layer_(heads.last_layer()) {
    const std::size_t rows = heads.heads.size() * to_size(count);
    out_.queries.resize(rows * to_size(head_dim));
    out_.outside.resize(rows);
    out_.num_words = count;
    out_.first_position = position + first;
  }

  void begin_chunk(std::int64_t first) override { chunk_ = first; }
  bool wants_lse(std::int32_t layer) const override {
    return std::ranges::any_of(heads_.heads, [layer](const auto& h) { return h.layer == layer; });
  }
  Status after_projection(LayerPass& pass) override {
    return each_head(pass, [&](std::int64_t h, std::int32_t head, const Rows& rows) {
      return fetch(pass, pass.qkv.q + rows.from * pass.qkv.ld + std::int64_t{head} * dim_,
                   rows.count, dim_, pass.qkv.ld, &out_.queries, (h * count_ + rows.word) * dim_);
    });
  }
  Status after_attention(LayerPass& pass) override {
    QUIRE_RETURN_IF_ERROR(each_head(pass, [&](std::int64_t h, std::int32_t head, const Rows& rows) {
      return fetch(pass, pass.lse + rows.from * num_heads_ + head, rows.count, 1, num_heads_,
                   &out_.outside, h * count_ + rows.word);
    }));
    if (pass.layer == last_layer_) end_pass(pass);
    return {};
  }
  Status read(Compute&, QueryPassResult& out) override {
    out.heads = std::move(out_);
    return {};
  }

 private:
  /// Rows of a chunk that are asking words.
  struct Rows {
    std::int64_t from = 0, count = 0;  ///< within the chunk
    std::int64_t word = 0;             ///< the word in row `from`
  };
  template <class Body>
  Status each_head(const LayerPass& pass, Body&& body) {
    Rows rows;
    rows.from = std::max<std::int64_t>(0, first_ - chunk_);
    rows.count = std::min(pass.qkv.rows, first_ + count_ - chunk_) - rows.from;
    rows.word = chunk_ + rows.from - first_;
    if (rows.count <= 0) return {};
    for (std::size_t h = 0; h < heads_.heads.size(); ++h) {
      if (heads_.heads[h].layer != pass.layer) continue;
      QUIRE_RETURN_IF_ERROR(body(static_cast<std::int64_t>(h), heads_.heads[h].head, rows));
    }
    return {};
  }
  static Status fetch(const LayerPass& pass, const float* from, std::int64_t rows, std::int64_t dim,
                      std::int64_t ld, std::vector<float>* to, std::int64_t offset) {
    FetchOps& fetch = pass.compute->fetch();
    const std::int64_t bytes = rows * dim * static_cast<std::int64_t>(sizeof(float));
    QUIRE_ASSIGN_OR_RETURN(std::byte* const there, fetch.place(bytes));
    QUIRE_RETURN_IF_ERROR(
        pass.compute->linear().copy_rows(from, rows, dim, ld, reinterpret_cast<float*>(there)));
    return fetch.fetch(bytes, [to, offset, bytes](const std::byte* data) {
      std::memcpy(to->data() + offset, data, to_size(bytes));
    });
  }

  const SelectionHeads& heads_;
  const std::int64_t num_heads_, dim_, first_, count_;
  const std::int32_t last_layer_;
  std::int64_t chunk_ = 0;  ///< the question's row that is the chunk's first
  HeadQueries out_;
};

QueryPassStage::QueryPassStage(StageResources& shared)
    : SuppliedStage(shared),
      run_(shared.run),
      placement_(shared.run, *shared.supply, Placement::Values::kKeep) {
  const EngineFacts& facts = run_.core.facts;
  result_.last_position = run_.execution.suffix_position + count_of(run_.request.suffix_ids) - 1;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i)
    result_.context_position.push_back(run_.work(i).first_position);
  const std::int64_t rows = count_of(run_.request.suffix_ids);
  if (!run_.execution.needs_head_queries) {
    capture_ = std::make_unique<MeanCapture>(std::int64_t{facts.num_heads} * facts.shape.head_dim,
                                             facts.shape.num_layers, rows);
    return;
  }
  const SelectionHeads& heads = facts.selection_heads;
  auto begin = static_cast<std::int64_t>(run_.request.question_words.begin),
       end = static_cast<std::int64_t>(run_.request.question_words.end);
  if (begin >= end || end > rows) {
    begin = 0;
    end = rows;
  }
  if (heads.asks == SelectionHeads::Asks::kLastToken) {
    begin = rows - 1;
    end = rows;
  }
  capture_ = std::make_unique<HeadCapture>(heads, facts.num_heads, facts.shape.head_dim, begin,
                                           end - begin, run_.execution.suffix_position);
}

QueryPassStage::~QueryPassStage() = default;

Status QueryPassStage::begin() {
  shared_.supply->ask_blocks(run_.execution.selection);
  return {};
}

bool QueryPassStage::has_work() {
  if (part_ != Part::kPlace || placement_.all_placed()) return true;
  return !placement_.by_passes() && placement_.ready();
}

Status QueryPassStage::work() {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t taken, shared_.take_front());
  computed_ += to_size(taken);
  switch (part_) {
    case Part::kPrefix:
      if (computed_ < run_.request.prefix_ids.size())
        return compute(run_.request.prefix_ids, 0, nullptr);
      return end_prefix();
    case Part::kPlace:
      if (!placement_.all_placed()) return placement_.step();
      part_ = Part::kQuestion;
      computed_ = 0;
      return {};
    case Part::kQuestion:
      if (computed_ == 0 && !placement_.all_placed()) {  // a value was replaced meanwhile
        part_ = Part::kPlace;
        return {};
      }
      QUIRE_RETURN_IF_ERROR(capture_->begin(run_.core.model->compute().memory()));
      capture_->begin_chunk(static_cast<std::int64_t>(computed_));
      QUIRE_RETURN_IF_ERROR(
          compute(run_.request.suffix_ids, run_.execution.suffix_position, capture_.get()));
      return computed_ == run_.request.suffix_ids.size() ? end_question() : Status();
    case Part::kDone:
      break;
  }
  return {};
}

Status QueryPassStage::end_prefix() {
  prefix_rows_ = run_.cache->num_rows(0);
  std::vector<std::int32_t> contexts;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    const ContextSource source = run_.work(i).source;
    if (source == ContextSource::kStored || source == ContextSource::kAlone) contexts.push_back(i);
  }
  QUIRE_RETURN_IF_ERROR(placement_.begin(std::move(contexts)));
  part_ = Part::kPlace;
  return {};
}

Status QueryPassStage::compute(const std::vector<std::int32_t>& ids, std::int32_t first_position,
                               ForwardHook* hook) {
  const auto started = Clock::now();
  const std::size_t n = std::min(to_size(run_.core.chunk_tokens), ids.size() - computed_);
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(),
            first_position + static_cast<std::int32_t>(computed_));
  ForwardRequest request{};
  request.token_ids = std::span(ids).subspan(computed_, n);
  request.positions = positions;
  request.cache = &*run_.cache;
  request.hook = hook;
  // The question runs again after the selected blocks; the prefix stays.
  HeadTrack* track = hook == nullptr ? run_.head_track.get() : nullptr;
  request.tap = track;
  ForwardPass pass(*run_.core.model, request, run_.core.workspace);
  Placement::Packing packing(placement_);
  while (!pass.done()) {
    if (hook != nullptr) {
      QUIRE_RETURN_IF_ERROR(placement_.bring(pass.layer()));
      packing.ahead(pass.layer() + 1);
    }
    QUIRE_RETURN_IF_ERROR(pass.step());
  }
  if (track != nullptr) QUIRE_RETURN_IF_ERROR(track->add_computed(request.token_ids, positions));
  computed_ += n;
  const auto now = Clock::now();
  const double ms = ms_between(started, now);
  (hook != nullptr ? run_.stats.query_pass_ms : run_.stats.prefill_ms) += ms;
  // Pieces of a query that nobody waits for are too small to tell how fast this machine is.
  if (!run_.request.background) run_.core.meter->add_prefill(static_cast<std::int64_t>(n), ms);
  run_.add_span(hook != nullptr ? "query_pass" : "prefix", started, now);
  return {};
}

Status QueryPassStage::end_question() {
  QUIRE_RETURN_IF_ERROR(capture_->read(run_.core.model->compute(), result_));
  run_.cache->truncate_all(prefix_rows_);
  part_ = Part::kDone;
  return {};
}

AfterStage QueryPassStage::next() {
  return {std::make_unique<SelectStage>(shared_, std::move(result_))};
}

}  // namespace quire
