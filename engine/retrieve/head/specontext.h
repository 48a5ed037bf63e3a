/// SpeContext chooses the rows of all layers with a retrieval head before a token's forward pass,
/// so that they are prefetched while lower layers compute.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/index.h"
#include "engine/residency/memory_manager.h"
#include "engine/residency/token_slots.h"
#include "engine/retrieve/head/device_head_keys.h"
#include "engine/retrieve/head/draft_scorer.h"
#include "engine/retrieve/head/head_keys.h"
#include "engine/retrieve/head/head_selection.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retrieve_options.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/slot_copies.h"

namespace quire {

/// What the head sees of a token, as a request may ask.
enum class AskedInput : std::uint8_t { kAuto, kFeature, kEmbedding };

struct SpeContextOptions : RetrieveOptions {
  SpeContextOptions() {
    sink = 4;
    window = 64;
  }
  Residency residency = Residency::kWhatFits;
  bool elastic = true;     ///< only rows missing in the slots are copied
  std::int32_t reuse = 1;  ///< steps that a choice serves
  double tau = 0.8;        ///< cosine that a head's queries keep to those of a choice it reuses
  AskedInput input = AskedInput::kAuto;
  std::int32_t draft_layer = 0;  ///< layer of the draft whose attention chooses; 0: two thirds up

  /// Errors: kInvalidArgument, field "<field>.decode_budget": it leaves nothing to choose.
  Status finish(std::string_view field) const;
  SelectionBudget selection_budget() const { return {budget, sink, window}; }
};

/// SpeContextRetriever serves one sequence. Without a head, the attention of a draft's layer
/// chooses; the draft reads the prompt in prepare_more(). begin_step() scores every cached token
/// with the head (score_together() does so for the sequences of a step), chooses for each KV head,
/// and prefetches the rows that are not on the device yet, layer by layer from the lowest; on the
/// host a few layers ahead of the attending one. attend() waits for the rows of its layer. Layers
/// that fit stay on the device and are read in place. A layer attends to everything while its rows
/// fit the budget. Layers with the same rows share one choice and one slot map; a layer that lacks
/// rows (selection per layer) chooses among its own by the same scores. If a compressor ranked
/// rows, the most important ones are copied before the first step.
class SpeContextRetriever final : public Retriever,
                                  public HeadDriven,
                                  public DeviceBudgeted,
                                  public PreparesInPieces {
 public:
  explicit SpeContextRetriever(const SpeContextOptions& options)
      : Retriever({.uses_device = true}), options_(options), budget_(options.selection_budget()) {}
  ~SpeContextRetriever() override { synchronize(); }

  ChoosingNeed choosing_need(const RetrieveShape& shape) const override {
    return shape.head != nullptr ? DeviceHeadKeys::need(*shape.head) : ChoosingNeed();
  }
  HeadInput head_input(const RetrievalHead& head) const override;
  Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) override;
  bool prepared() const override { return unread_.empty(); }
  Status prepare_more() override;
  std::span<const std::int32_t> hidden_layers() const override;
  void take_hidden(std::int32_t layer, const float* x) override;
  TokenInput token_input() const override;
  void take_projection(const float* query, const float* key) override;
  Result<bool> take_token(std::int32_t token_id, std::int32_t position) override;
  Status score_together(std::span<HeadDriven* const> retrievers) override;
  Status begin_step(std::int32_t token_id, std::int32_t position) override;
  /// Returns whether a head chooses on the host. Requests then share nothing but its weights.
  bool begins_in_parallel() const override { return keys_.has_value(); }
  /// Returns false on a device, which attends by itself because the choice is known before the
  /// layers run.
  bool needs_host(const RetrieveStep&) const override { return false; }
  Status attend(const RetrieveStep& step) override;
  void synchronize() override;
  RetrieveStats stats() const override;

  /// Returns the rows of `layer` that KV head `head` attends to in the step that began last,
  /// ascending; empty while the layer is dense (tests).
  std::vector<std::int32_t> attended_rows(std::int32_t layer, std::int32_t head) const;
  /// Returns the row that each of the layer's slots holds, for one KV head; empty while it is dense
  /// (tests).
  std::vector<std::int32_t> slot_rows(std::int32_t layer, std::int32_t head) const;

