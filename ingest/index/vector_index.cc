#include "ingest/index/vector_index.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/utils/distances.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "ingest/index/vector_file.h"

namespace quire {
namespace {

// For lists read in an unfiltered search: one part in kReadPart, at least kLeastRead.
constexpr std::int64_t kReadPart = 8, kLeastRead = 8;
/// Vectors a list that k-means looks at.
constexpr std::int64_t kSampledPerList = 64;
constexpr std::int64_t kAssignedAtOnce = 1024;
/// Free slots that a file may keep before it is written anew.
constexpr std::uint32_t kFreeKept = 256;
constexpr std::int64_t kReadBytes = 256 << 10;
constexpr std::size_t kReadsAhead = 64;

/// Turns exceptions of FAISS into errors, so that none leaves this file.
template <class F>
Status guarded(const char* what, F&& fn) {
  try {
    omp_set_num_threads(1);  // limits the calling thread only; the engine needs the cores
    fn();
    return {};
  } catch (const std::bad_alloc&) {
    return Status::exhausted(std::string(what) + ": out of memory");
  } catch (const std::exception& e) {
    return Status::internal(std::string(what) + ": " + e.what());
  }
}

struct Entry {
  std::int64_t label = 0;
  std::unique_ptr<float[]> vector;  ///< null: on disk
  std::uint32_t slot = 0;           ///< on disk
};
using List = std::vector<Entry>;
/// An entry, its place in the list, and spare capacity.
constexpr std::int64_t kEntryBytes = 2 * sizeof(Entry);

bool is_better(const VectorMatch& a, const VectorMatch& b) {
  return a.score != b.score ? a.score > b.score : a.label < b.label;
}

}  // namespace

struct VectorIndex::ListPlan {
  std::unique_ptr<faiss::IndexFlatIP> centres;     ///< null: one list
  std::vector<std::vector<std::int64_t>> list_of;  ///< by list and place in it
};

struct VectorIndex::State {
  std::int64_t dimension = 0;
  std::unique_ptr<faiss::IndexFlatIP> centres;  ///< null: one list
  std::vector<List> lists = std::vector<List>(1);
  std::int64_t size = 0, in_memory = 0;
  std::optional<VectorFile> file;

  std::int64_t vector_bytes() const { return dimension * static_cast<std::int64_t>(sizeof(float)); }

  /// Calls fn(place in the list, vector) for the entries that pass `filter` (empty: all), and
  /// cannot(place) for those that the disk does not give.
  template <class F, class G>
  void visit(const List& list, const Filter& filter, F&& fn, G&& cannot) const {
    std::vector<std::size_t> on_disk;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (filter && !filter(list[i].label)) continue;
      if (list[i].vector)
        fn(i, static_cast<const float*>(list[i].vector.get()));
      else
        on_disk.push_back(i);
    }
    std::sort(on_disk.begin(), on_disk.end(),
              [&](std::size_t a, std::size_t b) { return list[a].slot < list[b].slot; });
    const std::size_t most = to_size(std::max<std::int64_t>(1, kReadBytes / vector_bytes()));
    // Neighbours in the file are read together.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;  // first slot, number
    for (const std::size_t i : on_disk) {
      const std::uint32_t slot = list[i].slot;
      if (!runs.empty() && runs.back().second < most &&
          slot == runs.back().first + runs.back().second)
        ++runs.back().second;
      else
        runs.emplace_back(slot, 1);
    }
    std::vector<float> vectors;
    for (std::size_t run = 0, ahead = 0, first = 0; run < runs.size(); ++run) {
      for (; ahead < std::min(runs.size(), run + kReadsAhead); ++ahead)
        file->prefetch(runs[ahead].first, runs[ahead].second);
      const auto [slot, n] = runs[run];
      vectors.resize(n * to_size(dimension));
      const bool whole = file->read(slot, n, vectors.data()).ok();
      for (std::uint32_t i = 0; i < n; ++i, ++first) {
        float* vector = vectors.data() + i * to_size(dimension);
        // One that cannot be read does not take its neighbours along.
        if (whole || file->read(slot + i, 1, vector).ok())
          fn(on_disk[first], static_cast<const float*>(vector));
        else
          cannot(on_disk[first]);
      }
    }
  }

