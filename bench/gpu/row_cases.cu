// Measures operations over rows at the shape of Llama-3.1-8B. Working sets are larger than the
// second-level cache.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bench/gpu/measure.h"
#include "kernels/cuda/kernels.h"
#include "kernels/rows/kv_gather.h"
#include "kernels/rows/rope.h"

namespace quire::cuda::bench {
namespace {

constexpr std::int64_t kRows = 8192, kHidden = 4096, kFeedForward = 14336, kVocab = 128256;
constexpr std::int32_t kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr std::int64_t kKvWidth = std::int64_t{kKvHeads} * kDim;

std::string rows_of(std::int64_t rows, std::int64_t width) {
  return std::to_string(rows) + " rows of " + std::to_string(width);
}

DeviceRopeTable rope_table(Bench& bench, std::int64_t positions) {
  const std::int64_t half = kDim / 2;
  std::vector<float> c(static_cast<std::size_t>(positions * half)), s(c.size());
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) *
                           std::pow(500000.0, -static_cast<double>(2 * i) / kDim);
      c[static_cast<std::size_t>(p * half + i)] = static_cast<float>(std::cos(angle));
      s[static_cast<std::size_t>(p * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return {bench.upload(c), bench.upload(s), positions, kDim, kDim, false};
}

std::vector<std::int32_t> ascending(std::int64_t n) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(static_cast<std::int32_t>(i));
  return out;
}

std::vector<Row> activations(Bench& bench) {
  std::vector<Row> rows;
  float *x = bench.floats(kRows * kHidden), *residual = bench.floats(kRows * kHidden),
        *out = bench.floats(kRows * kHidden);
  const float* weight = bench.floats(kHidden);
  rows.push_back(bench.measure(
      "rms_norm residual", rows_of(kRows, kHidden), 4.0 * kRows * kHidden * 4, 0, [&] {
        return rms_norm({{x, weight, out, kRows, kHidden, 1e-5f}, residual}, bench.stream());
      }));
  bench.release();
  // The second half of the columns comes from another device and is added.
  const float* part = bench.floats(kRows * kHidden / 2);
  float* joined = bench.floats(kRows * kHidden);
  rows.push_back(bench.measure("join_columns", rows_of(kRows, kHidden / 2),
                               12.0 * kRows * kHidden / 2, 0, [&] {
                                 return join_columns({.parts = part,
                                                      .dtype = DType::kF32,
                                                      .rows = kRows,
                                                      .n = kHidden,
                                                      .width = kHidden / 2,
                                                      .first = kHidden / 2,
                                                      .y = joined,
                                                      .ldy = kHidden,
                                                      .accumulate = true},
                                                     bench.stream());
                               }));
  bench.release();
  const float* gate_up = bench.floats(kRows * 2 * kFeedForward);
  float* gated = bench.floats(kRows * kFeedForward);
  rows.push_back(
      bench.measure("swiglu", rows_of(kRows, kFeedForward), 3.0 * kRows * kFeedForward * 4, 0, [&] {
        return swiglu({{gate_up, gated, kRows, kFeedForward}}, bench.stream());
      }));
  bench.release();
  const void* table = bench.elements(kVocab * kHidden, DType::kBF16);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < kRows; ++i)
    ids.push_back(static_cast<std::int32_t>(i * 7919 % kVocab));
  const std::int32_t* on_device = bench.upload(ids);
  float* embedded = bench.floats(kRows * kHidden);
  rows.push_back(bench.measure("embedding", rows_of(kRows, kHidden), 6.0 * kRows * kHidden, 0, [&] {
    return embedding({table, DType::kBF16, on_device, kRows, kHidden, kVocab, embedded},
                     bench.stream());
  }));
  bench.release();
  return rows;
}

std::vector<Row> kv_rows(Bench& bench) {
  std::vector<Row> rows;
  const DeviceRopeTable table = rope_table(bench, kRows);
  const std::int32_t* positions = bench.upload(ascending(kRows));
  float* q = bench.floats(kRows * kHidden);
  rows.push_back(
      bench.measure("rope_rotate", rows_of(kRows, kHidden), 2.0 * kRows * kHidden * 4, 0, [&] {
        return rope_rotate(table, {q, q, positions, kRows, kHeads, kHidden, kHidden},
                           bench.stream());
      }));
  const float *k = bench.floats(kRows * kKvWidth), *v = bench.floats(kRows * kKvWidth);
  void* packed = bench.elements(2 * kRows * kKvWidth, DType::kBF16);
  rows.push_back(
      bench.measure("kv_pack", rows_of(kRows, kKvWidth), 12.0 * kRows * kKvWidth, 0, [&] {
        return kv_pack({k, v, kRows, kKvWidth, kKvWidth, kKvHeads, kDim, DType::kBF16, packed},
                       bench.stream());
      }));
  const KvView kv = bench.paged_kv(kRows, kKvHeads, kDim, DType::kBF16);
  // The pages are the benchmark's device memory. The view is read-only only for attention.
  const MutableKvView to{const_cast<void* const*>(reinterpret_cast<const void* const*>(kv.pages)),
                         kRows,
                         kKvHeads,
                         kDim,
                         DType::kBF16,
                         kv.kv_stride,
                         kv.head_stride,
                         kv.token_stride};
  const RawKvView raw{packed,           kRows,   DType::kBF16, 2 * kRows * kDim * 2,
                      kRows * kDim * 2, kDim * 2};
  rows.push_back(
      bench.measure("kv_place", rows_of(kRows, kKvWidth), 8.0 * kRows * kKvWidth, 0, [&] {
        return kv_place(table, {raw, to, positions, nullptr, 0}, bench.stream());
      }));
  float* rotated = bench.floats(kRows * kHidden);
  rows.push_back(bench.measure(
      "write_new_rows", rows_of(kRows, kHidden) + ", KV of " + std::to_string(kKvWidth),
      8.0 * kRows * kHidden + 12.0 * kRows * kKvWidth, 0, [&] {
        return write_new_rows(table,
                              {.q = {q, rotated, positions, kRows, kHeads, kHidden, kHidden},
                               .k = k,
                               .v = v,
                               .ld = kKvWidth,
                               .from = nullptr,
                               .num_rows = kRows,
                               .positions = positions,
                               .dst_rows = positions,
                               .raw_dtype = DType::kBF16,
                               .dst = to},
                              bench.stream());
      }));
  float *mean = bench.floats(kRows / 64 * kKvWidth), *low = bench.floats(kRows / 64 * kKvWidth),
        *high = bench.floats(kRows / 64 * kKvWidth);
  rows.push_back(
      bench.measure("block_summaries", rows_of(kRows, kKvWidth), 2.0 * kRows * kKvWidth, 0, [&] {
        return block_summaries(table, {raw, kKvHeads, kDim, 64, 0, mean, low, high},
                               bench.stream());
      }));
  bench.release();
  return rows;
}

/// Measures how a layer of a document's stored blocks comes to the device: packed by one core of
/// the host and copied; gathered from pinned memory where it lies; or with a copy for each block
/// and a gather of what they brought.
std::vector<Row> stored_rows(Bench& bench) {
  // A value holds kLayers layers of a block, of which one is read.
  constexpr std::int64_t kTokens = 64, kBlocks = kRows / kTokens, kLayers = 4;
  constexpr std::int64_t kRowBytes = kDim * 2, kHeadBytes = kTokens * kRowBytes,
                         kBlockBytes = 2 * kKvHeads * kHeadBytes, kBytes = kBlocks * kBlockBytes;
  const auto block = [](std::byte* values, std::int64_t b) {
    return values + b * kLayers * kBlockBytes;
  };
  std::vector<std::byte> ordinary(static_cast<std::size_t>(kBlocks * kLayers * kBlockBytes),
                                  std::byte{1});
  auto* const packed = static_cast<std::byte*>(bench.bytes(kBytes, MemoryKind::kPinned));
  auto* const pinned = static_cast<std::byte*>(
      bench.bytes(kBlocks * kLayers * kBlockBytes, MemoryKind::kPinned));
  std::memset(packed, 1, static_cast<std::size_t>(kBytes));
  std::memcpy(pinned, ordinary.data(), ordinary.size());
  auto* const device = static_cast<std::byte*>(bench.bytes(kBytes));
  std::vector<Row> rows;
  const auto measure = [&](const char* name, const std::function<Status()>& work) {
    Row row = bench.measure(name, rows_of(kRows, kKvWidth) + ", blocks of 64", 0, 0, work);
    row.host_bytes = kBytes;
    rows.push_back(std::move(row));
  };
  measure("stored rows packed", [&] {
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      for (std::int64_t part = 0; part < 2 * kKvHeads; ++part)
        std::memcpy(packed + (part * kRows + b * kTokens) * kRowBytes,
                    block(ordinary.data(), b) + part * kHeadBytes,
                    static_cast<std::size_t>(kHeadBytes));
    }
    return bench.driver().copy(device, packed, kBytes, bench.stream());
  });
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<KvMove> moves;
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    for (std::int64_t page = 0; page < kTokens / kPageTokens; ++page)
      sources.push_back(block(pinned, b) + page * kPageTokens * kRowBytes);
    const auto row = static_cast<std::int32_t>(b * kTokens);
    for (std::int32_t head = 0; head < kKvHeads; ++head)
      moves.push_back({head, row, row, static_cast<std::int32_t>(kTokens)});
  }
  for (std::int64_t page = 0; page < kRows / kPageTokens; ++page)
    targets.push_back(device + page * kPageTokens * kRowBytes);
  KvGatherArgs args{};
  args.src.pages = bench.upload(sources);
  args.dst.pages = bench.upload(targets);
  args.moves = bench.upload(moves);
  args.num_moves = static_cast<std::int64_t>(moves.size());
  args.most_rows = static_cast<std::int32_t>(kTokens);
  args.src.num_rows = args.dst.num_rows = kRows;
  args.src.num_kv_heads = args.dst.num_kv_heads = kKvHeads;
  args.src.head_dim = args.dst.head_dim = kDim;
  args.src.dtype = args.dst.dtype = DType::kBF16;
  args.src.kv_stride = kHeadBytes;
  args.src.head_stride = 2 * kHeadBytes;
  args.dst.kv_stride = kRows * kRowBytes;
  args.dst.head_stride = 2 * kRows * kRowBytes;
  args.src.token_stride = args.dst.token_stride = kRowBytes;
  measure("stored rows in place", [&] { return kv_gather(args, bench.stream()); });
  auto* const copies = static_cast<std::byte*>(bench.bytes(kBytes));
  for (std::size_t i = 0; i < sources.size(); ++i)
    sources[i] = copies + static_cast<std::int64_t>(i) / (kTokens / kPageTokens) * kBlockBytes +
                 static_cast<std::int64_t>(i) % (kTokens / kPageTokens) * kPageTokens * kRowBytes;
  args.src.pages = bench.upload(sources);
  measure("stored rows by copies", [&] {
    for (std::int64_t b = 0; b < kBlocks; ++b)
      QUIRE_RETURN_IF_ERROR(bench.driver().copy(copies + b * kBlockBytes, block(pinned, b),
                                                kBlockBytes, bench.stream()));
    return kv_gather(args, bench.stream());
  });
  bench.release();
  return rows;
}

