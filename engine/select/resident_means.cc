#include "engine/select/resident_means.h"

#include <utility>

#include "base/index.h"

namespace quire {
namespace {

std::int64_t width_of(const SketchView& s) { return std::int64_t{s.num_kv_heads()} * s.head_dim(); }

}  // namespace

void ResidentMeans::make_room(std::int64_t bytes) {
  while (!entries_.empty() && stats_.bytes + bytes > max_bytes_) {
    stats_.bytes -= entries_.back().means.bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

Result<ComputeValues> ResidentMeans::get(const std::optional<ContextKey>& key,
                                         const SketchView& sketch) {
  if (const auto found = key ? by_key_.find(*key) : by_key_.end(); found != by_key_.end()) {
    ++stats_.hits;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->means;
  }
  const std::int64_t per_layer = sketch.num_blocks() * width_of(sketch),
                     bytes = sketch.num_layers() * per_layer *
                             static_cast<std::int64_t>(sizeof(float));
  if (bytes > max_bytes_)
    return Status::exhausted("the means of a document take more than all of them may");
  make_room(bytes);
  std::vector<float> means(to_size(sketch.num_layers() * per_layer));
  for (std::int32_t layer = 0; layer < sketch.num_layers(); ++layer)
    sketch.means(layer, std::span(means).subspan(at(layer * per_layer), at(per_layer)));
  QUIRE_ASSIGN_OR_RETURN(ComputeValues kept,
                         compute_.upload(std::as_bytes(std::span<const float>(means))));
  ++stats_.uploads;
  if (key) {
    entries_.push_front({*key, kept});
    by_key_[*key] = entries_.begin();
    stats_.bytes += kept.bytes;
  }
  return kept;
}

Result<bool> ResidentScorer::score(const Shape& shape, std::span<const Item> items) {
  std::map<std::int32_t, ComputeValues> means;  // [context], held until all items are scored
  std::vector<ScoredBlocks> documents;
  for (const Item& item : items) {
    ComputeValues& of = means[item.context];
    if (of.empty()) {
      auto got = means_.get(keys_[at(item.context)], *item.sketch);
      if (got.code() == Code::kResourceExhausted) return false;
      QUIRE_RETURN_IF_ERROR(got.status());
      of = std::move(*got);
    }
    documents.push_back(
        {.means = of.floats() + item.layer * item.sketch->num_blocks() * width_of(*item.sketch),
         .num_blocks = item.sketch->num_blocks(),
         .query = item.query.data(),
         .distance = item.distance,
         .score = item.score.data(),
         .comparable = item.comparable.data()});
  }
  QUIRE_RETURN_IF_ERROR(means_.compute_.choice().score_blocks(means_.rope_, shape.num_heads,
                                                              shape.num_kv_heads, documents));
  return true;
}

}  // namespace quire
