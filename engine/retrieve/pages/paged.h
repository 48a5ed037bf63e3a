/// PagedRetriever chooses whole pages by summaries of their keys; FreeKV, Quest and similar methods
/// derive from it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/residency/memory_manager.h"
#include "engine/residency/resident_pages.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/key_codes.h"
#include "engine/retrieve/pages/device_choices.h"
#include "engine/retrieve/pages/device_slots.h"
#include "engine/retrieve/pages/page_summaries.h"
#include "engine/retrieve/retrieve_options.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/slot_copies.h"
#include "kernels/choice/candidates.h"
#include "kernels/choice/page_bounds.h"

namespace quire {

/// PageVote says how the page scores of the query heads of one KV head become one score.
using PageVote = CandidateVote;

/// kSmallBudget is the budget below which pages have kSmallPage tokens, because few large pages are
/// a coarse choice. At a budget of 256 of 7,100 tokens the KL to dense decoding is 0.108 with pages
/// of 32 and 0.004 with pages of 16 (docs/decode.md).
inline constexpr std::int32_t kSmallBudget = 1024, kSmallPage = 16;

/// PagedPolicy holds the options of all paged retrievers: lengths in tokens, multiples of
/// page_tokens, and the method. A plug derives from it to set its defaults.
struct PagedPolicy : RetrieveOptions {
  PagedPolicy() {
    sink = window = 128;
    dense_layers = 1;
  }
  /// If pages are copied to the device, a multiple of kPageTokens.
  FixedRows page_tokens = 32;
  /// Options that a request omits adapt to a small budget: sinks and window shrink with it
  /// (fixed_rows.h), and a budget below kSmallBudget has pages of kSmallPage.
  bool follow_budget = false;
  PageSummary summary = PageSummary::kExtremes;
  PageVote vote = PageVote::kMeanSoftmax;
  bool scale = true;  ///< scores are divided by sqrt(head_dim)
  /// The mean cosine between a KV head's queries and those of its choice below which it chooses
  /// anew before it attends. None: the current query always chooses.
  std::optional<double> tau;
  bool device = true;  ///< pages are copied to the device; else they are read in place
  Residency residency = Residency::kWhatFits;  ///< which layers stay on the device
  /// The method computes exact scores from the keys of `rerank` times as many pages as may be
  /// chosen; 1: summaries alone decide.
  std::int32_t rerank = 1;
  /// The number of steps that a KV head's choice serves, at most page_tokens - 1; layers take turns
  /// in choosing anew. With tau, heads whose query turned away from that of their choice do not
  /// wait for their turn, and their next turn moves back accordingly.
  std::int32_t reuse = 1;

  std::int32_t sink_pages() const { return sink / page_tokens; }
  std::int32_t window_pages() const { return window / page_tokens; }
  /// Returns the most rows of a list: at most a page is being filled, and a choice serves a step
  /// more than `reuse`.
  std::int64_t most_listed() const { return std::int64_t{budget} + reuse + 2 * page_tokens; }
  std::int32_t selected_pages() const { return (budget - sink - window) / page_tokens; }
  /// Returns the slots of a KV head in an offloaded layer. They include one page that may have left
  /// the window before any selection saw it, and the page being filled.
  std::int32_t slots() const { return sink_pages() + selected_pages() + window_pages() + 2; }

  /// Adapts what follows the budget and checks that the lengths fit together. Errors:
  /// kInvalidArgument, field "<field>.<option>".
  Status finish(std::string_view field);
};

inline OptionField<PagedPolicy> page_option(
    OptionRange range, std::string_view summary = "tokens of a page; a multiple of 16") {
  return fixed_rows_option("decode_page", &PagedPolicy::page_tokens, range, summary);
}
inline OptionField<PagedPolicy> resident_option() {
  return words_option("decode_resident", &PagedPolicy::residency,
                      {{"auto", Residency::kWhatFits}, {"none", Residency::kNothing}},
                      "layers that stay on the device: those that fit, or none");
}
inline OptionField<PagedPolicy> rerank_option() {
  return number_option("decode_rerank", &PagedPolicy::rerank, {1, 64},
                       "of this many times the pages to be chosen the keys themselves are looked "
                       "at, and the pages attended to most are taken; 1: their bounds decide");
}
/// Describes the vote, of which the words are a subset of avg_softmax, max_softmax, max_score and
/// avg_score.
inline OptionField<PagedPolicy> vote_option(
    std::initializer_list<std::pair<std::string_view, PageVote>> votes) {
  return words_option("decode_pool", &PagedPolicy::vote, votes,
                      "how query heads of a KV head vote for pages");
}

/// PagedRetriever serves one sequence. A layer attends to everything while it has no more rows than
/// the budget. After that it attends to its first pages (sinks), its last ones (window), the page
/// being filled, and for each KV head to the pages with the best scores among the rest. A page that
/// leaves the window stays until a selection has had it among its candidates, so that every row is
/// always sink, window, candidate or resident. Layers that fit stay on the device: their pages are
/// chosen in the same way and read in place. If a compressor ranked rows, the pages of the most
/// important ones are copied before the first step; this saves copies and does not change the
/// choice.
///
/// Where a device computes, votes, a look at keys, turned queries and the slots of layers that have
/// left are all the device's (paged_device.cc): the host only enqueues, and sequences with the same
/// policy attend in one call. The host chooses, and waits for the query and the scores in each
/// layer, if a method overrides choose(); and where it computes.
class PagedRetriever : public Retriever, public DeviceBudgeted, public AttendsTogether {
 public:
  explicit PagedRetriever(const PagedPolicy& policy)
      : Retriever({.uses_device = policy.device}), policy_(policy) {}
  ~PagedRetriever() override { PagedRetriever::synchronize(); }

