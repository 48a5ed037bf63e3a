#include "engine/supply/assembly.h"

#include <algorithm>
#include <optional>

#include "base/index.h"
#include "engine/model/hook_chain.h"
#include "engine/record/head_record.h"

namespace quire {
namespace {

void append(std::vector<std::int32_t>& ids, std::vector<std::int32_t>& positions,
            std::span<const std::int32_t> tokens, std::int64_t first_position) {
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    positions.push_back(static_cast<std::int32_t>(first_position) + static_cast<std::int32_t>(i));
}

}  // namespace

/// State of one chunk of an item; what its pass points to stays in place.
struct Assembly::Chunk {
  /// Begins `size` tokens of the item and, after them, `ahead` tokens of the look-ahead.
  std::vector<std::int32_t> ids, positions;
  std::size_t size = 0, ahead = 0;
  std::int32_t last_row = 0;
  bool last = false;  ///< last chunk of the item
  double ms = 0;
  ForwardWorkspace own_workspace;
  std::optional<HookChain> hooks;
  std::optional<ForwardPass> pass;
};

Assembly::~Assembly() = default;

Assembly::Assembly(QueryRun& run, KvSupply& supply)
    : run_(run),
      supply_(supply),
      placement_(
          run, supply,
          run.recomputer->has_pass() ? Placement::Values::kKeep : Placement::Values::kRelease) {
  if (run.cache->num_rows(0) == 0 && !run.request.prefix_ids.empty()) {
    Item& item = computed_item();
    append(item.ids, item.positions, run.request.prefix_ids, 0);
  }
  add_contexts();
  add_question();
}

Assembly::Item& Assembly::computed_item() {
  if (items_.empty() || !items_.back().contexts.empty()) items_.emplace_back();
  return items_.back();
}

void Assembly::add_contexts() {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    switch (run_.work(i).source) {
      case ContextSource::kNothing:
        break;
      case ContextSource::kInPlace: {
        Item& item = computed_item();
        append(item.ids, item.positions, run_.ids(i), run_.planned(i).offset);
        break;
      }
      case ContextSource::kStored:
      case ContextSource::kAlone:
        if (items_.empty() || items_.back().contexts.empty()) items_.emplace_back();
        items_.back().contexts.push_back(i);
    }
  }
}

void Assembly::add_question() {
  const auto& suffix = run_.request.suffix_ids;
  const bool apart = run_.recomputer->has_pass() ||
                     (run_.compressor->observer() != nullptr && !run_.sparse_prefill());
  const bool after_run = !items_.empty() && items_.back().contexts.empty();
  next_position_ = run_.execution.suffix_position + static_cast<std::int32_t>(suffix.size());
  if (suffix.empty() && !after_run) {
    // Without a question the last kept document token runs once more, now attending to everything
    // before it.
    const std::int32_t context = items_.back().contexts.back();
    const std::int32_t block = run_.execution.selection.kept(0, context).back();
    const PlannedBlock& b = run_.planned(context).blocks[at(block)];
    Item item;
    item.ids = {run_.ids(context)[at(b.first_token + b.num_tokens - 1)]};
    item.positions = {run_.work(context).block_position[at(block)] + b.num_tokens - 1};
    item.replaces_last_row = true;
    items_.push_back(std::move(item));
  } else if (!suffix.empty()) {
    if (!after_run || apart) items_.emplace_back();
    append(items_.back().ids, items_.back().positions, suffix, run_.execution.suffix_position);
  }
  items_.back().question = true;
}

void Assembly::skip(std::int64_t tokens) {
  while (tokens > 0) {
    Item& item = items_.front();
    QUIRE_CHECK(item.contexts.empty(), "only computed tokens are skipped");
    const auto n = static_cast<std::ptrdiff_t>(
        std::min(at(static_cast<std::int32_t>(tokens)), item.ids.size()));
    item.ids.erase(item.ids.begin(), item.ids.begin() + n);
    item.positions.erase(item.positions.begin(), item.positions.begin() + n);
    if (item.ids.empty()) items_.erase(items_.begin());
    tokens -= n;
  }
}

