#include "engine/model/compressed_folder.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/index.h"
#include "engine/model/block_folder.h"

namespace quire {
namespace {

namespace json = boost::json;

using Numbers = CompressedLayout::Numbers;

constexpr std::string_view kWeight = ".weight";

std::int64_t parts_of(std::int64_t length, std::int64_t each) {
  return each > 0 ? (length + each - 1) / each : 1;
}

int nibble(std::span<const std::byte> words, std::int64_t word, std::int64_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, words.data() + 4 * word, sizeof bits);
  return static_cast<int>(bits >> (4 * i) & 15);
}

/// StoredMatrix holds the tensors of one matrix.
struct StoredMatrix {
  Numbers numbers;
  std::int64_t n, k;
  std::int64_t rows, columns;  ///< outputs and inputs that share a scale
  std::span<const std::byte> weights, scales, zeros;
  DType scale_dtype;
  bool packed;  ///< words of numbers that are not negative

  std::int64_t part(std::int64_t output, std::int64_t input) const {
    return output / rows * parts_of(k, columns) + input / columns;
  }
  float scale(std::int64_t output, std::int64_t input) const {
    return load_f32(scales.data(), scale_dtype, part(output, input));
  }
  int zero(std::int64_t output, std::int64_t input) const {
    if (zeros.empty()) return 8;
    return nibble(zeros, output / 8 * (k / columns) + input / columns, output % 8);
  }
  int four_bits(std::int64_t output, std::int64_t input) const {
    return nibble(weights, (output * k + input) / 8, input % 8);
  }
};

class CompressedWeights final : public BlockFolder {
 public:
  CompressedWeights(const TensorFolder& folder, std::string location,
                    const CompressedLayout& layout)
      : BlockFolder(folder, std::move(location)), layout_(layout) {}

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    if (shape.size() != 2 || !name.ends_with(kWeight)) return values(name, std::move(shape), from);
    const std::string stem = name.substr(0, name.size() - kWeight.size());
    const bool packed = layout_.numbers != Numbers::kFloat8 &&
                        folder_.find(stem + ".weight_packed").entry != nullptr;
    const TensorView view = folder_.find(name);
    // A matrix that was left as it is has its values.
    if (!packed && (view.entry == nullptr || view.entry->dtype_name != type_of_numbers()))
      return values(name, std::move(shape), from);
    QUIRE_ASSIGN_OR_RETURN(const StoredMatrix m, stored(stem, shape[0], shape[1], packed));
    return matrix(name, m);
  }

  std::vector<std::string> unused() const override {
    std::vector<std::string> out = BlockFolder::unused();
    std::erase_if(out, [](const std::string& name) {
      // Scales of inputs and of KV belong to numerics that are not followed.
      return name.ends_with(".input_scale") || name.ends_with(".activation_scale") ||
             name.ends_with(".k_scale") || name.ends_with(".v_scale") ||
             name.ends_with(".weight_shape");
    });
    return out;
  }

 private:
  /// Returns the type of matrices that are not packed.
  std::string_view type_of_numbers() const {
    return layout_.numbers == Numbers::kFloat8 ? "F8_E4M3" : "I8";
  }

