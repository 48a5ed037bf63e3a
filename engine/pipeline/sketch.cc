#include "engine/pipeline/sketch.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/block_summary.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::uint32_t kMagic = 0x314b5351;  // "QSK1"

struct Header {
  std::uint32_t magic;
  std::uint16_t version, parts;
  std::uint32_t num_layers, num_kv_heads, num_heads, head_dim, block_tokens, num_blocks;
  std::uint64_t num_tokens, reserved;
};
static_assert(sizeof(Header) == 48);

/// Rounds towards -inf (down) or +inf, so that bf16 bounds still bound the f32 values.
std::uint16_t bf16_outwards(float x, bool down) {
  std::uint16_t r = f32_to_bf16(x);
  const float y = bf16_to_f32(r);
  if (!(down ? y > x : y < x)) return r;
  // One step in the wanted direction: away from zero or towards it, by sign.
  if ((r & 0x7fff) == 0) return down ? 0x8001 : 0x0001;
  const bool negative = (r & 0x8000) != 0;
  return static_cast<std::uint16_t>(negative == down ? r + 1 : r - 1);
}

struct PartSizes {
  std::uint64_t means = 0, bounds = 0, queries = 0;
  std::uint64_t total() const { return sizeof(Header) + means + bounds + queries; }
};

PartSizes part_sizes(std::uint16_t parts, std::uint64_t layers, std::uint64_t blocks, std::uint64_t kv_heads, std::uint64_t heads,
                     std::uint64_t dim) {
  PartSizes s;
  if (parts & kSketchMeans) s.means = layers * blocks * kv_heads * dim * 2;
  if (parts & kSketchMinMax) s.bounds = 2 * layers * blocks * kv_heads * dim * 2;
  if (parts & kSketchLocalQuery) s.queries = layers * heads * dim * 4;
  return s;
}

void put(std::byte*& out, std::uint16_t x) {
  std::memcpy(out, &x, sizeof x);
  out += sizeof x;
}

void widen(const std::byte* from, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t x;
    std::memcpy(&x, from + 2 * i, sizeof x);
    out[i] = bf16_to_f32(x);
  }
}

}  // namespace

Result<SketchView> SketchView::parse(std::span<const std::byte> record) {
  const auto bad = [](const std::string& what) { return Status::corruption("sketch record: " + what); };
  Header h;
  if (record.size() < sizeof h) return bad("shorter than its header");
  std::memcpy(&h, record.data(), sizeof h);
  if (h.magic != kMagic) return bad("wrong magic number");
  if (h.version != kSketchVersion) return bad("version " + std::to_string(h.version) + " is not known");
  if (h.parts & ~static_cast<unsigned>(kSketchAll)) return bad("unknown parts");
  const auto in = [](std::uint64_t x, std::uint64_t most) { return x >= 1 && x <= most; };
  if (!in(h.num_layers, 4096) || !in(h.num_kv_heads, 4096) || !in(h.num_heads, 4096) || !in(h.head_dim, 4096)) return bad("impossible shape");
  if (!in(h.block_tokens, 4096) || !in(h.num_blocks, 1u << 24) || !in(h.num_tokens, 1ull << 32)) return bad("impossible sizes");
  if ((h.num_tokens + h.block_tokens - 1) / h.block_tokens != h.num_blocks) return bad("num_blocks does not fit num_tokens");
  // At most 2^12 layers * 2^24 blocks * 2^12 heads * 2^12 * 4 bytes = 2^62: no product and no sum overflows.
  const PartSizes sizes = part_sizes(h.parts, h.num_layers, h.num_blocks, h.num_kv_heads, h.num_heads, h.head_dim);
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
  auto body = record.subspan(sizeof h);
  v.means_ = body.first(sizes.means);
  v.bounds_ = body.subspan(sizes.means, sizes.bounds);
  v.queries_ = body.subspan(sizes.means + sizes.bounds, sizes.queries);
  return v;
}

void SketchView::mean(std::int32_t layer, std::int32_t block, std::span<float> out) const {
  const std::size_t n = static_cast<std::size_t>(num_kv_heads_) * static_cast<std::size_t>(head_dim_);
  QUIRE_CHECK(has(kSketchMeans) && layer >= 0 && layer < num_layers_ && block >= 0 && block < num_blocks_ && out.size() == n, "sketch mean");
  const std::size_t at = static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_blocks_) + static_cast<std::size_t>(block);
  widen(means_.data() + at * n * 2, out);
}