/// Returns whether the question may begin before the last layer of the preceding contexts is
/// placed. It may not if a retrieval head follows the prompt, or if the last placed row is removed
/// again.
bool Assembly::overlaps(const Item& item) const {
  const Item& next = items_[next_ + 1];
  return &item == &items_[next_] && next.question && !next.replaces_last_row && !run_.head_track;
}

bool Assembly::ready() const {
  if (done()) return false;
  const Item& item = items_[next_];
  if (!item.contexts.empty()) return !placing_ || placement_.done();
  return placement_.placed(chunk_ ? chunk_->pass->layer() : 0);
}

Status Assembly::place() { return placement_.step(); }

Status Assembly::bring_all() {
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    QUIRE_RETURN_IF_ERROR(placement_.bring(layer));
  return {};
}

Status Assembly::step() {
  Item& item = items_[next_];
  if (item.contexts.empty()) return run_.sparse_prefill() ? run_sparse(item) : run_chunk(item);
  if (!placing_) {
    QUIRE_RETURN_IF_ERROR(placement_.begin(item.contexts));
    placing_ = true;
    if (!placement_.done() && !overlaps(item)) return {};
  }
  if (!placement_.done() && !overlaps(item)) return {};
  placing_ = false;
  ++next_;
  return run_.head_track ? track_placed(item) : Status();
}

/// Passes tokens of placed contexts to the retrieval head, by the keys stored with them or by their
/// embeddings.
Status Assembly::track_placed(const Item& item) {
  for (const std::int32_t context : item.contexts) {
    const ContextWork& work = run_.work(context);
    const auto& blocks = run_.planned(context).blocks;
    const HeadRecordView* stored = supply_.record<HeadRecordView>(context);
    std::vector<std::int32_t> ids, positions;
    std::vector<float> keys;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (work.block_position[b] < 0) continue;
      append(
          ids, positions,
          std::span(run_.ids(context)).subspan(at(blocks[b].first_token), at(blocks[b].num_tokens)),
          work.block_position[b]);
      if (stored != nullptr) stored->keys(blocks[b].first_token, blocks[b].num_tokens, keys);
    }
    if (stored != nullptr)
      run_.head_track->add_known(ids, positions, keys);
    else
      QUIRE_RETURN_IF_ERROR(run_.head_track->add_embedded(ids, positions));
  }
  return {};
}

Status Assembly::take_last_row_out(const Item& item) {
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer) {
    const auto rows = run_.cache->positions(layer);
    if (rows.empty() || rows.back() != item.positions[0]) {
      return Status::invalid(run_.request.question_param,
                             "strategy " + run_.plan.strategy + " needs a question");
    }
    run_.cache->truncate(layer, run_.cache->num_rows(layer) - 1);
  }
  const std::int32_t context = items_[next_ - 1].contexts.back();
  PlannedBlock& b = run_.planned(context)
                        .blocks[at(run_.execution.selection.kept(0, context).back())];
  if (b.recomputed_tokens < b.num_tokens) ++b.recomputed_tokens;
  return {};
}

bool Assembly::last_chunk() const {
  if (run_.sparse_prefill()) return !done() && !sparse_;
  return !done() && items_[next_].question &&
         items_[next_].ids.size() - done_tokens_ <= at(run_.core.chunk_tokens);
}

/// The look-ahead ends at the model's last position.
std::span<const std::int32_t> Assembly::look_ahead() const {
  if (!run_.look_ahead) return {};
  return run_.look_ahead->tokens(run_.core.model->rope().max_positions() - next_position_);
}