  Result<StoredMatrix> stored(const std::string& stem, std::int64_t n, std::int64_t k,
                              bool packed) {
    StoredMatrix m{layout_.numbers,
                   n,
                   k,
                   layout_.rows > 0 ? layout_.rows : n,
                   layout_.columns > 0 ? layout_.columns : k,
                   {},
                   {},
                   {},
                   DType::kF32,
                   packed};
    const bool four = layout_.numbers == Numbers::kInt4;
    if (k % kBlockInputs != 0 || (four && k % m.columns != 0) ||
        (layout_.zero_points && n % 8 != 0)) {
      return Status(Code::kUnimplemented,
                    location_ + ": " + stem + " has " + std::to_string(n) + " outputs and " +
                        std::to_string(k) +
                        " inputs; quantised matrices need a multiple of 32 inputs, of whole groups "
                        "with four bits, and of 8 outputs with zero points",
                    stem);
    }
    if (packed) {
      QUIRE_ASSIGN_OR_RETURN(m.weights,
                             part(stem + ".weight_packed", "I32", {n, k / (four ? 8 : 4)}));
    } else {
      QUIRE_ASSIGN_OR_RETURN(m.weights, part(stem + ".weight", type_of_numbers(), {n, k}));
    }
    QUIRE_RETURN_IF_ERROR(take_scales(stem, m));
    if (layout_.zero_points) {
      QUIRE_ASSIGN_OR_RETURN(m.zeros,
                             part(stem + ".weight_zero_point", "I32", {n / 8, k / m.columns}));
    }
    if (folder_.find(stem + ".weight_g_idx").entry != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const auto order, part(stem + ".weight_g_idx", "I32", {k}));
      for (std::int64_t i = 0; i < k; ++i) {
        std::int32_t group = 0;
        std::memcpy(&group, order.data() + 4 * i, sizeof group);
        if (group == static_cast<std::int32_t>(i / m.columns)) continue;
        return Status(Code::kUnimplemented,
                      location_ + ": " + stem +
                          " has its inputs ordered by activation (actorder \"group\"), which is "
                          "not supported; use a model quantised with actorder \"weight\" or none",
                      "quantization_config.config_groups");
      }
    }
    return m;
  }

  /// Finds the scales. Without a block size one scale may be a matrix's, or an output's.
  Status take_scales(const std::string& stem, StoredMatrix& m) {
    std::string name = stem + ".weight_scale_inv";
    TensorView view = folder_.find(name);
    if (view.entry == nullptr) view = folder_.find(name = stem + ".weight_scale");
    if (view.entry == nullptr) return missing(name);
    const std::string_view type = view.entry->dtype_name;
    const std::optional<DType> dtype = type == "F32"    ? std::optional(DType::kF32)
                                       : type == "F16"  ? std::optional(DType::kF16)
                                       : type == "BF16" ? std::optional(DType::kBF16)
                                                        : std::nullopt;
    std::int64_t count = 1;
    for (const std::int64_t d : view.entry->shape) count *= d;
    if (layout_.rows == 0 && layout_.columns == 0 && count == m.n) m.rows = 1;
    const std::int64_t down = parts_of(m.n, m.rows), across = parts_of(m.k, m.columns);
    const std::vector<std::int64_t>& shape = view.entry->shape;
    const bool fits = count == down * across && (shape.size() < 2 || shape[0] == down);
    if (!dtype || !fits) {
      return wrong(
          view, name,
          "F32, F16 or BF16 [" + std::to_string(down) + ", " + std::to_string(across) + "]");
    }
    m.scale_dtype = *dtype;
    m.scales = view.bytes;
    used_.insert(name);
    return {};
  }

  WeightTensor matrix(const std::string& name, const StoredMatrix& m) {
    const BlockType type = block_type(m);
    return as_blocks(name, m.n, m.k, type,
                     [&](std::int64_t output, std::int64_t input, std::byte* to) {
                       write_block(m, output, input, type, to);
                     });
  }

  static BlockType block_type(const StoredMatrix& m) {
    if (m.numbers == Numbers::kFloat8) return BlockType::kF8_E4M3;
    if (m.numbers == Numbers::kInt8) return BlockType::kQ8_0;
    for (std::int64_t c = 0; c < m.n; ++c) {
      for (std::int64_t g = 0; g < m.k; g += m.columns) {
        if (m.zero(c, g) != 8) return BlockType::kQ4_1;
      }
    }
    return BlockType::kQ4_0;
  }

  static void write_block(const StoredMatrix& m, std::int64_t output, std::int64_t input,
                          BlockType type, std::byte* to) {
    const float scale = m.scale(output, input);
    if (type == BlockType::kF8_E4M3) {
      std::memcpy(to, &scale, sizeof scale);
      std::memcpy(to + sizeof scale, m.weights.data() + output * m.k + input, kBlockInputs);
      return;
    }
    const std::uint16_t half = f32_to_f16(scale);
    std::memcpy(to, &half, sizeof half);
    to += sizeof half;
    if (type == BlockType::kQ8_0) {
      std::memcpy(to, m.weights.data() + output * m.k + input, kBlockInputs);
      // A number plus 128 is the number with its sign bit turned.
      for (std::int64_t i = 0; m.packed && i < kBlockInputs; ++i) to[i] ^= std::byte{0x80};
      return;
    }
    if (type == BlockType::kQ4_1) {
      const std::uint16_t least = f32_to_f16(-scale * static_cast<float>(m.zero(output, input)));
      std::memcpy(to, &least, sizeof least);
      to += sizeof least;
    }
    for (std::int64_t i = 0; i < kBlockInputs / 2; ++i) {
      const int low = m.four_bits(output, input + i),
                high = m.four_bits(output, input + i + kBlockInputs / 2);
      to[i] = std::byte(low | high << 4);
    }
  }

  const CompressedLayout layout_;
};

void check_columns(JsonFields& in, std::string_view key, const CompressedLayout& layout) {
  if (layout.columns % kBlockInputs != 0)
    in.unsupported(key, "groups of inputs must be multiples of 32");
}

