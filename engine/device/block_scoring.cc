#include "engine/device/block_scoring.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/index.h"

namespace quire {

Status BlockScoring::run(const cuda::DeviceRopeTable& table, std::int32_t num_heads,
                         std::int32_t num_kv_heads, std::span<const ScoredBlocks> documents) {
  std::int64_t total = 0, most = 0;
  for (const ScoredBlocks& d : documents) {
    total += d.num_blocks;
    most = std::max(most, d.num_blocks);
  }
  if (total == 0) return {};
  const std::int64_t bytes = 2 * total * static_cast<std::int64_t>(sizeof(float));
  QUIRE_RETURN_IF_ERROR(scores_.reserve(bytes));
  QUIRE_RETURN_IF_ERROR(pinned_.reserve(bytes));
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  const auto dim = to_size(num_heads) * to_size(table.head_dim);
  std::map<const float*, const float*> sent;
  std::vector<cuda::SamkvDocument> each;
  auto* score = reinterpret_cast<float*>(scores_.data());
  for (const ScoredBlocks& d : documents) {
    const float*& query = sent[d.query];
    if (query == nullptr) {
      QUIRE_ASSIGN_OR_RETURN(query, stage_.put(std::span(d.query, dim)));
    }
    each.push_back({.means = d.means,
                    .num_blocks = d.num_blocks,
                    .distance = d.distance,
                    .scores = score,
                    .comparable = score + total,
                    .query = query});
    score += d.num_blocks;
  }
  cuda::SamkvScoresArgs args{.query = nullptr,
                             .num_heads = num_heads,
                             .num_kv_heads = num_kv_heads,
                             .head_dim = table.head_dim,
                             .documents = nullptr,
                             .num_documents = count_of(each),
                             .most_blocks = most};
  QUIRE_ASSIGN_OR_RETURN(args.documents, stage_.put(std::span<const cuda::SamkvDocument>(each)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::ScoreDocumentsArgs{table, args}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::CopyArgs{pinned_.data(), scores_.data(), bytes}));
  QUIRE_RETURN_IF_ERROR(memory_->synchronize());
  const auto* results = reinterpret_cast<const float*>(pinned_.data());
  for (const ScoredBlocks& d : documents) {
    const std::size_t n = to_size(d.num_blocks) * sizeof(float);
    std::memcpy(d.score, results, n);
    std::memcpy(d.comparable, results + total, n);
    results += d.num_blocks;
  }
  return {};
}

}  // namespace quire
