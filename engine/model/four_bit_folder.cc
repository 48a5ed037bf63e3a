#include "engine/model/four_bit_folder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/index.h"
#include "engine/model/block_folder.h"

namespace quire {
namespace {

/// The output, of eight, that an AWQ word holds in bits 4i.
constexpr std::int64_t kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

std::uint32_t word(std::span<const std::byte> bytes, std::int64_t i) {
  std::uint32_t out = 0;
  std::memcpy(&out, bytes.data() + 4 * i, sizeof out);
  return out;
}
std::uint16_t half(std::span<const std::byte> bytes, std::int64_t i) {
  std::uint16_t out = 0;
  std::memcpy(&out, bytes.data() + 2 * i, sizeof out);
  return out;
}

/// Returns the position of output i in its word of eight outputs.
std::int64_t place(FourBitLayout::Method method, std::int64_t i) {
  if (method == FourBitLayout::Method::kGptq) return i;
  return std::find(std::begin(kAwqOrder), std::end(kAwqOrder), i) - std::begin(kAwqOrder);
}

/// StoredMatrix holds the tensors of one matrix.
struct StoredMatrix {
  FourBitLayout layout;
  std::int64_t n, k, group;
  std::span<const std::byte> weights, zeros, scales;

  int q(std::int64_t output, std::int64_t input) const {
    if (layout.method == FourBitLayout::Method::kGptq) {
      return static_cast<int>(word(weights, input / 8 * n + output) >> (4 * (input % 8)) & 15);
    }
    const std::int64_t shift = 4 * place(layout.method, output % 8);
    return static_cast<int>(word(weights, input * (n / 8) + output / 8) >> shift & 15);
  }
  int zero(std::int64_t output, std::int64_t input) const {
    const std::int64_t shift = 4 * place(layout.method, output % 8);
    const std::uint32_t packed = word(zeros, input / group * (n / 8) + output / 8);
    return static_cast<int>(packed >> shift & 15) + layout.zero_offset;
  }
  std::uint16_t scale(std::int64_t output, std::int64_t input) const {
    return half(scales, input / group * n + output);
  }
};

class FourBitWeights final : public BlockFolder {
 public:
  FourBitWeights(const TensorFolder& folder, std::string location, const FourBitLayout& layout)
      : BlockFolder(folder, std::move(location)), layout_(layout) {}

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    constexpr std::string_view kSuffix = ".weight";
    if (shape.size() != 2 || !name.ends_with(kSuffix) || folder_.find(name).entry != nullptr) {
      return values(name, std::move(shape), from);
    }
    const std::string stem = name.substr(0, name.size() - kSuffix.size());
    if (folder_.find(stem + ".qweight").entry == nullptr) {
      return values(name, std::move(shape), from);
    }
    QUIRE_ASSIGN_OR_RETURN(const StoredMatrix m, stored(stem, shape));
    return matrix(name, m);
  }

 private:
  Result<StoredMatrix> stored(const std::string& stem, const std::vector<std::int64_t>& shape) {
    const std::int64_t n = shape[0], k = shape[1];
    StoredMatrix m{layout_, n, k, layout_.group_size > 0 ? layout_.group_size : k, {}, {}, {}};
    if (n % 8 != 0 || k % kBlockInputs != 0 || k % m.group != 0) {
      return Status(
          Code::kUnimplemented,
          location_ + ": " + stem + " has " + std::to_string(n) + " outputs and " +
              std::to_string(k) +
              " inputs; matrices of four bits need multiples of 8 and of the group size " +
              std::to_string(m.group),
          stem);
    }
    const std::int64_t groups = k / m.group;
    const bool gptq = layout_.method == FourBitLayout::Method::kGptq;
    const std::vector<std::int64_t> packed = gptq ? std::vector<std::int64_t>{k / 8, n}
                                                  : std::vector<std::int64_t>{k, n / 8};
    QUIRE_ASSIGN_OR_RETURN(m.weights, part(stem + ".qweight", "I32", packed));
    QUIRE_ASSIGN_OR_RETURN(m.zeros, part(stem + ".qzeros", "I32", {groups, n / 8}));
    QUIRE_ASSIGN_OR_RETURN(m.scales, part(stem + ".scales", "F16", {groups, n}));
    if (gptq && folder_.find(stem + ".g_idx").entry != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const auto order, part(stem + ".g_idx", "I32", {k}));
      for (std::int64_t i = 0; i < k; ++i) {
        if (word(order, i) == static_cast<std::uint32_t>(i / m.group)) continue;
        return Status(Code::kUnimplemented,
                      location_ + ": " + stem +
                          " has its inputs ordered by activation (desc_act), which is not "
                          "supported; use a model quantised with desc_act = false",
                      "quantization_config.desc_act");
      }
    }
    return m;
  }

