#include "kernels/cuda/runtime/graph_cache.h"

#include <algorithm>

namespace quire::cuda {

GraphCache::GraphCache(DeviceDriver& driver, std::size_t capacity)
    : driver_(driver), capacity_(capacity) {
  QUIRE_CHECK(capacity >= 1, "a cache holds something");
}

Status GraphCache::run(std::int64_t bucket, std::uint64_t version, StreamHandle stream,
                       const Record& record) {
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [bucket](const Entry& e) { return e.bucket == bucket; });
  if (entry != entries_.end() && entry->version != version) {
    entries_.erase(entry);
    entry = entries_.end();
  }
  if (entry == entries_.end()) {
    QUIRE_ASSIGN_OR_RETURN(Graph graph, capture(stream, record));
    if (entries_.size() == capacity_) {
      entries_.pop_back();
      ++stats_.evictions;
    }
    entries_.push_front({bucket, version, std::move(graph)});
  } else {
    entries_.splice(entries_.begin(), entries_, entry);
  }
  if (Status launched = driver_.launch(entries_.front().graph.get(), stream); !launched.ok()) {
    entries_.pop_front();  // the next step is captured anew
    return launched;
  }
  ++stats_.launches;
  return {};
}

Result<Graph> GraphCache::capture(StreamHandle stream, const Record& record) {
  QUIRE_RETURN_IF_ERROR(driver_.begin_capture(stream));
  const Status recorded = record(stream);
  auto handle = driver_.end_capture(stream);  // also after a failure, to end the capture
  Graph graph;
  if (handle.ok()) graph = Graph(driver_, *handle);
  if (!recorded.ok()) return recorded;
  if (!handle.ok()) return handle.status();
  ++stats_.captures;
  return graph;
}

}  // namespace quire::cuda
