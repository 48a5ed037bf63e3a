// Measures attention at the shape of Llama-3.1-8B: 32 query heads, 8 KV heads of 128 channels,
// bf16, in some rows f8; some rows with 64 query heads, as larger models have.
#include <algorithm>
#include <cmath>

#include "bench/gpu/measure.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda::bench {
namespace {

constexpr std::int32_t kHeads = 32, kKvHeads = 8, kDim = 128;
const float kScale = 1.0f / std::sqrt(static_cast<float>(kDim));

AttentionArgs queries(Bench& bench, std::int64_t rows, const std::vector<std::int32_t>& positions,
                      const KvView& kv, std::int32_t heads = kHeads) {
  const std::int64_t width = std::int64_t{heads} * kDim;
  return {bench.floats(rows * width),
          bench.upload(positions),
          rows,
          width,
          heads,
          kScale,
          kv,
          bench.floats(rows * width),
          width,
          bench.floats(rows * heads)};
}

std::string results_in(DType to) { return to == DType::kBF16 ? ", results in bf16" : ""; }

std::string over(DType kv) { return kv == DType::kF8 ? ", f8" : ""; }

/// Returns the bytes of keys and values that one pass over the cache reads.
double kv_bytes(std::int64_t rows, DType dtype = DType::kBF16) {
  return 2.0 * static_cast<double>(rows) * kKvHeads * kDim *
         static_cast<double>(dtype_bytes(dtype));
}

/// Runs the arguments in turn: each has a cache of its own, so that KV comes from memory.
std::function<Status()> in_turn(Bench& bench, const std::vector<DecodeAttentionArgs>& turns) {
  return [&bench, &turns, next = std::size_t{0}]() mutable {
    return decode_attention(turns[next++ % turns.size()], bench.stream());
  };
}

Row decode(Bench& bench, std::int64_t context, std::int32_t heads = kHeads,
           DType dtype = DType::kBF16) {
  std::vector<DecodeAttentionArgs> turns;
  const std::int64_t copies = bench.turns(kv_bytes(context, dtype));
  for (std::int64_t i = 0; i < copies; ++i) {
    const KvView kv = bench.paged_kv(context, kKvHeads, kDim, dtype);
    DecodeAttentionArgs args{queries(bench, 1, {static_cast<std::int32_t>(context - 1)}, kv, heads),
                             nullptr, 0, nullptr, nullptr};
    args.scratch = static_cast<float*>(bench.bytes(decode_attention_scratch_bytes(args)));
    args.run_chunks = decode_run_chunks(bench.device(), args);
    turns.push_back(args);
  }
  Row row = bench.measure("decode_attention",
                          std::to_string(context) + " keys, groups of " +
                              std::to_string(heads / kKvHeads) + over(dtype),
                          kv_bytes(context, dtype), 0, in_turn(bench, turns));
  bench.release();
  return row;
}

Row decode_lists(Bench& bench, std::int64_t context) {
  std::vector<std::int32_t> rows;
  for (std::int64_t r = 0; r < context; r += 64) {
    for (std::int64_t i = 0; i < kPageTokens; ++i) rows.push_back(static_cast<std::int32_t>(r + i));
  }
  const RowList list{bench.upload(rows), static_cast<std::int64_t>(rows.size())};
  const RowList* lists = bench.upload(std::vector<RowList>(kKvHeads, list));
  std::vector<DecodeAttentionArgs> turns;
  const std::int64_t copies = bench.turns(kv_bytes(list.length));
  for (std::int64_t i = 0; i < copies; ++i) {
    const KvView kv = bench.paged_kv(context, kKvHeads, kDim, DType::kBF16);
    DecodeAttentionArgs args{queries(bench, 1, {static_cast<std::int32_t>(context - 1)}, kv), lists,
                             list.length, nullptr, nullptr};
    args.scratch = static_cast<float*>(bench.bytes(decode_attention_scratch_bytes(args)));
    args.run_chunks = decode_run_chunks(bench.device(), args);
    turns.push_back(args);
  }
  Row row = bench.measure("decode_attention lists",
                          std::to_string(list.length) + " of " + std::to_string(context) + " keys",
                          kv_bytes(list.length), 0, in_turn(bench, turns));
  bench.release();
  return row;
}

/// Measures a batch whose sequences have different lengths: context + 37 * i.
Row decode_batch(Bench& bench, std::int64_t sequences, std::int64_t context,
                 std::int32_t heads = kHeads, DType to = DType::kF32, DType dtype = DType::kBF16) {
  std::vector<SequenceKv> caches;
  std::vector<std::int32_t> positions;
  KvView kv{};
  std::int64_t longest = 0;
  double bytes = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t keys = context + 37 * s;
    kv = bench.paged_kv(keys, kKvHeads, kDim, dtype);
    caches.push_back({kv.pages, kv.positions, kv.num_rows, nullptr});
    positions.push_back(static_cast<std::int32_t>(keys - 1));
    longest = std::max(longest, keys);
    bytes += kv_bytes(keys, dtype);
  }
  DecodeAttentionArgs args{queries(bench, sequences, positions, kv, heads), nullptr, longest,
                           nullptr, bench.upload(caches)};
  args.to = to;
  args.scratch = static_cast<float*>(bench.bytes(decode_attention_scratch_bytes(args)));
  args.run_chunks = decode_run_chunks(bench.device(), args);
  Row row = bench.measure("decode_attention batch",
                          std::to_string(sequences) + " sequences of " + std::to_string(context) +
                              " keys and more, groups of " + std::to_string(heads / kKvHeads) +
                              over(dtype) + results_in(to),
                          bytes, 0, [&] { return decode_attention(args, bench.stream()); });
  bench.release();
  return row;
}

