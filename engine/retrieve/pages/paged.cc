#include "engine/retrieve/pages/paged.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/choice/query_turn.h"
#include "kernels/parallel.h"

namespace quire {

Status PagedPolicy::finish(std::string_view field) {
  if (follow_budget) {
    const PagedPolicy usual;
    if (budget < kSmallBudget && !page_tokens.given) page_tokens = kSmallPage;
    sink = sink.under(budget, usual.budget, page_tokens);
    window = window.under(budget, usual.budget, page_tokens);
  }
  const auto whole = [&](std::string_view name, std::int32_t value, std::int32_t unit) -> Status {
    if (value % unit == 0) return {};
    return Status::invalid(
        std::string(field) + "." + std::string(name),
        std::to_string(value) + " must be a multiple of " + std::to_string(unit));
  };
  QUIRE_RETURN_IF_ERROR(whole("decode_page", page_tokens, device ? kPageTokens : 1));
  QUIRE_RETURN_IF_ERROR(whole("decode_budget", budget, page_tokens));
  QUIRE_RETURN_IF_ERROR(whole("decode_sink", sink, page_tokens));
  QUIRE_RETURN_IF_ERROR(whole("decode_window", window, page_tokens));
  if (selected_pages() < 1) {
    return Status::invalid(std::string(field) + ".decode_budget",
                           "a budget of " + std::to_string(budget) +
                               " tokens leaves no page beside " + std::to_string(sink) +
                               " of sinks and " + std::to_string(window) +
                               " of window; raise it or lower those");
  }
  return {};
}

Status PagedRetriever::prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) {
  sequence_ = sequence;
  const std::vector<ContextRows> contexts(prompt.contexts.begin(), prompt.contexts.end());
  layers_.clear();
  device_memory_ = choosing_memory(sequence);
  buffers_ = ChoiceBuffers(device_memory_);
  on_device_.reset();
  if (device_memory_ != nullptr && chooses_by_votes())
    on_device_.emplace(device_memory_, choices_shape(shape_of(sequence, contexts.size())));
  slots_.reset();
  if (on_device_ && policy_.device)
    slots_.emplace(device_memory_, slots_shape(shape_of(sequence, contexts.size())));
  if (policy_.device) {
    QUIRE_CHECK(sequence.device != nullptr, "pages are brought to a device");
    const DType dtype = sequence.cache->view(0).dtype;
    RequestMemory memory;
    memory.device_bytes = sequence.device->max_bytes();
    memory.requests = sequence.device_requests;
    memory.num_layers = std::max(0, sequence.num_layers - policy_.dense_layers);
    memory.row_bytes = ResidentPages::bytes_for(sequence.num_kv_heads, sequence.head_dim, dtype, 1,
                                                1);
    memory.budget_rows = std::int64_t{policy_.slots()} * policy_.page_tokens;
    if (device_memory_ != nullptr)
      memory.choosing = choosing_need(shape_of(sequence, contexts.size()));
    memory_ = LayerMemory(*sequence.device, memory, policy_.residency);
  }
  for (std::int32_t layer = 0; layer < sequence.num_layers; ++layer) {
    layers_.emplace_back(RetrievalPages(policy_.page_tokens, contexts), device_memory_);
    if (layer >= policy_.dense_layers && policy_.tau)
      layers_.back().chosen_by.assign(to_size(sequence.num_heads) * to_size(sequence.head_dim),
                                      0.0f);
  }
  return policy_.device && prompt.retained != nullptr && !prompt.retained->hot.empty()
             ? warm_start(*prompt.retained)
             : Status();
}

void PagedRetriever::synchronize() {
  for (Layer& layer : layers_) {
    // The next step of a failed layer returns the failure.
    const Status status = wait(layer);
    if (!status.ok()) failed_ = status;
  }
}

Status PagedRetriever::begin_step(std::int32_t, std::int32_t) {
  std::int64_t rows = 0;
  for (std::int32_t layer = policy_.dense_layers; layer < sequence_.num_layers; ++layer)
    rows = std::max(rows, sequence_.cache->num_rows(layer) + 1);
  if (!policy_.device || rows <= policy_.budget) return {};
  QUIRE_RETURN_IF_ERROR(memory_.grow(rows));
  stats_.layers_offloaded = memory_.offloaded();
  // A device fills the slots of many sequences in one call, which would fail for all of them.
  if (slots_ && memory_.offloaded() > 0 && policy_.slots() > kMostSlots) {
    return Status::invalid("cache.options.decode_budget",
                           std::to_string(policy_.budget) + " tokens are " +
                               std::to_string(policy_.slots()) +
                               " pages of a layer that has left the device, which has room for " +
                               std::to_string(kMostSlots) + "; lower it or raise decode_page");
  }
  return {};
}

