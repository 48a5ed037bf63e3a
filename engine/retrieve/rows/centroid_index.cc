#include "engine/retrieve/rows/centroid_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "base/dtype.h"
#include "base/index.h"
#include "kernels/attention/attention.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;  ///< rows whose missing lse is computed in one call
/// The votes of a device in memory at a time: 128 MiB.
constexpr std::int64_t kMostVotes = std::int64_t{32} << 20;

std::int64_t padded(std::int64_t rows) {
  return (rows + kPageTokens - 1) / kPageTokens * kPageTokens;
}

std::int64_t words_for(std::int64_t rows) { return (rows + 63) / 64; }

void mark(std::span<const std::int32_t> rows, std::uint64_t* bits) {
  for (const std::int32_t row : rows) bits[row / 64] |= std::uint64_t{1} << (row % 64);
}

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
  list_words_ = words_for(input.host.end);
  QUIRE_RETURN_IF_ERROR(lists_.reserve(input.memory, num_kv_heads_ * num_centroids_ * list_words_));
  // The host is about to read keys.
  if (input.memory != nullptr && input.in_place == nullptr)
    QUIRE_RETURN_IF_ERROR(input.memory->synchronize());
  const std::int64_t row0 = input.queries->num_rows(input.layer) - num_centroids_,
                     width = std::int64_t{num_heads_} * head_dim_;
  std::vector<float> queries(at(num_centroids_ * width)), lse(at(num_centroids_ * num_heads_));
  std::vector<std::int32_t> positions(at(num_centroids_));
  parallel_tasks(num_centroids_, [&](std::int64_t i) {
    float* const out = queries.data() + i * width;
    std::ranges::transform(input.queries->query(input.layer, row0 + i), out, bf16_to_f32);
    std::ranges::copy(input.queries->lse(input.layer, row0 + i), lse.begin() + i * num_heads_);
    positions[at(i)] = input.queries->position(input.layer, row0 + i);
    for (std::int32_t head = 0; head < num_heads_; ++head)
      store_centroid(head, i, out + std::int64_t{head} * head_dim_);
  });
  VotedListsArgs args{};
  args.q = queries.data();
  args.lse = lse.data();
  args.limits = positions.data();
  args.num_groups = args.ld_lists = num_centroids_;
  args.num_heads = num_heads_;
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  args.kv = input.kv;
  args.first_row = input.host.begin;
  args.num_rows = input.host.end - input.host.begin;
  args.k = input.list_rows;
  args.lists = lists_.data();
  args.list_words = list_words_;
  if (input.in_place != nullptr) return make_lists(*input.in_place, args);
  QUIRE_RETURN_IF_ERROR(complete_lse(args, lse));
  return voted_lists(args);
}

/// Makes the lists on the device, those of some centroids at a time, so that votes take little
/// memory. Nobody waits for them.
Status CentroidIndex::make_lists(IndexScratch& scratch, VotedListsArgs args) const {
  const std::shared_ptr<ComputeMemory> memory = scratch.compute.memory();
  const std::int64_t n = args.num_groups, width = std::int64_t{num_heads_} * head_dim_;
  const auto upload = [&](const float* values, std::int64_t count, ComputeBuffer<float>& to) {
    const Status reserved = to.reserve(memory, count);
    return reserved.ok() ? write_memory(memory.get(), to.data(), values,
                                        count * static_cast<std::int64_t>(sizeof(float)))
                         : reserved;
  };
  QUIRE_RETURN_IF_ERROR(upload(args.q, n * width, scratch.queries));
  QUIRE_RETURN_IF_ERROR(upload(args.lse, n * num_heads_, scratch.lse));
  for (const RowRange& rows : missing_rows({args.lse, at(n * num_heads_)})) {
    QUIRE_RETURN_IF_ERROR(scratch.out.reserve(memory, kRowsAtOnce * width));
    AttentionArgs attention = attention_of(args, rows);
    attention.q = scratch.queries.data() + rows.begin * width;
    attention.out = scratch.out.data();
    attention.lse = scratch.lse.data() + rows.begin * num_heads_;
    QUIRE_RETURN_IF_ERROR(scratch.compute.attention().attend(attention, DType::kF32));
  }
  const std::int64_t votes = num_kv_heads_ * args.num_rows,
                     at_once = std::clamp<std::int64_t>(kMostVotes / votes, 1, n);
  QUIRE_RETURN_IF_ERROR(scratch.votes.reserve(memory, at_once * votes));
  QUIRE_RETURN_IF_ERROR(
      scratch.best.reserve(memory, at_once * num_kv_heads_ * std::min(args.k, args.num_rows)));
  args.q = scratch.queries.data();
  args.lse = scratch.lse.data();
  args.votes = scratch.votes.data();
  args.best = scratch.best.data();
  return scratch.compute.choice().voted_lists(args, at_once);
}

/// Returns the centroids without lse [num_centroids, num_heads], as ranges of at most kRowsAtOnce:
/// their rows did not attend.
std::vector<RowRange> CentroidIndex::missing_rows(std::span<const float> lse) const {
  std::vector<RowRange> out;
  for (std::int64_t i = 0; i < num_centroids_; ++i) {
    if (!std::isnan(lse[at(i * num_heads_)])) continue;
    if (!out.empty() && out.back().end == i && i - out.back().begin < kRowsAtOnce)
      out.back().end = i + 1;
    else
      out.push_back({i, i + 1});
  }
  return out;
}

/// Returns the attention that rows would have had, but for q, out and lse.
AttentionArgs CentroidIndex::attention_of(const VotedListsArgs& args, const RowRange& rows) const {
  AttentionArgs out{};
  out.query_positions = args.limits + rows.begin;
  out.rows = rows.end - rows.begin;
  out.ldq = out.ldo = std::int64_t{num_heads_} * head_dim_;
  out.num_heads = num_heads_;
  out.scale = args.scale;
  out.kv = args.kv;
  return out;
}

/// Completes lse [num_centroids, num_heads]: that of the rows' own attention, and for rows that did
/// not attend, the one it would have had.
Status CentroidIndex::complete_lse(const VotedListsArgs& args, std::span<float> lse) const {
  const std::int64_t width = std::int64_t{num_heads_} * head_dim_;
  std::vector<float> out;
  for (const RowRange& rows : missing_rows(lse)) {
    AttentionArgs own = attention_of(args, rows);
    out.resize(at(own.rows * width));
    own.q = args.q + rows.begin * width;
    own.out = out.data();
    own.lse = lse.data() + rows.begin * num_heads_;
    QUIRE_RETURN_IF_ERROR(attention(own));
  }
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
