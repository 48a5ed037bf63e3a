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
  need += need_with_room(c.num_heads, 0, sizeof(float));
  return need += need_with_room(c.num_kv_heads, 0, sizeof(float));
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

/// Returns how many rows of votes there are. Several KV heads of the head that stand for one of the
/// target's vote together. With fewer, one stands for several; where the numbers do not divide, all
/// vote together.
std::int32_t DeviceHeadKeys::voters(std::int32_t target_kv_heads) const {
  const std::int32_t own = head_.config().num_kv_heads;
  return own % target_kv_heads == 0 ? target_kv_heads : target_kv_heads % own == 0 ? own : 1;
}

std::int64_t DeviceHeadKeys::answer_bytes(const Asked& asked) const {
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t each = asked.budget != nullptr ? asked.budget->num_chosen() : num_rows_;
  return (voters(asked.target_kv_heads) * each * 4 + kAlignment - 1) / kAlignment * kAlignment;
}

Status DeviceHeadKeys::ask(std::span<const Asked> all) {
  for (std::size_t first = 0, end; first < all.size(); first = end) {
    std::int64_t bytes = all[first].keys->answer_bytes(all[first]);
    for (end = first + 1; end < all.size(); ++end) {
      const std::int64_t more = all[end].keys->answer_bytes(all[end]);
      if (bytes + more > kMostAtOnce) break;
      bytes += more;
    }
    QUIRE_RETURN_IF_ERROR(ask_at_once(all.subspan(first, end - first), bytes));
  }
  return {};
}

Status DeviceHeadKeys::ask_at_once(std::span<const Asked> all, std::int64_t bytes) {
  for (const Asked& asked : all) QUIRE_RETURN_IF_ERROR(asked.keys->make_room(asked));
  FetchOps& fetch = all.front().keys->compute_.fetch();
  // With room, because a place that grows makes the host wait.
  QUIRE_ASSIGN_OR_RETURN(std::byte * to, fetch.place(with_room(bytes)));
  for (const Asked& asked : all) {
    QUIRE_RETURN_IF_ERROR(asked.keys->enqueue(asked, to));
    to += asked.keys->answer_bytes(asked);
  }
  QUIRE_RETURN_IF_ERROR(fetch.fetch(bytes, [all](const std::byte* from) {
    for (const Asked& asked : all) {
      asked.keys->answer(asked, from);
      from += asked.keys->answer_bytes(asked);
    }
  }));
  return fetch.deliver();
}

/// Makes room for what enqueue() and answer() write.
Status DeviceHeadKeys::make_room(const Asked& asked) {
  const RetrievalHeadConfig& c = head_.config();
  QUIRE_RETURN_IF_ERROR(query_.reserve(memory_, c.query_dim()));
  QUIRE_RETURN_IF_ERROR(choice_.scores(c.num_heads, num_rows_).status());
  if (asked.budget == nullptr) {
    asked.scores->resize(to_size(asked.target_kv_heads * num_rows_));
    return {};
  }
  asked.rows->resize(to_size(asked.target_kv_heads));
  for (auto& rows : *asked.rows) rows.resize(to_size(asked.budget->tokens));
  return choice_.votes(voters(asked.target_kv_heads), num_rows_).status();
}

/// Enqueues what writes the voters' scores, or the rows that each chooses between sink and window.
Status DeviceHeadKeys::enqueue(const Asked& asked, std::byte* to) {
  const RetrievalHeadConfig& c = head_.config();
  const std::int32_t voters = this->voters(asked.target_kv_heads);
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
  QUIRE_RETURN_IF_ERROR(write_memory(memory_.get(), query_.data(), asked.query,
                                     c.query_dim() * std::int64_t{sizeof(float)}));
  QUIRE_ASSIGN_OR_RETURN(float* const products, choice_.scores(c.num_heads, n));
  ChoiceOps& choose = compute_.choice();
  QUIRE_RETURN_IF_ERROR(choose.key_products({.q = query_.data(),
                                             .num_heads = c.num_heads,
                                             .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                                             .kv = keys,
                                             .first_row = 0,
                                             .num_rows = n,
                                             .scores = products,
                                             .ld_scores = n}));
  auto* votes = reinterpret_cast<float*>(to);
  if (asked.budget != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(votes, choice_.votes(voters, n));
  }
  QUIRE_RETURN_IF_ERROR(choose.candidate_votes({.scores = products,
                                                .n = n,
                                                .ld_scores = n,
                                                .num_kv_heads = voters,
                                                .group = c.num_heads / voters,
                                                .vote = CandidateVote::kMaxLogSoftmax,
                                                .votes = votes}));
  if (asked.budget == nullptr) return {};
  const SelectionBudget& budget = *asked.budget;
  return choose.best_candidates(votes + budget.num_first(), voters,
                                n - budget.num_first() - budget.num_last(), n, budget.num_chosen(),
                                reinterpret_cast<std::int32_t*>(to));
}

/// Takes what enqueue() wrote.
void DeviceHeadKeys::answer(const Asked& asked, const std::byte* from) const {
  const std::int64_t voters = this->voters(asked.target_kv_heads), n = num_rows_;
  for (std::int64_t m = 0; m < asked.target_kv_heads; ++m) {
    const std::int64_t voter = m * voters / asked.target_kv_heads;
    if (asked.budget == nullptr) {
      std::copy_n(reinterpret_cast<const float*>(from) + voter * n, n,
                  asked.scores->begin() + m * n);
      continue;
    }
    const std::int32_t chosen = asked.budget->num_chosen();
    asked.budget->list(
        std::span(reinterpret_cast<const std::int32_t*>(from) + voter * chosen, to_size(chosen)), n,
        (*asked.rows)[at(m)]);
  }
}

}  // namespace quire
