#include "engine/retrieve/head/specontext.h"

#include <algorithm>
#include <string>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/step_attention.h"

namespace quire {
namespace {

/// Returns the prompt token of each row. Rows have the order of the prompt, and tokens may be
/// missing.
Result<std::vector<std::int32_t>> tokens_of_rows(std::span<const std::int32_t> rows,
                                                 std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> out;
  std::size_t next = 0;
  for (const std::int32_t position : rows) {
    std::size_t looked_at = 0;
    for (; looked_at < tokens.size() && tokens[next % tokens.size()] != position; ++looked_at)
      ++next;
    if (looked_at == tokens.size())
      return Status::internal("the cache has a row at position " + std::to_string(position) +
                              ", the prompt has no such token");
    out.push_back(static_cast<std::int32_t>(next++ % tokens.size()));
  }
  return out;
}

MoveList moves_of(const std::vector<std::vector<SlotLoad>>& loads) {
  auto moves = std::make_shared<std::vector<KvMove>>();
  std::size_t rows = 0;
  for (const auto& of_head : loads) rows += of_head.size();
  moves->reserve(rows);
  for (std::size_t m = 0; m < loads.size(); ++m) {
    for (const SlotLoad& load : loads[m])
      moves->push_back({static_cast<std::int32_t>(m), load.row, load.slot, 1});
  }
  return moves;
}

/// Returns copies of all wanted rows but the last, which is the step's own, to their slots.
std::vector<std::vector<SlotLoad>> everything(std::span<const std::vector<std::int32_t>> rows,
                                              std::span<const SlotMap> maps) {
  std::vector<std::vector<SlotLoad>> loads(rows.size());
  for (std::size_t m = 0; m < rows.size(); ++m) {
    for (std::size_t i = 0; i + 1 < rows[m].size(); ++i)
      loads[m].push_back({rows[m][i], maps[m].slots()[i]});
  }
  return loads;
}

}  // namespace

Status SpeContextOptions::finish(std::string_view field) const {
  const std::int32_t last = std::max<std::int32_t>(window, 1);
  if (budget > std::int64_t{sink} + last) return {};
  return Status::invalid(std::string(field) + ".decode_budget",
                         "a budget of " + std::to_string(budget) +
                             " tokens leaves nothing to choose beside " + std::to_string(sink) +
                             " of sinks and " + std::to_string(last) +
                             " of window; raise it or lower those");
}

HeadInput SpeContextRetriever::head_input(const RetrievalHead& head) const {
  return options_.input == AskedInput::kEmbedding || !head.uses_features() ? HeadInput::kEmbedding
                                                                           : HeadInput::kFeature;
}

Status SpeContextRetriever::prepare(const SequenceContext& sequence,
                                    const AssembledPrompt& prompt) {
  const HeadTrack* track = prompt.head_track;
  QUIRE_CHECK((sequence.head != nullptr || sequence.draft != nullptr) && track != nullptr &&
                  sequence.device != nullptr,
              "specontext needs a head or a draft, a prompt and a device");
  if (options_.input == AskedInput::kFeature &&
      (sequence.head == nullptr || !sequence.head->uses_features())) {
    return Status::invalid(
        "cache.options.decode_head",
        sequence.head == nullptr
            ? "a draft chooses in this service, which sees tokens; use auto"
            : "the retrieval head of this service knows embeddings only; use embed or auto");
  }
  if (sequence.head == nullptr && options_.reuse > 1 && options_.tau > -1) {
    return Status::invalid(
        "cache.options.decode_reuse",
        "a draft chooses in this service, and how far its queries turn is not seen, so that a "
        "choice for several steps would miss what they ask for; use 1");
  }
  serves_ = 0;
  chosen_by_.assign(at(sequence.num_kv_heads), {});
  mode_ = track->input();
  sequence_ = sequence;
  device_memory_ = choosing_memory(sequence);
  groups_.clear();
  layers_.clear();
  brought_ = sequence.num_layers;
  QUIRE_RETURN_IF_ERROR(match_rows(*track));
  QUIRE_RETURN_IF_ERROR(read_prompt(*track));
  const KvView kv = sequence.cache->view(0);
  RequestMemory memory;
  memory.device_bytes = sequence.device->max_bytes();
  memory.requests = sequence.device_requests;
  memory.num_layers = sequence.num_layers;
  memory.row_bytes = TokenSlots::bytes_for(kv.num_kv_heads, kv.head_dim, kv.dtype, kPageTokens) /
                     kPageTokens;
  if (device_memory_ != nullptr)
    memory.choosing = choosing_need(shape_of(sequence, prompt.contexts.size()));
  memory.retrieval_row_bytes = sequence.head != nullptr && device_memory_ != nullptr ? 0
                               : sequence.head != nullptr
                                   ? HeadKeys::bytes_for(sequence.head->config(), kPageTokens) /
                                         kPageTokens
                                   : scorer_row_bytes_;
  memory.budget_rows = (budget_.tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
  memory_ = LayerMemory(*sequence.device, memory, options_.residency);
  stats_.device_bytes = scorer_bytes();
  return prompt.retained != nullptr && !prompt.retained->hot.empty() ? warm_start(*prompt.retained)
                                                                     : Status();
}

Status SpeContextRetriever::read_prompt(const HeadTrack& track) {
  keys_.reset();
  device_keys_.reset();
  draft_.reset();
  unread_.clear();
  if (sequence_.head == nullptr) {
    const std::int32_t layers = sequence_.draft->config().num_layers, asked = options_.draft_layer;
    if (asked > layers)
      return Status::invalid("cache.options.decode_draft_layer",
                             "the draft has " + std::to_string(layers) + " layers");
    const std::int32_t layer = asked > 0 ? asked - 1 : std::min(layers - 1, layers * 2 / 3);
    draft_ = std::make_unique<DraftScorer>(*sequence_.draft, layer);
    scorer_row_bytes_ = DraftScorer::row_bytes(*sequence_.draft, layer);
    const auto prompt = track.token_ids();
    QUIRE_RETURN_IF_ERROR(draft_->check_room(count_of(prompt)));
    unread_.assign(prompt.rbegin(), prompt.rend());
    return {};
  }
  if (device_memory_ != nullptr)
    device_keys_.emplace(*sequence_.compute, device_memory_, *sequence_.head);
  else
    keys_.emplace(*sequence_.device, *sequence_.head);
  query_.resize(at(sequence_.head->config().query_dim()));
  key_.resize(at(sequence_.head->config().key_dim()));
  const auto last = track.last_feature();
  feature_.assign(at(sequence_.head->feature_dim()), 0.0f);
  std::copy(last.begin(), last.end(), feature_.begin());
  return device_keys_ ? device_keys_->append(track.keys().data(), track.positions())
                      : keys_->append(track.keys().data(), track.positions());
}

Status SpeContextRetriever::prepare_more() {
  const std::size_t n = std::min(unread_.size(), DraftScorer::kChunkTokens);
  const std::vector<std::int32_t> piece(unread_.rbegin(),
                                        unread_.rbegin() + static_cast<std::ptrdiff_t>(n));
  unread_.resize(unread_.size() - n);
  QUIRE_RETURN_IF_ERROR(draft_->read(piece));
  stats_.device_bytes = std::max(stats_.device_bytes, scorer_bytes());
  return {};
}

/// Copies the likely budget of the first step, by a compressor's ranking. Layers with the same rows
/// get the rows that come first in all their lists together; the step replaces those that it does
/// not want.
Status SpeContextRetriever::warm_start(const RetainedRows& retained) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.sparse = count_of(group.token_of_row) + 1 > budget_.tokens;
    if (!group.sparse) continue;
    group.maps.assign(at(sequence_.num_kv_heads), SlotMap(budget_.tokens));
    for (std::size_t m = 0; m < group.rows.size(); ++m) {
      row_scores_.assign(group.token_of_row.size(), 0.0f);
      for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        const auto& hot = retained.hot[layer][m];
        for (std::size_t i = 0; layers_[layer].group == g && i < hot.size(); ++i)
          row_scores_[at(hot[i])] += static_cast<float>(hot.size() - i);
      }
      group.rows[m] = select_tokens(row_scores_, budget_);
      group.maps[m].want(group.rows[m], group.loads[m]);
    }
  }
  if (std::none_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.sparse; }))
    return {};
  QUIRE_RETURN_IF_ERROR(begin_device());
  for (std::int32_t layer = 0; layer < sequence_.num_layers; ++layer) {
    layers_[at(layer)].empty_slots = false;  // the loads contain everything in the maps
    layers_[at(layer)].whole = true;
    QUIRE_RETURN_IF_ERROR(bring(layer));
  }
  return {};
}

