#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/index.h"
#include "kernels/attention/attention_listed.h"
#include "kernels/attention/cpu/attention_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

using cpu::AttentionBackend;
using cpu::AttentionCall;
using cpu::AttentionUnit;
using cpu::kChunkKeys;
using cpu::kTileKeys;

constexpr std::int64_t kLanesPerUnit = 128;
// With fewer products a second thread costs more than it saves: some 10 us
constexpr double kLeastWork = 2e5;

Status check(const AttentionArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > 16) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.kv.num_rows < 0) return Status::invalid("kv.num_rows", "must not be negative");
  const std::int64_t width = std::int64_t{a.num_heads} * a.kv.head_dim;
  if (a.rows > 0 && (a.ldq < width || a.ldo < width))
    return Status::invalid("ldq", "row strides must be at least num_heads * head_dim");
  if (a.rows > 0 && (a.q == nullptr || a.query_positions == nullptr || a.out == nullptr)) {
    return Status::invalid("q", "attention needs non-null q, query_positions and out");
  }
  if (a.kv.num_rows > 0 && (a.kv.pages == nullptr || a.kv.positions == nullptr)) {
    return Status::invalid("kv", "a KV view with rows needs pages and positions");
  }
  return {};
}

void round_up_bytes(std::int64_t& bytes) { bytes = (bytes + 63) / 64 * 64; }

/// The data of one call, computed before threads start.
struct Driver {
  const AttentionBackend& backend;
  AttentionCall call;
  std::vector<AttentionUnit> units;
  std::int64_t query_bytes, partial_bytes, work_bytes;

  /// Returns the rows that a unit may see; sorted positions allow later rows to be cut off.
  std::int64_t visible_rows(const AttentionUnit& u) const {
    const KvView& kv = call.args->kv;
    if (!kv.sorted) return kv.num_rows;
    return std::upper_bound(kv.positions, kv.positions + kv.num_rows, u.max_position) -
           kv.positions;
  }
  /// Returns whether no key of the chunk is visible, so that its partial would be empty.
  bool nothing_visible(const AttentionUnit& u, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t tile = begin / kTileKeys; tile * kTileKeys < end; ++tile) {
      if (call.tile_min[tile] <= u.max_position) return false;
    }
    return true;
  }

  /// Runs prefill: a unit processes all its keys on one thread.
  void run_unit(const AttentionUnit& u) const {
    auto* scratch = cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttention,
                                                   query_bytes + 2 * partial_bytes + work_bytes);
    std::byte *query = scratch, *total = query + query_bytes, *partial = total + partial_bytes,
              *work = partial + partial_bytes;
    backend.pack(call, u, query);
    const std::int64_t rows = visible_rows(u);
    bool any = false;
    for (std::int64_t begin = 0; begin < rows; begin += kChunkKeys) {
      const std::int64_t end = std::min(rows, begin + kChunkKeys);
      if (nothing_visible(u, begin, end)) continue;
      backend.chunk(call, u, query, begin, end, work, any ? partial : total);
      if (any) backend.merge(call, u, total, partial);
      any = true;
    }
    if (!any) backend.chunk(call, u, query, 0, 0, work, total);
    backend.finish(call, u, total);
  }

  /// Runs decode with few units: chunks of keys are spread over threads, in waves that bound the
  /// memory, and merged in order.
  void run_split() const {
    const auto num_units = count_of(units);
    // A wave counts chunks per unit
    const std::int64_t wave = std::max<std::int64_t>(1, 8 * num_threads() / num_units);
    auto* scratch = cpu::thread_scratch<std::byte>(
        cpu::ScratchSlot::kAttentionSplit, num_units * (query_bytes + (wave + 1) * partial_bytes));
    const auto query = [&](std::int64_t u) { return scratch + u * query_bytes; };
    const auto total = [&](std::int64_t u) {
      return scratch + num_units * query_bytes + u * partial_bytes;
    };
    const auto partial = [&](std::int64_t u, std::int64_t c) {
      return scratch + num_units * (query_bytes + partial_bytes) + (u * wave + c) * partial_bytes;
    };
    std::int64_t most_rows = 0;
    for (std::int64_t u = 0; u < num_units; ++u) {
      backend.pack(call, units[u], query(u));
      backend.chunk(call, units[u], query(u), 0, 0, nullptr, total(u));
      most_rows = std::max(most_rows, visible_rows(units[u]));
    }
    for (std::int64_t wave_begin = 0; wave_begin < most_rows; wave_begin += wave * kChunkKeys) {
      const std::int64_t chunks = std::min(wave,
                                           (most_rows - wave_begin + kChunkKeys - 1) / kChunkKeys);
      std::vector<std::uint8_t> done(to_size(num_units * chunks), 0);
      parallel_tasks(num_units * chunks, [&](std::int64_t task) {
        const std::int64_t u = task / chunks, c = task % chunks;
        const std::int64_t begin = wave_begin + c * kChunkKeys,
                           end = std::min(visible_rows(units[u]), begin + kChunkKeys);
        if (begin >= end || nothing_visible(units[u], begin, end)) return;
        void* work = cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttention, work_bytes);
        backend.chunk(call, units[u], query(u), begin, end, work, partial(u, c));
        done[at(task)] = 1;
      });
      parallel_tasks(num_units, [&](std::int64_t u) {
        for (std::int64_t c = 0; c < chunks; ++c) {
          if (done[at(u * chunks + c)]) backend.merge(call, units[u], total(u), partial(u, c));
        }
      });
    }
    for (std::int64_t u = 0; u < num_units; ++u) backend.finish(call, units[u], total(u));
  }
};