/// Measures a decode step's products of several layers, with weights in groups of 32.
Row grouped_gemv_row(Bench& bench, GroupKind kind, const std::string& name, std::int64_t n,
                     std::int64_t inputs) {
  constexpr int kLayers = 4;
  const std::int64_t numbers = grouped_number_bytes(kind, n, inputs);
  const std::int64_t scales = grouped_scale_bytes(kind, n, inputs);
  const bool minimum = kind == GroupKind::kFourMin;
  const auto halves = [&] {
    return static_cast<const std::uint16_t*>(bench.elements(scales / 2, DType::kF16));
  };
  std::vector<GroupedGemvArgs> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto* bytes = static_cast<const std::byte*>(bench.elements(numbers, DType::kI8));
    const std::uint16_t* scale = halves();
    const GroupedWeights weight{bytes, scale, minimum ? halves() : nullptr, n, inputs, kind};
    layers.push_back({bench.floats(inputs), weight, nullptr, 1,
                      grouped_gemv_warps(bench.device(), kind, n, inputs), bench.floats(n)});
  }
  const auto bytes = static_cast<double>(numbers + scales * (minimum ? 2 : 1));
  const std::string what = std::to_string(kLayers) + " of " + rows_of(n, inputs);
  return bench.measure(name, what, kLayers * bytes, 0, [&] {
    for (const GroupedGemvArgs& args : layers) {
      QUIRE_RETURN_IF_ERROR(grouped_gemv(args, bench.stream()));
    }
    return Status();
  });
}

