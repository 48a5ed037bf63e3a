// These functions choose the rows that a step of SpeContext attends to: anew, or those of an
// earlier step if the retrieval head still asks for them.
#include <algorithm>
#include <utility>

#include "base/index.h"
#include "engine/retrieve/head/specontext.h"
#include "kernels/choice/query_turn.h"
#include "kernels/parallel.h"
#include "kernels/rows/rope.h"

namespace quire {
Result<bool> SpeContextRetriever::take_token(std::int32_t token_id, std::int32_t position) {
  QUIRE_RETURN_IF_ERROR(take_step(token_id, position));
  taken_ = true;
  scored_ = false;
  return device_keys_ && sparse_ && chooses();
}

Status SpeContextRetriever::score_together(std::span<HeadDriven* const> retrievers) {
  std::vector<DeviceHeadKeys::Asked> all;
  for (HeadDriven* const one : retrievers)
    all.push_back(dynamic_cast<SpeContextRetriever&>(*one).asked());
  QUIRE_RETURN_IF_ERROR(DeviceHeadKeys::ask(all));
  for (HeadDriven* const one : retrievers) dynamic_cast<SpeContextRetriever&>(*one).scored_ = true;
  return {};
}

/// The device chooses where the tokens that are scored are the rows of every layer.
DeviceHeadKeys::Asked SpeContextRetriever::asked() {
  const bool whole = groups_.size() == 1 && groups_.front().every_token;
  return {.keys = &*device_keys_,
          .query = query_.data(),
          .target_kv_heads = sequence_.num_kv_heads,
          .budget = whole ? &budget_ : nullptr,
          .scores = &scores_,
          .rows = &chosen_};
}

Status SpeContextRetriever::begin_step(std::int32_t token_id, std::int32_t position) {
  if (!std::exchange(taken_, false)) {
    scored_ = false;
    QUIRE_RETURN_IF_ERROR(take_step(token_id, position));
  }
  if (!sparse_) return {};
  if (!scored_) QUIRE_RETURN_IF_ERROR(score(token_id, position));
  stats_.selections += chooses() ? 1 : 0;
  for (Group& group : groups_) {
    if (!group.sparse) continue;
    choose(group);
    place(group);
  }
  QUIRE_RETURN_IF_ERROR(begin_device());
  brought_ = 0;
  // A device keeps the order of its copies. Host threads run copies as they are submitted, so a
  // request submits its own during the step, in order not to wait for another one's later layers.
  return bring_before(copy_streams(sequence_).transfers == nullptr ? sequence_.num_layers
                                                                   : kLayersAhead);
}

/// Takes in the step's token and finds the KV heads that choose anew, anew_: all, except that a
/// head may keep a choice that serves several steps.
Status SpeContextRetriever::take_step(std::int32_t token_id, std::int32_t position) {
  synchronize();
  QUIRE_RETURN_IF_ERROR(failed_);
  bool chosen = true;
  sparse_ = false;
  for (Group& group : groups_) {
    group.token_of_row.push_back(static_cast<std::int32_t>(num_tokens()));
    group.sparse = count_of(group.token_of_row) > budget_.tokens;
    sparse_ = sparse_ || group.sparse;
    chosen = chosen && (!group.sparse || !group.maps.empty());
  }
  for (Layer& layer : layers_) {
    // A step that ended early left slots that do not match the maps.
    if (layer.slots && !std::exchange(layer.whole, false)) layer.empty_slots = true;
  }
  brought_ = sequence_.num_layers;
  if (!sparse_) return take_in(token_id, position);
  const bool again = chosen && serves_ > 0;
  serves_ = again ? serves_ - 1 : options_.reuse - 1;
  anew_.assign(at(sequence_.num_kv_heads), !again);
  // A draft reads the token when it scores.
  if (draft_) return again ? take_in(token_id, position) : Status();
  QUIRE_RETURN_IF_ERROR(take_in(token_id, position));
  const RetrievalHeadConfig& c = sequence_.head->config();
  QUIRE_RETURN_IF_ERROR(rope_rotate(sequence_.head->rope(), {.x = query_.data(),
                                                             .out = query_.data(),
                                                             .positions = &position,
                                                             .rows = 1,
                                                             .num_heads = c.num_heads,
                                                             .ldx = c.query_dim(),
                                                             .ldo = c.query_dim()}));
  if (options_.reuse > 1) turn_heads(again);
  return {};
}

HeadDriven::TokenInput SpeContextRetriever::token_input() const {
  if (!keys_ && !device_keys_) return {};
  return {sequence_.head, mode_ == HeadInput::kFeature ? feature_.data() : nullptr};
}

void SpeContextRetriever::take_projection(const float* query, const float* key) {
  std::copy_n(query, query_.size(), query_.begin());
  std::copy_n(key, key_.size(), key_.begin());
  projected_ = true;
}

Status SpeContextRetriever::bring_before(std::int32_t end) {
  while (brought_ < std::min(end, sequence_.num_layers)) QUIRE_RETURN_IF_ERROR(bring(brought_++));
  return {};
}

/// Adds the step's token to those that are scored.
Status SpeContextRetriever::take_in(std::int32_t token_id, std::int32_t position) {
  if (draft_) return draft_->read(std::span(&token_id, 1));
  const bool featured = mode_ == HeadInput::kFeature;
  if (!std::exchange(projected_, false))
    QUIRE_RETURN_IF_ERROR(sequence_.head->project(
        std::span(&token_id, 1), featured ? feature_.data() : nullptr, query_.data(), key_.data()));
  return device_keys_ ? device_keys_->append(key_.data(), std::span(&position, 1))
                      : keys_->append(key_.data(), std::span(&position, 1));
}

/// Scores for the KV heads in anew_: scores_ [num_kv_heads, tokens], or chosen_.
Status SpeContextRetriever::score(std::int32_t token_id, std::int32_t position) {
  if (!chooses()) return {};
  if (draft_) return draft_->step(token_id, sequence_.num_kv_heads, scores_);
  if (device_keys_) return DeviceHeadKeys::ask({{asked()}});
  return keys_->score(query_.data(), position, sequence_.num_kv_heads, budget_.tokens, &anew_,
                      scores_);
}

/// Adds to anew_ the heads whose queries turned away from those of their choices. It keeps the
/// queries of the heads that choose, for comparison in the next steps.
void SpeContextRetriever::turn_heads(bool again) {
  const RetrievalHeadConfig& c = sequence_.head->config();
  const std::int64_t group = c.num_heads / c.num_kv_heads;
  for (std::int32_t m = 0; m < sequence_.num_kv_heads; ++m) {
    const auto [begin, end] = heads_that_stand_for(m, c.num_kv_heads, sequence_.num_kv_heads);
    const float* query = query_.data() + begin * group * c.head_dim;
    const std::int64_t heads = (end - begin) * group;
    if (again) {
      anew_[at(m)] = mean_cosine(query, chosen_by_[at(m)].data(), heads, c.head_dim) < options_.tau;
      ++(anew_[at(m)] ? stats_.heads_corrected : stats_.heads_kept);
    }
    if (anew_[at(m)]) chosen_by_[at(m)].assign(query, query + heads * c.head_dim);
  }
}

void SpeContextRetriever::choose(Group& group) {
  const std::size_t heads = group.rows.size();
  if (group.maps.empty()) group.maps.assign(heads, SlotMap(budget_.tokens));
  if (!chooses()) return move_window(group);
  auto selected = device_keys_ && asked().budget != nullptr ? std::move(chosen_)
                                                            : selected_by_scores(group);
  move_window(group);
  for (std::size_t m = 0; m < heads; ++m) {
    if (anew_[m]) group.rows[m] = std::move(selected[m]);
  }
}

/// Returns the rows that each KV head in anew_ chooses by scores_.
std::vector<std::vector<std::int32_t>> SpeContextRetriever::selected_by_scores(const Group& group) {
  const std::size_t tokens = num_tokens(), rows = group.token_of_row.size(),
                    heads = group.rows.size();
  std::span<const float> scores(scores_);
  if (!group.every_token) {
    row_scores_.resize(heads * rows);
    for (std::size_t m = 0; m < heads; ++m) {
      for (std::size_t r = 0; anew_[m] && r < rows; ++r)
        row_scores_[m * rows + r] = scores_[m * tokens + at(group.token_of_row[r])];
    }
    scores = row_scores_;
  }
  return select_for_heads(scores.first(heads * rows), static_cast<std::int32_t>(heads), budget_,
                          &anew_);
}

/// Moves the window of heads that keep their choice to end at the step's own row.
void SpeContextRetriever::move_window(Group& group) const {
  const auto last = static_cast<std::int32_t>(group.token_of_row.size()) - 1;
  for (std::size_t m = 0; m < group.rows.size(); ++m) {
    if (anew_[m]) continue;
    auto& rows = group.rows[m];
    rows.erase(rows.end() - std::max(budget_.window, 1));
    rows.push_back(last);
  }
}

/// Assigns slots to the group's rows.
void SpeContextRetriever::place(Group& group) {
  group.moves.reset();
  parallel_tasks(count_of(group.rows), [&](std::int64_t head) {
    const std::size_t m = at(head);
    group.loads[m].clear();
    group.maps[m].want(group.rows[m], group.loads[m]);
    // The step's own row is the last one and never resident; it is copied once the layer has
    // computed it.
    group.loads[m].pop_back();
  });
}

}  // namespace quire