CompressedLayout read_fp8(JsonFields& in) {
  CompressedLayout out;
  const std::string format = in.find("fmt") ? in.text("fmt") : "e4m3";
  if (format != "e4m3")
    in.unsupported("fmt", "\"" + format.substr(0, 100) + "\" is not supported, only e4m3");
  const std::vector<float> block = in.find("weight_block_size")
                                       ? in.numbers("weight_block_size", 2, 1, 1 << 20)
                                       : std::vector<float>();
  if (block.size() == 2) {
    out.rows = static_cast<std::int64_t>(block[0]);
    out.columns = static_cast<std::int64_t>(block[1]);
    check_columns(in, "weight_block_size", out);
  }
  return out;
}

/// Reads `weights` of a group of a compressed-tensors configuration.
CompressedLayout read_scheme(JsonFields& in) {
  CompressedLayout out;
  const std::string type = in.text("type"), strategy = in.text("strategy");
  const std::int64_t bits = in.integer("num_bits", 1, 64, std::nullopt);
  const bool symmetric = in.boolean("symmetric", true);
  if (type == "float" && bits == 8) {
    out.numbers = Numbers::kFloat8;
  } else if (type == "int" && bits == 8 && symmetric) {
    out.numbers = Numbers::kInt8;
  } else if (type == "int" && bits == 4) {
    out.numbers = Numbers::kInt4;
    out.zero_points = !symmetric;
  } else {
    in.unsupported("num_bits", "weights are " + std::to_string(bits) + " bits of type \"" +
                                   type.substr(0, 100) + "\"" + (symmetric ? "" : ", asymmetric") +
                                   "; float of 8, symmetric int of 8 and int of 4 are supported");
  }
  if (strategy == "channel") {
    out.rows = 1;
  } else if (strategy == "group") {
    out.rows = 1;
    out.columns = in.integer("group_size", 1, 1 << 20);
    check_columns(in, "group_size", out);
  } else if (strategy == "block") {
    const std::vector<float> block = in.numbers("block_structure", 2, 1, 1 << 20);
    if (block.size() == 2) {
      out.rows = static_cast<std::int64_t>(block[0]);
      out.columns = static_cast<std::int64_t>(block[1]);
      check_columns(in, "block_structure", out);
    }
  } else if (strategy != "tensor") {
    in.unsupported("strategy", "\"" + strategy.substr(0, 100) +
                                   "\" is not supported; tensor, channel, group and block are");
  }
  return out;
}

bool same(const CompressedLayout& a, const CompressedLayout& b) {
  return a.numbers == b.numbers && a.rows == b.rows && a.columns == b.columns &&
         a.zero_points == b.zero_points;
}

CompressedLayout read_compressed_tensors(JsonFields& in) {
  if (const json::value* sparse = in.find("sparsity_config");
      sparse != nullptr && sparse->is_object() && !sparse->get_object().empty()) {
    const json::value* format = sparse->get_object().if_contains("format");
    if (format == nullptr || *format != "dense")
      in.unsupported("sparsity_config", "sparse weights are not supported");
  }
  if (const json::value* transform = in.find("transform_config");
      transform != nullptr && transform->is_object() && !transform->get_object().empty())
    in.unsupported("transform_config", "transforms (rotations) of weights are not supported");
  const json::value* groups = in.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->get_object().empty()) {
    in.fail("config_groups", "must be an object that names at least one group");
    return {};
  }
  std::optional<CompressedLayout> out;
  for (const auto& [name, group] : groups->get_object()) {
    const std::string path = in.path("config_groups") + "." + std::string(name).substr(0, 100);
    const json::value* weights = group.is_object() ? group.get_object().if_contains("weights")
                                                   : nullptr;
    if (weights == nullptr || !weights->is_object()) {
      in.fail("config_groups", "every group must have an object \"weights\"");
      return {};
    }
    JsonFields scheme(weights->get_object(), path + ".weights");
    const CompressedLayout one = read_scheme(scheme);
    in.adopt(scheme);
    if (out && !same(*out, one))
      in.unsupported("config_groups", "groups of different formats are not supported together");
    out = one;
  }
  return *out;
}

}  // namespace

CompressedLayout read_compressed_layout(JsonFields& in) {
  return in.text("quant_method") == "fp8" ? read_fp8(in) : read_compressed_tensors(in);
}

std::unique_ptr<WeightSource> compressed_weights(const TensorFolder& folder, std::string location,
                                                 const CompressedLayout& layout) {
  return std::make_unique<CompressedWeights>(folder, std::move(location), layout);
}

}  // namespace quire
