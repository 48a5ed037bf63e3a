#include "kernels/choice/voted_lists.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/index.h"
#include "kernels/choice/row_votes.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// These groups share a tile of keys, and their votes for every row are in memory together.
constexpr std::int64_t kGroupsAtOnce = 32;
constexpr std::int64_t kWordRows = 64;

/// VoteBuffers passes the buffers of a call from task to task, because fresh memory costs as much
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

/// Makes the lists of groups [first, end) of a KV head. `votes` has room for every row from the
/// first one's word on, for kGroupsAtOnce groups.
Status make_lists(const VotedListsArgs& a, std::int32_t kv_head, std::int64_t first,
                  std::int64_t end, float* votes) {
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads, dim = a.kv.head_dim, n = end - first;
  std::vector<float> queries(at(n * group * dim)), lse(at(n * group));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t head = (first + i) * a.num_heads + kv_head * group;
    std::copy_n(a.q + head * dim, group * dim, queries.data() + i * group * dim);
    std::copy_n(a.lse + head, group, lse.data() + i * group);
  }
  // Votes begin at a word of the lists; the rows before the first one get none.
  const std::int64_t base = a.first_row / kWordRows * kWordRows, skipped = a.first_row - base,
                     stride = skipped + a.num_rows;
  for (std::int64_t i = 0; i < n; ++i)
    std::fill_n(votes + i * stride, skipped, -std::numeric_limits<float>::infinity());
  QUIRE_RETURN_IF_ERROR(row_votes({.q = queries.data(),
                                   .lse = lse.data(),
                                   .limits = a.limits + first,
                                   .num_groups = n,
                                   .group = static_cast<std::int32_t>(group),
                                   .scale = a.scale,
                                   .kv = a.kv,
                                   .kv_head = kv_head,
                                   .first_row = a.first_row,
                                   .num_rows = a.num_rows,
                                   .votes = votes + skipped,
                                   .ld_votes = stride}));
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t* const list = a.lists + (kv_head * a.ld_lists + first + i) * a.list_words;
    std::fill_n(list, base / kWordRows, std::uint64_t{0});
    mark_top_k({votes + i * stride, at(stride)}, a.k, list + base / kWordRows);
  }
  return {};
}

}  // namespace

Status voted_lists(const VotedListsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_voted_lists(a));
  const std::int64_t blocks = (a.num_groups + kGroupsAtOnce - 1) / kGroupsAtOnce,
                     tasks = a.kv.num_kv_heads * blocks;
  VoteBuffers buffers(std::min(kGroupsAtOnce, a.num_groups) * (a.num_rows + kWordRows));
  std::vector<Status> status(at(tasks));
  parallel_tasks(tasks, [&](std::int64_t task) {
    const std::int64_t first = task % blocks * kGroupsAtOnce;
    auto votes = buffers.take();
    status[at(task)] = make_lists(a, static_cast<std::int32_t>(task / blocks), first,
                                  std::min(a.num_groups, first + kGroupsAtOnce), votes.get());
    buffers.give_back(std::move(votes));
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

}  // namespace quire