/// Measures the products of a decode step of `rows` sequences, with weights in groups of 32 and in
/// int8. Several matrices take turns, so that weights come from memory.
std::vector<Row> few_rows_rows(Bench& bench, std::int64_t rows, std::int64_t n,
                               std::int64_t inputs) {
  constexpr int kLayers = 4;
  const auto of_rows = [&] {
    const std::int64_t splits = few_rows_splits(bench.device(), n, inputs);
    return FewRowsArgs{.x = bench.elements(rows * inputs, DType::kBF16),
                       .bias = nullptr,
                       .rows = rows,
                       .splits = static_cast<std::int32_t>(splits),
                       .parts = splits > 1 ? bench.floats(splits * rows * n) : nullptr,
                       .y = bench.floats(rows * n)};
  };
  const std::string what = std::to_string(kLayers) + " of " + rows_of(n, inputs) + ", " +
                           std::to_string(rows) + " rows";
  const double operations = 2.0 * kLayers * static_cast<double>(rows * n * inputs);
  std::vector<Row> out;
  for (const auto& [kind, name] : {std::pair{GroupKind::kFour, "four_bits_product"},
                                   std::pair{GroupKind::kEight, "eight_bits_product"}}) {
    const std::int64_t numbers = grouped_number_bytes(kind, n, inputs),
                       scales = grouped_scale_bytes(kind, n, inputs);
    std::vector<GroupedProductArgs> layers;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto* bytes = static_cast<const std::byte*>(bench.elements(numbers, DType::kI8));
      const auto* scale = static_cast<const std::uint16_t*>(
          bench.elements(scales / 2, DType::kF16));
      layers.push_back({{bytes, scale, nullptr, n, inputs, kind}, of_rows()});
    }
    out.push_back(
        bench.measure(name, what, kLayers * static_cast<double>(numbers + scales), operations, [&] {
          for (const GroupedProductArgs& args : layers)
            QUIRE_RETURN_IF_ERROR(grouped_product(args, bench.stream()));
          return Status();
        }));
    bench.release();
  }
  std::vector<Int8ProductArgs> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto* codes = static_cast<const std::int8_t*>(bench.elements(n * inputs, DType::kI8));
    layers.push_back({{codes, bench.floats(n * inputs / kGemvGroup), n, inputs}, of_rows()});
  }
  const double bytes = static_cast<double>(n * inputs) * (1 + 4.0 / kGemvGroup);
  out.push_back(bench.measure("int8_product", what, kLayers * bytes, operations, [&] {
    for (const Int8ProductArgs& args : layers)
      QUIRE_RETURN_IF_ERROR(int8_product(args, bench.stream()));
    return Status();
  }));
  bench.release();
  return out;
}