  ChoosingNeed choosing_need(const RetrieveShape& shape) const override;
  Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) override;
  Status begin_step(std::int32_t token_id, std::int32_t position) override;
  bool needs_host(const RetrieveStep&) const override { return false; }
  /// Returns whether the device chooses and no layer has left it.
  bool follows_unseen() const override {
    return on_device_ && (!policy_.device || memory_.offloaded() == 0);
  }
  Status attend(const RetrieveStep& step) override;
  bool joins(const RetrieveStep& step, const AttendsTogether& first) const override;
  Status ready(const RetrieveStep& step) override;
  Status attend_together(std::span<const RetrieveStep> steps,
                         std::span<AttendsTogether* const> retrievers) override;
  void synchronize() override;
  /// Waits for a device that has chosen.
  RetrieveStats stats() const override;

  /// Returns the pages of a layer that KV head `head` has in device slots, ascending; empty if it
  /// has none (tests).
  std::vector<std::int32_t> resident_pages(std::int32_t layer, std::int32_t head) const;
  /// Returns the pages that KV head `head` attends to at this moment, ascending; empty while the
  /// layer is dense. For tests, after the device was synchronized.
  std::vector<std::int32_t> attended_pages(std::int32_t layer, std::int32_t head) const;

 protected:
  /// Candidates are the pages that one KV head chooses from in a step: [first, first + count),
  /// complete and neither sink nor window.
  struct Candidates {
    std::int32_t layer = 0, kv_head = 0, first = 0, count = 0, group = 0;
    std::span<float> scores;  ///< [group, count], of the KV head's query heads; may be overwritten
    const float* query = nullptr;  ///< [group, head_dim]
    const KvView* kv = nullptr;
    std::span<const RowRange> rows;   ///< [count], row range of each candidate
    const KeyCodes* codes = nullptr;  ///< codes of all their rows; null: there are none
  };
  /// Returns the candidates to attend to, as ascending offsets from the first; at most
  /// policy().selected_pages() if pages are copied to the device. It is called for all KV heads of
  /// a layer concurrently on several threads; this default returns those with the most votes.
  virtual Result<std::vector<std::int32_t>> choose(const Candidates& candidates);
  /// Returns whether choose() is the one of this class, by votes and a look at keys. A device then
  /// chooses by itself, and votes alone need not be fetched.
  virtual bool chooses_by_votes() const { return true; }
  /// Returns each candidate's vote for its KV head, by policy().vote.
  std::span<const float> votes(const Candidates& candidates);
  /// Runs before a layer's first choose().
  virtual Status begin_layer(std::int32_t /*layer*/, const RetrievalPages&, const KvView&) {
    return {};
  }

  const PagedPolicy& policy() const { return policy_; }
  const SequenceContext& sequence() const { return sequence_; }