  WeightTensor matrix(const std::string& name, const StoredMatrix& m) {
    bool symmetric = true;
    for (std::int64_t c = 0; c < m.n && symmetric; ++c) {
      for (std::int64_t g = 0; g < m.k && symmetric; g += m.group) symmetric = m.zero(c, g) == 8;
    }
    const BlockType type = symmetric ? BlockType::kQ4_0 : BlockType::kQ4_1;
    return as_blocks(name, m.n, m.k, type,
                     [&](std::int64_t output, std::int64_t input, std::byte* to) {
                       write_block(m, output, input, type, to);
                     });
  }

  static void write_block(const StoredMatrix& m, std::int64_t output, std::int64_t input,
                          BlockType type, std::byte* to) {
    const std::uint16_t scale = m.scale(output, input);
    std::memcpy(to, &scale, 2);
    to += 2;
    if (type == BlockType::kQ4_1) {
      const float least = -f16_to_f32(scale) * static_cast<float>(m.zero(output, input));
      const std::uint16_t minimum = f32_to_f16(least);
      std::memcpy(to, &minimum, 2);
      to += 2;
    }
    for (std::int64_t i = 0; i < kBlockInputs / 2; ++i) {
      const int low = m.q(output, input + i), high = m.q(output, input + i + kBlockInputs / 2);
      to[i] = std::byte(low | high << 4);
    }
  }

  const FourBitLayout layout_;
};

}  // namespace

FourBitLayout read_four_bit_layout(JsonFields& in) {
  FourBitLayout out;
  const std::string method = in.text("quant_method");
  const std::int64_t bits = in.integer("bits", 1, 64, std::nullopt);
  if (in.status().ok() && bits != 4) {
    in.unsupported("bits", "weights of " + std::to_string(bits) +
                               " bits are not supported, only of 4; use the original weights with "
                               "model.weights = int8");
  }
  out.method = method == "awq" ? FourBitLayout::Method::kAwq : FourBitLayout::Method::kGptq;
  out.group_size = in.integer("group_size", -1, 1 << 20, 128);
  if (out.group_size == 0 || (out.group_size > 0 && out.group_size % kBlockInputs != 0)) {
    in.unsupported("group_size", "must be -1 or a multiple of 32");
  }
  if (out.method == FourBitLayout::Method::kAwq) {
    const std::string version = in.find("version") ? in.text("version") : "gemm";
    if (version != "gemm" && version != "GEMM") {
      in.unsupported("version", "\"" + version.substr(0, 100) + "\" is not supported, only gemm");
    }
    return out;
  }
  const std::string format = in.find("checkpoint_format") ? in.text("checkpoint_format") : "gptq";
  if (format != "gptq" && format != "gptq_v2") {
    in.unsupported("checkpoint_format",
                   "\"" + format.substr(0, 100) + "\" is not supported; gptq and gptq_v2 are");
  }
  out.zero_offset = format == "gptq" ? 1 : 0;
  return out;
}

std::unique_ptr<WeightSource> four_bit_weights(const TensorFolder& folder, std::string location,
                                               const FourBitLayout& layout) {
  return std::make_unique<FourBitWeights>(folder, std::move(location), layout);
}

}  // namespace quire
