#include "engine/retrieve/rows/centroid_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "base/dtype.h"
#include "base/index.h"
#include "kernels/attention/attention.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/row_votes.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// These centroids share a tile of keys, and their votes for every row are in memory together.
constexpr std::int64_t kCentroidsAtOnce = 32;
constexpr std::size_t kRowsAtOnce = 64;  ///< rows whose missing lse is computed in one call

std::int64_t padded(std::int64_t rows) {
  return (rows + kPageTokens - 1) / kPageTokens * kPageTokens;
}

std::int64_t words_for(std::int64_t rows) { return (rows + 63) / 64; }

void mark(std::span<const std::int32_t> rows, std::uint64_t* bits) {
  for (const std::int32_t row : rows) bits[row / 64] |= std::uint64_t{1} << (row % 64);
}

/// VoteBuffers passes the buffers of a build from task to task, because fresh memory costs as much
/// as the writes to it.
class VoteBuffers {
 public:
  explicit VoteBuffers(std::int64_t floats) : floats_(at(floats)) {}
  std::unique_ptr<float[]> take() {
    const std::lock_guard lock(mu_);
    if (spare_.empty()) return std::make_unique_for_overwrite<float[]>(floats_);
    auto buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give_back(std::unique_ptr<float[]> buffer) {
    const std::lock_guard lock(mu_);
    spare_.push_back(std::move(buffer));
  }

 private:
  const std::size_t floats_;
  std::mutex mu_;
  std::vector<std::unique_ptr<float[]>> spare_;  // guarded by mu_
};

/// Returns 1 / length, or 0: a zero query is near to nothing.
float inverse_length(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += double{x[c]} * x[c];
  return sum > 0 ? static_cast<float>(1.0 / std::sqrt(sum)) : 0.0f;
}

}  // namespace

void append_marked(std::span<const std::uint64_t> bits, std::vector<std::int32_t>& rows) {
  std::size_t count = rows.size();
  for (const std::uint64_t word : bits) count += to_size(std::popcount(word));
  const std::size_t had = rows.size();
  rows.resize(count);
  std::int32_t* to = rows.data() + had;
  for (std::size_t word = 0; word < bits.size(); ++word) {
    for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1)
      *to++ = static_cast<std::int32_t>(word * 64) + std::countr_zero(rest);
  }
}

std::int64_t CentroidIndex::device_bytes_for(std::int32_t num_heads, std::int32_t head_dim,
                                             std::int64_t num_centroids) {
  return std::int64_t{num_heads} * padded(num_centroids) * head_dim *
         static_cast<std::int64_t>(dtype_bytes(DType::kF16));
}

std::int64_t CentroidIndex::list_bytes_for(std::int32_t num_kv_heads, std::int64_t num_centroids,
                                           std::int64_t host_end) {
  return num_kv_heads * num_centroids * words_for(host_end) *
         static_cast<std::int64_t>(sizeof(std::uint64_t));
}

Result<CentroidIndex> CentroidIndex::build(DevicePool& device, const CentroidInput& input) {
  CentroidIndex index;
  index.num_heads_ = input.num_heads;
  index.num_kv_heads_ = input.kv.num_kv_heads;
  index.head_dim_ = input.kv.head_dim;
  index.num_centroids_ = std::min(input.num_centroids, input.queries->num_rows(input.layer));
  QUIRE_CHECK(index.num_centroids_ > 0 && input.list_rows > 0,
              "an index needs centroids and lists");
  index.in_compute_memory_ = input.memory != nullptr;
  if (index.in_compute_memory_) {
    QUIRE_RETURN_IF_ERROR(index.compute_memory_.reserve(
        input.memory, index.device_bytes() / static_cast<std::int64_t>(sizeof(std::uint16_t))));
    index.values_ = index.compute_memory_.data();
  } else {
    QUIRE_ASSIGN_OR_RETURN(index.memory_, device.allocate(index.device_bytes()));
    index.values_ = reinterpret_cast<std::uint16_t*>(index.memory_.data());
  }
  for (std::int64_t row = 0; row < index.num_centroids_; row += kPageTokens)
    index.pages_.push_back(index.values_ + row * input.kv.head_dim);
  QUIRE_RETURN_IF_ERROR(index.build_lists(input));
  return index;
}

void CentroidIndex::store_centroid(std::int32_t head, std::int64_t slot, const float* query) {
  const float inverse = inverse_length(query, head_dim_);
  auto* out = values_ + (head * padded(num_centroids_) + slot) * head_dim_;
  for (std::int32_t c = 0; c < head_dim_; ++c) out[c] = f32_to_f16(query[c] * inverse);
}

