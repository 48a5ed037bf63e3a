#include "engine/retrieve/rows/row_retriever.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/slot_copies.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Returns rows [begin, end) of a cache; begin is a multiple of kPageTokens.
KvView part_of(const KvView& kv, std::int64_t begin, std::int64_t end) {
  KvView part = kv;
  part.pages += begin / kPageTokens;
  part.positions += begin;
  part.num_rows = end - begin;
  return part;
}

}  // namespace

OptionFields<RowPolicy> row_options() {
  return {
      budget_option({2, 1 << 20},
                    "tokens a step attends to in a layer, sinks and window among them; tokens of "
                    "the answer come on top"),
      sink_option(),
      window_option("last tokens of the prompt, always attended to"),
      number_option("decode_generated", &RowPolicy::generated, {0, 1 << 20},
                    "tokens of the answer that join them, before the oldest may be left out, too"),
      dense_layers_option(),
  };
}

Status RowPolicy::finish(std::string_view field) {
  const RowPolicy usual;
  sink = sink.under(budget, usual.budget, 1);
  window = window.under(budget, usual.budget, 1);
  chosen = budget - sink - window;
  if (chosen >= 1) return {};
  return Status::invalid(std::string(field) + ".decode_budget",
                         "a budget of " + std::to_string(budget) +
                             " tokens leaves nothing to choose beside " + std::to_string(sink) +
                             " of sinks and " + std::to_string(window) +
                             " of window; raise it or lower those");
}

Status RowRetriever::prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) {
  sequence_ = sequence;
  device_memory_ = choosing_memory(sequence);
  to_leave_.clear();
  to_index_.clear();
  begin_sequence(prompt);
  layers_.assign(at(sequence.num_layers), {});
  for (std::int32_t l = 0; l < sequence.num_layers; ++l) {
    Layer& layer = layers_[at(l)];
    layer.prompt_rows = sequence.cache->num_rows(l);
    // The local range after host rows begins at a page, so that it can be read in place. The window
    // may therefore be up to a page longer.
    const std::int64_t end = std::max<std::int64_t>(0, layer.prompt_rows - policy_.window) /
                             kPageTokens * kPageTokens;
    layer.prompt_end = layer.host_end = std::max<std::int64_t>(end, policy_.sink);
  }
  std::vector<std::int32_t> layers;
  for (std::int32_t l = sequence.num_layers; l-- > 0;) {
    if (sparse(l)) layers.push_back(l);
  }
  if (layers.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const bool indexes, begin_index(prompt));
  if (!indexes) return {};
  // The host attends and needs keys and values in its own memory, where they lie if it computes.
  if (device_memory_ != nullptr) to_leave_ = layers;
  to_index_ = std::move(layers);
  return {};
}

Status RowRetriever::prepare_more() {
  if (to_leave_.empty()) {
    const std::int32_t layer = to_index_.back();
    to_index_.pop_back();
    return index(layer);
  }
  const std::int32_t layer = to_leave_.back();
  to_leave_.pop_back();
  leaving_ = true;
  QUIRE_RETURN_IF_ERROR(leave_device(sequence_, layer, PageLayout::kSplit, stats_));
  if (!to_leave_.empty()) return {};
  leaving_ = false;
  return sequence_.compute->synchronize();
}

/// Waits for layers on their way to the host, whose pages there would else be written after they
/// are freed.
void RowRetriever::synchronize() {
  if (std::exchange(leaving_, false)) (void)sequence_.compute->synchronize();
}

RetrieveStats RowRetriever::stats() const {
  RetrieveStats stats = stats_;
  if (device_memory_ != nullptr) stats.choosing_bytes = device_memory_->peak_bytes();
  return stats;
}

RowRange RowRetriever::prompt_host(std::int32_t layer) const {
  return {policy_.sink, layers_[at(layer)].prompt_end};
}

bool RowRetriever::sparse(std::int32_t layer) const {
  return layer >= policy_.dense_layers &&
         layers_[at(layer)].prompt_end - policy_.sink > policy_.chosen;
}

/// Computes attention to the first rows and the local range on the host: step.out and lse_.
Status RowRetriever::attend_local(const RetrieveStep& step, const KvView& kv, const Layer& layer) {
  AttentionArgs args = attention_args(step, part_of(kv, 0, policy_.sink));
  args.lse = lse_.data();
  QUIRE_RETURN_IF_ERROR(attention(args));
  args.kv = part_of(kv, layer.host_end, kv.num_rows);
  args.out = out_.data();
  args.lse = part_lse_.data();
  QUIRE_RETURN_IF_ERROR(attention(args));
  merge_attention(step.out, lse_.data(), out_.data(), part_lse_.data(), step.num_heads,
                  step.head_dim);
  return {};
}

