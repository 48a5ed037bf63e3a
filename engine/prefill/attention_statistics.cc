#include "engine/prefill/attention_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "kernels/attention/attention_stats.h"

namespace quire {
namespace {

constexpr double kFewestSamples = 16, kLeastSpread = 1e-6;  // limits of a valid fit
constexpr std::int32_t kLateDistance = 64;    // sustained attention ignores nearer rows
constexpr std::int64_t kFewestLateRows = 32;  // unless fewer rows are that far away
constexpr std::int64_t kMostRows = 8192;

}  // namespace

double power_law_alpha(const PowerLawSums& s) {
  const double spread = s.count * s.sum_log_x_squared - s.sum_log_x * s.sum_log_x;
  if (s.count < kFewestSamples || !(spread >= kLeastSpread))
    return std::numeric_limits<double>::quiet_NaN();
  return -(s.count * s.sum_log_xy - s.sum_log_x * s.sum_log_y) / spread;
}

AttentionStatistics::AttentionStatistics(const KvLayout& layout, std::int32_t num_heads)
    : layout_(layout),
      num_heads_(num_heads),
      step_(std::max<std::int64_t>(1, (layout.num_tokens() + kMostRows - 1) / kMostRows)) {}

Status AttentionStatistics::begin(const std::shared_ptr<ComputeMemory>& memory,
                                  std::int64_t prefix_rows) {
  const std::int64_t tokens = layout_.num_tokens();
  QUIRE_RETURN_IF_ERROR(sums_.reserve(memory, 3 * num_sums()));
  QUIRE_RETURN_IF_ERROR(late_distance_.reserve(memory, tokens));
  QUIRE_RETURN_IF_ERROR(log_distance_.reserve(memory, prefix_rows + tokens));
  std::fill_n(sums_.data(), 3 * num_sums(), 0.0);
  std::vector<std::int32_t> late(at(tokens));
  for (std::int64_t j = 0; j < tokens; ++j) late[at(j)] = late_distance(j);
  std::vector<float> logs(at(prefix_rows + tokens));
  for (std::int64_t i = 1; i < prefix_rows + tokens; ++i)
    logs[at(i)] = static_cast<float>(std::log(static_cast<double>(i)));
  QUIRE_RETURN_IF_ERROR(write_memory(memory.get(), late_distance_.data(), late.data(),
                                     tokens * std::int64_t{sizeof(std::int32_t)}));
  QUIRE_RETURN_IF_ERROR(write_memory(memory.get(), log_distance_.data(), logs.data(),
                                     count_of(logs) * std::int64_t{sizeof(float)}));
  begun_ = true;
  return {};
}

std::int64_t AttentionStatistics::rows_at_least(std::int64_t token, std::int64_t nearest) const {
  const std::int64_t last = layout_.num_tokens() - 1 - token;
  return last < nearest ? 0 : (last - nearest) / step_ + 1;
}

std::int32_t AttentionStatistics::late_distance(std::int64_t token) const {
  return rows_at_least(token, kLateDistance) >= kFewestLateRows ? kLateDistance : 1;
}

Status AttentionStatistics::add(const RopeTable& rope, const Chunk& chunk) {
  const KvShape& shape = layout_.shape();
  const std::int64_t tokens = layout_.num_tokens(), end = chunk.first_token + chunk.rows;
  QUIRE_CHECK(
      chunk.layer >= 0 && chunk.layer < shape.num_layers && chunk.first_token >= 0 && end <= tokens,
      "chunk outside its context");
  // Sampled rows are those at a multiple of the step before the last token.
  const std::int64_t skip = (tokens - 1 - chunk.first_token) % step_;
  if (skip >= chunk.rows) return {};
  const std::int64_t rows = (chunk.rows - skip - 1) / step_ + 1, first = chunk.first_token + skip;
  AttentionOps& ops = chunk.compute->attention();
  const std::shared_ptr<ComputeMemory> memory = chunk.compute->memory();
  if (!begun_) QUIRE_RETURN_IF_ERROR(begin(memory, chunk.prefix_rows));
  positions_.resize(at(rows));
  for (std::int64_t r = 0; r < rows; ++r)
    positions_[at(r)] = chunk.kv.positions[chunk.prefix_rows + first + r * step_];
  const std::int64_t width = std::int64_t{num_heads_} * shape.head_dim;
  QUIRE_RETURN_IF_ERROR(q_rotated_.reserve(memory, rows * width));
  const RopeRotateArgs rotate{.x = chunk.q + skip * chunk.ldq,
                              .out = q_rotated_.data(),
                              .positions = positions_.data(),
                              .rows = rows,
                              .num_heads = num_heads_,
                              .ldx = step_ * chunk.ldq,
                              .ldo = width};
  QUIRE_RETURN_IF_ERROR(ops.rotate(rope, rotate));
  const std::int64_t sums = chunk.layer * tokens;
  AttentionStatsArgs args{};
  args.q = q_rotated_.data();
  args.lse = chunk.lse + skip * num_heads_;
  args.rows = rows;
  args.ldq = width;
  args.ld_lse = step_ * num_heads_;
  args.first_row = chunk.prefix_rows + first;
  args.row_step = step_;
  args.num_heads = num_heads_;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  args.kv = chunk.kv;
  args.first_column = chunk.prefix_rows;
  args.num_columns = end;
  args.late_distance = late_distance_.data();
  args.log_distance = log_distance_.data();
  args.sum_log = sums_.data() + sums;
  args.sum_x_log = args.sum_log + num_sums();
  args.sum_late = args.sum_x_log + num_sums();
  return ops.statistics(args);
}

std::vector<BlockStats> AttentionStatistics::finish() const {
  const std::int64_t tokens = layout_.num_tokens();
  // Sums of log distances over last, last - step, ... >= 1, indexed by `last`.
  std::vector<double> log_x(at(tokens)), log_x_squared(at(tokens));
  for (std::int64_t last = 1; last < tokens; ++last) {
    const double l = std::log(static_cast<double>(last));
    log_x[at(last)] = l + (last > step_ ? log_x[at(last - step_)] : 0.0);
    log_x_squared[at(last)] = l * l + (last > step_ ? log_x_squared[at(last - step_)] : 0.0);
  }
  std::vector<BlockStats> out;
  out.reserve(at(layout_.shape().num_layers) * at(layout_.num_blocks()));
  for (std::int32_t layer = 0; layer < layout_.shape().num_layers; ++layer) {
    const std::size_t sums = at(layer) * at(tokens);
    for (std::int32_t block = 0; block < layout_.num_blocks(); ++block) {
      const std::int64_t begin = layout_.first_token(block), end = begin + layout_.tokens_in(block);
      std::int64_t best = begin;
      double most = -1;
      for (std::int64_t j = begin; j < end; ++j) {
        const std::int64_t rows = rows_at_least(j, late_distance(j));
        const double sustained = rows > 0 ? sum_late()[sums + at(j)] / static_cast<double>(rows)
                                          : 0.0;
        if (sustained > most) {
          most = sustained;
          best = j;
        }
      }
      const std::int64_t last = tokens - 1 - best;
      const double alpha = power_law_alpha(
          {static_cast<double>(rows_at_least(best, 1)), log_x[at(last)], log_x_squared[at(last)],
           sum_log()[sums + at(best)], sum_x_log()[sums + at(best)]});
      out.push_back({static_cast<float>(alpha), static_cast<float>(std::max(most, 0.0)),
                     static_cast<std::int32_t>(best)});
    }
  }
  return out;
}

}  // namespace quire