 private:
  struct HeadChoice {
    std::vector<std::int32_t> pages;  ///< selected, ascending
    std::int32_t seen = 0;  ///< pages before this one were candidates of the selection, or sinks
    /// All rows that the head attends to in place, as of the last step that did so; empty: no step
    /// has.
    std::vector<std::int32_t> rows;
    /// The number of pages when the wanted ones were made resident; -1: not yet for this choice.
    std::int32_t resident_of = -1;
  };
  struct Layer {
    Layer(RetrievalPages cut, const std::shared_ptr<ComputeMemory>& memory)
        : pages(std::move(cut)), summaries(memory) {}
    RetrievalPages pages;
    PageSummaries summaries;          ///< of the complete pages
    KeyCodes codes;                   ///< of their rows, if keys are scored and codes pay
    std::vector<HeadChoice> choices;  ///< [num_kv_heads], empty before the first selection
    KvView host{};  ///< the first copied_rows rows, in `rows`: the host ranks by keys
    std::int64_t copied_rows = 0;
    HostRows rows;
    /// A choice by votes: [num_kv_heads, num_voted], as offsets from the first candidate.
    ComputeBuffer<std::int32_t> voted;
    std::int64_t num_voted = -1;  ///< per head; -1 before the first choice by votes
    std::int32_t voted_seen = 0;  ///< HeadChoice::seen of all heads, for a choice by votes
    std::optional<ResidentPages> resident;  ///< set once the layer has left the device
    /// The queries that each head's choice was made by, [num_heads, head_dim]; only with tau.
    std::vector<float> chosen_by;
    /// The number of steps that each choice has served, [num_kv_heads], empty before the first.
    std::vector<std::int32_t> head_served;
    std::int32_t served = 0;       ///< steps served by a choice by votes, for all heads
    SlotCopies lane;               ///< copies to wait for before the next step
    std::vector<PageCopy> copies;  ///< of the last call of bring()
  };
  bool attends_to_all(const RetrieveStep& step) const {
    return step.layer < policy_.dense_layers || step.cache->num_rows(step.layer) <= policy_.budget;
  }
  bool reads_in_place(std::int32_t layer) const {
    return !policy_.device || memory_.resident(layer - policy_.dense_layers);
  }
  /// Returns the candidates of a step: pages [first, last).
  std::pair<std::int32_t, std::int32_t> candidates(const Layer& layer) const {
    const std::int32_t first = policy_.sink_pages();
    return {first, std::max(first, layer.pages.complete() - policy_.window_pages())};
  }
  float score_scale(const RetrieveStep& step) const;
  Status refresh(Layer& layer, Compute& compute, const KvView& kv) const;
  /// Scores at least one candidate: [num_heads, candidates] in the Compute's memory.
  Status score(const Layer& layer, const RetrieveStep& step, const std::vector<bool>* heads,
               float* scores) const;
  /// Returns whether votes alone decide, so that nothing is fetched to choose (paged_votes.cc).
  bool votes_decide(const RetrieveStep& step) const {
    return reads_in_place(step.layer) && !policy_.tau && policy_.rerank <= 1 && chooses_by_votes();
  }
  bool chooses_on_device(const RetrieveStep& step) const {
    return !step.compute->on_host() && chooses_by_votes();
  }
  /// Returns whether the step attends to slots that the device fills.
  bool attends_to_slots(const RetrieveStep& step) const {
    return !attends_to_all(step) && !reads_in_place(step.layer);
  }
  DeviceChoices::Shape choices_shape(const RetrieveShape& shape) const;
  DeviceSlots::Shape slots_shape(const RetrieveShape& shape) const;
  ChoosePagesArgs choosing_args(const RetrieveStep& step) const;
  FillSlotsArgs filling_args() const;
  void chose(std::int32_t layer);
  Status ready_slots(Layer& layer, std::int32_t index);
  Status choose_by_votes(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status select_by_votes(Layer& layer, const RetrieveStep& step);
  CandidateRowsArgs rows_wanted(const Layer& layer, std::int32_t seen) const;
  Status fetch(const Layer& layer, const RetrieveStep& step, const std::vector<bool>* heads);
  Status select(Layer& layer, const RetrieveStep& step, const KvView& kv,
                const std::vector<bool>& heads, std::vector<HeadChoice>& choices);
  void keep(Layer& layer, const RetrieveStep& step, const std::vector<bool>& heads,
            std::vector<HeadChoice>& choices) const;
  /// Returns those pages of `near`, ascending, that the KV head's query heads attend to most.
  Result<std::vector<std::int32_t>> by_attention(const Candidates& candidates,
                                                 std::span<const std::int32_t> near) const;
  std::vector<bool> moved_heads(const Layer& layer, const RetrieveStep& step) const;
  std::vector<bool> count_step(Layer& layer, std::int32_t index) const;
  std::vector<bool> heads_to_choose(const Layer& layer, const RetrieveStep& step,
                                    const std::vector<bool>& due) const;
  std::vector<std::int32_t> wanted(const Layer& layer, const HeadChoice& choice) const;
  Status warm_start(const RetainedRows& retained);
  std::vector<std::int32_t> hot_pages(const Layer& layer, std::span<const std::int32_t> hot) const;
  Status bring(Layer& layer, const KvView& kv, std::vector<KvMove> moves, bool in_background);
  Status start_copies(Layer& layer, const KvView& kv, std::vector<KvMove> moves,
                      bool in_background);
  Status wait(Layer& layer) { return layer.lane.wait(copy_streams(sequence_), stats_); }
  Status attend_sparse(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status choose_and_attend(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status leave_device(Layer& layer, std::int32_t index);
  Status attend_brought(Layer& layer, const RetrieveStep& step);
  Status attend_slots(const Layer& layer, const RetrieveStep& step);
  Status attend_in_place(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status list_rows(Layer& layer, std::size_t head, std::int64_t num_rows) const;

  const PagedPolicy policy_;
  SequenceContext sequence_;
  LayerMemory memory_;  ///< of the layers that are not dense
  std::vector<Layer> layers_;
  std::vector<float> scores_, votes_;
  std::vector<bool> scored_;  ///< [num_kv_heads], heads whose scores this step has fetched
  std::vector<float> query_;  ///< the step's query, fetched
  std::shared_ptr<ChoosingMemory> device_memory_;  ///< null where the host computes
  ChoiceBuffers buffers_;
  std::optional<DeviceChoices> on_device_;  ///< where a device computes and chooses
  std::optional<DeviceSlots> slots_;        ///< if it also brings pages
  ChoosingSequence choosing_{};             ///< of the layer that is ready
  double attention_ms_ = 0;                 ///< of the current layer step
  Status failed_;  ///< status of a failed copy that synchronize() found; the next step returns it
};

}  // namespace quire
