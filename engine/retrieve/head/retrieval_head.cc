#include "engine/retrieve/head/retrieval_head.h"

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cstring>
#include <string>

#include "base/index.h"
#include "engine/model/json_fields.h"
#include "engine/model/weights.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rows/norm.h"

namespace quire {
namespace {

constexpr std::int32_t kFeatures = 3;
/// The rows of one projection.
constexpr std::int64_t kChunkRows = 512;

std::vector<float> to_f32(const WeightTensor& tensor, std::int64_t columns) {
  const std::int64_t rows = tensor.shape[0], width = tensor.num_elements / rows;
  std::vector<float> out(to_size(rows * columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      out[at(r * columns + c)] = load_f32(tensor.data, tensor.dtype, r * width + c);
  }
  return out;
}

/// Packs the first `columns` columns of a matrix.
Result<std::unique_ptr<PackedMatrix>> pack(const WeightTensor& tensor, std::int64_t columns,
                                           WeightFormat format) {
  const std::vector<float> values = to_f32(tensor, columns);
  const WeightPart part{values.data(), tensor.shape[0]};
  return pack_weights(std::span(&part, 1), columns, DType::kF32, format);
}

/// Returns the layers of an EAGLE-3 head, clamped to the target's depth.
std::vector<std::int32_t> default_feature_layers(std::int32_t num_layers) {
  return {std::min(2, num_layers - 1), num_layers / 2, std::max(0, num_layers - 3)};
}

Status check_fit(const RetrievalHeadConfig& head, const ModelConfig& target) {
  if (head.hidden_size != target.hidden_size) {
    return Status::invalid("hidden_size", "the head was made for a hidden size of " +
                                              std::to_string(head.hidden_size) +
                                              ", the model has " +
                                              std::to_string(target.hidden_size));
  }
  for (const std::int32_t layer : head.feature_layers) {
    if (layer >= target.num_layers) {
      return Status::invalid("feature_layers", "the head wants the input of layer " +
                                                   std::to_string(layer) + ", the model has " +
                                                   std::to_string(target.num_layers) + " layers");
    }
  }
  return {};
}

/// Returns a RoPE with YaRN by the factor that the target's window needs.
RopeConfig rope_config(const RetrievalHeadConfig& head, std::int64_t positions) {
  RopeConfig rope;
  rope.head_dim = rope.rotary_dim = head.head_dim;
  rope.theta = head.rope_theta;
  if (positions <= head.trained_positions) return rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = static_cast<float>(static_cast<double>(positions) /
                                   static_cast<double>(head.trained_positions));
  rope.original_max_position = head.trained_positions;
  return rope;
}

struct HeadWeights {
  std::vector<float> input_norm, hidden_norm;  ///< [hidden]
  /// Projections [.., hidden or 2 hidden]; fuse: [hidden, 3 hidden], null in embed mode.
  std::unique_ptr<PackedMatrix> query, key, fuse;
};

class LoadedHead final : public RetrievalHead {
 public:
  LoadedHead(const Model& target, RetrievalHeadConfig config, RopeTable rope, HeadWeights weights,
             const std::array<std::uint8_t, 32>& digest)
      : target_(target),
        config_(std::move(config)),
        rope_(std::move(rope)),
        w_(std::move(weights)),
        digest_(digest) {}

  const RetrievalHeadConfig& config() const override { return config_; }
  std::span<const std::int32_t> feature_layers() const override { return config_.feature_layers; }
  const RopeTable& rope() const override { return rope_; }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::int64_t memory_bytes() const override {
    const auto floats = static_cast<std::int64_t>(w_.input_norm.size() + w_.hidden_norm.size()) +
                        rope_.max_positions() * config_.head_dim;
    return w_.query->bytes() + w_.key->bytes() + (w_.fuse ? w_.fuse->bytes() : 0) +
           floats * static_cast<std::int64_t>(sizeof(float));
  }

  Status project(std::span<const std::int32_t> token_ids, const float* features, float* queries,
                 float* keys) const override {
    const std::int64_t rows = count_of(token_ids), width = w_.key->k();
    std::vector<float> input(to_size(std::min(rows, kChunkRows) * width));
    std::vector<float> part(to_size(std::min(rows, kChunkRows) * config_.hidden_size));
    for (std::int64_t begin = 0; begin < rows; begin += kChunkRows) {
      const std::int64_t n = std::min(kChunkRows, rows - begin);
      QUIRE_RETURN_IF_ERROR(make_input(
          token_ids.subspan(at(begin), at(n)),
          features == nullptr ? nullptr : features + begin * feature_dim(), part, input));
      if (queries != nullptr)
        QUIRE_RETURN_IF_ERROR(w_.query->multiply(input.data(), n, width, nullptr,
                                                 queries + begin * config_.query_dim(),
                                                 config_.query_dim()));
      if (keys != nullptr)
        QUIRE_RETURN_IF_ERROR(w_.key->multiply(
            input.data(), n, width, nullptr, keys + begin * config_.key_dim(), config_.key_dim()));
    }
    return {};
  }

 private:
  /// Computes input [n, width] = [RMS(emb); RMS(g)].
  Status make_input(std::span<const std::int32_t> ids, const float* features,
                    std::vector<float>& part, std::vector<float>& input) const {
    const auto n = count_of(ids);
    QUIRE_RETURN_IF_ERROR(read_embeddings(ids, part.data()));
    QUIRE_RETURN_IF_ERROR(put_half(part, w_.input_norm, n, 0, input));
    if (!w_.fuse) return {};
    if (features == nullptr) {
      std::fill_n(part.begin(), n * config_.hidden_size, 0.0f);
    } else {
      QUIRE_RETURN_IF_ERROR(
          w_.fuse->multiply(features, n, feature_dim(), nullptr, part.data(), config_.hidden_size));
    }
    return put_half(part, w_.hidden_norm, n, config_.hidden_size, input);
  }

  /// Reads embeddings to the host, because the head always computes there.
  Status read_embeddings(std::span<const std::int32_t> ids, float* out) const {
    Compute& compute = target_.compute();
    if (compute.memory() == nullptr) return target_.embed(ids, out);
    const std::int64_t values = count_of(ids) * config_.hidden_size;
    ComputeBuffer<float> rows;
    QUIRE_RETURN_IF_ERROR(rows.reserve(compute.memory(), values));
    QUIRE_RETURN_IF_ERROR(target_.embed(ids, rows.data()));
    return compute.read(rows.data(), values, out);
  }

  Status put_half(std::vector<float>& part, const std::vector<float>& norm, std::int64_t rows,
                  std::int64_t column, std::vector<float>& input) const {
    const std::int64_t h = config_.hidden_size, width = w_.key->k();
    QUIRE_RETURN_IF_ERROR(rms_norm({.x = part.data(),
                                    .weight = norm.data(),
                                    .out = part.data(),
                                    .rows = rows,
                                    .dim = h,
                                    .eps = config_.rms_norm_eps}));
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(input.data() + r * width + column, part.data() + r * h,
                  to_size(h) * sizeof(float));
    return {};
  }

  const Model& target_;
  const RetrievalHeadConfig config_;
  const RopeTable rope_;
  const HeadWeights w_;
  const std::array<std::uint8_t, 32> digest_;
};

std::string digest_text(const RetrievalHeadConfig& c) {
  std::string text = "retrieval head " + std::to_string(c.num_heads) + " " +
                     std::to_string(c.num_kv_heads) + " " + std::to_string(c.head_dim) + " " +
                     std::to_string(std::bit_cast<std::uint32_t>(c.rope_theta)) + " " +
                     std::to_string(std::bit_cast<std::uint32_t>(c.rms_norm_eps));
  for (const std::int32_t layer : c.feature_layers) text += " " + std::to_string(layer);
  return text;
}

void read_shape(JsonFields& in, RetrievalHeadConfig& c) {
  constexpr std::int64_t kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxGroup = 16, kMaxHeadDim = 256;
  const auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  c.hidden_size = i32(in.integer("hidden_size", 1, kMaxWidth));
  c.num_heads = i32(in.integer("num_attention_heads", 1, kMaxHeads));
  c.num_kv_heads = i32(in.integer("num_key_value_heads", 1, kMaxHeads, c.num_heads));
  if (!in.status().ok()) return;
  if (c.num_heads % c.num_kv_heads != 0)
    return in.fail("num_key_value_heads", "(" + std::to_string(c.num_kv_heads) +
                                              ") must divide num_attention_heads (" +
                                              std::to_string(c.num_heads) + ")");
  if (c.num_heads / c.num_kv_heads > kMaxGroup)
    return in.unsupported("num_key_value_heads", "at most 16 query heads may share one KV head");
  c.head_dim = i32(in.integer("head_dim", 1, kMaxWidth, std::max(1, c.hidden_size / c.num_heads)));
  if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim)
    in.unsupported("head_dim", "head_dim " + std::to_string(c.head_dim) +
                                   " is not supported: it must be a multiple of 8 up to 256");
}

Result<RetrievalHeadConfig> parse_fields(const boost::json::object& object) {
  RetrievalHeadConfig c;
  JsonFields in(object, "");
  read_shape(in, c);
  c.rope_theta = static_cast<float>(in.number("rope_theta", 1, 1e15, 10000.0));
  c.rms_norm_eps = static_cast<float>(in.number("rms_norm_eps", 1e-12, 1, 1e-5));
  c.trained_positions = in.integer("max_position_embeddings", 1, std::int64_t{1} << 24, 2048);
  c.feature_layers = in.indices("feature_layers", 1024, kFeatures, "layer");
  if (in.status().ok() && !c.feature_layers.empty() && c.feature_layers.size() != kFeatures)
    in.fail("feature_layers", "must list three layers, or be left out");
  const std::string mode = in.text("input_mode");
  if (in.status().ok() && !mode.empty() && mode != "embed" && mode != "feature")
    in.fail("input_mode", "must be \"embed\" or \"feature\", not \"" + mode + "\"");
  c.embeds_only = mode == "embed";
  if (!in.status().ok()) return in.status();
  return c;
}

/// HeadTensors reads a head's tensors from any source and computes their digest.
class HeadTensors {
 public:
  /// Puts `prefix` before the names of the layer's tensors.
  HeadTensors(WeightSource& source, std::string prefix)
      : source_(source), prefix_(std::move(prefix)) {}

