#include "engine/record/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/index.h"
#include "kernels/rows/block_summary.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::uint32_t kMagic = 0x314b5351;  // "QSK1"

struct Header {
  std::uint32_t magic;
  std::uint16_t version, parts;
  std::uint32_t num_layers, num_kv_heads, num_heads, head_dim, block_tokens, num_blocks;
  std::uint64_t num_tokens;
  std::uint32_t mean_bits, reserved;
};
static_assert(sizeof(Header) == 48);

constexpr std::size_t kBlockStatsBytes = 4 + 4 + 2;

/// Rounds towards -inf (down) or +inf, so that bf16 bounds still bound the f32 values.
std::uint16_t bf16_outwards(float x, bool down) {
  std::uint16_t r = f32_to_bf16(x);
  const float y = bf16_to_f32(r);
  if (!(down ? y > x : y < x)) return r;
  // One step in the requested direction is away from zero or towards it, by sign.
  if ((r & 0x7fff) == 0) return down ? 0x8001 : 0x0001;
  const bool negative = (r & 0x8000) != 0;
  return static_cast<std::uint16_t>(negative == down ? r + 1 : r - 1);
}

struct PartSizes {
  std::uint64_t mean_scales = 0, means = 0, bounds = 0, query_scales = 0, queries = 0, stats = 0;
  std::uint64_t total() const {
    return sizeof(Header) + mean_scales + means + bounds + query_scales + queries + stats;
  }
};

/// Returns the sizes of all parts; head_dim is a multiple of 8, so every mean begins at a byte.
PartSizes part_sizes(std::uint16_t parts, std::uint64_t mean_bits, std::uint64_t layers,
                     std::uint64_t blocks, std::uint64_t kv_heads, std::uint64_t heads,
                     std::uint64_t dim) {
  PartSizes s;
  if (parts & kSketchMeans) {
    s.mean_scales = layers * kv_heads * dim * 2;
    s.means = layers * blocks * kv_heads * (dim / 8) * mean_bits;
  }
  if (parts & kSketchMinMax) s.bounds = 2 * layers * blocks * kv_heads * dim * 2;
  if (parts & kSketchLocalQuery) {
    s.query_scales = layers * heads * 2;
    s.queries = layers * heads * dim;
  }
  if (parts & kSketchStats) s.stats = layers * blocks * kBlockStatsBytes;
  return s;
}

PartSizes part_sizes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts,
                     std::uint64_t mean_bits) {
  const KvShape& s = layout.shape();
  const auto u = [](std::int32_t x) { return static_cast<std::uint64_t>(x); };
  return part_sizes(parts, mean_bits, u(s.num_layers), u(layout.num_blocks()), u(s.num_kv_heads),
                    u(num_heads), u(s.head_dim));
}

/// Returns 8 bits if the parts written at ingest then stay within their share of the KV, else 6.
std::uint64_t mean_bits_for(const KvLayout& layout, std::int32_t num_heads) {
  const auto total = static_cast<double>(part_sizes(layout, num_heads, kSketchDefault, 8).total());
  return total <= kSketchShare * static_cast<double>(layout.total_bytes()) ? 8 : 6;
}

template <class T>
void put(std::byte*& out, T x) {
  std::memcpy(out, &x, sizeof x);
  out += sizeof x;
}

template <class T>
T get(std::span<const std::byte> from, std::size_t index) {
  T x;
  std::memcpy(&x, from.data() + index * sizeof x, sizeof x);
  return x;
}

float get_bf16(std::span<const std::byte> from, std::size_t index) {
  return bf16_to_f32(get<std::uint16_t>(from, index));
}

/// Returns whether all values pass a test of their bits.
template <class T, class Test>
bool all_values(std::span<const std::byte> from, Test test) {
  unsigned passed = 1;
  for (std::size_t i = 0; i < from.size() / sizeof(T); ++i)
    passed &= static_cast<unsigned>(test(get<T>(from, i)));
  return passed != 0;
}
constexpr auto finite_not_negative_bf16 = [](std::uint16_t x) {
  return (x < 0x7f80) | (x == 0x8000);
};
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr auto not_infinite = [](std::uint32_t x) { return (x & 0x7fffffff) != kInfinity; };
constexpr auto finite = [](std::uint32_t x) { return (x & kInfinity) != kInfinity; };

float finite_or_zero(float x) { return std::isfinite(x) ? x : 0.0f; }

