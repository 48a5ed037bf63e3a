#include "kernels/attention/attention_vslash.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/index.h"
#include "kernels/choice/gathered_rows.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

static_assert(kVslashTile % kPageTokens == 0, "bands begin at page borders");

Status check(const AttentionVslashArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.rows < 0 || a.kv.num_rows < 0) return Status::invalid("rows", "must not be negative");
  if (args.band < kVslashTile || args.band % kVslashTile != 0) {
    return Status::invalid("band", "must be a multiple of " + std::to_string(kVslashTile) +
                                       ", is " + std::to_string(args.band));
  }
  if (a.rows == 0) return {};
  if (a.q == nullptr || a.query_positions == nullptr || a.out == nullptr)
    return Status::invalid("q", "attention needs non-null q, query_positions and out");
  const std::int64_t n = a.kv.num_rows;
  if (!a.kv.sorted || n == 0 || a.kv.pages == nullptr || a.kv.positions == nullptr ||
      a.kv.positions[0] != 0 || a.kv.positions[n - 1] != n - 1) {
    return Status::invalid("kv", "row r of the cache must stand at position r");
  }
  for (std::int64_t t = 0; t < a.rows; ++t) {
    if (a.query_positions[t] > (t == 0 ? -1 : a.query_positions[t - 1]) && a.query_positions[t] < n)
      continue;
    return Status::invalid("query_positions",
                           "must ascend and lie within the cache's " + std::to_string(n) + " rows");
  }
  return check_row_lists(args.columns, a.kv, "columns");
}

/// Query rows [first, first + rows) of one tile.
struct Tile {
  std::int64_t first, rows, band_begin, band_end;
};

std::vector<Tile> tiles_of(const AttentionVslashArgs& args) {
  const AttentionArgs& a = args.attention;
  std::vector<Tile> tiles;
  for (std::int64_t first = 0; first < a.rows;) {
    const std::int64_t begin = a.query_positions[first] / kVslashTile * kVslashTile,
                       end = begin + kVslashTile;
    std::int64_t last = first;
    while (last < a.rows && a.query_positions[last] < end) ++last;
    tiles.push_back({first, last - first, std::max<std::int64_t>(0, begin - args.band),
                     std::min(a.kv.num_rows, end)});
    first = last;
  }
  return tiles;
}

/// The pages and gathered columns of one KV head.
struct Head {
  std::int32_t index = 0;
  std::vector<const void*> pages;
  std::vector<std::byte> memory;
  GatheredRows columns;
};

void prepare(const AttentionVslashArgs& args, std::int32_t index, Head& head) {
  const KvView& kv = args.attention.kv;
  head.index = index;
  head.pages.resize(to_size((kv.num_rows + kPageTokens - 1) / kPageTokens));
  for (std::size_t p = 0; p < head.pages.size(); ++p)
    head.pages[p] = static_cast<const std::byte*>(kv.pages[p]) + index * kv.head_stride;
  head.memory.resize(to_size(gathered_bytes(kv, args.columns[index].length)));
  head.columns.gather(kv, index, args.columns[index], RowOrder::kAscending, head.memory.data());
}

KvView band_view(const KvView& kv, const Head& head, const Tile& tile) {
  KvView out = kv;
  out.pages = head.pages.data() + tile.band_begin / kPageTokens;
  out.positions = kv.positions + tile.band_begin;
  out.num_rows = tile.band_end - tile.band_begin;
  out.num_kv_heads = 1;
  out.head_stride = 0;
  return out;
}

Status run_tile(const AttentionVslashArgs& args, const Head& head, const Tile& tile) {
  const AttentionArgs& a = args.attention;
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads,
                     width = group * dim, offset = head.index * width;
  std::vector<float> out(to_size(tile.rows * width)), lse(to_size(tile.rows * group)), far_out,
      far_lse;
  AttentionArgs part = a;
  part.q = a.q + tile.first * a.ldq + offset;
  part.query_positions = a.query_positions + tile.first;
  part.rows = tile.rows;
  part.num_heads = static_cast<std::int32_t>(group);
  part.kv = band_view(a.kv, head, tile);
  part.out = out.data();
  part.ldo = width;
  part.lse = lse.data();
  QUIRE_RETURN_IF_ERROR(attention(part));
  const RowList& list = args.columns[head.index];
  const std::int64_t far = std::lower_bound(list.rows, list.rows + list.length, tile.band_begin) -
                           list.rows;
  if (far > 0) {
    far_out.resize(out.size());
    far_lse.resize(lse.size());
    part.kv = head.columns.view(far);
    part.out = far_out.data();
    part.lse = far_lse.data();
    QUIRE_RETURN_IF_ERROR(attention(part));
    merge_attention(out.data(), lse.data(), far_out.data(), far_lse.data(), tile.rows * group, dim);
  }
  for (std::int64_t t = 0; t < tile.rows; ++t) {
    std::copy_n(out.data() + t * width, width, a.out + (tile.first + t) * a.ldo + offset);
    if (a.lse != nullptr)
      std::copy_n(lse.data() + t * group, group,
                  a.lse + (tile.first + t) * a.num_heads + head.index * group);
  }
  return {};
}

}  // namespace

Status attention_vslash(const AttentionVslashArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  const std::vector<Tile> tiles = tiles_of(args);
  std::vector<Status> failed(tiles.size());
  Head head;
  for (std::int32_t m = 0; m < args.attention.kv.num_kv_heads; ++m) {
    prepare(args, m, head);
    // The last tiles see the most keys and come first.
    parallel_tasks(count_of(tiles), [&](std::int64_t i) {
      const auto tile = tiles.size() - 1 - to_size(i);
      failed[tile] = run_tile(args, head, tiles[tile]);
    });
    for (const Status& s : failed) QUIRE_RETURN_IF_ERROR(s);
  }
  return {};
}

}  // namespace quire