  Result<WeightTensor> layer(const char* name, std::vector<std::int64_t> shape, const char* from) {
    return get(prefix_ + name, std::move(shape), from);
  }
  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) {
    QUIRE_ASSIGN_OR_RETURN(WeightTensor tensor, source_.get(name, std::move(shape), from));
    tensors_.push_back(tensor);
    return tensor;
  }
  Result<std::array<std::uint8_t, 32>> digest(const RetrievalHeadConfig& config) const {
    WeightsDigest digest;
    digest.add_text(digest_text(config));
    QUIRE_RETURN_IF_ERROR(digest.add(tensors_));
    return digest.finish();
  }

 private:
  WeightSource& source_;
  const std::string prefix_;
  std::vector<WeightTensor> tensors_;
};

Result<std::unique_ptr<RetrievalHead>> build(RetrievalHeadConfig c, const Model& target,
                                             HeadTensors tensors, bool features) {
  const std::int64_t h = c.hidden_size, width = features ? 2 * h : h;
  // A step reads both the model's and the head's weights; inputs keep their precision.
  const WeightFormat format = target.options().weights == WeightFormat::kW8A8 ||
                                      target.options().weights == WeightFormat::kW4
                                  ? WeightFormat::kInt8
                                  : target.options().weights;
  HeadWeights w;
  QUIRE_ASSIGN_OR_RETURN(const WeightTensor input_norm,
                         tensors.layer("input_layernorm.weight", {h}, "hidden_size"));
  QUIRE_ASSIGN_OR_RETURN(const WeightTensor query,
                         tensors.layer("self_attn.q_proj.weight", {c.query_dim(), 2 * h},
                                       "num_attention_heads * head_dim, 2 * hidden_size"));
  QUIRE_ASSIGN_OR_RETURN(const WeightTensor key,
                         tensors.layer("self_attn.k_proj.weight", {c.key_dim(), 2 * h},
                                       "num_key_value_heads * head_dim, 2 * hidden_size"));
  w.input_norm = to_f32(input_norm, 1);
  QUIRE_ASSIGN_OR_RETURN(w.query, pack(query, width, format));
  QUIRE_ASSIGN_OR_RETURN(w.key, pack(key, width, format));
  if (features) {
    QUIRE_ASSIGN_OR_RETURN(const WeightTensor hidden_norm,
                           tensors.layer("hidden_norm.weight", {h}, "hidden_size"));
    QUIRE_ASSIGN_OR_RETURN(const WeightTensor fuse, tensors.get("fc.weight", {h, kFeatures * h},
                                                                "hidden_size, 3 * hidden_size"));
    w.hidden_norm = to_f32(hidden_norm, 1);
    QUIRE_ASSIGN_OR_RETURN(w.fuse, pack(fuse, kFeatures * h, format));
    if (c.feature_layers.empty())
      c.feature_layers = default_feature_layers(target.config().num_layers);
  } else {
    c.feature_layers.clear();
  }
  QUIRE_ASSIGN_OR_RETURN(const auto digest, tensors.digest(c));
  QUIRE_ASSIGN_OR_RETURN(RopeTable rope,
                         RopeTable::build(rope_config(c, target.rope().max_positions()),
                                          target.rope().max_positions()));
  return std::unique_ptr<RetrievalHead>(
      std::make_unique<LoadedHead>(target, std::move(c), std::move(rope), std::move(w), digest));
}

}  // namespace