/// Returns the smallest bf16 scale with which `largest` is at most `steps` steps.
std::uint16_t scale_for(float largest, float steps) {
  return bf16_outwards(largest / steps, /*down=*/false);
}

std::int32_t quantise(float x, float scale, std::int32_t steps) {
  if (scale == 0.0f) return 0;
  return std::clamp(static_cast<std::int32_t>(std::lrintf(finite_or_zero(x) / scale)), -steps,
                    steps);
}

/// Packs integers of 6 or 8 bits, two's complement, lowest bits first.
void put_integers(std::byte*& out, std::span<const std::int32_t> x, std::uint64_t bits) {
  if (bits == 8) {
    for (std::int32_t v : x) put(out, static_cast<std::int8_t>(v));
    return;
  }
  for (std::size_t i = 0; i < x.size(); i += 4) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 4; ++k)
      word |= (static_cast<std::uint32_t>(x[i + k]) & 63u) << (6 * k);
    for (int k = 0; k < 3; ++k) put(out, static_cast<std::uint8_t>(word >> (8 * k)));
  }
}

/// Writes the means of one layer, [blocks * width] f32: its scales and its integers.
void put_means(std::byte*& scales, std::byte*& integers, std::span<const float> means,
               std::size_t width, std::uint64_t bits) {
  const std::int32_t steps = bits == 8 ? 127 : 31;
  std::vector<float> scale(width, 0.0f);
  for (std::size_t i = 0; i < means.size(); ++i)
    scale[i % width] = std::max(scale[i % width], std::fabs(finite_or_zero(means[i])));
  for (float& s : scale) {
    const std::uint16_t stored = scale_for(s, static_cast<float>(steps));
    put(scales, stored);
    s = bf16_to_f32(stored);
  }
  std::vector<std::int32_t> row(width);
  for (std::size_t i = 0; i < means.size(); i += width) {
    for (std::size_t c = 0; c < width; ++c) row[c] = quantise(means[i + c], scale[c], steps);
    put_integers(integers, row, bits);
  }
}

void put_local_query(std::byte*& scales, std::byte*& integers, std::span<const float> query,
                     std::size_t head_dim) {
  for (std::size_t i = 0; i < query.size(); i += head_dim) {
    float largest = 0;
    for (std::size_t c = 0; c < head_dim; ++c)
      largest = std::max(largest, std::fabs(finite_or_zero(query[i + c])));
    const std::uint16_t stored = scale_for(largest, 127.0f);
    put(scales, stored);
    for (std::size_t c = 0; c < head_dim; ++c)
      put(integers, static_cast<std::int8_t>(quantise(query[i + c], bf16_to_f32(stored), 127)));
  }
}

Status put_stats(std::byte*& out, std::span<const BlockStats> stats, const KvLayout& layout) {
  const auto blocks = to_size(layout.num_blocks());
  for (const BlockStats& s : stats)
    put(out, std::isfinite(s.alpha) ? s.alpha : std::numeric_limits<float>::quiet_NaN());
  for (const BlockStats& s : stats) put(out, finite_or_zero(s.sustained));
  for (std::size_t i = 0; i < stats.size(); ++i) {
    const auto block = static_cast<std::int32_t>(i % blocks);
    const std::int64_t place = stats[i].representative - layout.first_token(block);
    if (place < 0 || place >= layout.tokens_in(block))
      return Status::invalid("stats", "a representative lies outside its block");
    put(out, static_cast<std::uint16_t>(place));
  }
  return {};
}

Status check_shapes(const SketchInput& input) {
  const KvShape& s = input.layout->shape();
  const auto layers = to_size(s.num_layers);
  if (s.head_dim % 8 != 0) return Status::invalid("head_dim", "must be a multiple of 8");
  if ((input.parts & kSketchLocalQuery) &&
      input.local_query.size() != layers * to_size(input.num_heads) * to_size(s.head_dim)) {
    return Status::invalid("local_query", "must be [num_layers, num_heads * head_dim]");
  }
  if (!input.means.empty() && input.means.size() != layers * to_size(input.layout->num_blocks()) *
                                                        to_size(s.num_kv_heads) *
                                                        to_size(s.head_dim)) {
    return Status::invalid("means", "must be [num_layers, num_blocks, num_kv_heads * head_dim]");
  }
  if ((input.parts & kSketchStats) &&
      input.stats.size() != layers * to_size(input.layout->num_blocks())) {
    return Status::invalid("stats", "must be [num_layers, num_blocks]");
  }
  return {};
}

}  // namespace