Status SpeContextRetriever::match_rows(const HeadTrack& track) {
  std::vector<std::int32_t> first_layer;  // of each group
  for (std::int32_t layer = 0; layer < sequence_.num_layers; ++layer) {
    const auto rows = sequence_.cache->positions(layer);
    const auto same = std::find_if(first_layer.begin(), first_layer.end(), [&](std::int32_t other) {
      return std::ranges::equal(rows, sequence_.cache->positions(other));
    });
    layers_.emplace_back().group = at(same - first_layer.begin());
    if (same != first_layer.end()) continue;
    first_layer.push_back(layer);
    Group group;
    QUIRE_ASSIGN_OR_RETURN(group.token_of_row, tokens_of_rows(rows, track.positions()));
    for (std::size_t r = 0; r < group.token_of_row.size() && group.every_token; ++r)
      group.every_token = group.token_of_row[r] == static_cast<std::int32_t>(r);
    group.every_token = group.every_token && rows.size() == track.positions().size();
    group.rows.resize(at(sequence_.num_kv_heads));
    group.loads.resize(at(sequence_.num_kv_heads));
    groups_.push_back(std::move(group));
  }
  return {};
}

std::span<const std::int32_t> SpeContextRetriever::hidden_layers() const {
  return mode_ == HeadInput::kFeature ? sequence_.head->feature_layers()
                                      : std::span<const std::int32_t>();
}