void SketchView::bound(std::int32_t layer, std::int32_t block, int which, std::span<float> out) const {
  const std::size_t n = static_cast<std::size_t>(num_kv_heads_) * static_cast<std::size_t>(head_dim_);
  QUIRE_CHECK(has(kSketchMinMax) && layer >= 0 && layer < num_layers_ && block >= 0 && block < num_blocks_ && out.size() == n, "sketch bound");
  const std::size_t at = static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_blocks_) + static_cast<std::size_t>(block);
  widen(bounds_.data() + (at * 2 + static_cast<std::size_t>(which)) * n * 2, out);
}

void SketchView::local_query(std::int32_t layer, std::span<float> out) const {
  const std::size_t n = static_cast<std::size_t>(num_heads_) * static_cast<std::size_t>(head_dim_);
  QUIRE_CHECK(has(kSketchLocalQuery) && layer >= 0 && layer < num_layers_ && out.size() == n, "sketch local query");
  std::memcpy(out.data(), queries_.data() + static_cast<std::size_t>(layer) * n * 4, n * 4);
}

std::int64_t sketch_bytes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts) {
  const KvShape& s = layout.shape();
  const auto u = [](std::int32_t x) { return static_cast<std::uint64_t>(x); };
  return static_cast<std::int64_t>(
      part_sizes(parts, u(s.num_layers), u(layout.num_blocks()), u(s.num_kv_heads), u(num_heads), u(s.head_dim)).total());
}

Result<std::vector<std::byte>> build_sketch(const SketchInput& input) {
  const KvLayout& layout = *input.layout;
  const KvShape& s = layout.shape();
  std::vector<std::byte> record(static_cast<std::size_t>(sketch_bytes(layout, input.num_heads, input.parts)));
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
  std::memcpy(record.data(), &h, sizeof h);

  const std::size_t n = static_cast<std::size_t>(s.num_kv_heads) * static_cast<std::size_t>(s.head_dim);
  const auto blocks = static_cast<std::size_t>(layout.num_blocks());
  std::byte* means = record.data() + sizeof h;
  std::byte* bounds = means + ((input.parts & kSketchMeans) ? static_cast<std::size_t>(s.num_layers) * blocks * n * 2 : 0);
  std::vector<float> mean(n), lo(n), hi(n);
  for (std::int32_t layer = 0; layer < s.num_layers && (input.parts & (kSketchMeans | kSketchMinMax)); ++layer) {
    for (std::int32_t block = 0; block < layout.num_blocks(); ++block) {
      const auto& value = input.values[static_cast<std::size_t>(block * layout.num_groups() + layout.group_of(layer))];
      BlockSummaryArgs args{};
      args.raw = layout.view(value, block, layer);
      args.num_kv_heads = s.num_kv_heads;
      args.head_dim = s.head_dim;
      args.first_position = static_cast<std::int32_t>(layout.first_token(block));
      args.mean = (input.parts & kSketchMeans) ? mean.data() : nullptr;
      args.min = (input.parts & kSketchMinMax) ? lo.data() : nullptr;
      args.max = (input.parts & kSketchMinMax) ? hi.data() : nullptr;
      QUIRE_RETURN_IF_ERROR(block_summary(*input.rope, args));
      if (args.mean != nullptr) {
        for (float x : mean) put(means, f32_to_bf16(x));
      }
      if (args.min != nullptr) {
        for (float x : lo) put(bounds, bf16_outwards(x, /*down=*/true));
        for (float x : hi) put(bounds, bf16_outwards(x, /*down=*/false));
      }
    }
  }
  if (input.parts & kSketchLocalQuery) {
    const std::size_t bytes = input.local_query.size_bytes();
    QUIRE_CHECK(bytes == static_cast<std::size_t>(s.num_layers) * static_cast<std::size_t>(input.num_heads) *
                             static_cast<std::size_t>(s.head_dim) * 4,
                "local query has the wrong shape");
    std::memcpy(record.data() + record.size() - bytes, input.local_query.data(), bytes);
  }
  return record;
}

}  // namespace quire
