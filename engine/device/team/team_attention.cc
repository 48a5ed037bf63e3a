#include "engine/device/team/team_attention.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

float* floats(DeviceBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

/// Returns the number of values from the first of rows to the end of the last one.
std::int64_t span_of(std::int64_t rows, std::int64_t ld, std::int64_t width) {
  return (rows - 1) * ld + width;
}

}  // namespace

TeamAttention::TeamAttention(std::shared_ptr<const TeamSplit> split, DeviceAttention& leader)
    : split_(std::move(split)),
      leader_(leader),
      gathered_(split_->team()->rank(0), cuda::MemoryKind::kDevice),
      scores_(split_->team()->rank(0), cuda::MemoryKind::kDevice) {
  for (std::int64_t r = 0; r < split_->team()->ranks(); ++r) {
    const std::shared_ptr<DeviceMemory>& memory = split_->team()->rank(r);
    ranks_.push_back(std::make_unique<Rank>(memory));
    if (r > 0)
      ranks_.back()->own = std::make_unique<DeviceAttention>(memory, split_->tables(r),
                                                             ranks_.back()->stage);
  }
}

KvView TeamAttention::part(std::int64_t rank, const KvView& kv, std::size_t i) {
  auto& pages = ranks_[at(rank)]->pages;
  if (pages.size() <= i) pages.resize(i + 1);
  return split_->pages()->part(rank, kv, pages[i]);
}

Status TeamAttention::send(const float* from, std::int64_t n, DeviceBuffer Rank::*to) {
  std::vector<void*> there = {nullptr};
  for (std::int64_t r = 1; r < count_of(ranks_); ++r) {
    DeviceBuffer& buffer = (*ranks_[at(r)]).*to;
    QUIRE_RETURN_IF_ERROR(buffer.reserve(n * kFloat));
    there.push_back(buffer.data());
  }
  return split_->team()->broadcast(from, there, n * kFloat);
}

Status TeamAttention::join(std::int64_t rows, std::int64_t width, DType dtype, void* y,
                           std::int64_t ldy, std::span<const std::byte* const> results) {
  const HeadCut& heads = split_->pages()->heads();
  const auto size = static_cast<std::int64_t>(dtype_bytes(dtype));
  const std::int64_t rest = heads.heads - heads.size(0);
  if (rest == 0) return {};
  QUIRE_RETURN_IF_ERROR(gathered_.reserve(rows * rest * width * size));
  std::vector<cuda::Communicator::Part> parts(ranks_.size());
  for (std::int64_t r = 1; r < count_of(ranks_); ++r) {
    if (heads.size(r) == 0) continue;
    parts[at(r)] = {results[at(r)],
                    gathered_.data() + rows * (heads.begin(r) - heads.each) * width * size,
                    rows * heads.size(r) * width * size};
  }
  QUIRE_RETURN_IF_ERROR(split_->team()->gather(parts));
  return split_->team()->rank(0)->run(cuda::JoinColumnsArgs{.parts = gathered_.data(),
                                                            .dtype = dtype,
                                                            .rows = rows,
                                                            .n = heads.heads * width,
                                                            .width = heads.each * width,
                                                            .first = heads.each * width,
                                                            .y = y,
                                                            .ldy = ldy});
}

Status TeamAttention::refresh(std::span<const KvView> views) {
  std::vector<KvView> mine;
  for (std::int64_t r = 0; r < count_of(ranks_); ++r) {
    if (r > 0 && split_->pages()->heads().size(r) == 0) continue;
    mine.clear();
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (split_->pages()->holds(views[i]))
        mine.push_back(part(r, views[i], i));
      else if (r == 0)
        mine.push_back(views[i]);
    }
    QUIRE_RETURN_IF_ERROR(of(r).refresh(mine));
  }
  return {};
}