std::vector<Row> projections(Bench& bench) {
  std::vector<Row> rows;
  constexpr std::int64_t kStacked = (kHeads + 2 * kKvHeads) * kDim;
  const float *qkv = bench.floats(kRows * kStacked), *norm = bench.floats(kDim);
  float *q = bench.floats(kRows * kHidden), *k = bench.floats(kRows * kKvWidth),
        *v = bench.floats(kRows * kKvWidth);
  rows.push_back(
      bench.measure("qkv_split norm", rows_of(kRows, kStacked), 8.0 * kRows * kStacked, 0, [&] {
        return qkv_split(
            {qkv, nullptr, norm, norm, 1e-5f, kRows, kStacked, kHeads, kKvHeads, kDim, q, k, v},
            bench.stream());
      }));
  bench.release();
  for (const auto& [n, inputs] : {std::pair{kHidden, kHidden}, std::pair{2 * kFeedForward, kHidden},
                                  std::pair{kHidden, kFeedForward}}) {
    // Several matrices take turns, like the layers of a model, so that weights come from memory.
    constexpr int kLayers = 4;
    std::vector<Int8GemvArgs> layers;
    for (int layer = 0; layer < kLayers; ++layer) {
      layers.push_back({bench.floats(inputs),
                        static_cast<const std::int8_t*>(bench.elements(n * inputs, DType::kI8)),
                        bench.floats(n * inputs / kGemvGroup), nullptr, 1, n, inputs,
                        int8_gemv_warps(bench.device(), n, inputs), bench.floats(n)});
    }
    const double bytes = static_cast<double>(n * inputs) * (1 + 4.0 / kGemvGroup);
    rows.push_back(bench.measure("int8_gemv", std::to_string(kLayers) + " of " + rows_of(n, inputs),
                                 kLayers * bytes, 0, [&] {
                                   for (const Int8GemvArgs& args : layers)
                                     QUIRE_RETURN_IF_ERROR(int8_gemv(args, bench.stream()));
                                   return Status();
                                 }));
    bench.release();
    std::vector<MatmulArgs> products;
    for (int layer = 0; layer < kLayers; ++layer) {
      products.push_back({bench.elements(inputs, DType::kBF16),
                          bench.elements(n * inputs, DType::kBF16), DType::kBF16, 1, n, inputs,
                          bench.floats(n), n, false});
    }
    rows.push_back(bench.measure("bf16_gemv", std::to_string(kLayers) + " of " + rows_of(n, inputs),
                                 kLayers * 2.0 * static_cast<double>(n * inputs), 0, [&] {
                                   for (const MatmulArgs& args : products)
                                     QUIRE_RETURN_IF_ERROR(bf16_gemv(args, bench.stream()));
                                   return Status();
                                 }));
    bench.release();
    for (const auto& [kind, name] : {std::pair{GroupKind::kFour, "four_bits_gemv"},
                                     std::pair{GroupKind::kFourMin, "four_bits_gemv minimum"},
                                     std::pair{GroupKind::kEight, "eight_bits_gemv"}}) {
      rows.push_back(grouped_gemv_row(bench, kind, name, n, inputs));
      bench.release();
    }
    for (const std::int64_t few : {8, 32, 64}) {
      for (Row& row : few_rows_rows(bench, few, n, inputs)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<Row> pages(Bench& bench) {
  std::vector<Row> rows;
  constexpr std::int64_t kCached = 65536;
  const KvView kv = bench.paged_kv(kCached, kKvHeads, kDim, DType::kBF16);
  std::vector<RowRange> ranges;
  for (std::int64_t begin = 0; begin < kCached; begin += 32) ranges.push_back({begin, begin + 32});
  const auto n = static_cast<std::int64_t>(ranges.size());
  const RowRange* on_device = bench.upload(ranges);
  auto* bounds = static_cast<std::uint16_t*>(bench.elements(n * 2 * kKvWidth, DType::kBF16));
  rows.push_back(
      bench.measure("page_bounds", rows_of(kCached, kKvWidth), 2.0 * kCached * kKvWidth, 0, [&] {
        return page_bounds({kv, on_device, n, bounds}, bench.stream());
      }));
  const float* q = bench.floats(kHidden);
  float* scores = bench.floats(kHeads * n);
  rows.push_back(bench.measure(
      "page_scores", std::to_string(n) + " pages", 4.0 * static_cast<double>(n) * kKvWidth, 0, [&] {
        return page_scores({q, bounds, n, n, kHeads, kKvHeads, kDim, 0.088f, scores},
                           bench.stream());
      }));
  float* products = bench.floats(kHeads * kCached);
  rows.push_back(bench.measure(
      "key_products", rows_of(kCached, kKvWidth), 2.0 * kCached * kKvWidth + 4.0 * kCached * kHeads,
      0, [&] {
        return key_products({q, kHeads, 0.088f, kv, 0, kCached, products, kCached}, bench.stream());
      }));
  float* votes = bench.floats(kKvHeads * kCached);
  rows.push_back(bench.measure("candidate_votes", std::to_string(kCached) + " rows",
                               4.0 * kCached * (3 * kHeads + 2 * kHeads), 0, [&] {
                                 return candidate_votes(
                                     {products, kCached, kCached, kKvHeads, kHeads / kKvHeads,
                                      CandidateVote::kMaxLogSoftmax, votes},
                                     bench.stream());
                               }));
  constexpr std::int64_t kChosen = 2048;
  auto* chosen = static_cast<std::int32_t*>(bench.elements(kKvHeads * kChosen, DType::kF32));
  rows.push_back(bench.measure(
      "top_k", std::to_string(kKvHeads) + " rows of " + std::to_string(kCached),
      4.0 * kCached * kKvHeads * 6, 0, [&] {
        return top_k({votes, kKvHeads, kCached, kChosen, TopKOrder::kAscendingIndex, chosen},
                     bench.stream());
      }));
  bench.release();
  return rows;
}

/// A layer of a step of freekv at its defaults: steps in which no head chooses, and steps in which
/// all do, which look at the keys of 448 pages each.
std::vector<Row> choices(Bench& bench) {
  std::vector<Row> rows;
  constexpr std::int64_t kSequences = 4, kCached = 32768, kPage = 32, kUnits = kCached / kPage;
  constexpr std::int32_t kFirst = 4, kWindow = 4, kSelected = 56, kNear = 8 * kSelected,
                         kCandidates = kUnits - kFirst - kWindow;
  constexpr std::int64_t kListed = 2048 + 8 + 2 * kPage;
  std::vector<RowRange> units;
  for (std::int64_t begin = 0; begin < kCached; begin += kPage)
    units.push_back({begin, begin + kPage});
  PageHead head{};
  head.seen[0] = head.seen[1] = kFirst + kCandidates;
  std::vector<ChoosingSequence> sequences;
  KvView kv{};
  for (std::int64_t s = 0; s < kSequences; ++s) {
    kv = bench.paged_kv(kCached, kKvHeads, kDim, DType::kBF16);
    ChoosingSequence one{};
    one.query = bench.floats(kHidden);
    one.kv_pages = kv.pages;
    one.units = bench.upload(units);
    one.bounds = static_cast<std::uint16_t*>(bench.elements(kUnits * 2 * kKvWidth, DType::kBF16));
    one.heads = bench.upload(std::vector<PageHead>(kKvHeads, head));
    one.chosen = bench.upload(std::vector<std::int32_t>(2 * kKvHeads * kSelected, 0));
    one.chosen_by = bench.floats(kHidden);
    one.rows = bench.upload(std::vector<std::int32_t>(kKvHeads * kListed, 0));
    one.lists = bench.upload(std::vector<RowList>(kKvHeads));
    one.last_unit = units.back();
    one.num_units = kUnits;
    one.fresh_unit = -1;
    one.candidates_end = kFirst + kCandidates;
    one.first_served = -1;
    sequences.push_back(one);
  }
  ChoosePagesArgs args{};
  args.sequences = bench.upload(sequences);
  args.num_sequences = kSequences;
  args.num_heads = kHeads;
  args.num_kv_heads = kKvHeads;
  args.head_dim = kDim;
  args.dtype = DType::kBF16;
  args.head_stride = kv.head_stride;
  args.token_stride = kv.token_stride;
  args.vote = CandidateVote::kMeanSoftmax;
  args.scale = args.key_scale = 0.088f;
  args.by_turn = true;
  args.reuse = 1 << 30;
  args.num_first = kFirst;
  args.selected = kSelected;
  args.near = kNear;
  args.most_candidates = kUnits;
  args.most_rows = kListed;
  args.chooses = bench.upload(std::vector<std::int32_t>(kSequences * kKvHeads, 0));
  args.scores = bench.floats(kSequences * kHeads * kUnits);
  args.votes = bench.floats(kSequences * kKvHeads * kUnits);
  args.nearest = bench.upload(std::vector<std::int32_t>(kSequences * kKvHeads * kNear, 0));
  args.picked = bench.upload(std::vector<std::int32_t>(kSequences * kKvHeads * kSelected, 0));
  const double turn = kSequences * (2 * 4.0 * kHidden + 4.0 * kKvHeads * kListed),
               choice = kSequences *
                        (4.0 * kCandidates * kKvWidth + 2.0 * kNear * kPage * kKvWidth);
  const std::string shape = std::to_string(kSequences) + " sequences of " + std::to_string(kUnits) +
                            " pages, ";
  for (const bool all : {false, true}) {
    args.tau = all ? 2 : -2;
    rows.push_back(bench.measure("choose_pages", shape + (all ? "every head" : "no head"),
                                 turn + (all ? choice : 0), 0,
                                 [&] { return choose_pages(args, bench.stream()); }));
  }
  bench.release();
  return rows;
}

std::vector<Row> samkv(Bench& bench) {
  std::vector<Row> rows;
  const DeviceRopeTable table = rope_table(bench, kRows);
  constexpr std::int64_t kDocuments = 512, kBlocks = 32;
  std::vector<SamkvDocument> documents;
  for (std::int64_t d = 0; d < kDocuments; ++d)
    documents.push_back({bench.floats(kBlocks * kKvWidth), kBlocks, 1024, bench.floats(kBlocks),
                         bench.floats(kBlocks)});
  const SamkvScoresArgs scores{bench.floats(kHidden),   kHeads,     kKvHeads, kDim,
                               bench.upload(documents), kDocuments, kBlocks};
  rows.push_back(bench.measure(
      "samkv_scores",
      std::to_string(kDocuments) + " documents of " + std::to_string(kBlocks) + " blocks",
      4.0 * kDocuments * kBlocks * kKvWidth, 0,
      [&] { return samkv_scores(table, scores, bench.stream()); }));
  BlendRowsArgs blend{};
  blend.k = bench.floats(kRows * kKvWidth);
  blend.v = bench.floats(kRows * kKvWidth);
  blend.rows = kRows;
  blend.ld = kKvWidth;
  blend.stored = {bench.elements(2 * kRows * kKvWidth, DType::kBF16),
                  kRows,
                  DType::kBF16,
                  4 * kRows * kDim,
                  2 * kRows * kDim,
                  2 * kDim};
  blend.num_kv_heads = kKvHeads;
  blend.head_dim = kDim;
  rows.push_back(bench.measure("blend_rows", rows_of(kRows, kKvWidth), 20.0 * kRows * kKvWidth, 0,
                               [&] { return blend_rows(blend, bench.stream()); }));
  bench.release();
  return rows;
}

/// Measures choosing a token for each row of a batch of logits, with so many blocks for a row:
/// several batches take turns, so that they come from memory.
Row sample_row(Bench& bench, std::int64_t batch, float top_p, std::int32_t top_k,
               std::int32_t parts) {
  const double bytes = 4.0 * static_cast<double>(batch * kVocab);
  const std::int64_t copies = bench.turns(bytes);
  const std::vector<float> warm(static_cast<std::size_t>(batch), 0.8f), p(warm.size(), top_p),
      least(warm.size(), 0.0f);
  const float *temperature = bench.upload(warm), *top_ps = bench.upload(p),
              *min_p = bench.upload(least);
  const double* uniform = bench.upload(std::vector<double>(warm.size(), 0.5));
  const std::int32_t* top_ks = bench.upload(std::vector<std::int32_t>(warm.size(), top_k));
  auto* out = static_cast<std::int32_t*>(bench.elements(batch, DType::kF32));
  SampleRowScratch* scratch = bench.upload(std::vector<SampleRowScratch>(warm.size()));
  std::vector<SampleArgs> turns;
  for (std::int64_t i = 0; i < copies; ++i)
    turns.push_back({bench.floats(batch * kVocab), batch, kVocab, temperature, top_ks, top_ps,
                     min_p, uniform, out, parts, scratch});
  std::size_t next = 0;
  char name[64];
  std::snprintf(name, sizeof name, "sample top_p %.2f top_k %d", top_p, top_k);
  const std::string several = parts > 1 ? ", " + std::to_string(parts) + " parts" : "";
  Row row = bench.measure(name + several, rows_of(batch, kVocab), bytes, 0,
                          [&] { return sample(turns[next++ % turns.size()], bench.stream()); });
  bench.release();
  return row;
}

std::vector<Row> selections(Bench& bench) {
  std::vector<Row> rows;
  for (const std::int64_t batch : {1, 8, 32, 64}) {
    const std::int32_t best = sample_parts(bench.device(), batch, kVocab);
    for (const std::int32_t parts : {1, best})
      rows.push_back(sample_row(bench, batch, 0.95f, 0, parts));
  }
  rows.push_back(sample_row(bench, 1, 0.95f, 0, 8));
  for (const std::int32_t parts : {1, sample_parts(bench.device(), 32, kVocab)})
    rows.push_back(sample_row(bench, 32, 0.95f, 50, parts));
  constexpr std::int64_t kBatch = 128;
  const float* logits = bench.floats(kBatch * kVocab);
  auto* out = static_cast<std::int32_t*>(bench.elements(kBatch * 64, DType::kF32));
  rows.push_back(bench.measure("argmax", rows_of(kBatch, kVocab), 4.0 * kBatch * kVocab, 0, [&] {
    return argmax({logits, kBatch, kVocab, out}, bench.stream());
  }));
  rows.push_back(bench.measure("top_k 64", rows_of(kBatch, kVocab), 4.0 * kBatch * kVocab, 0, [&] {
    return top_k({logits, kBatch, kVocab, 64, TopKOrder::kDescendingScore, out}, bench.stream());
  }));
  bench.release();
  return rows;
}

}  // namespace

void row_cases(Bench& bench, const SectionOutput& out) {
  for (auto* part : {&activations, &kv_rows, &stored_rows, &pages, &choices, &selections,
                     &projections, &samkv}) {
    for (const Row& row : part(bench)) out.row(row);
  }
}

}  // namespace quire::cuda::bench