Result<SketchView> SketchView::parse(std::span<const std::byte> record) {
  const auto bad = [](const std::string& what) {
    return Status::corruption("sketch record: " + what);
  };
  Header h;
  if (record.size() < sizeof h) return bad("shorter than its header");
  std::memcpy(&h, record.data(), sizeof h);
  if (h.magic != kMagic) return bad("wrong magic number");
  if (h.version != kSketchVersion)
    return bad("version " + std::to_string(h.version) + " is not known");
  if (h.parts & ~static_cast<unsigned>(kSketchAll)) return bad("unknown parts");
  const auto in = [](std::uint64_t x, std::uint64_t most) { return x >= 1 && x <= most; };
  if (!in(h.num_layers, 4096) || !in(h.num_kv_heads, 4096) || !in(h.num_heads, 4096) ||
      !in(h.head_dim, 4096) || h.head_dim % 8 != 0) {
    return bad("impossible shape");
  }
  if (!in(h.block_tokens, 4096) || !in(h.num_blocks, 1u << 24) || !in(h.num_tokens, 1ull << 31))
    return bad("impossible sizes");
  if ((h.num_tokens + h.block_tokens - 1) / h.block_tokens != h.num_blocks)
    return bad("num_blocks does not fit num_tokens");
  if (h.mean_bits != 6 && h.mean_bits != 8) return bad("impossible mean_bits");
  if (h.reserved != 0) return bad("reserved field is not zero");
  // The largest size is 2^12 layers * 2^24 blocks * 2^12 heads * 2^12 * 4 bytes = 2^62, so no
  // product and no sum overflows.
  const PartSizes sizes = part_sizes(h.parts, h.mean_bits, h.num_layers, h.num_blocks,
                                     h.num_kv_heads, h.num_heads, h.head_dim);
  if (sizes.total() != record.size()) return bad("length does not fit its header");
  SketchView v;
  v.parts_ = h.parts;
  v.num_layers_ = static_cast<std::int32_t>(h.num_layers);
  v.num_kv_heads_ = static_cast<std::int32_t>(h.num_kv_heads);
  v.num_heads_ = static_cast<std::int32_t>(h.num_heads);
  v.head_dim_ = static_cast<std::int32_t>(h.head_dim);
  v.block_tokens_ = static_cast<std::int32_t>(h.block_tokens);
  v.num_blocks_ = static_cast<std::int32_t>(h.num_blocks);
  v.num_tokens_ = static_cast<std::int64_t>(h.num_tokens);
  v.mean_bits_ = static_cast<std::int32_t>(h.mean_bits);
  auto body = record.subspan(sizeof h);
  const auto take = [&body](std::uint64_t bytes) {
    const auto part = body.first(bytes);
    body = body.subspan(bytes);
    return part;
  };
  v.mean_scales_ = take(sizes.mean_scales);
  v.means_ = take(sizes.means);
  v.bounds_ = take(sizes.bounds);
  v.query_scales_ = take(sizes.query_scales);
  v.queries_ = take(sizes.queries);
  v.stats_ = take(sizes.stats);
  QUIRE_RETURN_IF_ERROR(v.check_values());
  return v;
}

/// Every query parses the sketches of its documents, so the loops are free of branches.
Status SketchView::check_values() const {
  for (const auto& scales : {mean_scales_, query_scales_}) {
    if (!all_values<std::uint16_t>(scales, finite_not_negative_bf16))
      return Status::corruption("sketch record: impossible scale");
  }
  const std::size_t n = stats_.size() / kBlockStatsBytes, blocks = to_size(num_blocks_);
  const auto alphas = stats_.first(4 * n), sustained = stats_.subspan(4 * n, 4 * n),
             places = stats_.subspan(8 * n);
  for (std::size_t block = 0; block < (n > 0 ? blocks : 0); ++block) {
    const std::int64_t first = static_cast<std::int64_t>(block) * block_tokens_,
                       rows = std::min<std::int64_t>(block_tokens_, num_tokens_ - first);
    unsigned within = 1;
    for (std::size_t i = block; i < n; i += blocks)
      within &= static_cast<unsigned>(get<std::uint16_t>(places, i) < rows);
    if (within == 0)
      return Status::corruption("sketch record: a representative lies outside its block");
  }
  if (!all_values<std::uint32_t>(alphas, not_infinite))
    return Status::corruption("sketch record: impossible alpha");
  if (!all_values<std::uint32_t>(sustained, finite))
    return Status::corruption("sketch record: impossible sustained attention");
  return {};
}