 private:
  /// Group is a set of layers with the same rows.
  struct Group {
    std::vector<std::int32_t> token_of_row;       ///< index of the token among those scored
    bool every_token = true;                      ///< row r is token r
    bool sparse = false;                          ///< in this step
    std::vector<std::vector<std::int32_t>> rows;  ///< [num_kv_heads], chosen for this step
    std::vector<SlotMap> maps;  ///< [num_kv_heads], empty before the first sparse step
    /// The copies of this step, [num_kv_heads], without the row of the step itself.
    std::vector<std::vector<SlotLoad>> loads;
    MoveList moves;  ///< shared by all layers whose slots follow the maps; null: not yet built
  };
  static constexpr std::int32_t kLayersAhead = 2;  ///< layers prefetched while one attends
  struct Layer {
    std::size_t group = 0;
    std::optional<TokenSlots> slots;  ///< set once the layer has left the device
    /// Whether the slots hold nothing that the maps say: the layer left with this step, or the
    /// previous step ended early.
    bool empty_slots = false;
    /// Whether the slots hold what the maps say since the layer's last step, including that step's
    /// own row.
    bool whole = true;
    SlotCopies lane;
  };
  Status match_rows(const HeadTrack& track);
  /// Computes keys of the prompt's tokens, or queues the tokens that a draft reads piece by piece.
  Status read_prompt(const HeadTrack& track);
  Status take_in(std::int32_t token_id, std::int32_t position);
  Status take_step(std::int32_t token_id, std::int32_t position);
  Status score(std::int32_t token_id, std::int32_t position);
  /// Returns whether any head chooses anew in this step.
  bool chooses() const { return std::ranges::find(anew_, true) != anew_.end(); }
  /// Returns what this step asks of the keys on the device.
  DeviceHeadKeys::Asked asked();
  void turn_heads(bool again);
  std::size_t num_tokens() const {
    return to_size(draft_         ? draft_->num_tokens()
                   : device_keys_ ? device_keys_->num_rows()
                                  : keys_->num_rows());
  }
  std::int64_t scorer_bytes() const {
    return draft_ ? draft_->bytes() : device_keys_ ? device_keys_->bytes() : keys_->bytes();
  }
  void choose(Group& group);
  std::vector<std::vector<std::int32_t>> selected_by_scores(const Group& group);
  void move_window(Group& group) const;
  static void place(Group& group);
  Status warm_start(const RetainedRows& retained);
  Status begin_device();
  Status bring(std::int32_t layer);
  /// Calls bring() for the layers before `end` that this step has not prefetched yet.
  Status bring_before(std::int32_t end);
  Status wait(Layer& layer) { return layer.lane.wait(copy_streams(sequence_), stats_); }
  Status attend_in_slots(Layer& layer, const Group& group, const RetrieveStep& step,
                         const KvView& kv);
  static Status attend_in_place(const Group& group, const RetrieveStep& step, const KvView& kv);

  const SpeContextOptions options_;
  const SelectionBudget budget_;
  std::int32_t serves_ = 0;  ///< steps that are left for the last choice
  SequenceContext sequence_;
  LayerMemory memory_;
  HeadInput mode_ = HeadInput::kEmbedding;
  std::shared_ptr<ChoosingMemory> device_memory_;  ///< null where the host computes
  std::optional<HeadKeys> keys_;                   ///< set if a head chooses and the host computes
  std::optional<DeviceHeadKeys> device_keys_;      ///< set if a head chooses and a device computes
  std::unique_ptr<DraftScorer> draft_;             ///< set if a draft chooses
  /// The prompt tokens that the draft has not read yet, in reverse order.
  std::vector<std::int32_t> unread_;
  std::int64_t scorer_row_bytes_ = 0;  ///< of the draft, for each token
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  std::int32_t brought_ = 0;  ///< layers that the current step has prefetched
  /// The features of the previous token and of the current one; [feature_dim].
  std::vector<float> feature_, next_feature_;
  std::vector<float> scores_, query_, key_, row_scores_;
  bool projected_ = false;  ///< query_ and key_ are set for the step to begin
  bool taken_ = false;      ///< take_token() has run for the step to begin
  bool scored_ = false;     ///< and so has score_together()
  bool sparse_ = false;     ///< a group is sparse in this step
  std::vector<bool> anew_;  ///< [num_kv_heads] that choose anew in this step
  /// The tokens that each KV head chooses, [num_kv_heads], where the device chooses them.
  std::vector<std::vector<std::int32_t>> chosen_;
  /// The rotated queries of the head's KV heads that stand for each KV head, [num_kv_heads], if a
  /// choice serves several steps.
  std::vector<std::vector<float>> chosen_by_;
  Status failed_;  ///< status of a failed copy that synchronize() found; the next step returns it
};

}  // namespace quire