/// Calls attend(rank, args) with the part of every rank, and joins the results.
template <class Attend>
Status TeamAttention::attend_in_parts(const AttentionArgs& a, DType to, Attend attend) {
  const HeadCut& heads = split_->pages()->heads();
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / heads.heads, width = group * dim;
  const auto size = static_cast<std::int64_t>(dtype_bytes(to));
  QUIRE_RETURN_IF_ERROR(send(a.q, span_of(a.rows, a.ldq, a.num_heads * dim), &Rank::q));
  std::vector<const std::byte*> results(ranks_.size()), sums(ranks_.size());
  for (std::int64_t r = 0; r < count_of(ranks_); ++r) {
    if (heads.size(r) == 0) continue;
    AttentionArgs part = a;
    part.num_heads = static_cast<std::int32_t>(heads.size(r) * group);
    if (r > 0) {
      DeviceBuffer& out = ranks_[at(r)]->out;
      const std::int64_t outputs = (a.rows * heads.size(r) * width * size + 15) / 16 * 16;
      QUIRE_RETURN_IF_ERROR(out.reserve(outputs + a.rows * part.num_heads * kFloat));
      part.q = floats(ranks_[at(r)]->q) + heads.begin(r) * width;
      part.out = floats(out);
      part.ldo = heads.size(r) * width;
      results[at(r)] = out.data();
      sums[at(r)] = out.data() + outputs;
      if (a.lse != nullptr) part.lse = reinterpret_cast<float*>(out.data() + outputs);
    } else if (a.lse != nullptr && heads.size(0) < heads.heads) {
      // Rows of log-sum-exps have no gaps, so the leader's own come by the way of a buffer.
      DeviceBuffer& own = ranks_[0]->lse;
      QUIRE_RETURN_IF_ERROR(own.reserve(a.rows * part.num_heads * kFloat));
      part.lse = floats(own);
    }
    QUIRE_RETURN_IF_ERROR(attend(r, part));
  }
  QUIRE_RETURN_IF_ERROR(join(a.rows, width, to, a.out, a.ldo, results));
  if (a.lse == nullptr || heads.size(0) == heads.heads) return {};
  QUIRE_RETURN_IF_ERROR(
      split_->team()->rank(0)->run(cuda::JoinColumnsArgs{.parts = ranks_[0]->lse.data(),
                                                         .dtype = DType::kF32,
                                                         .rows = a.rows,
                                                         .n = heads.size(0) * group,
                                                         .width = heads.size(0) * group,
                                                         .first = 0,
                                                         .y = a.lse,
                                                         .ldy = a.num_heads}));
  return join(a.rows, group, DType::kF32, a.lse, a.num_heads, sums);
}

Status TeamAttention::attend(const AttentionArgs& a, DType to) {
  if (a.rows == 0) return {};
  if (!split_->pages()->holds(a.kv)) return leader_.attend(a, to);
  return attend_in_parts(a, to, [&](std::int64_t r, AttentionArgs& args) {
    args.kv = part(r, a.kv);
    return of(r).attend(args, to);
  });
}

Status TeamAttention::attend_each(const AttentionArgs& a,
                                  std::span<const SequenceAttention> sequences, DType to) {
  if (a.rows == 0) return {};
  if (std::ranges::none_of(sequences, [&](const auto& s) { return split_->pages()->holds(s.kv); }))
    return leader_.attend_each(a, sequences, to);
  if (std::ranges::any_of(sequences, [](const auto& s) { return s.lists_in_memory != nullptr; }))
    return Status(Code::kUnimplemented, "KV that is cut over several GPUs has no lists in memory",
                  "model.split_kv");
  AttentionArgs shape = a;
  shape.kv = sequences.front().kv;
  std::vector<SequenceAttention> each;
  return attend_in_parts(shape, to, [&](std::int64_t r, AttentionArgs& args) {
    each.assign(sequences.begin(), sequences.end());
    for (std::size_t i = 0; i < each.size(); ++i) {
      each[i].kv = part(r, each[i].kv, i);
      if (each[i].lists != nullptr) each[i].lists += split_->pages()->heads().begin(r);
    }
    args.kv = each.front().kv;
    return of(r).attend_each(args, each, to);
  });
}