Status Assembly::run_sparse(Item& item) {
  const auto started = Clock::now();
  if (compute_started_ == Clock::time_point{}) compute_started_ = started;
  if (!sparse_) {
    logits_.resize(at(run_.core.model->config().vocab_size));
    sparse_ = std::make_unique<SparsePass>(run_, item.ids, item.positions, look_ahead(),
                                           logits_.data());
  }
  QUIRE_RETURN_IF_ERROR(sparse_->step());
  run_.stats.prefill_ms += ms_between(started, Clock::now());
  if (!sparse_->done()) return {};
  sparse_.reset();
  ++next_;
  return {};
}

void Assembly::begin_chunk(Item& item) {
  chunk_ = std::make_unique<Chunk>();
  Chunk& c = *chunk_;
  c.size = std::min(at(run_.core.chunk_tokens), item.ids.size() - done_tokens_);
  c.last = done_tokens_ + c.size == item.ids.size();
  c.last_row = static_cast<std::int32_t>(c.size) - 1;
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::span(all).subspan(done_tokens_, c.size);
  };
  c.ids.assign(part(item.ids).begin(), part(item.ids).end());
  c.positions.assign(part(item.positions).begin(), part(item.positions).end());
  if (c.last && item.question) {
    // Preceding rows do not attend to these, so the answer begins with the same bits.
    const std::span<const std::int32_t> ahead = look_ahead();
    append(c.ids, c.positions, ahead, next_position_);
    c.ahead = ahead.size();
  }
  c.hooks.emplace(
      item.question || run_.compressor->observes_prompt() ? run_.compressor->observer() : nullptr,
      run_.queries.get());
  ForwardRequest request{};
  request.token_ids = c.ids;
  request.positions = c.positions;
  request.cache = &*run_.cache;
  request.tap = run_.head_track.get();
  if (!c.hooks->empty()) request.hook = &*c.hooks;
  if (c.last && item.question) {
    logits_.resize(at(run_.core.model->config().vocab_size));
    request.logit_rows = std::span(&c.last_row, 1);
    request.logits = logits_.data();
  }
  c.own_workspace.beside = run_.core.workspace.beside;
  // Other passes run between layers, in the engine's workspace.
  c.pass.emplace(*run_.core.model, request,
                 placement_.all_placed() ? run_.core.workspace : c.own_workspace);
}

Status Assembly::run_chunk(Item& item) {
  const auto started = Clock::now();
  if (compute_started_ == Clock::time_point{}) compute_started_ = started;
  if (item.replaces_last_row) {
    QUIRE_RETURN_IF_ERROR(take_last_row_out(item));
    item.replaces_last_row = false;
  }
  if (!chunk_) begin_chunk(item);
  while (!chunk_->pass->done() && placement_.placed(chunk_->pass->layer())) {
    QUIRE_RETURN_IF_ERROR(placement_.bring(chunk_->pass->layer()));
    QUIRE_RETURN_IF_ERROR(chunk_->pass->step());
  }
  const double ms = ms_between(started, Clock::now());
  run_.stats.prefill_ms += ms;
  if (!placement_.done()) run_.stats.overlapped_ms += ms;
  chunk_->ms += ms;
  return chunk_->pass->done() ? end_chunk() : Status();
}

Status Assembly::end_chunk() {
  const Chunk& c = *chunk_;
  if (run_.head_track)
    QUIRE_RETURN_IF_ERROR(run_.head_track->add_computed(std::span(c.ids).first(c.size),
                                                        std::span(c.positions).first(c.size)));
  for (std::int32_t layer = 0; layer < run_.cache->num_layers() && c.ahead > 0; ++layer) {
    run_.cache->truncate(layer, run_.cache->num_rows(layer) - static_cast<std::int64_t>(c.ahead));
  }
  run_.stats.lookahead_tokens += static_cast<std::int64_t>(c.ahead);
  if (!run_.request.background) run_.core.meter->add_prefill(count_of(c.ids), c.ms);
  done_tokens_ += c.size;
  const bool last = c.last;
  chunk_.reset();
  if (!last) return {};
  done_tokens_ = 0;
  ++next_;
  return {};
}

}  // namespace quire
