#include "engine/retrieve/head/device_head_keys.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/index.h"
#include "engine/compute/compute.h"
#include "kernels/rows/rope.h"

namespace quire {

ChoosingNeed DeviceHeadKeys::need(const RetrievalHead& head) {
  const RetrievalHeadConfig& c = head.config();
  const std::int64_t key_bytes = c.key_dim() * static_cast<std::int64_t>(sizeof(std::uint16_t));
  ChoosingNeed need{
      kBlockRows * key_bytes + c.query_dim() * static_cast<std::int64_t>(sizeof(float)), key_bytes};
  return need += need_with_room(c.num_heads, 0, sizeof(float));
}

Status DeviceHeadKeys::append(const float* raw, std::span<const std::int32_t> positions) {
  const RetrievalHeadConfig& c = head_.config();
  const auto n = count_of(positions);
  rotated_.resize(to_size(n * row_values()));
  QUIRE_RETURN_IF_ERROR(rope_rotate(head_.rope(), {.x = raw,
                                                   .out = rotated_.data(),
                                                   .positions = positions.data(),
                                                   .rows = n,
                                                   .num_heads = c.num_kv_heads,
                                                   .ldx = c.key_dim(),
                                                   .ldo = c.key_dim()}));
  while (count_of(blocks_) * kBlockRows < num_rows_ + n) {
    ComputeBuffer<std::uint16_t> block;
    QUIRE_RETURN_IF_ERROR(block.reserve(memory_, kBlockRows * row_values()));
    const std::vector<std::uint16_t> zeros(to_size(kBlockRows * row_values()));
    QUIRE_RETURN_IF_ERROR(write_memory(memory_.get(), block.data(), zeros.data(),
                                       count_of(zeros) * std::int64_t{sizeof(std::uint16_t)}));
    for (std::int64_t row = 0; row < kBlockRows; row += kPageTokens)
      pages_.push_back(block.data() + row * row_values());
    blocks_.push_back(std::move(block));
  }
  std::vector<std::uint16_t> rounded(rotated_.size());
  std::ranges::transform(rotated_, rounded.begin(), f32_to_bf16);
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t row = num_rows_ + i, rows = std::min(n - i, kBlockRows - row % kBlockRows);
    QUIRE_RETURN_IF_ERROR(write_memory(
        memory_.get(), blocks_[at(row / kBlockRows)].data() + row % kBlockRows * row_values(),
        rounded.data() + i * row_values(),
        rows * row_values() * std::int64_t{sizeof(std::uint16_t)}));
    i += rows;
  }
  num_rows_ += n;
  return {};
}

Status DeviceHeadKeys::score(const float* query, std::int32_t target_kv_heads,
                             std::vector<float>& scores) {
  const RetrievalHeadConfig& c = head_.config();
  // Several KV heads of the head that stand for one of the target's vote together. With fewer, one
  // stands for several; where the numbers do not divide, all vote together.
  const bool fewer = c.num_kv_heads % target_kv_heads == 0,
             more = target_kv_heads % c.num_kv_heads == 0;
  const std::int32_t voters = fewer ? target_kv_heads : more ? c.num_kv_heads : 1;
  const std::int64_t n = num_rows_,
                     row_bytes = row_values() * static_cast<std::int64_t>(sizeof(std::uint16_t)),
                     dim = c.head_dim;
  const KvView keys{.pages = pages_.data(),
                    .positions = nullptr,
                    .num_rows = n,
                    .num_kv_heads = c.num_kv_heads,
                    .head_dim = c.head_dim,
                    .dtype = DType::kBF16,
                    .kv_stride = 0,
                    .head_stride = dim * static_cast<std::int64_t>(sizeof(std::uint16_t)),
                    .token_stride = row_bytes,
                    .sorted = true};
  QUIRE_RETURN_IF_ERROR(query_.reserve(memory_, c.query_dim()));
  QUIRE_RETURN_IF_ERROR(write_memory(memory_.get(), query_.data(), query,
                                     c.query_dim() * std::int64_t{sizeof(float)}));
  QUIRE_ASSIGN_OR_RETURN(float* const products, choice_.scores(c.num_heads, n));
  ChoiceOps& choose = compute_.choice();
  FetchOps& fetch = compute_.fetch();
  QUIRE_RETURN_IF_ERROR(choose.key_products({.q = query_.data(),
                                             .num_heads = c.num_heads,
                                             .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                                             .kv = keys,
                                             .first_row = 0,
                                             .num_rows = n,
                                             .scores = products,
                                             .ld_scores = n}));
  const std::int64_t bytes = voters * n * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const votes, fetch.place(bytes));
  QUIRE_RETURN_IF_ERROR(choose.candidate_votes({.scores = products,
                                                .n = n,
                                                .ld_scores = n,
                                                .num_kv_heads = voters,
                                                .group = c.num_heads / voters,
                                                .vote = CandidateVote::kMaxLogSoftmax,
                                                .votes = reinterpret_cast<float*>(votes)}));
  scores.resize(to_size(target_kv_heads * n));
  QUIRE_RETURN_IF_ERROR(
      fetch.fetch(bytes, [&scores, n, voters, target_kv_heads](const std::byte* from) {
        const auto* of_voters = reinterpret_cast<const float*>(from);
        for (std::int64_t m = 0; m < target_kv_heads; ++m)
          std::copy_n(of_voters + m * voters / target_kv_heads * n, n, scores.begin() + m * n);
      }));
  return fetch.deliver();
}

}  // namespace quire