Status TeamAttention::scores(const AttentionScoresArgs& a) {
  if (a.rows == 0) return {};
  if (!split_->pages()->holds(a.kv)) return leader_.scores(a);
  const HeadCut& heads = split_->pages()->heads();
  const std::int64_t group = a.num_heads / heads.heads, dim = a.kv.head_dim;
  QUIRE_RETURN_IF_ERROR(send(a.q, span_of(a.rows, a.ldq, a.num_heads * dim), &Rank::q));
  QUIRE_RETURN_IF_ERROR(send(a.lse, span_of(a.rows, a.ld_lse, a.num_heads), &Rank::lse));
  // Scores may lie in pinned memory, which devices do not send to each other.
  const std::int64_t all = span_of(heads.heads, a.ld_scores, a.kv.num_rows);
  DeviceMemory& memory = *split_->team()->rank(0);
  if (heads.size(0) < heads.heads) {
    QUIRE_RETURN_IF_ERROR(scores_.reserve(all * kFloat));
    QUIRE_RETURN_IF_ERROR(memory.run(cuda::CopyArgs{scores_.data(), a.scores, all * kFloat}));
    QUIRE_RETURN_IF_ERROR(send(floats(scores_), all, &Rank::out));
  }
  std::vector<cuda::Communicator::Part> parts(ranks_.size());
  for (std::int64_t r = 0; r < count_of(ranks_); ++r) {
    if (heads.size(r) == 0) continue;
    AttentionScoresArgs part = a;
    part.num_heads = static_cast<std::int32_t>(heads.size(r) * group);
    part.kv = this->part(r, a.kv);
    if (r > 0) {
      const std::int64_t first = heads.begin(r) * a.ld_scores;
      part.q = floats(ranks_[at(r)]->q) + heads.begin(r) * group * dim;
      part.lse = floats(ranks_[at(r)]->lse) + heads.begin(r) * group;
      part.scores = floats(ranks_[at(r)]->out) + first;
      parts[at(r)] = {part.scores, floats(scores_) + first,
                      span_of(heads.size(r), a.ld_scores, a.kv.num_rows) * kFloat};
    }
    QUIRE_RETURN_IF_ERROR(of(r).scores(part));
  }
  if (heads.size(0) == heads.heads) return {};
  QUIRE_RETURN_IF_ERROR(split_->team()->gather(parts));
  const std::int64_t first = heads.each * a.ld_scores;
  return memory.run(
      cuda::CopyArgs{a.scores + first, floats(scores_) + first, (all - first) * kFloat});
}

Status TeamAttention::mass(const AttentionMassArgs& a) {
  if (a.rows == 0 || a.num_ranges == 0) return {};
  if (!split_->pages()->holds(a.kv)) return leader_.mass(a);
  const HeadCut& heads = split_->pages()->heads();
  const std::int64_t group = a.num_heads / heads.heads, dim = a.kv.head_dim,
                     width = group * a.num_ranges;
  QUIRE_RETURN_IF_ERROR(send(a.q, span_of(a.rows, a.ldq, a.num_heads * dim), &Rank::q));
  QUIRE_RETURN_IF_ERROR(send(a.lse, span_of(a.rows, a.ld_lse, a.num_heads), &Rank::lse));
  std::vector<const std::byte*> results(ranks_.size());
  for (std::int64_t r = 0; r < count_of(ranks_); ++r) {
    if (heads.size(r) == 0) continue;
    AttentionMassArgs part = a;
    part.num_heads = static_cast<std::int32_t>(heads.size(r) * group);
    part.kv = this->part(r, a.kv);
    if (heads.size(0) < heads.heads) {
      DeviceBuffer& out = r == 0 ? scores_ : ranks_[at(r)]->out;
      QUIRE_RETURN_IF_ERROR(out.reserve(a.rows * heads.size(r) * width * kFloat));
      part.mass = floats(out);
      results[at(r)] = out.data();
    }
    if (r > 0) {
      part.q = floats(ranks_[at(r)]->q) + heads.begin(r) * group * dim;
      part.lse = floats(ranks_[at(r)]->lse) + heads.begin(r) * group;
    }
    QUIRE_RETURN_IF_ERROR(of(r).mass(part));
  }
  if (heads.size(0) == heads.heads) return {};
  QUIRE_RETURN_IF_ERROR(
      split_->team()->rank(0)->run(cuda::JoinColumnsArgs{.parts = scores_.data(),
                                                         .dtype = DType::kF32,
                                                         .rows = a.rows,
                                                         .n = heads.size(0) * width,
                                                         .width = heads.size(0) * width,
                                                         .first = 0,
                                                         .y = a.mass,
                                                         .ldy = heads.heads * width}));
  return join(a.rows, width, DType::kF32, a.mass, heads.heads * width, results);
}

Status TeamAttention::statistics(const AttentionStatsArgs& a) {
  if (a.rows == 0 || a.num_columns == 0) return {};
  if (!split_->pages()->holds(a.kv)) return leader_.statistics(a);
  AttentionStatsArgs whole = a;
  QUIRE_ASSIGN_OR_RETURN(whole.kv, split_->pages()->on_leader(a.kv));
  return leader_.statistics(whole);
}

}  // namespace quire