  /// Moves vectors from the end of the file into free slots, and shortens it.
  Status rewrite_file() {
    const std::uint32_t used = file->num_slots() - file->num_free();
    std::vector<std::uint32_t> left;
    std::vector<float> vector(to_size(dimension));
    Status status;
    for (List& list : lists) {
      for (Entry& e : list) {
        if (e.vector || e.slot < used) continue;
        status = file->read(e.slot, 1, vector.data());
        if (!status.ok()) break;
        const auto slot = file->put(vector);
        status = slot.status();
        if (!status.ok()) break;
        left.push_back(std::exchange(e.slot, *slot));
      }
      if (!status.ok()) break;
    }
    file->free(left);
    const Status trimmed = file->trim();
    return status.ok() ? trimmed : status;
  }
};

VectorIndex::VectorIndex(std::unique_ptr<State> state) : state_(std::move(state)) {}
VectorIndex::VectorIndex(VectorIndex&&) noexcept = default;
VectorIndex& VectorIndex::operator=(VectorIndex&&) noexcept = default;
VectorIndex::~VectorIndex() = default;

std::int64_t VectorIndex::dimension() const { return state_->dimension; }
std::int64_t VectorIndex::num_lists() const { return count_of(state_->lists); }
std::int64_t VectorIndex::size() const { return state_->size; }
std::int64_t VectorIndex::memory_bytes() const {
  return movable_bytes() + (num_lists() - 1) * state_->vector_bytes() + size() * kEntryBytes;
}
std::int64_t VectorIndex::movable_bytes() const {
  return state_->in_memory * state_->vector_bytes();
}
std::int64_t VectorIndex::disk_bytes() const {
  return state_->file ? state_->file->disk_bytes() : 0;
}

Result<VectorIndex> VectorIndex::make(std::int64_t dimension) {
  auto state = std::make_unique<State>();
  state->dimension = dimension;
  return VectorIndex(std::move(state));
}

Status VectorIndex::add(std::span<const std::int64_t> labels,
                        std::span<const std::uint16_t> vectors) {
  return guarded("entering vectors", [&] {
    const std::size_t d = to_size(dimension());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      Entry e;
      e.label = labels[i];
      e.vector = std::make_unique<float[]>(d);
      for (std::size_t c = 0; c < d; ++c) e.vector[c] = f16_to_f32(vectors[i * d + c]);
      faiss::Index::idx_t list = 0;
      if (state_->centres) state_->centres->assign(1, e.vector.get(), &list);
      state_->lists[at(list)].push_back(std::move(e));
      ++state_->size;
      ++state_->in_memory;
    }
  });
}

Status VectorIndex::remove(std::span<const std::int64_t> labels) {
  if (labels.empty()) return {};
  const std::set<std::int64_t> gone(labels.begin(), labels.end());
  std::vector<std::uint32_t> slots;
  for (List& list : state_->lists) {
    const auto n = std::erase_if(list, [&](const Entry& e) {
      if (!gone.contains(e.label)) return false;
      if (e.vector)
        --state_->in_memory;
      else
        slots.push_back(e.slot);
      return true;
    });
    state_->size -= static_cast<std::int64_t>(n);
    if (list.capacity() > 2 * list.size()) list.shrink_to_fit();
  }
  if (slots.empty()) return {};
  VectorFile& file = *state_->file;
  file.free(slots);
  if (state_->size == state_->in_memory) {
    state_->file.reset();
    return {};
  }
  if (2 * file.num_free() <= file.num_slots() || file.num_free() <= kFreeKept) return {};
  return state_->rewrite_file();
}

Status VectorIndex::move_to_disk(const std::string& folder, std::int64_t bytes,
                                 std::int64_t most_growth) {
  if (!state_->file) {
    QUIRE_ASSIGN_OR_RETURN(state_->file, VectorFile::create(folder, dimension()));
  }
  VectorFile& file = *state_->file;
  const std::int64_t most_bytes = file.disk_bytes() + most_growth;
  std::int64_t moved = 0;
  for (List& list : state_->lists) {
    for (Entry& e : list) {
      if (moved >= bytes) return {};
      if (!e.vector) continue;
      if (file.num_free() == 0 && file.disk_bytes() + file.slot_bytes() > most_bytes)
        return Status::exhausted("the room for vectors on disk is used up");
      QUIRE_ASSIGN_OR_RETURN(e.slot, file.put({e.vector.get(), to_size(dimension())}));
      e.vector.reset();
      --state_->in_memory;
      moved += state_->vector_bytes();
    }
  }
  return {};
}

