#include "engine/supply/placement.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/clock.h"
#include "base/index.h"
#include "engine/compute/compute.h"
#include "kernels/parallel.h"

namespace quire {
namespace {}  // namespace

bool Placement::Part::done() const {
  return std::all_of(placed.begin(), placed.end(), [](std::uint8_t p) { return p != 0; });
}

void Placement::add_positions(std::int32_t context, std::int32_t layer,
                              std::vector<std::int32_t>& out) const {
  const ContextWork& work = run_.work(context);
  for (const std::int32_t block : run_.execution.selection.kept(layer, context)) {
    const std::size_t from = out.size();
    out.resize(from + at(work.layout.tokens_in(block)));
    std::iota(out.begin() + static_cast<std::ptrdiff_t>(from), out.end(),
              work.block_position[at(block)]);
  }
}

Status Placement::begin(std::vector<std::int32_t> contexts) {
  const std::int32_t num_layers = run_.cache->num_layers();
  parts_.clear();
  for (const std::int32_t context : contexts) {
    Part part;
    part.context = context;
    part.generation = supply_.generation(context);
    part.first_row.resize(at(num_layers));
    part.placed.resize(at(run_.work(context).layout.num_groups()));
    std::vector<std::int32_t> positions;
    for (std::int32_t layer = 0; layer < num_layers; ++layer) {
      if (layer == 0 || !run_.execution.selection.same_in_all_layers()) {
        positions.clear();
        add_positions(context, layer, positions);
      }
      QUIRE_ASSIGN_OR_RETURN(part.first_row[at(layer)], run_.cache->add_rows(layer, positions));
    }
    parts_.push_back(std::move(part));
  }
  return {};
}

bool Placement::done() const {
  return std::all_of(parts_.begin(), parts_.end(), [this](const Part& p) {
    return p.done() && p.generation == supply_.generation(p.context);
  });
}

bool Placement::placed(std::int32_t layer) const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& p) {
    return p.generation == supply_.generation(p.context) &&
           p.placed[at(run_.work(p.context).layout.group_of(layer))] != 0;
  });
}

std::vector<std::int32_t> Placement::groups_ready(const Part& part) const {
  std::vector<std::int32_t> groups;
  const bool again = part.generation != supply_.generation(part.context);
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(part.placed.size()); ++g) {
    if ((again || !part.placed[at(g)]) && supply_.ready(part.context, g)) groups.push_back(g);
  }
  return groups;
}

bool Placement::ready() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [this](const Part& p) { return !groups_ready(p).empty(); });
}

Status Placement::step() {
  for (Part& part : parts_) {
    const std::vector<std::int32_t> groups = groups_ready(part);
    if (groups.empty()) continue;
    const auto started = Clock::now();
    if (part.generation != supply_.generation(part.context)) {
      part.generation = supply_.generation(part.context);
      std::fill(part.placed.begin(), part.placed.end(), std::uint8_t{0});
    }
    const KvLayout& layout = run_.work(part.context).layout;
    std::vector<std::int32_t> layers;
    for (const std::int32_t g : groups) {
      part.placed[at(g)] = 1;
      for (std::int32_t l = 0; l < layout.layers_in(g); ++l)
        layers.push_back(g * layout.layers_per_group() + l);
    }
    const Status status = run_.core.model->compute().memory() == nullptr
                              ? place_by_threads(part, layers)
                              : place_in_order(part, layers);
    if (values_ == Values::kRelease && part.done()) supply_.release(part.context);
    const auto now = Clock::now();
    run_.place_ms += ms_between(started, now);
    run_.add_span("place", started, now);
    return status;
  }
  return {};
}

Status Placement::place_by_threads(const Part& part, std::span<const std::int32_t> layers) {
  // Layers write different pages, and nobody changes the page tables meanwhile.
  std::mutex mu;
  Status status;
  parallel_for(count_of(layers), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Status placed = place_layer(part, layers[at(i)]);
      if (placed.ok()) continue;
      std::lock_guard lock(mu);
      status = std::move(placed);
      return;
    }
  });
  return status;
}

/// Places layer by layer, lowest first, so that a device copies one layer while the previous one is
/// placed.
Status Placement::place_in_order(const Part& part, std::span<const std::int32_t> layers) {
  const KvLayout& layout = run_.work(part.context).layout;
  std::vector<std::int32_t> rows;
  std::vector<StoredRows> stored;
  for (const std::int32_t layer : layers) {
    stored.clear();
    const std::span<const std::int32_t> blocks = run_.execution.selection.kept(layer, part.context);
    std::int64_t count = 0;
    for (const std::int32_t block : blocks) count += layout.tokens_in(block);
    rows.resize(at(static_cast<std::int32_t>(count)));
    std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(part.first_row[at(layer)]));
    const std::span<const std::int32_t> positions = run_.cache->positions(layer).subspan(
        at(static_cast<std::int32_t>(part.first_row[at(layer)])));
    std::size_t done = 0;
    for (const std::int32_t block : blocks) {
      const auto bytes = supply_.value(part.context, block, layout.group_of(layer));
      if (bytes.empty()) return Status::internal("a kept block was not loaded");
      const std::size_t n = at(layout.tokens_in(block));
      stored.push_back({layout.view(bytes, block, layer), positions.subspan(done, n),
                        std::span<const std::int32_t>(rows).subspan(done, n)});
      done += n;
    }
    QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, run_.cache->writable(layer, rows));
    QUIRE_RETURN_IF_ERROR(
        run_.core.model->compute().kv().place(run_.core.model->rope(), pages, stored));
  }
  return {};
}

Status Placement::place_layer(const Part& part, std::int32_t layer) {
  const KvLayout& layout = run_.work(part.context).layout;
  std::int64_t row = part.first_row[at(layer)];
  for (const std::int32_t block : run_.execution.selection.kept(layer, part.context)) {
    const auto bytes = supply_.value(part.context, block, layout.group_of(layer));
    if (bytes.empty()) return Status::internal("a kept block was not loaded");
    QUIRE_RETURN_IF_ERROR(
        run_.cache->place(layer, run_.core.model->rope(), layout.view(bytes, block, layer), row));
    row += layout.tokens_in(block);
  }
  return {};
}

}  // namespace quire