void SketchView::read_mean(std::int32_t layer, std::int32_t block, float* out) const {
  const std::size_t n = width();
  const std::byte* scales = mean_scales_.data() + to_size(layer) * n * 2;
  const std::byte* from = means_.data() + at(layer, block) * (n / 8 * to_size(mean_bits_));
  const auto scale = [scales](std::size_t c) {
    std::uint16_t x;
    std::memcpy(&x, scales + 2 * c, sizeof x);
    return bf16_to_f32(x);
  };
  if (mean_bits_ == 8) {
    for (std::size_t c = 0; c < n; ++c)
      out[c] = static_cast<float>(static_cast<std::int8_t>(from[c])) * scale(c);
    return;
  }
  for (std::size_t c = 0; c < n; c += 4, from += 3) {
    const std::uint32_t word = std::to_integer<std::uint32_t>(from[0]) |
                               std::to_integer<std::uint32_t>(from[1]) << 8 |
                               std::to_integer<std::uint32_t>(from[2]) << 16;
    for (std::size_t k = 0; k < 4; ++k) {
      const auto value = static_cast<std::int32_t>(word << (26 - 6 * k)) >> 26;
      out[c + k] = static_cast<float>(value) * scale(c + k);
    }
  }
}

void SketchView::mean(std::int32_t layer, std::int32_t block, std::span<float> out) const {
  QUIRE_CHECK(has(kSketchMeans) && layer >= 0 && layer < num_layers_ && block >= 0 &&
                  block < num_blocks_ && out.size() == width(),
              "sketch mean");
  read_mean(layer, block, out.data());
}

void SketchView::means(std::int32_t layer, std::span<float> out) const {
  const std::size_t n = width();
  QUIRE_CHECK(has(kSketchMeans) && layer >= 0 && layer < num_layers_ &&
                  out.size() == n * to_size(num_blocks_),
              "sketch means");
  for (std::int32_t b = 0; b < num_blocks_; ++b) read_mean(layer, b, out.data() + to_size(b) * n);
}

void SketchView::bound(std::int32_t layer, std::int32_t block, int which,
                       std::span<float> out) const {
  const std::size_t n = width();
  QUIRE_CHECK(has(kSketchMinMax) && layer >= 0 && layer < num_layers_ && block >= 0 &&
                  block < num_blocks_ && out.size() == n,
              "sketch bound");
  const std::size_t first = (at(layer, block) * 2 + to_size(which)) * n;
  for (std::size_t i = 0; i < n; ++i) out[i] = get_bf16(bounds_, first + i);
}

void SketchView::local_query(std::int32_t layer, std::span<float> out) const {
  const auto dim = to_size(head_dim_);
  const std::size_t n = to_size(num_heads_) * dim, first = to_size(layer) * n;
  QUIRE_CHECK(has(kSketchLocalQuery) && layer >= 0 && layer < num_layers_ && out.size() == n,
              "sketch local query");
  for (std::size_t head = 0; head < n; head += dim) {
    const float scale = get_bf16(query_scales_, (first + head) / dim);
    for (std::size_t i = head; i < head + dim; ++i)
      out[i] = static_cast<float>(get<std::int8_t>(queries_, first + i)) * scale;
  }
}

BlockStats SketchView::stats(std::int32_t layer, std::int32_t block) const {
  QUIRE_CHECK(
      has(kSketchStats) && layer >= 0 && layer < num_layers_ && block >= 0 && block < num_blocks_,
      "sketch stats");
  const std::size_t n = stats_.size() / kBlockStatsBytes, i = at(layer, block);
  const auto place = get<std::uint16_t>(stats_.subspan(8 * n), i);
  return {get<float>(stats_, i), get<float>(stats_, n + i), block * block_tokens_ + place};
}

std::vector<std::int32_t> SketchView::pauta_tokens(std::int32_t layer) const {
  std::vector<BlockStats> blocks;
  blocks.reserve(to_size(num_blocks_));
  for (std::int32_t b = 0; b < num_blocks_; ++b) blocks.push_back(stats(layer, b));
  return quire::pauta_tokens(blocks);
}

