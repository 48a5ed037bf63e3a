#include "engine/device/block_scoring.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {

/// Copies every query once, on all cores: a personalised query for each document and layer takes
/// megabytes. Returns their addresses for kernels.
Result<std::unordered_map<const float*, const float*>> BlockScoring::send_queries(
    std::span<const ScoredBlocks> documents, std::size_t dim) {
  std::unordered_map<const float*, const float*> addresses;
  std::vector<const float*> distinct;
  for (const ScoredBlocks& d : documents)
    if (addresses.emplace(d.query, nullptr).second) distinct.push_back(d.query);
  const std::size_t bytes = dim * sizeof(float);
  QUIRE_ASSIGN_OR_RETURN(const ArgumentStage::Room room,
                         stage_.room(static_cast<std::int64_t>(distinct.size() * bytes)));
  parallel_tasks(count_of(distinct), [&](std::int64_t i) {
    std::memcpy(room.write + to_size(i) * bytes, distinct[at(i)], bytes);
  });
  for (std::size_t i = 0; i < distinct.size(); ++i)
    addresses[distinct[i]] = reinterpret_cast<const float*>(room.address + i * bytes);
  return addresses;
}

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
  QUIRE_ASSIGN_OR_RETURN(const auto queries, send_queries(documents, dim));
  std::vector<cuda::SamkvDocument> each;
  auto* score = reinterpret_cast<float*>(scores_.data());
  for (const ScoredBlocks& d : documents) {
    each.push_back({.means = d.means,
                    .num_blocks = d.num_blocks,
                    .distance = d.distance,
                    .scores = score,
                    .comparable = score + total,
                    .query = queries.at(d.query)});
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