Result<VectorIndex::Found> VectorIndex::search(std::span<const float> query, std::size_t limit,
                                               const Filter& filter) const {
  const std::size_t most = std::min(limit, to_size(size()));
  Found out;
  if (most == 0) return out;
  QUIRE_RETURN_IF_ERROR(guarded("searching vectors", [&] {
    const std::int64_t n = filter ? num_lists()
                                  : std::min(num_lists(),
                                             std::max(kLeastRead, num_lists() / kReadPart));
    std::vector<faiss::Index::idx_t> lists(to_size(n));
    std::vector<float> nearness(lists.size());
    if (state_->centres) state_->centres->search(1, query.data(), n, nearness.data(), lists.data());
    std::vector<VectorMatch>& best = out.matches;  // a heap: the worst is first
    for (const auto l : lists) {
      if (l < 0) continue;
      const List& list = state_->lists[at(l)];
      state_->visit(
          list, filter,
          [&](std::size_t place, const float* vector) {
            const VectorMatch match{
                list[place].label,
                faiss::fvec_inner_product(query.data(), vector, to_size(dimension()))};
            if (best.size() == most) {
              if (!is_better(match, best.front())) return;
              std::pop_heap(best.begin(), best.end(), is_better);
              best.pop_back();
            }
            best.push_back(match);
            std::push_heap(best.begin(), best.end(), is_better);
          },
          [&](std::size_t place) { out.unreadable.push_back(list[place].label); });
    }
    std::sort_heap(best.begin(), best.end(), is_better);
  }));
  return out;
}

Result<std::shared_ptr<VectorIndex::ListPlan>> VectorIndex::plan_lists(
    std::int64_t num_lists) const {
  auto plan = std::make_shared<ListPlan>();
  const auto skip = [](std::size_t) {};
  QUIRE_RETURN_IF_ERROR(guarded("sorting vectors into lists", [&] {
    const std::size_t d = to_size(dimension());
    const std::int64_t n = std::max<std::int64_t>(1, std::min(num_lists, size()));
    if (n > 1) {
      plan->centres = std::make_unique<faiss::IndexFlatIP>(dimension());
      std::vector<std::int64_t> all, sampled;
      for (const List& list : state_->lists) {
        for (const Entry& e : list) all.push_back(e.label);
      }
      // By label, so that the centres depend neither on the order in lists nor on where vectors
      // lie.
      std::sort(all.begin(), all.end());
      const std::int64_t wanted = std::min(size(), n * kSampledPerList);
      for (std::int64_t i = 0; i < wanted; ++i) sampled.push_back(all[at(i * size() / wanted)]);
      std::vector<float> vectors(sampled.size() * d);
      const auto rank = [&](std::int64_t label) {
        return std::lower_bound(sampled.begin(), sampled.end(), label) - sampled.begin();
      };
      const Filter is_sampled = [&](std::int64_t label) {
        return std::binary_search(sampled.begin(), sampled.end(), label);
      };
      for (const List& list : state_->lists) {
        state_->visit(
            list, is_sampled,
            [&](std::size_t place, const float* vector) {
              std::copy_n(vector, d, vectors.data() + to_size(rank(list[place].label)) * d);
            },
            skip);
      }
      faiss::ClusteringParameters how;
      how.niter = 10;
      how.seed = 1;
      how.spherical = true;  // the vectors have length 1
      how.min_points_per_centroid = 1;
      how.max_points_per_centroid = static_cast<int>(kSampledPerList);
      faiss::Clustering clustering(static_cast<int>(d), static_cast<int>(n), how);
      clustering.train(wanted, vectors.data(), *plan->centres);
    }
    for (const List& list : state_->lists) {
      // Those that cannot be read now stay in the first list.
      auto& list_of = plan->list_of.emplace_back(list.size(), 0);
      if (!plan->centres) continue;
      std::vector<std::size_t> places;
      std::vector<float> vectors;
      const auto assign = [&] {
        std::vector<faiss::Index::idx_t> nearest(places.size());
        plan->centres->assign(count_of(places), vectors.data(), nearest.data());
        for (std::size_t i = 0; i < places.size(); ++i) list_of[places[i]] = nearest[i];
        places.clear();
        vectors.clear();
      };
      state_->visit(
          list, {},
          [&](std::size_t place, const float* vector) {
            places.push_back(place);
            vectors.insert(vectors.end(), vector, vector + d);
            if (count_of(places) == kAssignedAtOnce) assign();
          },
          skip);
      if (!places.empty()) assign();
    }
  }));
  return plan;
}

void VectorIndex::regroup(ListPlan& plan) {
  std::vector<List> lists(to_size(plan.centres ? plan.centres->ntotal : 1));
  for (std::size_t l = 0; l < state_->lists.size(); ++l) {
    for (std::size_t i = 0; i < state_->lists[l].size(); ++i)
      lists[at(plan.list_of[l][i])].push_back(std::move(state_->lists[l][i]));
  }
  state_->centres = std::move(plan.centres);
  state_->lists = std::move(lists);
}

}  // namespace quire