Row prefill(Bench& bench, std::int64_t rows, std::int64_t context, DType to = DType::kF32,
            DType dtype = DType::kBF16) {
  const KvView kv = bench.paged_kv(context, kKvHeads, kDim, dtype);
  std::vector<std::int32_t> positions;
  for (std::int64_t r = 0; r < rows; ++r)
    positions.push_back(static_cast<std::int32_t>(context - rows + r));
  const PrefillAttentionArgs args{queries(bench, rows, positions, kv), to};
  // Pairs of a query and a visible key.
  const double seen = static_cast<double>(rows) *
                      (static_cast<double>(context) - (static_cast<double>(rows) - 1) / 2);
  Row row = bench.measure(
      "prefill_attention",
      std::to_string(rows) + " rows over " + std::to_string(context) + over(dtype) + results_in(to),
      0, 4.0 * seen * kHeads * kDim, [&] { return prefill_attention(args, bench.stream()); });
  bench.release();
  return row;
}

Row scores(Bench& bench, std::int64_t rows, std::int64_t context) {
  const KvView kv = bench.paged_kv(context, kKvHeads, kDim, DType::kBF16);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows),
                                      static_cast<std::int32_t>(context - 1));
  const AttentionArgs a = queries(bench, rows, positions, kv);
  float* out = bench.floats(kKvHeads * context);
  const AttentionScoresArgs args{
      a.q, a.query_positions,    a.lse, rows,   a.ldq, kHeads, kHeads, kScale,
      kv,  ScoreReduction::kMax, out,   context};
  Row row = bench.measure(
      "attention_scores", std::to_string(rows) + " rows over " + std::to_string(context),
      kv_bytes(context) / 2, 0, [&] { return attention_scores(args, bench.stream()); });
  bench.release();
  return row;
}

/// Measures attention of a few query rows to the 64 blocks of a long cache.
Row mass(Bench& bench, std::int64_t rows, std::int64_t context) {
  const KvView kv = bench.paged_kv(context, kKvHeads, kDim, DType::kBF16);
  const AttentionArgs a = queries(bench, rows,
                                  std::vector<std::int32_t>(static_cast<std::size_t>(rows),
                                                            static_cast<std::int32_t>(context - 1)),
                                  kv);
  std::vector<RowRange> ranges;
  for (std::int64_t begin = 0; begin < context; begin += context / 64)
    ranges.push_back({begin, begin + context / 64});
  const auto n = static_cast<std::int64_t>(ranges.size());
  const AttentionMassArgs args{a.q,    a.query_positions,
                               a.lse,  rows,
                               a.ldq,  kHeads,
                               kHeads, kScale,
                               kv,     bench.upload(ranges),
                               n,      bench.floats(rows * kHeads * n)};
  Row row = bench.measure(
      "attention_mass", std::to_string(rows) + " rows over " + std::to_string(context),
      kv_bytes(context) / 2, 0, [&] { return attention_mass(args, bench.stream()); });
  bench.release();
  return row;
}

Row statistics(Bench& bench, std::int64_t rows) {
  const KvView kv = bench.paged_kv(rows, kKvHeads, kDim, DType::kBF16);
  const std::vector<double> zeros(static_cast<std::size_t>(rows));
  const std::vector<std::int32_t> late(static_cast<std::size_t>(rows), 64);
  const AttentionStatsArgs args{bench.floats(rows * kHeads * kDim),
                                bench.floats(rows * kHeads),
                                rows,
                                std::int64_t{kHeads} * kDim,
                                kHeads,
                                0,
                                1,
                                kHeads,
                                kScale,
                                kv,
                                0,
                                rows,
                                bench.upload(late),
                                bench.floats(rows),
                                bench.upload(zeros),
                                bench.upload(zeros),
                                bench.upload(zeros)};
  const double pairs = static_cast<double>(rows) * static_cast<double>(rows - 1) / 2;
  Row row = bench.measure("attention_stats", std::to_string(rows) + " rows, f32", 0,
                          2.0 * pairs * kHeads * kDim,
                          [&] { return attention_stats(args, bench.stream()); });
  bench.release();
  return row;
}

}  // namespace

void attention_cases(Bench& bench, const SectionOutput& out) {
  constexpr std::int32_t kWide = 8 * kKvHeads;  // query heads in groups of eight
  out.row(decode(bench, 1024));
  out.row(decode(bench, 8192));
  out.row(decode_batch(bench, 32, 8192));
  out.row(prefill(bench, 2048, 8192));
  out.row(decode(bench, 131072));
  out.row(decode(bench, 8192, kWide));
  out.row(decode_batch(bench, 8, 8192));
  out.row(decode_batch(bench, 64, 8192));
  out.row(decode_batch(bench, 32, 8192, kWide));
  out.row(prefill(bench, 2048, 2048));
  out.row(prefill(bench, 2048, 32768));
  out.row(decode_lists(bench, 131072));
  out.row(scores(bench, 16, 32768));
  out.row(mass(bench, 16, 32768));
  out.row(statistics(bench, 2048));
  out.row(decode_batch(bench, 32, 8192, kHeads, DType::kBF16));
  out.row(prefill(bench, 2048, 8192, DType::kBF16));
  out.row(decode(bench, 8192, kHeads, DType::kF8));
  out.row(decode_batch(bench, 32, 8192, kHeads, DType::kF32, DType::kF8));
  out.row(prefill(bench, 2048, 8192, DType::kF32, DType::kF8));
}

}  // namespace quire::cuda::bench
