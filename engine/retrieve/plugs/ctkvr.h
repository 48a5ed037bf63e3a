/// CTkvr indexes the cache by the prompt's last queries. A step looks up the rows that the nearest
/// of them attended to, ranks those exactly, and attends to the best.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/key_codes.h"
#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/rows/centroid_index.h"
#include "engine/retrieve/rows/row_choice.h"
#include "engine/retrieve/rows/row_retriever.h"
#include "engine/retrieve/rows/static_rows.h"

namespace quire {

struct CtkvrOptions : RowPolicy {
  std::int64_t centroids = 0, least_centroids = 64, probes = 16;
  std::int64_t list_rows = 0;  ///< 0: as many as suit the rows that a step chooses
  WantedQueries::Rows centroid_rows = WantedQueries::Rows::kLast;
  bool stored_queries = true, updates = true, rerank = true;
  std::int64_t reuse = 8;
  double tau = 0.8;
};

/// CtkvrRetriever serves one sequence. Where a device computes, the rows that every step attends to
/// stay there: the device attends to them, the host to the chosen ones, and the host merges both
/// by their log-sum-exps. If it has too few queries of the prompt (tokens whose KV was
/// only placed have none), freekv decodes, and stats().note says so.
class CtkvrRetriever final : public RowRetriever, public DeviceBudgeted, public PromptWatcher {
 public:
  explicit CtkvrRetriever(const CtkvrOptions& options);
  ~CtkvrRetriever() override { CtkvrRetriever::synchronize(); }

  ChoosingNeed choosing_need(const RetrieveShape& shape) const override;
  WantedQueries queries_wanted(std::int64_t prompt_tokens) const override;
  Status begin_step(std::int32_t token_id, std::int32_t position) override;
  /// Returns false where centroids lie on a device: attend() then synchronizes once by itself, for
  /// the rows in the lists and for the query.
  bool needs_host(const RetrieveStep& step) const override {
    return fallback_ ? fallback_->needs_host(step)
                     : !looks_up_in_memory(step) && RowRetriever::needs_host(step);
  }
  Status attend(const RetrieveStep& step) override;
  void synchronize() override;
  RetrieveStats stats() const override;

  /// Returns the host rows that KV head `kv_head` attended to in the last sparse step of any layer,
  /// ascending; candidate_rows() returns those they were chosen from (tests).
  std::span<const std::int32_t> attended_rows(std::int32_t kv_head) const {
    return heads_[at(kv_head)].attended;
  }
  std::span<const std::int32_t> candidate_rows(std::int32_t kv_head) const {
    return heads_[at(kv_head)].rows;
  }
  /// Returns the layer's index; null: the layer has none.
  const CentroidIndex* index_of(std::int32_t layer) const {
    return static_cast<std::size_t>(layer) < indexes_.size() && indexes_[at(layer)]
               ? &*indexes_[at(layer)]
               : nullptr;
  }

 protected:
  void begin_sequence(const AssembledPrompt& prompt) override;
  Result<bool> begin_index(const AssembledPrompt& prompt) override;
  Status index(std::int32_t layer) override;
  bool chooses(const HostStep& step) const override;
  Result<HostCounts> attend_host(const HostStep& step) override;
  void end_step(const HostStep& step) override;

 private:
  struct Head {
    std::vector<std::uint64_t> seen;  ///< one bit for each row before the local range
    std::vector<std::int32_t> rows, attended;
    RowChoice choice;
  };
  /// Choice is a layer's last choice, for the steps that it serves.
  struct Choice {
    /// The chosen rows, [num_kv_heads], if a choice serves several steps.
    std::vector<std::vector<std::int32_t>> rows;
    std::vector<float>
        by;  ///< the queries of the choice, [num_heads, head_dim], if it serves several steps
    std::int64_t serves = 0;     ///< steps left, unless rows join the host
    std::int64_t host_end = -1;  ///< end of the host rows it was chosen from; -1: there is none
    bool due(const RowRange& host) const { return serves == 0 || host_end != host.end; }
  };
  std::int64_t centroids_for(std::int64_t prompt_tokens) const;
  Status check_memory(const PromptQueries& queries) const;
  std::int64_t available(const AssembledPrompt& prompt) const;
  CentroidInput index_input(std::int32_t layer, const KvView& kv) const;
  Status index_in_place();
  Status keep_static_rows();
  Status attend_static(const RetrieveStep& step, StaticRows& rows, std::int64_t local);
  Status fall_back(const AssembledPrompt& prompt, std::int64_t available);
  Status candidates(const HostStep& step, Head& head) const;
  Status score(const HostStep& step, bool due, Head& head) const;
  bool looks_up_in_memory(const RetrieveStep& step) const {
    return index_of(step.layer) != nullptr && index_of(step.layer)->in_compute_memory();
  }
  Status fetch_named(const RetrieveStep& step, bool with_static);
  Result<HostCounts> attend_again(const HostStep& step, std::span<const std::int32_t> rows);

  const CtkvrOptions options_;
  const std::int64_t list_rows_, least_centroids_;
  std::int64_t num_centroids_ = 0;                     ///< of this prompt
  std::optional<PromptQueries> queries_;               ///< of the layers that are not yet indexed
  std::vector<std::optional<CentroidIndex>> indexes_;  ///< [num_layers], or empty
  std::vector<KeyCodes> codes_;  ///< [num_layers], of host rows; empty if they would not pay
  std::vector<Choice> choices_;  ///< [num_layers]
  std::vector<Head> heads_;      ///< [num_kv_heads]
  /// The rows that a device found in lists for the current layer, [num_kv_heads, words of a list];
  /// empty if the host looks them up.
  std::vector<std::uint64_t> named_;
  // Device buffers: the unit weights that normalise queries, the normalised queries, and the
  // centroids nearest to them.
  ComputeBuffer<float> ones_, normalised_;
  std::vector<float> query_, attended_;                 ///< of the step, where the host attends
  std::vector<std::optional<StaticRows>> static_rows_;  ///< [num_layers], or empty
  /// The attention to them in the current layer, [num_heads, head_dim], and its log-sum-exps
  /// [num_heads]; static_part_ on the host.
  ComputeBuffer<float> static_out_;
  std::vector<float> static_part_;
  ComputeBuffer<std::int32_t> nearest_;
  ChoiceBuffers buffers_;
  std::unique_ptr<PagedRetriever> fallback_;
  std::string note_;
};

}  // namespace quire
