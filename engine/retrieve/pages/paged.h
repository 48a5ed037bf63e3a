/// Retrievers that choose whole pages by what stands for their keys: what FreeKV, Quest and their
/// peers share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/plug/plug_options.h"
#include "engine/residency/memory_manager.h"
#include "engine/residency/resident_pages.h"
#include "engine/retrieve/device_choice.h"
#include "engine/retrieve/key_codes.h"
#include "engine/retrieve/pages/page_summaries.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/slot_copies.h"
#include "kernels/candidates.h"
#include "kernels/page_bounds.h"

namespace quire {

/// How page scores of the query heads of one KV head become one.
using PageVote = CandidateVote;

/// Few large pages are a coarse choice: at a budget of 256 of 7,100 tokens the KL to dense decoding
/// is 0.108 with pages of 32 and 0.004 with pages of 16 (docs/decode.md).
inline constexpr std::int32_t kSmallBudget = 1024, kSmallPage = 16;

/// Lengths in tokens, multiples of page_tokens. Where pages are brought to the device, page_tokens
/// is a multiple of kPageTokens.
struct PagedPolicy {
  std::int32_t page_tokens = 32, budget = 2048, sink = 128, window = 128;
  /// What a request does not give follows a small budget: sinks and window shrink with it
  /// (fixed_rows.h), and pages of kSmallPage make up one below kSmallBudget
  bool follow_budget = false;
  std::int32_t dense_layers = 1;  ///< of the first layers: they attend to everything
  PageSummary summary = PageSummary::kExtremes;
  PageVote vote = PageVote::kMeanSoftmax;
  bool scale = true;  ///< scores over sqrt(head_dim)
  /// Attend with the pages that the query before chose, unless the mean cosine of a KV head's
  /// queries to those of the step before is under tau. None: always choose with the query itself.
  std::optional<double> tau;
  bool device = true;  ///< pages are brought to the device; else they are read where they are
  Residency residency = Residency::kWhatFits;  ///< of layers, on the device
  /// Of this many times the pages that may be chosen the keys themselves are looked at; 1: what
  /// stands for the pages decides.
  std::int32_t rerank = 1;
  /// Steps that a KV head's choice serves, no more than page_tokens - 1: layers take turns in
  /// choosing anew. With tau, heads that turned away from the query they were chosen by do not wait
  /// for that, and their turns come as much later.
  std::int32_t reuse = 1;

  std::int32_t sink_pages() const { return sink / page_tokens; }
  std::int32_t window_pages() const { return window / page_tokens; }
  std::int32_t selected_pages() const { return (budget - sink - window) / page_tokens; }
  /// Of a KV head in a layer on the host: one page may have left the window unseen, and one is
  /// being filled.
  std::int32_t slots() const { return sink_pages() + selected_pages() + window_pages() + 2; }
};

/// Reads the options that are in `table` and checks that they fit together. Errors:
/// kInvalidArgument, field "cache.options.<name>".
Result<PagedPolicy> read_policy(PagedPolicy defaults, const PlugOptions& options,
                                std::span<const PlugOption> table);

/// One sequence. A layer attends to everything as long as it has no more rows than the budget;
/// after that to its first pages (sinks), its last ones (window), the page being filled, and for
/// each KV head to the pages with the best scores among the rest. A page that leaves the window
/// stays until a selection has had it among its candidates, so that every row is always sink,
/// window, candidate or resident. Layers that fit stay on the device: their pages are chosen in the
/// same way and read where they are. Where a compressor ranked rows, the pages of the hottest are
/// brought before the first step: it finds more of what it chooses there already, and chooses the
/// same.
class PagedRetriever : public Retriever {
 public:
  /// `table` is static: the options a request may give, of those that read_policy() knows.
  PagedRetriever(std::string name, PagedPolicy defaults, std::span<const PlugOption> table)
      : name_(std::move(name)), table_(table), defaults_(defaults) {}
  ~PagedRetriever() override { PagedRetriever::settle(); }

