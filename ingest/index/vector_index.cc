#include "ingest/index/vector_index.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/utils/distances.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "ingest/index/vector_file.h"

// OpenBLAS, which has threads of its own, may or may not be the BLAS that FAISS was linked with.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace quire {
namespace {

// An unfiltered search reads one list in kReadPart, at least kLeastLists, and as many as hold about
// kLeastVectors: reading that many takes milliseconds, and small indexes lose much by less.
constexpr std::int64_t kReadPart = 8, kLeastLists = 8, kLeastVectors = 25'000;
/// Vectors a list that k-means looks at.
constexpr std::int64_t kSampledPerList = 64;
constexpr std::int64_t kAssignedAtOnce = 1024;
/// Vectors that are compared with the centres by a matrix product rather than one by one.
constexpr int kFewest = 4;
/// Free slots that a file may keep before it is written anew.
constexpr std::uint32_t kFreeKept = 256;
constexpr std::int64_t kReadBytes = 256 << 10;
constexpr std::size_t kReadsAhead = 64;

/// Turns exceptions of FAISS into errors, so that none leaves this file.
template <class F>
Status guarded(const char* what, F&& fn) {
  try {
    // The engine needs the cores. This limits the calling thread, and BLAS, which only FAISS uses.
    omp_set_num_threads(1);
    static const bool limited = [] {
      if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
      faiss::distance_compute_blas_threshold = kFewest;
      return true;
    }();
    (void)limited;
    fn();
    return {};
  } catch (const std::bad_alloc&) {
    return Status::exhausted(std::string(what) + ": out of memory");
  } catch (const std::exception& e) {
    return Status::internal(std::string(what) + ": " + e.what());
  }
}

/// The label of a vector, its slot on disk, and spare room for others.
constexpr std::int64_t kEntryBytes = 32;
/// A list holds the vectors in memory side by side, because a search reads all of them, and then
/// those on disk. A place counts through both.
struct List {
  struct OnDisk {
    std::int64_t label;
    std::uint32_t slot;
  };
  std::vector<std::int64_t> labels;  ///< of the vectors in memory
  std::vector<float> vectors;        ///< [labels.size(), dimension]
  std::vector<OnDisk> on_disk;