void SpeContextRetriever::take_hidden(std::int32_t layer, const float* x) {
  const auto layers = sequence_.head->feature_layers();
  const auto hidden = at(sequence_.head->config().hidden_size);
  for (std::size_t part = 0; part < layers.size(); ++part) {
    if (layers[part] == layer)
      std::copy_n(x, hidden, feature_.begin() + static_cast<std::ptrdiff_t>(part * hidden));
  }
}

/// Offloads layers until the rest fits and gives the offloaded ones slots.
Status SpeContextRetriever::begin_device() {
  std::size_t rows = 0;
  for (const Group& group : groups_) rows = std::max(rows, group.token_of_row.size());
  QUIRE_RETURN_IF_ERROR(memory_.grow(static_cast<std::int64_t>(rows)));
  const KvView kv = sequence_.cache->view(0);
  std::int64_t held = scorer_bytes() + memory_.bytes();
  for (std::int32_t l = 0; l < sequence_.num_layers; ++l) {
    Layer& layer = layers_[at(l)];
    if (groups_[layer.group].sparse && !memory_.resident(l) && !layer.slots) {
      QUIRE_RETURN_IF_ERROR(leave_device(sequence_, l, PageLayout::kTokenGranules, stats_));
      QUIRE_ASSIGN_OR_RETURN(
          layer.slots, TokenSlots::create(*sequence_.device, kv.num_kv_heads, kv.head_dim, kv.dtype,
                                          budget_.tokens));
      layer.empty_slots = true;
      layer.whole = false;
    }
    if (layer.slots) held += layer.slots->bytes();
  }
  stats_.device_bytes = std::max(stats_.device_bytes, held);
  stats_.layers_offloaded = memory_.offloaded();
  return {};
}