  std::string_view name() const override { return name_; }
  std::span<const PlugOption> options() const override { return table_; }
  Status check(const PlugOptions& options) const override;
  bool uses_device() const override { return defaults_.device; }
  ChoosingNeed choosing_need(const PlugOptions& options, const RetrieveShape& shape) const override;
  Status prepare(const RetrieveInput& input) override;
  Status begin_step(std::int32_t token_id, std::int32_t position) override;
  bool looks_at(const RetrieveStep& step) const override;
  Status attend(const RetrieveStep& step) override;
  void settle() override;
  void took_to_choose(double ms) override { stats_.choose_ms += ms; }
  RetrieveStats stats() const override;

  /// The pages of a layer that KV head `head` has on the device in slots, ascending; empty where it
  /// has none (tests).
  std::vector<std::int32_t> resident_pages(std::int32_t layer, std::int32_t head) const;
  /// The pages KV head `head` attends to at this moment, ascending; empty while the layer is dense
  /// (tests, of a device that is settled).
  std::vector<std::int32_t> attended_pages(std::int32_t layer, std::int32_t head) const;

 protected:
  /// The candidates of one KV head in a step: pages [first, first + count), complete and neither
  /// sink nor window.
  struct Candidates {
    std::int32_t layer = 0, kv_head = 0, first = 0, count = 0, group = 0;
    std::span<float> scores;  ///< [group, count], of the KV head's query heads; may be overwritten
    const float* query = nullptr;  ///< [group, head_dim]
    const KvView* kv = nullptr;
    std::span<const KvStretch> rows;  ///< [count], of each candidate
    const KeyCodes* codes = nullptr;  ///< of all their rows; null: there are none
  };
  /// Called for all KV heads of a layer at once, on several threads. Candidates to attend to,
  /// counted from the first, ascending and no more than policy().selected_pages() of them where
  /// pages are brought to the device. Here: those with the most votes.
  virtual Result<std::vector<std::int32_t>> choose(const Candidates& candidates);
  /// Whether choose() takes the candidates with the most votes and nothing else: then a device that
  /// has the scores chooses by itself.
  virtual bool chooses_by_votes() const { return true; }
  /// How good each candidate is to its KV head, by policy().vote.
  std::span<const float> votes(const Candidates& candidates);
  /// Before a layer's first choose().
  virtual Status begin_layer(std::int32_t /*layer*/, const RetrievalPages&, const KvView&) {
    return {};
  }

  const PagedPolicy& policy() const { return policy_; }
  /// Its spans and what was for prepare() alone are gone
  const RetrieveInput& input() const { return input_; }