Status PagedRetriever::attend(const RetrieveStep& step) {
  QUIRE_RETURN_IF_ERROR(failed_);
  if (joins(step, *this)) {
    QUIRE_RETURN_IF_ERROR(ready(step));
    AttendsTogether* const self = this;
    return attend_together(std::span(&step, 1), std::span(&self, 1));
  }
  Layer& layer = layers_[at(step.layer)];
  const KvView kv = step.cache->view(step.layer);
  return attends_to_all(step) ? attend_rows(step, kv) : attend_sparse(layer, step, kv);
}

/// Takes in the cache's new rows and the summaries of pages that are complete now.
Status PagedRetriever::refresh(Layer& layer, Compute& compute, const KvView& kv) const {
  layer.pages.extend(std::span(kv.positions, to_size(kv.num_rows)));
  const std::int32_t complete = layer.pages.complete();
  if (complete == layer.summaries.num_pages()) return {};
  // Codes are made and read by the host.
  if (policy_.rerank > 1 && compute.on_host() && KeyCodes::pay(kv))
    QUIRE_RETURN_IF_ERROR(layer.codes.extend(kv, layer.pages[complete - 1].end));
  return layer.summaries.extend(compute, kv, layer.pages.all().first(to_size(complete)),
                                policy_.summary);
}

