// These functions choose pages where a device computes and the layer stays on it: the host says
// which pages there are and enqueues the choice and the attention of all sequences at once.
#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/step_attention.h"

namespace quire {
namespace {

/// Returns whether one call of ChoiceOps::choose_pages() serves both.
bool same_choice(const PagedPolicy& a, const PagedPolicy& b) {
  return a.page_tokens.rows == b.page_tokens.rows && a.budget == b.budget &&
         a.sink.rows == b.sink.rows && a.window.rows == b.window.rows && a.summary == b.summary &&
         a.vote == b.vote && a.scale == b.scale && a.tau == b.tau && a.rerank == b.rerank &&
         a.reuse == b.reuse;
}

}  // namespace

DeviceChoices::Shape PagedRetriever::choices_shape(const RetrieveShape& shape) const {
  // Layers that are dense have their places too, so that layers are counted in one way.
  return {.num_layers = shape.num_layers,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .selected = policy_.selected_pages(),
          .most_rows = policy_.most_listed(),
          .by_turn = policy_.tau.has_value()};
}

bool PagedRetriever::chooses_on_device(const RetrieveStep& step) const {
  return !step.compute->on_host() && reads_in_place(step.layer) && chooses_by_votes();
}

bool PagedRetriever::joins(const RetrieveStep& step, const AttendsTogether& first) const {
  if (step.compute->on_host() || !(attends_to_all(step) || chooses_on_device(step))) return false;
  const auto* paged = dynamic_cast<const PagedRetriever*>(&first);
  return paged != nullptr && same_choice(policy_, paged->policy_);
}

Status PagedRetriever::ready(const RetrieveStep& step) {
  QUIRE_RETURN_IF_ERROR(failed_);
  if (attends_to_all(step)) return {};
  Layer& layer = layers_[at(step.layer)];
  const KvView kv = step.cache->view(step.layer);
  layer.pages.extend(std::span(kv.positions, to_size(kv.num_rows)));
  const auto complete = layer.pages.all().first(at(layer.pages.complete()));
  QUIRE_ASSIGN_OR_RETURN(
      const std::int32_t fresh,
      layer.summaries.extend_but_one(*step.compute, kv, complete, policy_.summary));
  QUIRE_ASSIGN_OR_RETURN(choosing_,
                         on_device_->of(step.layer, layer.pages, step.layer % policy_.reuse));
  choosing_.query = step.query;
  choosing_.bounds = layer.summaries.bounds();
  choosing_.fresh_unit = fresh;
  if (fresh >= 0) choosing_.fresh = layer.pages[fresh];
  choosing_.candidates_end = candidates(layer).second;
  return {};
}

ChoosePagesArgs PagedRetriever::choosing_args(const RetrieveStep& step) const {
  ChoosePagesArgs args{};
  args.num_heads = step.num_heads;
  args.summary = policy_.summary;
  args.vote = policy_.vote;
  args.scale = score_scale(step);
  args.key_scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
  args.by_turn = policy_.tau.has_value();
  args.tau = policy_.tau.value_or(0);
  args.reuse = policy_.reuse;
  args.num_first = policy_.sink_pages();
  args.selected = policy_.selected_pages();
  args.near = policy_.rerank > 1 ? policy_.selected_pages() * policy_.rerank : 0;
  args.most_rows = policy_.most_listed();
  return args;
}

Status PagedRetriever::attend_together(std::span<const RetrieveStep> steps,
                                       std::span<AttendsTogether* const> retrievers) {
  const Stopwatch watch;
  const RetrieveStep& first = steps.front();
  std::vector<SequencePages> choosing;
  std::vector<SequenceAttention> attending;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& one = dynamic_cast<PagedRetriever&>(*retrievers[i]);
    SequenceAttention sequence{.kv = steps[i].cache->view(first.layer),
                               .position = steps[i].position};
    if (!one.attends_to_all(steps[i])) {
      ++one.stats_.sparse_steps;
      choosing.push_back({sequence.kv, one.choosing_});
      const ChosenLists lists = one.on_device_->lists();
      sequence.lists_in_memory = lists.lists;
      sequence.longest_list = lists.longest;
    }
    attending.push_back(sequence);
  }
  QUIRE_RETURN_IF_ERROR(first.compute->choice().choose_pages(choosing_args(first), choosing));
  const double each_ms = watch.ms() /
                         static_cast<double>(std::max<std::size_t>(1, choosing.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& one = dynamic_cast<PagedRetriever&>(*retrievers[i]);
    if (!one.attends_to_all(steps[i])) count_choosing(steps[i], one.stats_, each_ms);
  }
  AttentionArgs args = attention_args(first, attending.front().kv);
  args.rows = count_of(steps);
  return first.compute->attention().attend_each(args, attending);
}

/// Takes the choices of a layer that leaves the device, so that the host goes on with them.
Status PagedRetriever::take_back(Layer& layer, std::int32_t index) {
  if (!on_device_ || !on_device_->chose(index) || !layer.choices.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(auto choices, on_device_->read(index));
  layer.chosen_by.clear();
  for (DeviceChoices::Choice& choice : choices) {
    for (std::int32_t& page : choice.pages) page += policy_.sink_pages();
    layer.choices.push_back({std::move(choice.pages), choice.seen, {}, -1});
    layer.head_served.push_back(choice.served);
    layer.chosen_by.insert(layer.chosen_by.end(), choice.query.begin(), choice.query.end());
  }
  return {};
}

}  // namespace quire