/// Copies what the layer's slots lack, to be complete when its attend() runs.
Status SpeContextRetriever::bring(std::int32_t index) {
  Layer& layer = layers_[at(index)];
  Group& group = groups_[layer.group];
  if (!group.sparse || !layer.slots) return {};
  MoveList moves;
  if (layer.empty_slots || !options_.elastic) {
    moves = moves_of(everything(group.rows, group.maps));
  } else {
    if (group.moves == nullptr) group.moves = moves_of(group.loads);
    moves = group.moves;
  }
  layer.empty_slots = false;
  const auto rows = static_cast<std::int64_t>(moves->size());
  // The step's own row is appended.
  for (const auto& of_head : group.rows) stats_.rows_wanted += count_of(of_head) - 1;
  stats_.rows_copied += rows;
  stats_.bytes_copied += rows * layer.slots->row_bytes();
  return layer.lane.copy_async(copy_streams(sequence_), sequence_.cache->view(index),
                               layer.slots->slots(), moves, 1, stats_);
}

RetrieveStats SpeContextRetriever::stats() const {
  RetrieveStats stats = stats_;
  if (device_memory_ != nullptr) stats.choosing_bytes = device_memory_->peak_bytes();
  return stats;
}

void SpeContextRetriever::synchronize() {
  for (Layer& layer : layers_) {
    const Status status = wait(layer);
    if (!status.ok()) failed_ = status;
  }
}

Status SpeContextRetriever::attend(const RetrieveStep& step) {
  Layer& layer = layers_[at(step.layer)];
  const Group& group = groups_[layer.group];
  const KvView kv = step.cache->view(step.layer);
  if (brought_ < sequence_.num_layers) {
    const Stopwatch watch;
    QUIRE_RETURN_IF_ERROR(bring_before(step.layer + 1 + kLayersAhead));
    count_choosing(step, stats_, watch.ms());
  }
  if (!group.sparse) return attend_rows(step, kv);
  ++stats_.sparse_steps;
  return layer.slots ? attend_in_slots(layer, group, step, kv) : attend_in_place(group, step, kv);
}

Status SpeContextRetriever::attend_in_place(const Group& group, const RetrieveStep& step,
                                            const KvView& kv) {
  std::vector<RowList> lists;
  for (const auto& rows : group.rows) lists.push_back({rows.data(), count_of(rows)});
  return attend_rows(step, kv, lists.data());
}

Status SpeContextRetriever::attend_in_slots(Layer& layer, const Group& group,
                                            const RetrieveStep& step, const KvView& kv) {
  const Stopwatch watch;
  QUIRE_RETURN_IF_ERROR(wait(layer));
  std::vector<RowList> lists;
  std::vector<KvMove> newest;
  for (std::size_t m = 0; m < group.maps.size(); ++m) {
    const auto slots = group.maps[m].slots();
    newest.push_back({static_cast<std::int32_t>(m), group.rows[m].back(), slots.back(), 1});
    lists.push_back({slots.data(), count_of(slots)});
  }
  QUIRE_RETURN_IF_ERROR(
      SlotCopies::bring(copy_streams(sequence_), kv, layer.slots->slots(), newest));
  layer.whole = true;
  stats_.bytes_appended += count_of(newest) * layer.slots->row_bytes();
  count_choosing(step, stats_, watch.ms());
  return attend_rows(step, layer.slots->view(), lists.data(), RowOrder::kAny);
}

std::vector<std::int32_t> SpeContextRetriever::attended_rows(std::int32_t layer,
                                                             std::int32_t head) const {
  const Group& group = groups_[layers_[at(layer)].group];
  return group.sparse ? group.rows[at(head)] : std::vector<std::int32_t>();
}

std::vector<std::int32_t> SpeContextRetriever::slot_rows(std::int32_t layer,
                                                         std::int32_t head) const {
  const Group& group = groups_[layers_[at(layer)].group];
  if (!group.sparse) return {};
  const auto rows = group.maps[at(head)].row_of();
  return {rows.begin(), rows.end()};
}

}  // namespace quire
