/// SpeContext: a retrieval head chooses before the forward pass of a token what all layers attend
/// to, so that it can be brought while lower layers compute.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/plug/plug_options.h"
#include "engine/residency/memory_manager.h"
#include "engine/residency/token_slots.h"
#include "engine/retrieve/head/draft_scorer.h"
#include "engine/retrieve/head/head_keys.h"
#include "engine/retrieve/head/head_keys_there.h"
#include "engine/retrieve/head/head_selection.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/slot_copies.h"

namespace quire {

/// What `cache.options.decode_head` and service decide of the head's input.
HeadInput head_input(const PlugOptions& options, const RetrievalHead& head);

/// One sequence. Without a head the attention of a draft's layer chooses, which reads the prompt in
/// prepare_more(). begin_step() scores every cached token with the head, chooses for each KV head,
/// and asks for the rows that are not on the device yet, layer by layer from below, on the host a
/// few layers ahead of the one that attends; attend() waits for those of its layer. Layers that fit
/// stay on the device and are read where they are. A layer attends to everything while its rows fit
/// the budget. Layers with the same rows share one choice and one map of slots; a layer that lacks
/// rows (selection per layer) chooses among its own by the same scores. Where a compressor ranked
/// rows, the hottest are brought before the first step.
class SpeContextRetriever final : public Retriever {
 public:
  ~SpeContextRetriever() override { settle(); }

  std::string_view name() const override { return "specontext"; }
  std::span<const PlugOption> options() const override;
  Status check(const PlugOptions& options) const override;
  bool uses_device() const override { return true; }
  bool wants_head() const override { return true; }
  ChoosingNeed choosing_need(const PlugOptions&, const RetrieveShape& shape) const override {
    return shape.head != nullptr ? HeadKeysThere::need(*shape.head) : ChoosingNeed();
  }
  Status prepare(const RetrieveInput& input) override;
  bool prepared() const override { return unread_.empty(); }
  Status prepare_more() override;
  std::span<const std::int32_t> hidden_layers() const override;
  void take_hidden(std::int32_t layer, const float* x) override;
  HeadRow head_row() const override;
  void take_head_row(const float* query, const float* key) override;
  Status begin_step(std::int32_t token_id, std::int32_t position) override;
  /// Where a head chooses on the host: its weights are all that requests share.
  bool begins_beside() const override { return keys_.has_value(); }
  void took_to_choose(double ms) override { stats_.choose_ms += ms; }
  /// What is chosen is known before the layers run: a device attends by itself.
  bool looks_at(const RetrieveStep& step) const override;
  Status attend(const RetrieveStep& step) override;
  void settle() override;
  RetrieveStats stats() const override;

  /// Rows of `layer` that KV head `head` attends to in the step that began last, ascending; empty
  /// while the layer is dense (tests).
  std::vector<std::int32_t> attended_rows(std::int32_t layer, std::int32_t head) const;
  /// Of the layer's slots, by KV head: the row each holds; empty while it is dense (tests).
  std::vector<std::int32_t> slot_rows(std::int32_t layer, std::int32_t head) const;

 private:
  /// Layers with the same rows.
  struct Group {
    std::vector<std::int32_t> token_of_row;       ///< index of the token in what is scored
    bool every_token = true;                      ///< row r is token r
    bool sparse = false;                          ///< in this step
    std::vector<std::vector<std::int32_t>> rows;  ///< [num_kv_heads] chosen for this step
    std::vector<SlotMap> maps;  ///< [num_kv_heads], empty before the first sparse step
    /// [num_kv_heads] of this step, without the row of the step itself
    std::vector<std::vector<SlotLoad>> loads;
    MoveList moves;  ///< the same for all layers that were there before; null: none has asked yet
  };
  static constexpr std::int32_t kLayersAhead = 2;  ///< that are being brought while one attends
  struct Layer {
    std::size_t group = 0;
    std::optional<TokenSlots> slots;  ///< once it has left the device
    /// It has left with this step, or the one before ended early: its slots hold nothing of what
    /// the maps say
    bool empty_slots = false;
    /// Since its last step the slots hold what the maps say, that step's own row among it
    bool whole = true;
    SlotCopies lane;
  };
  Status match_rows(const RetrieveInput& input);
  /// Keys of the prompt's tokens, or what a draft is to read piece by piece.
  Status read_prompt(const RetrieveInput& input);
  Status take_in(std::int32_t token_id, std::int32_t position);
  Status score(std::int32_t token_id, std::int32_t position, bool again);
  void turn_heads(bool again);
  std::size_t num_tokens() const {
    return static_cast<std::size_t>(draft_        ? draft_->num_tokens()
                                    : keys_there_ ? keys_there_->num_rows()
                                                  : keys_->num_rows());
  }
  std::int64_t scorer_bytes() const {
    return draft_ ? draft_->bytes() : keys_there_ ? keys_there_->bytes() : keys_->bytes();
  }
  void choose(Group& group);
  void move_window(Group& group) const;
  static void place(Group& group);
  Status warm_start(const Heat& heat);
  Status begin_device();
  Status bring(std::int32_t layer);
  /// bring() of the layers before `end` that this step has not brought yet.
  Status bring_before(std::int32_t end);
  Status wait(Layer& layer) { return layer.lane.wait(copy_lanes(input_), stats_); }
  Status attend_in_slots(Layer& layer, const Group& group, const RetrieveStep& step,
                         const KvView& kv);
  static Status attend_in_place(const Group& group, const RetrieveStep& step, const KvView& kv);

  SelectionBudget budget_;
  /// Steps that a choice serves, and how many more the last one does
  std::int32_t reuse_ = 1, serves_ = 0;
  double tau_ = 0;       ///< heads whose queries keep that cosine to those of their choice go by it
  bool elastic_ = true;  ///< only what the slots lack is brought
  RetrieveInput input_;
  LayerMemory memory_;
  HeadInput mode_ = HeadInput::kEmbedding;
  std::shared_ptr<ChoosingMemory> memory_there_;  ///< null where the host computes
  std::optional<HeadKeys> keys_;                  ///< where a head chooses and the host computes
  std::optional<HeadKeysThere> keys_there_;       ///< where a head chooses and a device computes
  std::unique_ptr<DraftScorer> draft_;            ///< where a draft does
  /// Of the prompt, from the back: what the draft has yet to read
  std::vector<std::int32_t> unread_;
  std::int64_t scorer_row_bytes_ = 0;  ///< of the draft, for each token
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  std::int32_t brought_ = 0;  ///< layers that the step under way has brought
  /// Of the token before, and of the one that runs; [feature_dim]
  std::vector<float> feature_, next_feature_;
  std::vector<float> scores_, query_, key_, row_scores_;
  bool projected_ = false;  ///< query_ and key_ are there for the step to begin
  std::vector<bool> anew_;  ///< [num_kv_heads] that choose in this step
  /// [num_kv_heads] rotated queries of the head's KV heads that stand for it, where a choice serves
  /// several steps
  std::vector<std::vector<float>> chosen_by_;
  RetrieveStats stats_;
  Status failed_;  ///< a copy that settle() found failed: the next step says so
};

}  // namespace quire