Status CentroidIndex::build_lists(const CentroidInput& input) {
  const std::int64_t blocks = (num_centroids_ + kCentroidsAtOnce - 1) / kCentroidsAtOnce;
  list_words_ = words_for(input.host.end);
  const std::int64_t words = num_kv_heads_ * num_centroids_ * list_words_;
  QUIRE_RETURN_IF_ERROR(lists_.reserve(input.memory, words));
  if (input.memory != nullptr) QUIRE_RETURN_IF_ERROR(input.memory->synchronize());
  std::fill_n(lists_.data(), words, std::uint64_t{0});
  std::vector<float> lse;
  QUIRE_RETURN_IF_ERROR(complete_lse(input, lse));
  VoteBuffers buffers(kCentroidsAtOnce * (input.host.end - input.host.begin / 64 * 64));
  std::vector<Status> status(at(num_kv_heads_ * blocks));
  parallel_tasks(num_kv_heads_ * blocks, [&](std::int64_t task) {
    const std::int64_t first = task % blocks * kCentroidsAtOnce;
    auto votes = buffers.take();
    status[at(task)] = fill_lists(input, lse, static_cast<std::int32_t>(task / blocks), first,
                                  std::min(num_centroids_, first + kCentroidsAtOnce), votes.get());
    buffers.give_back(std::move(votes));
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

/// Completes lse [num_centroids, num_heads]: that of the rows' own attention, and for rows that did
/// not attend, the one it would have had.
Status CentroidIndex::complete_lse(const CentroidInput& input, std::vector<float>& lse) const {
  const std::int64_t row0 = input.queries->num_rows(input.layer) - num_centroids_,
                     width = std::int64_t{num_heads_} * head_dim_;
  lse.resize(at(num_centroids_ * num_heads_));
  std::vector<std::int64_t> missing;
  for (std::int64_t i = 0; i < num_centroids_; ++i) {
    const auto known = input.queries->lse(input.layer, row0 + i);
    std::copy(known.begin(), known.end(), lse.begin() + i * num_heads_);
    if (std::isnan(known[0])) missing.push_back(i);
  }
  std::vector<float> queries, out, part;
  std::vector<std::int32_t> positions;
  for (std::size_t first = 0; first < missing.size(); first += kRowsAtOnce) {
    const std::span<const std::int64_t> rows = std::span(missing).subspan(
        first, std::min(kRowsAtOnce, missing.size() - first));
    queries.resize(rows.size() * at(width));
    out.resize(queries.size());
    part.resize(rows.size() * at(num_heads_));
    positions.clear();
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto rounded = input.queries->query(input.layer, row0 + rows[r]);
      std::transform(rounded.begin(), rounded.end(),
                     queries.begin() + static_cast<std::ptrdiff_t>(r) * width, bf16_to_f32);
      positions.push_back(input.queries->position(input.layer, row0 + rows[r]));
    }
    AttentionArgs args{};
    args.q = queries.data();
    args.query_positions = positions.data();
    args.rows = count_of(rows);
    args.ldq = args.ldo = width;
    args.num_heads = num_heads_;
    args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    args.kv = input.kv;
    args.out = out.data();
    args.lse = part.data();
    QUIRE_RETURN_IF_ERROR(attention(args));
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(r) * num_heads_, num_heads_,
                  lse.begin() + rows[r] * num_heads_);
  }
  return {};
}

/// Fills centroids [first, end) of a KV head: their queries and lists. `votes` has room for
/// kCentroidsAtOnce centroids' votes for every host row and the rows that share its word.
Status CentroidIndex::fill_lists(const CentroidInput& input, std::span<const float> lse,
                                 std::int32_t kv_head, std::int64_t first, std::int64_t end,
                                 float* votes) {
  const std::int64_t group = num_heads_ / num_kv_heads_, n = end - first,
                     row0 = input.queries->num_rows(input.layer) - num_centroids_;
  std::vector<float> queries(at(n * group * head_dim_)), lse_of(at(n * group));
  std::vector<std::int32_t> positions(at(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto query = input.queries->query(input.layer, row0 + first + i)
                           .subspan(at(kv_head * group * head_dim_), at(group * head_dim_));
    positions[at(i)] = input.queries->position(input.layer, row0 + first + i);
    float* out = queries.data() + i * group * head_dim_;
    std::transform(query.begin(), query.end(), out, bf16_to_f32);
    for (std::int64_t g = 0; g < group; ++g) {
      store_centroid(static_cast<std::int32_t>(kv_head * group + g), first + i,
                     out + g * head_dim_);
      lse_of[at(i * group + g)] = lse[at((first + i) * num_heads_ + kv_head * group + g)];
    }
  }
  // Votes begin at a word of the lists; the rows before the host rows get none.
  const std::int64_t base = input.host.begin / 64 * 64, stride = input.host.end - base,
                     skipped = input.host.begin - base;
  for (std::int64_t i = 0; i < n; ++i)
    std::fill_n(votes + i * stride, skipped, -std::numeric_limits<float>::infinity());
  RowVotesArgs args{};
  args.q = queries.data();
  args.lse = lse_of.data();
  args.limits = positions.data();
  args.num_groups = n;
  args.group = static_cast<std::int32_t>(group);
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  args.kv = input.kv;
  args.kv_head = kv_head;
  args.first_row = input.host.begin;
  args.num_rows = input.host.end - input.host.begin;
  args.votes = votes + skipped;
  args.ld_votes = stride;
  QUIRE_RETURN_IF_ERROR(row_votes(args));
  for (std::int64_t i = 0; i < n; ++i)
    mark_top_k({votes + i * stride, at(stride)}, input.list_rows,
               list_at(kv_head, first + i) + base / 64);
  return {};
}

Status CentroidIndex::recall(std::int32_t kv_head, const float* query, std::int64_t probes,
                             std::vector<std::uint64_t>& seen) const {
  const std::int64_t group = num_heads_ / num_kv_heads_;
  const KvView keys = centroids();
  std::vector<float> cosines(at(num_centroids_)),
      nearest(at(num_centroids_), -std::numeric_limits<float>::infinity());
  for (std::int64_t g = 0; g < group; ++g) {
    const float* q = query + g * head_dim_;
    QUIRE_RETURN_IF_ERROR(row_scores(
        {q,
         1,
         head_dim_,
         inverse_length(q, head_dim_),
         {keys, static_cast<std::int32_t>(kv_head * group + g), nullptr, 0, num_centroids_},
         cosines.data(),
         num_centroids_}));
    for (std::size_t c = 0; c < cosines.size(); ++c) nearest[c] = std::max(nearest[c], cosines[c]);
  }
  mark_nearest(kv_head, std::move(nearest), probes, seen);
  return {};
}

KvView CentroidIndex::centroids() const {
  const std::int64_t row_bytes = head_dim_ * static_cast<std::int64_t>(dtype_bytes(DType::kF16));
  return {.pages = pages_.data(),
          .positions = nullptr,
          .num_rows = num_centroids_,
          .num_kv_heads = num_heads_,
          .head_dim = head_dim_,
          .dtype = DType::kF16,
          .kv_stride = 0,
          .head_stride = padded(num_centroids_) * row_bytes,
          .token_stride = row_bytes,
          .sorted = false};
}

void CentroidIndex::mark_nearest(std::int32_t kv_head, std::vector<float> nearest,
                                 std::int64_t probes, std::vector<std::uint64_t>& seen) const {
  // Ties go to the older centroid.
  std::rotate(nearest.begin(), nearest.begin() + oldest_, nearest.end());
  const std::vector<std::int32_t> chosen = top_k_sorted(nearest, probes);
  // Proceed piece by piece over all lists, so that the marked rows stay in the CPU cache, and
  // prefetch the lists' next pieces.
  constexpr std::int64_t kPiece = 64, kLine = 8;  // words
  for (std::int64_t begin = 0; begin < list_words_; begin += kPiece) {
    const std::int64_t end = std::min(list_words_, begin + kPiece),
                       next_end = std::min(list_words_, end + kPiece);
    for (const std::int32_t i : chosen) {
      const std::uint64_t* bits = list_at(kv_head, slot_of(i));
      for (std::int64_t w = end; w < next_end; w += kLine) __builtin_prefetch(bits + w);
      std::uint64_t* to = seen.data();
      for (std::int64_t w = begin; w < end; ++w) to[w] |= bits[w];
    }
  }
}

void CentroidIndex::replace_oldest(std::int32_t kv_head, const float* query,
                                   std::span<const std::int32_t> rows) {
  const std::int32_t group = num_heads_ / num_kv_heads_;
  for (std::int32_t g = 0; g < group; ++g)
    store_centroid(kv_head * group + g, oldest_, query + std::int64_t{g} * head_dim_);
  std::uint64_t* bits = list_at(kv_head, oldest_);
  std::fill_n(bits, list_words_, 0);
  mark(rows, bits);
}

std::vector<std::int32_t> CentroidIndex::list(std::int32_t kv_head, std::int64_t i) const {
  std::vector<std::int32_t> rows;
  append_marked(std::span(list_at(kv_head, slot_of(i)), at(list_words_)), rows);
  return rows;
}

void CentroidIndex::advance() {
  oldest_ = (oldest_ + 1) % num_centroids_;
  ++num_replaced_;
}

}  // namespace quire
