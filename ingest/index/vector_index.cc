#include "ingest/index/vector_index.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/invlists/InvertedLists.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "base/index.h"

namespace quire {
namespace {

// For lists read in an unfiltered search: one part in kReadPart, at least kLeastRead.
constexpr std::int64_t kReadPart = 8, kLeastRead = 8;
constexpr std::int64_t kLabelBytes = 8;

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

struct FilteredLabels final : faiss::IDSelector {
  explicit FilteredLabels(const VectorIndex::Filter& f) : filter(f) {}
  bool is_member(idx_t label) const override { return filter(label); }
  const VectorIndex::Filter& filter;
};

}  // namespace

struct VectorIndex::State {
  State(std::int64_t dimension, std::int64_t num_lists)
      : centres(dimension),
        vectors(&centres, to_size(dimension), to_size(num_lists), faiss::METRIC_INNER_PRODUCT) {
    vectors.cp.seed = 1;
    vectors.cp.min_points_per_centroid = 1;
  }
  faiss::IndexFlatIP centres;
  faiss::IndexIVFFlat vectors;
};

VectorIndex::VectorIndex(std::unique_ptr<State> state) : state_(std::move(state)) {}
VectorIndex::VectorIndex(VectorIndex&&) noexcept = default;
VectorIndex& VectorIndex::operator=(VectorIndex&&) noexcept = default;
VectorIndex::~VectorIndex() = default;

std::int64_t VectorIndex::dimension() const { return state_->vectors.d; }
std::int64_t VectorIndex::num_lists() const {
  return static_cast<std::int64_t>(state_->vectors.nlist);
}
std::int64_t VectorIndex::size() const { return state_->vectors.ntotal; }
std::int64_t VectorIndex::memory_bytes() const {
  return (size() + state_->centres.ntotal) * state_->vectors.d *
             static_cast<std::int64_t>(sizeof(float)) +
         size() * kLabelBytes;
}

Result<VectorIndex> VectorIndex::make(std::int64_t dimension) {
  std::unique_ptr<State> state;
  QUIRE_RETURN_IF_ERROR(guarded("making an index of vectors", [&] {
    state = std::make_unique<State>(dimension, 1);
    // The single list takes every vector, wherever its centre is.
    const std::vector<float> centre(to_size(dimension), 0.0f);
    state->centres.add(1, centre.data());
    state->vectors.is_trained = true;
  }));
  return VectorIndex(std::move(state));
}

Status VectorIndex::add(std::span<const std::int64_t> labels, std::span<const float> vectors) {
  if (labels.empty()) return {};
  return guarded("entering vectors", [&] {
    state_->vectors.add_with_ids(count_of(labels), vectors.data(), labels.data());
  });
}

Status VectorIndex::remove(std::span<const std::int64_t> labels) {
  if (labels.empty()) return {};
  return guarded("removing vectors", [&] {
    state_->vectors.remove_ids(faiss::IDSelectorBatch(labels.size(), labels.data()));
  });
}

Result<std::vector<VectorMatch>> VectorIndex::search(std::span<const float> query,
                                                     std::size_t limit,
                                                     const Filter& filter) const {
  const std::size_t most = std::min(limit, to_size(size()));
  std::vector<VectorMatch> out;
  if (most == 0) return out;
  QUIRE_RETURN_IF_ERROR(guarded("searching vectors", [&] {
    std::vector<float> scores(most);
    std::vector<faiss::Index::idx_t> labels(most);
    FilteredLabels wanted(filter);
    faiss::SearchParametersIVF how;
    how.nprobe = to_size(
        filter ? num_lists()
               : std::min(num_lists(), std::max(kLeastRead, num_lists() / kReadPart)));
    if (filter) how.sel = &wanted;
    state_->vectors.search(1, query.data(), static_cast<std::int64_t>(most), scores.data(),
                           labels.data(), &how);
    for (std::size_t i = 0; i < most && labels[i] >= 0; ++i) out.push_back({labels[i], scores[i]});
  }));
  std::sort(out.begin(), out.end(), [](const VectorMatch& a, const VectorMatch& b) {
    return a.score != b.score ? a.score > b.score : a.label < b.label;
  });
  return out;
}

Result<VectorIndex> VectorIndex::in_lists(std::int64_t num_lists) const {
  const std::int64_t lists = std::min(num_lists, size());
  const std::int64_t dimension = state_->vectors.d;
  if (lists <= 1 && size() == 0) return make(dimension);
  std::vector<std::int64_t> labels;
  std::vector<float> all;
  std::unique_ptr<State> state;
  QUIRE_RETURN_IF_ERROR(guarded("sorting vectors into lists", [&] {
    labels.reserve(to_size(size()));
    all.reserve(to_size(size() * dimension));
    const faiss::InvertedLists& from = *state_->vectors.invlists;
    for (std::size_t l = 0; l < from.nlist; ++l) {
      faiss::InvertedLists::ScopedIds ids(&from, l);
      faiss::InvertedLists::ScopedCodes codes(&from, l);
      const std::size_t n = from.list_size(l);
      labels.insert(labels.end(), ids.get(), ids.get() + n);
      const auto* vectors = reinterpret_cast<const float*>(codes.get());
      all.insert(all.end(), vectors, vectors + n * to_size(dimension));
    }
    if (lists <= 1) return;
    state = std::make_unique<State>(dimension, lists);
    state->vectors.train(count_of(labels), all.data());
  }));
  if (!state) {
    QUIRE_ASSIGN_OR_RETURN(VectorIndex one, make(dimension));
    QUIRE_RETURN_IF_ERROR(one.add(labels, all));
    return one;
  }
  VectorIndex out(std::move(state));
  QUIRE_RETURN_IF_ERROR(out.add(labels, all));
  return out;
}

}  // namespace quire