/// Merges what a Compute has attended to with the local rows before: step.out and lse_.
Status RowRetriever::take_part(const RetrieveStep& step, const KvView& kv, const Layer& layer,
                               const StaticPart& part) {
  std::ranges::copy(part.out, step.out);
  std::ranges::copy(part.lse, lse_.begin());
  if (part.first_row <= layer.host_end) return {};
  AttentionArgs args = attention_args(step, part_of(kv, layer.host_end, part.first_row));
  args.out = out_.data();
  args.lse = part_lse_.data();
  QUIRE_RETURN_IF_ERROR(attention(args));
  merge_attention(step.out, lse_.data(), out_.data(), part_lse_.data(), step.num_heads,
                  step.head_dim);
  return {};
}

/// Returns the end of the host rows of a layer with num_rows rows: the oldest pages of a local
/// range that has grown too long join them.
std::int64_t RowRetriever::host_end(std::int32_t layer, std::int64_t num_rows) const {
  std::int64_t end = layers_[at(layer)].host_end;
  while (num_rows - end > std::int64_t{policy_.window} + policy_.generated + kPageTokens)
    end = (end / kPageTokens + 1) * kPageTokens;
  return end;
}

bool RowRetriever::needs_host(const RetrieveStep& step) const {
  return !attends_to_all(step.layer, host_end(step.layer, step.cache->num_rows(step.layer))) &&
         !chooses_by_votes();
}

Status RowRetriever::attend(const RetrieveStep& step) { return attend_step(step, nullptr); }

Status RowRetriever::attend_beside(const RetrieveStep& step, const StaticPart& part) {
  return attend_step(step, &part);
}

Status RowRetriever::attend_step(const RetrieveStep& step, const StaticPart* part) {
  Layer& layer = layers_[at(step.layer)];
  const KvView kv = step.cache->view(step.layer);
  layer.host_end = host_end(step.layer, kv.num_rows);
  if (attends_to_all(step.layer, layer.host_end)) return attend_rows(step, kv);
  ++stats_.sparse_steps;
  ++stats_.selections;
  const std::int32_t kv_heads = sequence_.num_kv_heads, group = step.num_heads / kv_heads;
  if (chooses_by_votes()) {
    stats_.rows_scored += kv_heads * (layer.host_end - policy_.sink);
    stats_.rows_attended += std::int64_t{kv_heads} * policy_.chosen;
    return attend_by_votes(step, kv, {policy_.sink, layer.host_end});
  }
  out_.resize(at(std::int64_t{step.num_heads} * step.head_dim));
  lse_.resize(at(step.num_heads));
  part_lse_.resize(at(step.num_heads));
  QUIRE_ASSIGN_OR_RETURN(const KvView host_kv, step.cache->host_view(step.layer, layer.rows));
  QUIRE_RETURN_IF_ERROR(part != nullptr ? take_part(step, host_kv, layer, *part)
                                        : attend_local(step, host_kv, layer));
  std::vector<Result<HostCounts>> done(at(kv_heads), HostCounts{});
  std::vector<double> took_ms(at(kv_heads));
  const auto host_step = [&](std::int64_t m) {
    HostStep host;
    host.layer = step.layer;
    host.kv_head = static_cast<std::int32_t>(m);
    host.kv = host_kv;
    host.host = {policy_.sink, layer.host_end};
    host.prompt_end = layer.prompt_end;
    host.query = step.query + m * group * step.head_dim;
    host.group = group;
    host.scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
    host.out = out_.data() + m * group * step.head_dim;
    host.lse = part_lse_.data() + m * group;
    return host;
  };
  order_.resize(at(kv_heads));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  std::stable_partition(order_.begin(), order_.end(),
                        [&](std::int64_t m) { return chooses(host_step(m)); });
  const Stopwatch watch;
  parallel_tasks(kv_heads, [&](std::int64_t i) {
    const std::int64_t m = order_[at(i)];
    const Stopwatch head_watch;
    done[at(m)] = attend_host(host_step(m));
    took_ms[at(m)] = head_watch.ms();
  });
  const double wall_ms = watch.ms(), all_ms = std::accumulate(took_ms.begin(), took_ms.end(), 0.0);
  for (const auto& head : done) {
    QUIRE_RETURN_IF_ERROR(head.status());
    stats_.rows_scored += head->scored;
    stats_.rows_attended += head->attended;
    stats_.heads_corrected += head->corrected;
    stats_.heads_kept += head->kept;
    if (all_ms > 0) count_choosing(step, stats_, wall_ms * head->choose_ms / all_ms);
  }
  merge_attention(step.out, lse_.data(), out_.data(), part_lse_.data(), step.num_heads,
                  step.head_dim);
  end_step(host_step(kv_heads - 1));
  return {};
}

}  // namespace quire
