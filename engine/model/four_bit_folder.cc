#include "engine/model/four_bit_folder.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kBlock = 32;  // weights of Q4_0 and Q4_1
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

class FourBitWeights final : public WeightSource {
 public:
  FourBitWeights(const TensorFolder& folder, std::string location, const FourBitLayout& layout)
      : folder_(folder),
        values_(file_weights(folder, location)),
        location_(std::move(location)),
        layout_(layout) {}

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    constexpr std::string_view kSuffix = ".weight";
    if (shape.size() != 2 || !name.ends_with(kSuffix) || folder_.find(name).entry != nullptr) {
      return values_->get(name, std::move(shape), from);
    }
    const std::string stem = name.substr(0, name.size() - kSuffix.size());
    if (folder_.find(stem + ".qweight").entry == nullptr) {
      return values_->get(name, std::move(shape), from);
    }
    QUIRE_ASSIGN_OR_RETURN(const StoredMatrix m, stored(stem, shape));
    return as_blocks(name, m);
  }

  void drop(const WeightTensor& tensor) override {
    const auto at = blocks_.find(tensor.name);
    if (at == blocks_.end()) return values_->drop(tensor);
    blocks_.erase(at);
  }
  std::string location() const override { return location_; }
  std::int64_t total_bytes() const override { return values_->total_bytes(); }
  std::vector<std::string> unused() const override {
    std::vector<std::string> out = values_->unused();
    std::erase_if(out, [&](const std::string& name) { return used_.contains(name); });
    return out;
  }

 private:
  /// Returns the tensor stem.part, which must have `type` and `shape`.
  Result<std::span<const std::byte>> part(const std::string& name, std::string_view type,
                                          const std::vector<std::int64_t>& shape) {
    const TensorView view = folder_.find(name);
    TensorEntry wanted;
    wanted.shape = shape;
    if (view.entry == nullptr) {
      return Status::invalid(name, location_ + ": tensor " + name +
                                       " is missing; quantization_config says matrices have one");
    }
    if (view.entry->dtype_name != type || view.entry->shape != shape) {
      return Status::invalid(*view.file, location_ + "/" + *view.file + ": tensor " + name +
                                             " is " + view.entry->dtype_name + " " +
                                             view.entry->shape_text() + ", not " +
                                             std::string(type) + " " + wanted.shape_text());
    }
    used_.insert(name);
    return view.bytes;
  }

  Result<StoredMatrix> stored(const std::string& stem, const std::vector<std::int64_t>& shape) {
    const std::int64_t n = shape[0], k = shape[1];
    StoredMatrix m{layout_, n, k, layout_.group_size > 0 ? layout_.group_size : k, {}, {}, {}};
    if (n % 8 != 0 || k % kBlock != 0 || k % m.group != 0) {
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

  Result<WeightTensor> as_blocks(const std::string& name, const StoredMatrix& m) {
    bool symmetric = true;
    for (std::int64_t c = 0; c < m.n && symmetric; ++c) {
      for (std::int64_t g = 0; g < m.k && symmetric; g += m.group) symmetric = m.zero(c, g) == 8;
    }
    const BlockType type = symmetric ? BlockType::kQ4_0 : BlockType::kQ4_1;
    const std::int64_t bytes = block_bytes(type), per_row = m.k / kBlock;
    std::vector<std::byte>& out = blocks_[name];
    out.resize(to_size(m.n * per_row * bytes));
    parallel_for(m.n, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        for (std::int64_t b = 0; b < per_row; ++b) {
          write_block(m, c, b * kBlock, type, out.data() + (c * per_row + b) * bytes);
        }
      }
    });
    WeightTensor tensor{.name = name, .data = out.data(), .shape = {m.n, m.k}};
    tensor.num_elements = m.n * m.k;
    tensor.blocks = type;
    return tensor;
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
    for (std::int64_t i = 0; i < kBlock / 2; ++i) {
      const int low = m.q(output, input + i), high = m.q(output, input + i + kBlock / 2);
      to[i] = std::byte(low | high << 4);
    }
  }

  const TensorFolder& folder_;
  const std::unique_ptr<WeightSource> values_;
  const std::string location_;
  const FourBitLayout layout_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<std::byte>> blocks_;
};

}  // namespace

FourBitLayout read_four_bit_layout(JsonFields& in) {
  FourBitLayout out;
  const std::string method = in.text("quant_method");
  if (method != "gptq" && method != "awq") {
    in.unsupported("quant_method",
                   method.empty()
                       ? "is missing; gptq and awq in four bits are supported"
                       : "\"" + method.substr(0, 100) +
                             "\" is not supported; gptq and awq in four bits are. Or use the "
                             "original f32, f16 or bf16 weights with model.weights = w4");
    return out;
  }
  const std::int64_t bits = in.integer("bits", 1, 64, std::nullopt);
  if (in.status().ok() && bits != 4) {
    in.unsupported("bits", "weights of " + std::to_string(bits) +
                               " bits are not supported, only of 4; use the original weights with "
                               "model.weights = int8");
  }
  out.method = method == "awq" ? FourBitLayout::Method::kAwq : FourBitLayout::Method::kGptq;
  out.group_size = in.integer("group_size", -1, 1 << 20, 128);
  if (out.group_size == 0 || (out.group_size > 0 && out.group_size % kBlock != 0)) {
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

Result<std::optional<FourBitLayout>> four_bit_layout(std::string_view config_json) {
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object("config.json", config_json));
  const json::value* found = root.if_contains("quantization_config");
  if (found == nullptr || !found->is_object()) return std::optional<FourBitLayout>();
  JsonFields in(found->get_object(), "quantization_config");
  const FourBitLayout layout = read_four_bit_layout(in);
  QUIRE_RETURN_IF_ERROR(in.status());
  return std::optional<FourBitLayout>(layout);
}

std::unique_ptr<WeightSource> four_bit_weights(const TensorFolder& folder, std::string location,
                                               const FourBitLayout& layout) {
  return std::make_unique<FourBitWeights>(folder, std::move(location), layout);
}

}  // namespace quire