/// Chooses with this step's query, which was fetched, for these KV heads; the choices of the others
/// are left empty.
Status PagedRetriever::select(Layer& layer, const RetrieveStep& step, const KvView& kv,
                              const std::vector<bool>& heads, std::vector<HeadChoice>& choices) {
  const auto [begin, last] = candidates(layer);
  const std::int32_t first = begin, end = last, n = end - first;
  const std::int32_t kv_heads = sequence_.num_kv_heads, group = step.num_heads / kv_heads;
  ++stats_.selections;
  choices.assign(to_size(kv_heads), {{}, last});
  if (n == 0) return {};
  std::vector<bool> missing(heads.size());
  for (std::size_t m = 0; m < heads.size(); ++m) missing[m] = heads[m] && !scored_[m];
  if (std::ranges::find(missing, true) != missing.end())
    QUIRE_RETURN_IF_ERROR(fetch(layer, step, &missing));
  const std::size_t of_group = to_size(group) * to_size(n);
  votes_.resize(to_size(kv_heads) * to_size(n));
  KvView host = kv;
  if (policy_.rerank > 1 && policy_.selected_pages() < n && !step.compute->on_host()) {
    // Ranking by keys. Rows of complete pages do not change, so they are copied once.
    if (step.cache->on_host(step.layer) || kv.num_rows < layer.copied_rows ||
        layer.pages[end - 1].end > layer.copied_rows) {
      QUIRE_ASSIGN_OR_RETURN(layer.host, step.cache->host_view(step.layer, layer.rows));
      layer.copied_rows = kv.num_rows;
    }
    host = layer.host;
  }
  std::vector<Status> status(to_size(kv_heads));
  const auto choose_head = [&](std::int64_t head) -> Status {
    const auto m = to_size(head);
    const auto scores = std::span(scores_).subspan(m * of_group, of_group);
    const float* query = query_.data() + head * group * step.head_dim;
    QUIRE_ASSIGN_OR_RETURN(
        choices[m].pages, choose({step.layer, static_cast<std::int32_t>(head), first, n, group,
                                  scores, query, &host, layer.pages.all().subspan(at(first), at(n)),
                                  layer.codes.num_rows() > 0 ? &layer.codes : nullptr}));
    for (std::int32_t& page : choices[m].pages) page += first;
    return {};
  };
  std::vector<std::int64_t> choosing;
  for (std::int64_t m = 0; m < kv_heads; ++m) {
    if (heads[at(m)]) choosing.push_back(m);
  }
  const auto run = [&](std::int64_t i) {
    status[at(choosing[at(i)])] = choose_head(choosing[at(i)]);
  };
  // Each thread chooses for one head while there are enough heads; each remaining head, often one
  // that turned, uses all threads.
  const auto count = count_of(choosing), together = count - count % num_threads();
  parallel_tasks(together, run);
  for (std::int64_t i = together; i < count; ++i) run(i);
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

/// Takes over the choices of these heads.
void PagedRetriever::keep(Layer& layer, const RetrieveStep& step, const std::vector<bool>& heads,
                          std::vector<HeadChoice>& choices) const {
  const std::int64_t width = std::int64_t{step.num_heads / sequence_.num_kv_heads} * step.head_dim;
  layer.choices.resize(heads.size());
  for (std::size_t m = 0; m < heads.size(); ++m) {
    if (!heads[m]) continue;
    layer.choices[m] = std::move(choices[m]);
    if (!layer.chosen_by.empty())
      std::copy_n(query_.data() + static_cast<std::int64_t>(m) * width, width,
                  layer.chosen_by.begin() + static_cast<std::ptrdiff_t>(m) * width);
  }
}

/// Returns the KV heads whose queries turned too far away from those of their choices.
std::vector<bool> PagedRetriever::moved_heads(const Layer& layer, const RetrieveStep& step) const {
  const std::int32_t group = step.num_heads / sequence_.num_kv_heads;
  std::vector<bool> moved(to_size(sequence_.num_kv_heads));
  const std::int64_t width = std::int64_t{group} * step.head_dim;
  for (std::int64_t m = 0; m < sequence_.num_kv_heads; ++m) {
    moved[at(m)] = mean_cosine(query_.data() + m * width, layer.chosen_by.data() + m * width, group,
                               step.head_dim) < *policy_.tau;
  }
  return moved;
}

/// Returns the KV heads whose choices have served as many steps as they may. From the second time
/// on, layers take turns.
std::vector<bool> PagedRetriever::count_step(Layer& layer, std::int32_t index) const {
  const auto heads = to_size(sequence_.num_kv_heads);
  if (layer.head_served.empty()) {
    layer.head_served.assign(heads, index % policy_.reuse);
    return std::vector<bool>(heads, true);
  }
  std::vector<bool> due(heads);
  for (std::size_t m = 0; m < heads; ++m) {
    due[m] = ++layer.head_served[m] >= policy_.reuse;
    if (due[m]) layer.head_served[m] = 0;
  }
  return due;
}

/// Returns the KV heads that choose before they attend.
std::vector<bool> PagedRetriever::heads_to_choose(const Layer& layer, const RetrieveStep& step,
                                                  const std::vector<bool>& due) const {
  return layer.choices.empty() || !policy_.tau ? due : moved_heads(layer, step);
}

/// Returns sinks, selection, pages that no selection has seen yet (among them the window), and the
/// page being filled, ascending.
std::vector<std::int32_t> PagedRetriever::wanted(const Layer& layer,
                                                 const HeadChoice& choice) const {
  std::vector<std::int32_t> pages(to_size(std::min(policy_.sink_pages(), layer.pages.size())));
  std::iota(pages.begin(), pages.end(), 0);
  pages.insert(pages.end(), choice.pages.begin(), choice.pages.end());
  for (std::int32_t page = std::max<std::int32_t>(
           choice.seen, static_cast<std::int32_t>(pages.size() - choice.pages.size()));
       page < layer.pages.size(); ++page)
    pages.push_back(page);
  return pages;
}

/// Makes what every head wants resident, and copies `moves`, too. The copies are complete when this
/// returns or, in the background, before the layer's next step.
Status PagedRetriever::bring(Layer& layer, const KvView& kv, std::vector<KvMove> moves,
                             bool in_background) {
  layer.copies.clear();
  const std::span<const std::int32_t> positions(kv.positions, to_size(kv.num_rows));
  for (std::int32_t m = 0; m < sequence_.num_kv_heads; ++m) {
    std::int32_t& resident_of = layer.choices[at(m)].resident_of;
    const bool there = resident_of == layer.pages.size();
    if (there && in_background) continue;
    const auto pages = wanted(layer, layer.choices[at(m)]);
    // The next step counts the pages that it wants itself.
    if (!in_background) stats_.pages_wanted += count_of(pages);
    if (there) continue;
    resident_of = layer.pages.size();
    layer.resident->want(m, pages, layer.pages, positions, layer.copies);
  }
  return start_copies(layer, kv, std::move(moves), in_background);
}

/// Distributes the KV heads over the streams, so that one head's copies overlap with the next
/// one's.
Status PagedRetriever::start_copies(Layer& layer, const KvView& kv, std::vector<KvMove> moves,
                                    bool in_background) {
  stats_.pages_copied += count_of(layer.copies);
  for (const PageCopy& c : layer.copies) {
    stats_.bytes_copied += layer.resident->copy_bytes(layer.pages[c.page]);
    moves.push_back(layer.resident->move(c, layer.pages[c.page]));
  }
  const CopyStreams lanes = copy_streams(sequence_);
  if (!in_background) return SlotCopies::bring(lanes, kv, layer.resident->slots(), moves);
  return layer.lane.copy_async(lanes, kv, layer.resident->slots(),
                               std::make_shared<const std::vector<KvMove>>(std::move(moves)),
                               std::numeric_limits<std::int32_t>::max(), stats_);
}

/// Gives the layer slots, to which everything it wants is copied.
Status PagedRetriever::leave_device(Layer& layer, std::int32_t index) {
  QUIRE_RETURN_IF_ERROR(quire::leave_device(sequence_, index, PageLayout::kHeadPages, stats_));
  const KvView kv = sequence_.cache->view(index);
  QUIRE_ASSIGN_OR_RETURN(layer.resident,
                         ResidentPages::create(*sequence_.device, kv.num_kv_heads, kv.head_dim,
                                               kv.dtype, policy_.page_tokens, policy_.slots()));
  std::int64_t held = memory_.bytes();
  for (const Layer& l : layers_) held += l.resident ? l.resident->bytes() : 0;
  stats_.device_bytes = std::max(stats_.device_bytes, held);
  return {};
}

Status PagedRetriever::attend_brought(Layer& layer, const RetrieveStep& step) {
  const bool leaves = !layer.resident;
  if (leaves) QUIRE_RETURN_IF_ERROR(leave_device(layer, step.layer));
  const KvView kv = step.cache->view(step.layer);
  std::vector<KvMove> moves;
  if (!leaves) {
    layer.resident->append(layer.pages, layer.pages.size() - 1, kv.positions[kv.num_rows - 1],
                           moves);
    stats_.bytes_appended += count_of(moves) * layer.resident->copy_bytes({0, 1});
  }
  QUIRE_RETURN_IF_ERROR(bring(layer, kv, std::move(moves), /*in_background=*/false));
  return attend_slots(layer, step);
}

Status PagedRetriever::attend_sparse(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  const Stopwatch watch;
  attention_ms_ = 0;
  const Status status = choose_and_attend(layer, step, kv);
  count_choosing(step, stats_, watch.ms() - attention_ms_);
  return status;
}

Status PagedRetriever::choose_and_attend(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  ++stats_.sparse_steps;
  QUIRE_RETURN_IF_ERROR(refresh(layer, *step.compute, kv));
  QUIRE_RETURN_IF_ERROR(wait(layer));
  if (votes_decide(step)) return choose_by_votes(layer, step, kv);
  const bool first = layer.choices.empty(), stays = reads_in_place(step.layer);
  const std::vector<bool> due = count_step(layer, step.layer);
  const bool any_due = std::ranges::find(due, true) != due.end();
  scored_.assign(due.size(), false);
  // Between two choices only the turn of the query matters. One synchronization brings all.
  if (any_due || policy_.tau) QUIRE_RETURN_IF_ERROR(fetch(layer, step, any_due ? &due : nullptr));
  if (first) QUIRE_RETURN_IF_ERROR(begin_layer(step.layer, layer.pages, kv));
  std::vector<HeadChoice> fresh;
  const std::vector<bool> corrected = heads_to_choose(layer, step, due);
  // `choosing` is for this step; `later` is for the next ones, after it.
  std::vector<bool> choosing = corrected, later = due;
  for (std::size_t m = 0; m < corrected.size(); ++m) {
    choosing[m] = corrected[m] || due[m];
    later[m] = due[m] && !corrected[m];
    if (corrected[m] && !first) layer.head_served[m] = 0;
  }
  const bool any = std::ranges::find(corrected, true) != corrected.end();
  // All choosing heads choose in one call.
  if (any) QUIRE_RETURN_IF_ERROR(select(layer, step, kv, choosing, fresh));
  if (any) keep(layer, step, corrected, fresh);
  for (std::size_t m = 0; !first && policy_.tau && m < corrected.size(); ++m)
    ++(corrected[m] ? stats_.heads_corrected : stats_.heads_kept);
  QUIRE_RETURN_IF_ERROR(stays ? attend_in_place(layer, step, kv) : attend_brought(layer, step));
  if (!policy_.tau || std::ranges::find(later, true) == later.end()) return {};
  // The heads that were not corrected choose by this step's query for the next step, while other
  // layers compute.
  if (!any) QUIRE_RETURN_IF_ERROR(select(layer, step, kv, later, fresh));
  keep(layer, step, later, fresh);
  return stays ? Status() : bring(layer, step.cache->view(step.layer), {}, /*in_background=*/true);
}

/// Attends to the slots of an offloaded layer, each head to the rows of its own pages.
Status PagedRetriever::attend_slots(const Layer& layer, const RetrieveStep& step) {
  std::vector<std::vector<std::int32_t>> rows(to_size(sequence_.num_kv_heads));
  std::vector<RowList> lists;
  for (std::int32_t m = 0; m < sequence_.num_kv_heads; ++m) {
    std::vector<std::int32_t>& of_head = rows[at(m)];
    layer.resident->append_rows(m, of_head);
    lists.push_back({of_head.data(), count_of(of_head)});
  }
  const Stopwatch watch;
  const Status attended = attend_rows(step, layer.resident->listed(), lists.data(), RowOrder::kAny);
  attention_ms_ = watch.ms();
  return attended;
}

/// Lists in choice.rows the rows that the head attends to, of a cache with num_rows rows. The list
/// ends with rows that no choice has seen, so that a step only appends its own row to the previous
/// list.
Status PagedRetriever::list_rows(Layer& layer, std::size_t head, std::int64_t num_rows) const {
  HeadChoice& choice = layer.choices[head];
  if (!choice.rows.empty() && choice.rows.back() + 2 == num_rows) {
    choice.rows.push_back(static_cast<std::int32_t>(num_rows - 1));
    return {};
  }
  CandidateRowsArgs args = rows_wanted(layer, choice.seen);
  RowList list{};
  args.chosen = choice.pages.data();
  args.num_chosen = count_of(choice.pages);
  args.num_kv_heads = 1;
  args.most_rows += args.num_chosen * policy_.page_tokens;
  choice.rows.resize(to_size(args.most_rows));
  args.rows = choice.rows.data();
  args.lists = &list;
  QUIRE_RETURN_IF_ERROR(candidate_rows(args));
  choice.rows.resize(to_size(list.length));
  return {};
}

Status PagedRetriever::attend_in_place(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  std::vector<RowList> lists(layer.choices.size());
  std::vector<Status> status(lists.size());
  parallel_tasks(sequence_.num_kv_heads, [&](std::int64_t m) {
    const auto head = to_size(m);
    status[head] = list_rows(layer, head, kv.num_rows);
    lists[head] = {layer.choices[head].rows.data(), count_of(layer.choices[head].rows)};
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  const Stopwatch watch;
  const Status attended = attend_rows(step, kv, lists.data());
  attention_ms_ = watch.ms();
  return attended;
}

std::vector<std::int32_t> PagedRetriever::attended_pages(std::int32_t layer_index,
                                                         std::int32_t head) const {
  const Layer& layer = layers_[at(layer_index)];
  if (on_device_ && on_device_->chose(layer_index) && layer.choices.empty()) {
    auto choices = on_device_->read(layer_index);
    if (!choices.ok()) return {};
    HeadChoice choice{std::move((*choices)[at(head)].pages), (*choices)[at(head)].seen, {}, -1};
    for (std::int32_t& page : choice.pages) page += policy_.sink_pages();
    return wanted(layer, choice);
  }
  if (layer.num_voted < 0)
    return layer.choices.empty() ? std::vector<std::int32_t>()
                                 : wanted(layer, layer.choices[at(head)]);
  const CandidateRowsArgs rows = rows_wanted(layer, layer.voted_seen);
  std::vector<std::int32_t> pages(to_size(rows.num_first));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::int32_t> voted(to_size(layer.num_voted));
  const Status read = read_memory(device_memory_.get(), layer.voted.data() + head * layer.num_voted,
                                  layer.num_voted * static_cast<std::int64_t>(sizeof(std::int32_t)),
                                  voted.data());
  if (!read.ok()) return {};
  for (const std::int32_t page : voted) pages.push_back(policy_.sink_pages() + page);
  for (std::int64_t page = rows.last_from; page < rows.num_units; ++page)
    pages.push_back(static_cast<std::int32_t>(page));
  return pages;
}

}  // namespace quire