  std::size_t size() const { return labels.size() + on_disk.size(); }
  std::int64_t label(std::size_t place) const {
    return place < labels.size() ? labels[place] : on_disk[place - labels.size()].label;
  }
  void add(std::int64_t label, std::span<const float> vector) {
    // An eighth, not double: vectors are most of the index's memory.
    if (vectors.size() + vector.size() > vectors.capacity())
      vectors.reserve(vectors.size() + std::max(vector.size(), vectors.size() / 8));
    vectors.insert(vectors.end(), vector.begin(), vector.end());
    labels.push_back(label);
  }
  const float* vector(std::size_t place, std::int64_t dimension) const {
    return vectors.data() + place * to_size(dimension);
  }
  /// Drops the first vectors in memory.
  void drop_from_memory(std::size_t n, std::int64_t dimension) {
    labels.erase(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(n));
    vectors.erase(vectors.begin(), vectors.begin() + static_cast<std::ptrdiff_t>(n) * dimension);
    give_back_room();
  }
  void give_back_room() {
    if (labels.capacity() > 2 * labels.size()) labels.shrink_to_fit();
    if (vectors.capacity() > 2 * vectors.size()) vectors.shrink_to_fit();
    if (on_disk.capacity() > 2 * on_disk.size()) on_disk.shrink_to_fit();
  }
};

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
    const std::size_t first_on_disk = list.labels.size();
    for (std::size_t i = 0; i < first_on_disk; ++i) {
      if (!filter || filter(list.labels[i])) fn(i, list.vector(i, dimension));
    }
    std::vector<std::size_t> on_disk;
    for (std::size_t i = 0; i < list.on_disk.size(); ++i) {
      if (!filter || filter(list.on_disk[i].label)) on_disk.push_back(i);
    }
    std::sort(on_disk.begin(), on_disk.end(), [&](std::size_t a, std::size_t b) {
      return list.on_disk[a].slot < list.on_disk[b].slot;
    });
    const std::size_t most = to_size(std::max<std::int64_t>(1, kReadBytes / vector_bytes()));
    // Neighbours in the file are read together.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;  // first slot, number
    for (const std::size_t i : on_disk) {
      const std::uint32_t slot = list.on_disk[i].slot;
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
          fn(first_on_disk + on_disk[first], static_cast<const float*>(vector));
        else
          cannot(first_on_disk + on_disk[first]);
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
      for (List::OnDisk& e : list.on_disk) {
        if (e.slot < used) continue;
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

Result<VectorIndex> VectorIndex::make(std::int64_t dimension,
                                      std::span<const std::uint16_t> centres) {
  // No list would be the nearest to a vector.
  if (!std::all_of(centres.begin(), centres.end(),
                   [](std::uint16_t v) { return std::isfinite(f16_to_f32(v)); }))
    return Status::corruption("a centre of the lists of vectors holds no numbers");
  auto state = std::make_unique<State>();
  state->dimension = dimension;
  QUIRE_RETURN_IF_ERROR(guarded("making an index of vectors", [&] {
    const std::int64_t n = count_of(centres) / dimension;
    if (n < 2) return;
    std::vector<float> values(centres.size());
    std::transform(centres.begin(), centres.end(), values.begin(), f16_to_f32);
    state->centres = std::make_unique<faiss::IndexFlatIP>(dimension);
    state->centres->add(n, values.data());
    state->lists.resize(to_size(n));
  }));
  return VectorIndex(std::move(state));
}

std::vector<std::uint16_t> VectorIndex::centres() const {
  if (!state_->centres) return {};
  const std::size_t n = to_size(num_lists() * dimension());
  const float* values = state_->centres->get_xb();
  std::vector<std::uint16_t> out(n);
  std::transform(values, values + n, out.begin(), f32_to_f16);
  return out;
}

Status VectorIndex::add(std::span<const std::int64_t> labels,
                        std::span<const std::uint16_t> vectors) {
  return guarded("entering vectors", [&] {
    const std::size_t d = to_size(dimension());
    std::vector<float> values(vectors.size());
    std::transform(vectors.begin(), vectors.end(), values.begin(), f16_to_f32);
    // All at once: the centres of a large index pass through the caches once, not for each vector.
    std::vector<faiss::Index::idx_t> list_of(labels.size(), 0);
    if (state_->centres) state_->centres->assign(count_of(labels), values.data(), list_of.data());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      List& list = state_->lists[at(list_of[i])];
      list.add(labels[i], std::span(values).subspan(i * d, d));
      ++state_->size;
      ++state_->in_memory;
    }
  });
}

Status VectorIndex::remove(std::span<const std::int64_t> labels) {
  if (labels.empty()) return {};
  std::vector<std::int64_t> gone(labels.begin(), labels.end());
  std::sort(gone.begin(), gone.end());
  const auto is_gone = [&](std::int64_t label) {
    return label >= gone.front() && label <= gone.back() &&
           std::binary_search(gone.begin(), gone.end(), label);
  };
  const std::size_t d = to_size(dimension());
  std::vector<std::uint32_t> slots;
  for (List& list : state_->lists) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.labels.size(); ++i) {
      if (is_gone(list.labels[i])) continue;
      if (kept < i) {
        list.labels[kept] = list.labels[i];
        std::copy_n(list.vectors.data() + i * d, d, list.vectors.data() + kept * d);
      }
      ++kept;
    }
    const auto removed = static_cast<std::int64_t>(list.labels.size() - kept);
    state_->in_memory -= removed;
    list.labels.resize(kept);
    list.vectors.resize(kept * d);
    const auto n = std::erase_if(list.on_disk, [&](const List::OnDisk& e) {
      if (!is_gone(e.label)) return false;
      slots.push_back(e.slot);
      return true;
    });
    list.give_back_room();
    state_->size -= removed + static_cast<std::int64_t>(n);
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
  const std::int64_t wanted = (bytes + state_->vector_bytes() - 1) / state_->vector_bytes();
  std::int64_t moved = 0;
  Status status;
  for (List& list : state_->lists) {
    std::size_t n = 0;  // of this list, from its beginning
    for (; n < list.labels.size() && moved < wanted; ++n, ++moved) {
      if (file.num_free() == 0 && file.disk_bytes() + file.slot_bytes() > most_bytes) {
        status = Status::exhausted("the room for vectors on disk is used up");
        break;
      }
      const auto slot = file.put({list.vector(n, dimension()), to_size(dimension())});
      status = slot.status();
      if (!status.ok()) break;
      list.on_disk.push_back({list.labels[n], *slot});
    }
    list.drop_from_memory(n, dimension());
    if (!status.ok() || moved == wanted) break;
  }
  state_->in_memory -= moved;
  return status;
}

Result<VectorIndex::Found> VectorIndex::search(std::span<const float> query, std::size_t limit,
                                               const Filter& filter) const {
  const std::size_t most = std::min(limit, to_size(size()));
  Found out;
  if (most == 0) return out;
  QUIRE_RETURN_IF_ERROR(guarded("searching vectors", [&] {
    std::int64_t n = num_lists();
    if (!filter)
      n = std::min(n, std::max({kLeastLists, n / kReadPart, kLeastVectors * n / size() + 1}));
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
                list.label(place),
                faiss::fvec_inner_product(query.data(), vector, to_size(dimension()))};
            if (best.size() == most) {
              if (!is_better(match, best.front())) return;
              std::pop_heap(best.begin(), best.end(), is_better);
              best.pop_back();
            }
            best.push_back(match);
            std::push_heap(best.begin(), best.end(), is_better);
          },
          [&](std::size_t place) { out.unreadable.push_back(list.label(place)); });
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
        for (std::size_t place = 0; place < list.size(); ++place) all.push_back(list.label(place));
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
              std::copy_n(vector, d, vectors.data() + to_size(rank(list.label(place))) * d);
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
  const std::size_t d = to_size(dimension());
  for (std::size_t l = 0; l < state_->lists.size(); ++l) {
    // Each list goes once its vectors have been copied, so that memory does not double.
    const List from = std::move(state_->lists[l]);
    for (std::size_t i = 0; i < from.size(); ++i) {
      List& to = lists[at(plan.list_of[l][i])];
      if (i < from.labels.size())
        to.add(from.labels[i], std::span(from.vectors).subspan(i * d, d));
      else
        to.on_disk.push_back(from.on_disk[i - from.labels.size()]);
    }
  }
  state_->centres = std::move(plan.centres);
  state_->lists = std::move(lists);
}

}  // namespace quire
