#include "engine/device/device_attention.h"

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "engine/device/staged_view.h"

namespace quire {
namespace {

/// The bytes of partial results of decode attention at once, if one query row needs no more.
constexpr std::int64_t kScratchBytes = std::int64_t{64} << 20;

}  // namespace

Status DeviceAttention::refresh(std::span<const KvView> views) {
  // Both now: they begin anew only while nothing is enqueued.
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_RETURN_IF_ERROR(table_stage_.begin());
  std::vector<cuda::WriteTablesArgs::Page> pages;
  std::vector<cuda::WriteTablesArgs::Position> positions;
  std::vector<const KvView*> written;
  for (const KvView& kv : views) {
    if (kv.table == nullptr) continue;
    KvTable& table = *kv.table;
    QUIRE_RETURN_IF_ERROR(table.reserve(kv.num_rows));
    const std::int64_t num_pages = (kv.num_rows + kPageTokens - 1) / kPageTokens,
                       page = table.known_pages(), row = table.known_rows();
    if (num_pages - page > 1 || kv.num_rows - row > 1) {
      QUIRE_RETURN_IF_ERROR(send_table(table_stage_, kv));
      continue;
    }
    if (page < num_pages) pages.push_back({table.pages() + page, kv.pages[page]});
    if (row < kv.num_rows) positions.push_back({table.positions() + row, kv.positions[row]});
    written.push_back(&kv);
  }
  if (pages.empty() && positions.empty()) return {};
  cuda::WriteTablesArgs writes{.pages = nullptr,
                               .positions = nullptr,
                               .num_pages = count_of(pages),
                               .num_positions = count_of(positions)};
  QUIRE_ASSIGN_OR_RETURN(writes.pages,
                         table_stage_.put(std::span<const cuda::WriteTablesArgs::Page>(pages)));
  QUIRE_ASSIGN_OR_RETURN(
      writes.positions,
      table_stage_.put(std::span<const cuda::WriteTablesArgs::Position>(positions)));
  QUIRE_RETURN_IF_ERROR(table_stage_.send());
  QUIRE_RETURN_IF_ERROR(memory_->run(writes));
  // Not before: a table that knew what was never sent would give wrong answers.
  for (const KvView* kv : written) kv->table->know(kv->num_rows);
  return {};
}

Status DeviceAttention::rotate(const RopeTable& table, const RopeRotateArgs& args) {
  if (args.rows == 0) return {};
  RopeRotateArgs rows = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(rows.positions, stage_.put(std::span(args.positions, to_size(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(cuda::RotateRowsArgs{tables_->of(table), rows});
}

Status DeviceAttention::attend(const AttentionArgs& args, DType to) {
  if (args.rows == 0) return {};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  AttentionArgs a = args;
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.query_positions,
                         stage_.put(std::span(args.query_positions, to_size(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  if (args.kv.dtype != DType::kF32) return memory_->run(cuda::PrefillAttentionArgs{a, to});
  // f32 has no tensor-core kernel: process as many rows at once as their partial results have room.
  cuda::DecodeAttentionArgs one{
      .attention = a, .lists = nullptr, .longest_list = 0, .scratch = nullptr};
  one.attention.rows = 1;
  const std::int64_t per_row = std::max<std::int64_t>(1, decode_attention_scratch_bytes(one));
  const std::int64_t step = std::clamp<std::int64_t>(kScratchBytes / per_row, 1, 4096);
  QUIRE_RETURN_IF_ERROR(scratch_.reserve(std::min(step, a.rows) * per_row));
  for (std::int64_t first = 0; first < a.rows; first += step) {
    cuda::DecodeAttentionArgs part{.attention = a,
                                   .lists = nullptr,
                                   .longest_list = 0,
                                   .scratch = reinterpret_cast<float*>(scratch_.data()),
                                   .to = to};
    part.attention.q += first * a.ldq;
    part.attention.out = result_at(a.out, to, first * a.ldo);
    part.attention.query_positions += first;
    if (a.lse != nullptr) part.attention.lse += first * a.num_heads;
    part.attention.rows = std::min(step, a.rows - first);
    QUIRE_RETURN_IF_ERROR(memory_->run(part));
  }
  return {};
}

Status DeviceAttention::attend_each(const AttentionArgs& args,
                                    std::span<const SequenceAttention> sequences, DType to) {
  if (args.rows == 0) return {};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  std::vector<cuda::SequenceKv> each;
  std::vector<std::int32_t> positions;
  std::int64_t longest = 0;
  for (const SequenceAttention& s : sequences) {
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, staged_view(stage_, s.kv));
    cuda::SequenceKv one{kv.pages, kv.positions, kv.num_rows, nullptr};
    if (s.lists_in_memory != nullptr) {
      longest = std::max(longest, s.longest_list);
      one.lists = s.lists_in_memory;
    } else if (s.lists == nullptr) {
      longest = std::max(longest, kv.num_rows);
    } else {
      std::vector<RowList> lists(s.lists, s.lists + kv.num_kv_heads);
      for (RowList& list : lists) {
        longest = std::max(longest, list.length);
        QUIRE_ASSIGN_OR_RETURN(
            list.rows, stage_.put(std::span(list.rows, to_size(list.length)),
                                  kRowsRoom * static_cast<std::int64_t>(sizeof(std::int32_t))));
      }
      QUIRE_ASSIGN_OR_RETURN(one.lists, stage_.put(std::span<const RowList>(lists)));
    }
    each.push_back(one);
    positions.push_back(s.position);
  }
  longest = (longest + kRowsRoom - 1) / kRowsRoom *
            kRowsRoom;  // so that equal numbers of chunks repeat
  cuda::DecodeAttentionArgs decode{
      .attention = args, .lists = nullptr, .longest_list = longest, .scratch = nullptr, .to = to};
  decode.attention.kv = sequences.front().kv;  // kernels use only its shape
  decode.attention.kv.pages = nullptr;         // they differ from step to step, arguments shall not
  decode.attention.kv.positions = nullptr;
  decode.attention.kv.table = nullptr;
  decode.attention.kv.num_rows = longest;
  decode.attention.kv.sorted = false;
  QUIRE_ASSIGN_OR_RETURN(decode.sequences, stage_.put(std::span<const cuda::SequenceKv>(each)));
  QUIRE_ASSIGN_OR_RETURN(decode.attention.query_positions,
                         stage_.put(std::span<const std::int32_t>(positions)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  QUIRE_RETURN_IF_ERROR(scratch_.reserve(decode_attention_scratch_bytes(decode)));
  decode.scratch = reinterpret_cast<float*>(scratch_.data());
  return memory_->run(decode);
}

Status DeviceAttention::scores(const AttentionScoresArgs& args) {
  if (args.rows == 0) return {};
  AttentionScoresArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.query_positions,
                         stage_.put(std::span(args.query_positions, to_size(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceAttention::mass(const AttentionMassArgs& args) {
  if (args.rows == 0 || args.num_ranges == 0) return {};
  AttentionMassArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.query_positions,
                         stage_.put(std::span(args.query_positions, to_size(args.rows))));
  QUIRE_ASSIGN_OR_RETURN(a.ranges, stage_.put(std::span(args.ranges, to_size(args.num_ranges))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceAttention::statistics(const AttentionStatsArgs& args) {
  if (args.rows == 0 || args.num_columns == 0) return {};
  AttentionStatsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

}  // namespace quire