std::vector<AttentionUnit> cut_into_units(const AttentionArgs& a, std::int64_t group) {
  const std::int64_t rows_per_unit = std::max<std::int64_t>(1, kLanesPerUnit / group);
  std::vector<AttentionUnit> units;
  // Units of one KV head are adjacent, so its keys stay in the cache. The last rows see the most
  // keys, so the longest units come first.
  for (std::int64_t head = 0; head < a.kv.num_kv_heads; ++head) {
    for (std::int64_t block = (a.rows + rows_per_unit - 1) / rows_per_unit - 1; block >= 0;
         --block) {
      const std::int64_t first = block * rows_per_unit,
                         rows = std::min(rows_per_unit, a.rows - first);
      const auto [low, high] = std::minmax_element(a.query_positions + first,
                                                   a.query_positions + first + rows);
      units.push_back(AttentionUnit{head, first, rows, rows * group, *low, *high});
    }
  }
  return units;
}

bool bf16_attends(std::int32_t head_dim) {
  return cpu::isa() >= cpu::Isa::kAvx512Bf16 && head_dim % 32 == 0;
}

const AttentionBackend& backend_for(const KvView& kv) {
  if (kv.dtype != DType::kBF16 || !bf16_attends(kv.head_dim)) return cpu::attention_simd();
  return cpu::isa() == cpu::Isa::kAmx ? cpu::attention_amx() : cpu::attention_dot();
}

/// `listed` is described at AttentionCall.
Status attend(const AttentionArgs& args, const AttentionBackend& backend,
              const ListedRows& listed) {
  const std::int64_t num_tiles = (args.kv.num_rows + kTileKeys - 1) / kTileKeys;
  std::vector<std::int32_t> tile_min(to_size(num_tiles)), tile_max(tile_min.size());
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    const auto* begin = args.kv.positions + t * kTileKeys;
    const auto* end = args.kv.positions + std::min(args.kv.num_rows, (t + 1) * kTileKeys);
    tile_min[t] = args.kv.sorted ? *begin : *std::min_element(begin, end);
    tile_max[t] = args.kv.sorted ? end[-1] : *std::max_element(begin, end);
  }
  Driver driver{backend, {}, {}, 0, 0, 0};
  driver.call = AttentionCall{
      &args, args.num_heads / args.kv.num_kv_heads, 0, tile_min.data(), tile_max.data(), listed};
  driver.units = cut_into_units(args, driver.call.group);
  for (const AttentionUnit& u : driver.units)
    driver.call.max_lanes = std::max(driver.call.max_lanes, (u.num_lanes + 15) / 16 * 16);
  round_up_bytes(driver.query_bytes = driver.backend.query_bytes(driver.call));
  round_up_bytes(driver.partial_bytes = driver.backend.partial_bytes(driver.call));
  round_up_bytes(driver.work_bytes = driver.backend.work_bytes(driver.call));

  const auto num_units = count_of(driver.units);
  const double work = static_cast<double>(args.rows) * args.num_heads * args.kv.head_dim *
                      static_cast<double>(args.kv.num_rows);
  if (num_threads() == 1 || work < kLeastWork) {
    for (const AttentionUnit& u : driver.units) driver.run_unit(u);
  } else if (num_units < 4 * num_threads() && args.kv.num_rows > kChunkKeys) {
    driver.run_split();
  } else {
    parallel_tasks(num_units, [&](std::int64_t i) { driver.run_unit(driver.units[i]); });
  }
  return {};
}

}  // namespace

DType cached_kv_dtype(DType stored, std::int32_t head_dim) {
  return stored == DType::kF16 && bf16_attends(head_dim) ? DType::kBF16 : stored;
}

Status attention(const AttentionArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  return args.rows == 0 ? Status() : attend(args, backend_for(args.kv), {});
}

bool reads_listed_rows(const AttentionArgs& args) {
  return args.kv.num_kv_heads > 0 &&
         backend_for(args.kv).reads_listed(args.rows * (args.num_heads / args.kv.num_kv_heads));
}

Status attention_listed(const AttentionArgs& args, const ListedRows& listed) {
  QUIRE_RETURN_IF_ERROR(check(args));
  QUIRE_CHECK(reads_listed_rows(args), "rows have to be brought together first");
  return args.rows == 0 ? Status() : attend(args, backend_for(args.kv), listed);
}

}  // namespace quire
