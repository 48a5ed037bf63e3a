// These functions choose pages where a device computes: the host says which pages there are and
// enqueues the choice, the copies to slots of a layer that has left, and the attention of all
// sequences at once.
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

/// Attends in one call for each run of sequences whose caches have the same strides: those of pages
/// or those of slots.
Status attend_neighbours(std::span<const RetrieveStep> steps,
                         std::span<const SequenceAttention> sequences) {
  for (std::size_t begin = 0, end; begin < steps.size(); begin = end) {
    const KvView& kv = sequences[begin].kv;
    for (end = begin + 1; end < steps.size() && sequences[end].kv.head_stride == kv.head_stride;)
      ++end;
    AttentionArgs args = attention_args(steps[begin], kv);
    args.rows = static_cast<std::int64_t>(end - begin);
    QUIRE_RETURN_IF_ERROR(steps.front().compute->attention().attend_each(
        args, sequences.subspan(begin, end - begin), steps[begin].out_dtype));
  }
  return {};
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

DeviceSlots::Shape PagedRetriever::slots_shape(const RetrieveShape& shape) const {
  return {.num_layers = shape.num_layers,
          .num_kv_heads = shape.num_kv_heads,
          .num_slots = policy_.slots(),
          .page_tokens = policy_.page_tokens};
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
  // After the bounds, which are read faster where the layer was.
  if (attends_to_slots(step)) QUIRE_RETURN_IF_ERROR(ready_slots(layer, step.layer));
  QUIRE_ASSIGN_OR_RETURN(choosing_,
                         on_device_->of(step.layer, layer.pages, step.layer % policy_.reuse));
  choosing_.query = step.query;
  choosing_.bounds = layer.summaries.bounds();
  choosing_.fresh_unit = fresh;
  if (fresh >= 0) choosing_.fresh = layer.pages[fresh];
  choosing_.candidates_end = candidates(layer).second;
  return {};
}

/// Takes in that the call was enqueued which ready() was for.
void PagedRetriever::chose(std::int32_t layer) {
  ++stats_.sparse_steps;
  if (choosing_.fresh_unit >= 0) layers_[at(layer)].summaries.add_one();
  on_device_->enqueued(layer);
}

/// Has the layer leave the device, unless it has, and its slots be the device's.
Status PagedRetriever::ready_slots(Layer& layer, std::int32_t index) {
  if (!layer.resident) QUIRE_RETURN_IF_ERROR(leave_device(layer, index));
  QUIRE_RETURN_IF_ERROR(wait(layer));
  return slots_->begin(index, *layer.resident);
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

FillSlotsArgs PagedRetriever::filling_args() const {
  FillSlotsArgs args{};
  args.num_first = policy_.sink_pages();
  args.selected = policy_.selected_pages();
  args.num_slots = policy_.slots();
  args.unit_rows = policy_.page_tokens;
  args.most_rows = policy_.most_listed();
  return args;
}

Status PagedRetriever::attend_together(std::span<const RetrieveStep> steps,
                                       std::span<AttendsTogether* const> retrievers) {
  const Stopwatch watch;
  const RetrieveStep& first = steps.front();
  ChoiceOps& choice = first.compute->choice();
  std::vector<SequencePages> choosing;
  std::vector<SequenceSlots> filling;
  std::vector<SequenceAttention> attending;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& one = dynamic_cast<PagedRetriever&>(*retrievers[i]);
    SequenceAttention sequence{.kv = steps[i].cache->view(first.layer),
                               .position = steps[i].position};
    if (!one.attends_to_all(steps[i])) {
      choosing.push_back({sequence.kv, one.choosing_});
      const ChosenLists lists = one.on_device_->lists();
      sequence.lists_in_memory = lists.lists;
      sequence.longest_list = lists.longest;
    }
    if (one.attends_to_slots(steps[i])) {
      filling.push_back(one.slots_->of(first.layer, sequence.kv, one.choosing_));
      sequence.kv = filling.back().slots;
    }
    attending.push_back(sequence);
  }
  // A step that failed may not have waited.
  if (first.layer == policy_.dense_layers) QUIRE_RETURN_IF_ERROR(choice.wait_for_slots());
  FillSlotsArgs args = filling_args();
  QUIRE_RETURN_IF_ERROR(choice.choose_pages(choosing_args(first), choosing));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& one = dynamic_cast<PagedRetriever&>(*retrievers[i]);
    if (!one.attends_to_all(steps[i])) one.chose(first.layer);
  }
  QUIRE_RETURN_IF_ERROR(choice.fill_slots(args, filling));
  const double each_ms = watch.ms() /
                         static_cast<double>(std::max<std::size_t>(1, choosing.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& one = dynamic_cast<PagedRetriever&>(*retrievers[i]);
    if (!one.attends_to_all(steps[i])) count_choosing(steps[i], one.stats_, each_ms);
  }
  QUIRE_RETURN_IF_ERROR(attend_neighbours(steps, attending));
  // Heads that had not turned chose for the next step, before which their pages come beside what
  // the layers above compute.
  args.coming = true;
  if (policy_.tau) QUIRE_RETURN_IF_ERROR(choice.fill_slots_beside(args, filling));
  return first.layer + 1 == sequence_.num_layers ? choice.wait_for_slots() : Status();
}

}  // namespace quire