Result<RetrievalHeadConfig> parse_retrieval_head_config(std::string_view text) {
  try {
    QUIRE_ASSIGN_OR_RETURN(const boost::json::object object,
                           parse_json_object("config.json", text));
    return parse_fields(object);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Status::invalid("config.json", std::string("config.json cannot be read: ") + e.what());
  }
}

Result<std::unique_ptr<RetrievalHead>> RetrievalHead::load(const std::filesystem::path& dir,
                                                           const Model& target) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_json_file(dir / "config.json"));
  QUIRE_ASSIGN_OR_RETURN(const RetrievalHeadConfig c, parse_retrieval_head_config(text));
  QUIRE_RETURN_IF_ERROR(check_fit(c, target.config()));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFolder> folder, TensorFolder::open(dir));
  const std::unique_ptr<WeightSource> source = file_weights(*folder, dir.string());
  const auto has = [&](const char* name) { return folder->find(name).entry != nullptr; };
  const bool numbered = !has("midlayer.self_attn.k_proj.weight") &&
                        has("layers.0.self_attn.k_proj.weight");
  return build(c, target, HeadTensors(*source, numbered ? "layers.0." : "midlayer."),
               has("fc.weight") && !c.embeds_only);
}

Result<std::unique_ptr<RetrievalHead>> RetrievalHead::random(const RetrievalHeadConfig& config,
                                                             const Model& target,
                                                             std::uint64_t seed) {
  QUIRE_RETURN_IF_ERROR(check_fit(config, target.config()));
  const std::unique_ptr<WeightSource> source = random_weights(seed);
  return build(config, target, HeadTensors(*source, "midlayer."), !config.embeds_only);
}

}  // namespace quire