 private:
  struct HeadChoice {
    std::vector<std::int32_t> pages;  ///< selected, ascending
    std::int32_t seen = 0;  ///< pages before this one were candidates of the selection, or sinks
    /// Of all that the head attends to where it is read in place, as of the last step that did;
    /// empty: none has
    std::vector<std::int32_t> rows;
    /// What is wanted of the first so many pages is in slots; -1: not yet
    std::int32_t resident_of = -1;
  };
  struct Layer {
    explicit Layer(RetrievalPages cut) : pages(std::move(cut)) {}
    RetrievalPages pages;
    PageSummaries summaries;  ///< of the complete pages
    KeyCodes codes;           ///< of their rows, where keys are looked at and codes of them pay
    /// The same as page_bounds() writes it, where a device computes; of the first num_bounds
    ComputeBuffer<std::uint16_t> bounds;
    std::int32_t num_bounds = 0, most_bounds = 0;
    std::vector<HeadChoice> choices;  ///< [num_kv_heads], empty before the first selection
    /// Where a device chooses: [num_kv_heads, num_chosen], counted from the first candidate
    ComputeBuffer<std::int32_t> chosen_there;
    std::int64_t num_chosen = -1;           ///< the same; -1 before the first selection
    std::int32_t seen_there = 0;            ///< HeadChoice::seen, of all heads
    std::optional<ResidentPages> resident;  ///< once the layer has left the device
    /// [num_heads, head_dim] with tau: the query that each head's choice goes by
    std::vector<float> chosen_by;
    /// [num_kv_heads] steps that each choice has served, empty before the first
    std::vector<std::int32_t> head_served;
    std::int32_t served = 0;       ///< the same where a device chooses, for all heads
    SlotCopies lane;               ///< copies to wait for before the next step
    std::vector<PageCopy> copies;  ///< of the last call of bring()
  };
  bool attends_to_all(const RetrieveStep& step) const {
    return step.layer < policy_.dense_layers || step.cache->num_rows(step.layer) <= policy_.budget;
  }
  bool reads_in_place(std::int32_t layer) const {
    return !policy_.device || memory_.resident(layer - policy_.dense_layers);
  }
  /// The candidates of a step: pages [first, last).
  std::pair<std::int32_t, std::int32_t> candidates(const Layer& layer) const {
    const std::int32_t first = policy_.sink_pages();
    return {first, std::max(first, layer.pages.complete() - policy_.window_pages())};
  }
  float score_scale(const RetrieveStep& step) const;
  Status refresh(Layer& layer, const KvView& kv) const;
  // Where a device computes (paged_device.cc): what stands for the keys and the scores of pages are
  // made there, and so is attention in place. Where votes alone decide the device chooses, too;
  // else the choice is the host's.
  bool chooses_there(const RetrieveStep& step) const {
    return step.compute != nullptr && reads_in_place(step.layer) && !policy_.tau &&
           policy_.rerank <= 1 && chooses_by_votes();
  }
  Status refresh_there(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status score_there(const Layer& layer, const RetrieveStep& step, float* scores) const;
  Status choose_there(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status select_there(Layer& layer, const RetrieveStep& step);
  CandidateRowsArgs rows_wanted(const Layer& layer, std::int32_t seen) const;
  enum class Fetch : std::uint8_t { kQuery, kQueryAndScores };
  Status fetch(const Layer& layer, const RetrieveStep& step, Fetch what);
  Status select(Layer& layer, const RetrieveStep& step, const KvView& kv,
                const std::vector<bool>& heads, std::vector<HeadChoice>& choices);
  void keep(Layer& layer, const RetrieveStep& step, const std::vector<bool>& heads,
            std::vector<HeadChoice>& choices) const;
  /// Of `near`, ascending, those that the KV head's query heads attend to most.
  Result<std::vector<std::int32_t>> by_attention(const Candidates& candidates,
                                                 std::span<const std::int32_t> near) const;
  std::vector<bool> moved_heads(const Layer& layer, const RetrieveStep& step) const;
  std::vector<bool> count_step(Layer& layer, std::int32_t index) const;
  std::vector<bool> heads_to_choose(const Layer& layer, const RetrieveStep& step,
                                    const std::vector<bool>& due) const;
  std::vector<std::int32_t> wanted(const Layer& layer, std::int32_t head) const;
  Status warm_start(const Heat& heat);
  std::vector<std::int32_t> hot_pages(const Layer& layer, std::span<const std::int32_t> hot) const;
  Status bring(Layer& layer, const KvView& kv, std::vector<KvMove> moves, bool in_background);
  Status start_copies(Layer& layer, const KvView& kv, std::vector<KvMove> moves,
                      bool in_background);
  Status wait(Layer& layer) { return layer.lane.wait(copy_lanes(input_), stats_); }
  Status attend_sparse(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status choose_and_attend(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status leave_device(Layer& layer, std::int32_t index);
  Status attend_brought(Layer& layer, const RetrieveStep& step);
  Status attend_resident(const Layer& layer, const RetrieveStep& step);
  Status attend_slots_there(const Layer& layer, const RetrieveStep& step) const;
  Status attend_in_place(Layer& layer, const RetrieveStep& step, const KvView& kv);
  Status list_rows(Layer& layer, std::size_t head, std::int64_t num_rows) const;

  const std::string name_;
  const std::span<const PlugOption> table_;
  const PagedPolicy defaults_;
  PagedPolicy policy_;
  RetrieveInput input_;
  LayerMemory memory_;  ///< of the layers that are not dense
  std::vector<Layer> layers_;
  std::vector<float> scores_, votes_;
  std::vector<float> query_;                      ///< the step's, where a device has it
  std::shared_ptr<ChoosingMemory> memory_there_;  ///< null where the host computes
  DeviceChoice there_;
  RetrieveStats stats_;
  double attention_ms_ = 0;  ///< of the layer step under way
  Status failed_;            ///< a copy that settle() found failed: the next step says so
};

}  // namespace quire
