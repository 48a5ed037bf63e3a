#include "engine/supply/placement.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "engine/compute/compute.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// KV bytes of a call of a device: a fraction of a millisecond to pack and to copy, so that both
/// overlap well.
constexpr std::int64_t kPlacedBytes = 16 << 20;

}  // namespace

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
    part.placed.resize(at(num_layers));
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

bool Placement::by_passes() const { return run_.core.model->compute().memory() != nullptr; }

/// Returns whether the part's rows of this layer are in the cache.
bool Placement::holds(const Part& part, std::int32_t layer) const {
  return part.generation == supply_.generation(part.context) && part.placed[at(layer)] != 0;
}

bool Placement::arrived(const Part& part, std::int32_t layer) const {
  return supply_.ready(part.context, run_.work(part.context).layout.group_of(layer));
}

bool Placement::placed(std::int32_t layer) const {
  const bool comes = by_passes();
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& p) {
    return holds(p, layer) || (comes && arrived(p, layer));
  });
}

bool Placement::all_placed() const {
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    if (!placed(layer)) return false;
  return true;
}

std::vector<std::int32_t> Placement::layers_ready(const Part& part) const {
  std::vector<std::int32_t> layers;
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    if (!holds(part, layer) && arrived(part, layer)) layers.push_back(layer);
  return layers;
}

bool Placement::ready() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [this](const Part& p) { return !layers_ready(p).empty(); });
}

void Placement::take(Part& part, std::span<const std::int32_t> layers) {
  if (part.generation != supply_.generation(part.context)) {
    part.generation = supply_.generation(part.context);
    std::fill(part.placed.begin(), part.placed.end(), std::uint8_t{0});
  }
  for (const std::int32_t layer : layers) part.placed[at(layer)] = 1;
}

void Placement::release_placed() {
  for (const Part& part : parts_)
    if (values_ == Values::kRelease && part.done()) supply_.release(part.context);
}

Status Placement::bring(std::int32_t layer) {
  if (!by_passes()) return {};
  const auto started = Clock::now();
  std::vector<Ready> all;
  for (Part& part : parts_) {
    if (holds(part, layer) || !arrived(part, layer)) continue;
    take(part, std::span(&layer, 1));
    all.push_back({&part, {layer}});
  }
  if (all.empty()) return {};
  if (brought_ == Clock::time_point{}) brought_ = started;
  const Status status = place_in_order(all);
  release_placed();
  const auto now = Clock::now();
  run_.place_ms += ms_between(started, now);
  if (done()) run_.add_span("place", std::exchange(brought_, {}), now);
  return status;
}

Status Placement::step() {
  const auto started = Clock::now();
  std::vector<Ready> all;
  for (Part& part : parts_) {
    if (std::vector<std::int32_t> layers = layers_ready(part); !layers.empty()) {
      take(part, layers);
      all.push_back({&part, std::move(layers)});
    }
    if (!all.empty() && !by_passes()) break;
  }
  if (all.empty()) return {};
  const Status status = by_passes() ? place_in_order(all) : place_by_threads(all.front());
  release_placed();
  const auto now = Clock::now();
  run_.place_ms += ms_between(started, now);
  run_.add_span("place", started, now);
  return status;
}

Status Placement::place_by_threads(const Ready& ready) {
  // Layers write different pages, and nobody changes the page tables meanwhile.
  std::mutex mu;
  Status status;
  parallel_for(count_of(ready.layers), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Status placed = place_layer(*ready.part, ready.layers[at(i)]);
      if (placed.ok()) continue;
      std::lock_guard lock(mu);
      status = std::move(placed);
      return;
    }
  });
  return status;
}

/// Returns calls layer by layer, lowest first, of the blocks of all contexts together. A device
/// copies one call's blocks while the next ones are packed, and a call costs it a few operations
/// whatever it holds.
std::vector<Placement::Call> Placement::calls_of(std::span<const Ready> all) const {
  std::vector<std::pair<std::int32_t, const Part*>> order;
  for (const Ready& ready : all) {
    for (const std::int32_t layer : ready.layers) order.emplace_back(layer, ready.part);
  }
  std::ranges::stable_sort(order, {}, &std::pair<std::int32_t, const Part*>::first);
  std::vector<Call> calls;
  std::int64_t bytes = 0;
  for (const auto& [layer, part] : order) {
    const KvLayout& layout = run_.work(part->context).layout;
    std::int64_t row = part->first_row[at(layer)];
    for (const std::int32_t block : run_.execution.selection.kept(layer, part->context)) {
      const std::int64_t n = layout.tokens_in(block), block_bytes = layout.layer_bytes(block);
      if (calls.empty() || calls.back().layer != layer || bytes + block_bytes > kPlacedBytes) {
        calls.push_back({.layer = layer});
        bytes = 0;
      }
      Call& call = calls.back();
      call.kept.push_back({part, block, count_of(call.rows), n});
      bytes += block_bytes;
      for (std::int64_t r = 0; r < n; ++r) call.rows.push_back(static_cast<std::int32_t>(row + r));
      row += n;
    }
  }
  return calls;
}

/// Returns the stored rows of the call's blocks. Errors: kInternal (one was not loaded).
Result<std::vector<RawKvView>> Placement::stored(const Call& call) const {
  std::vector<RawKvView> rows;
  for (const Call::Kept& k : call.kept) {
    const KvLayout& layout = run_.work(k.part->context).layout;
    const auto value = supply_.value(k.part->context, k.block, layout.group_of(call.layer));
    if (value.empty()) return Status::internal("a kept block was not loaded");
    rows.push_back(layout.view(value, k.block, call.layer));
  }
  return rows;
}

Status Placement::place(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<RawKvView> raw, stored(call));
  const std::span<const std::int32_t> positions = run_.cache->positions(call.layer);
  std::vector<std::int32_t> at_rows(call.rows.size());
  for (std::size_t i = 0; i < call.rows.size(); ++i) at_rows[i] = positions[at(call.rows[i])];
  std::vector<StoredRows> rows;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const Call::Kept& k = call.kept[i];
    rows.push_back({raw[i], std::span<const std::int32_t>(at_rows).subspan(at(k.first), at(k.rows)),
                    std::span<const std::int32_t>(call.rows).subspan(at(k.first), at(k.rows))});
  }
  QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, run_.cache->writable(call.layer, call.rows));
  return run_.core.model->compute().kv().place(run_.core.model->rope(), pages, rows);
}

Status Placement::place_in_order(std::span<const Ready> all) {
  for (const Call& call : calls_of(all)) QUIRE_RETURN_IF_ERROR(place(call));
  return {};
}

void Placement::pack_ahead(std::int32_t layer) {
  if (!by_passes() || layer >= run_.cache->num_layers()) return;
  std::vector<Ready> all;
  for (Part& part : parts_)
    if (!holds(part, layer) && arrived(part, layer)) all.push_back({&part, {layer}});
  const std::vector<Call> calls = calls_of(all);
  if (calls.empty()) return;
  const KvShape& shape = run_.core.facts.shape;
  // It is a hint: what is wrong shows when the layer is placed.
  if (const auto rows = stored(calls.front()); rows.ok())
    (void)run_.core.model->compute().kv().pack_ahead(*rows, shape.num_kv_heads, shape.head_dim);
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