std::vector<std::int32_t> pauta_tokens(std::span<const BlockStats> blocks) {
  double count = 0, sum = 0, squares = 0;
  for (const BlockStats& b : blocks) {
    if (!std::isfinite(b.alpha)) continue;
    count += 1;
    sum += double{b.alpha};
  }
  const double mean = sum / count;
  for (const BlockStats& b : blocks) {
    if (std::isfinite(b.alpha)) squares += (b.alpha - mean) * (b.alpha - mean);
  }
  const double lowest = mean - 3.0 * std::sqrt(squares / count);
  std::vector<std::int32_t> tokens;
  // The first block and the last two are anchors, not middle blocks.
  for (std::size_t b = 1; b + 2 < blocks.size(); ++b) {
    if (double{blocks[b].alpha} < lowest) tokens.push_back(blocks[b].representative);
  }
  return tokens;
}

std::int64_t sketch_bytes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts) {
  return static_cast<std::int64_t>(
      part_sizes(layout, num_heads, parts, mean_bits_for(layout, num_heads)).total());
}

Result<std::vector<std::byte>> build_sketch(const SketchInput& input) {
  QUIRE_RETURN_IF_ERROR(check_shapes(input));
  const KvLayout& layout = *input.layout;
  const KvShape& s = layout.shape();
  const std::uint64_t bits = mean_bits_for(layout, input.num_heads);
  const PartSizes sizes = part_sizes(layout, input.num_heads, input.parts, bits);
  std::vector<std::byte> record(to_size(sizes.total()));
  Header h{};
  h.magic = kMagic;
  h.version = kSketchVersion;
  h.parts = input.parts;
  h.num_layers = static_cast<std::uint32_t>(s.num_layers);
  h.num_kv_heads = static_cast<std::uint32_t>(s.num_kv_heads);
  h.num_heads = static_cast<std::uint32_t>(input.num_heads);
  h.head_dim = static_cast<std::uint32_t>(s.head_dim);
  h.block_tokens = static_cast<std::uint32_t>(layout.block_tokens());
  h.num_blocks = static_cast<std::uint32_t>(layout.num_blocks());
  h.num_tokens = static_cast<std::uint64_t>(layout.num_tokens());
  h.mean_bits = static_cast<std::uint32_t>(bits);
  std::memcpy(record.data(), &h, sizeof h);

  const std::size_t n = to_size(s.num_kv_heads) * to_size(s.head_dim);
  const auto blocks = to_size(layout.num_blocks());
  std::byte* mean_scales = record.data() + sizeof h;
  std::byte* integers = mean_scales + sizes.mean_scales;
  std::byte* bounds = integers + sizes.means;
  std::byte* query_scales = bounds + sizes.bounds;
  std::byte* queries = query_scales + sizes.query_scales;
  std::byte* stats = queries + sizes.queries;
  std::vector<float> means(blocks * n), lo(n), hi(n);
  const bool known = !input.means.empty();
  for (std::int32_t layer = 0;
       layer < s.num_layers && (input.parts & (kSketchMeans | kSketchMinMax)); ++layer) {
    if (known)
      std::copy_n(input.means.begin() + static_cast<std::ptrdiff_t>(to_size(layer) * means.size()),
                  means.size(), means.begin());
    for (std::int32_t block = 0;
         block < layout.num_blocks() && (!known || (input.parts & kSketchMinMax)); ++block) {
      const auto value = input.values[at(block * layout.num_groups() + layout.group_of(layer))];
      BlockSummaryArgs args{};
      args.raw = layout.view(value, block, layer);
      args.num_kv_heads = s.num_kv_heads;
      args.head_dim = s.head_dim;
      args.first_position = static_cast<std::int32_t>(layout.first_token(block));
      args.mean = (input.parts & kSketchMeans) && !known ? means.data() + at(block) * n : nullptr;
      args.min = (input.parts & kSketchMinMax) ? lo.data() : nullptr;
      args.max = (input.parts & kSketchMinMax) ? hi.data() : nullptr;
      QUIRE_RETURN_IF_ERROR(block_summary(*input.rope, args));
      if (args.min != nullptr) {
        for (float x : lo) put(bounds, bf16_outwards(x, /*down=*/true));
        for (float x : hi) put(bounds, bf16_outwards(x, /*down=*/false));
      }
    }
    if (input.parts & kSketchMeans) put_means(mean_scales, integers, means, n, bits);
  }
  if (input.parts & kSketchLocalQuery)
    put_local_query(query_scales, queries, input.local_query, to_size(s.head_dim));
  if (input.parts & kSketchStats) QUIRE_RETURN_IF_ERROR(put_stats(stats, input.stats, layout));
  return record;
}

}  // namespace quire
