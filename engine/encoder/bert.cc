#include "engine/encoder/bert.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/index.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/norm.h"

namespace quire {
namespace {

constexpr std::string_view kPrefix = "bert.";

}  // namespace

Result<BertTensors> BertTensors::open(const std::filesystem::path& folder) {
  BertTensors out;
  QUIRE_ASSIGN_OR_RETURN(out.folder_, TensorFolder::open(folder));
  out.source_ = file_weights(*out.folder_, folder.string());
  out.digest_ = std::make_unique<WeightsDigest>();
  return out;
}

std::string BertTensors::full_name(const std::string& name) const {
  const std::string prefixed = std::string(kPrefix) + name;
  return folder_->find(prefixed).entry ? prefixed : name;
}

Result<WeightTensor> BertTensors::get(const std::string& name, std::vector<std::int64_t> shape) {
  QUIRE_ASSIGN_OR_RETURN(WeightTensor tensor,
                         source_->get(full_name(name), std::move(shape), "the sizes"));
  QUIRE_RETURN_IF_ERROR(digest_->add({&tensor, 1}));
  return tensor;
}

Result<std::vector<float>> BertTensors::floats(const std::string& name,
                                               std::vector<std::int64_t> shape) {
  QUIRE_ASSIGN_OR_RETURN(const WeightTensor tensor, get(name, std::move(shape)));
  std::vector<float> out(to_size(tensor.num_elements));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = load_f32(tensor.data, tensor.dtype, static_cast<std::int64_t>(i));
  source_->drop(tensor);
  return out;
}

Result<std::unique_ptr<PackedMatrix>> BertTensors::matrix(std::span<const std::string> names,
                                                          std::int64_t n, std::int64_t k,
                                                          WeightFormat format) {
  std::vector<WeightTensor> tensors;
  std::vector<WeightPart> parts;
  for (const std::string& name : names) {
    QUIRE_ASSIGN_OR_RETURN(tensors.emplace_back(), get(name, {n, k}));
    if (tensors.back().dtype != tensors.front().dtype)
      return Status::invalid(name, name + " has another type than " + names.front());
    parts.push_back({tensors.back().data, n, std::nullopt});
  }
  auto packed = pack_weights(parts, k, tensors.front().dtype, format);
  for (const WeightTensor& tensor : tensors) source_->drop(tensor);
  return packed;
}

Result<BertTable> BertTensors::table(const std::string& name, std::vector<std::int64_t> shape) {
  QUIRE_ASSIGN_OR_RETURN(const WeightTensor tensor, get(name, std::move(shape)));
  const auto bytes = tensor.bytes();
  BertTable out{{bytes.begin(), bytes.end()}, tensor.dtype};
  source_->drop(tensor);
  return out;
}

Result<Bert> Bert::load(const BertConfig& config, WeightFormat format, BertTensors& tensors) {
  Bert out;
  out.config_ = config;
  const std::int64_t h = config.hidden, wide = config.intermediate;
  const auto norm = [&](const std::string& name, Norm& to) -> Status {
    QUIRE_ASSIGN_OR_RETURN(to.weight, tensors.floats(name + ".weight", {h}));
    QUIRE_ASSIGN_OR_RETURN(to.bias, tensors.floats(name + ".bias", {h}));
    return {};
  };
  const auto product = [&](std::vector<std::string> names, std::int64_t n, std::int64_t k,
                           Product& to) -> Status {
    for (const std::string& name : names) {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<float> bias, tensors.floats(name + ".bias", {n}));
      to.bias.insert(to.bias.end(), bias.begin(), bias.end());
    }
    for (std::string& name : names) name += ".weight";
    QUIRE_ASSIGN_OR_RETURN(to.weights, tensors.matrix(names, n, k, format));
    return {};
  };
  const std::string table = "embeddings.";
  QUIRE_ASSIGN_OR_RETURN(out.words_,
                         tensors.table(table + "word_embeddings.weight", {config.vocab, h}));
  QUIRE_ASSIGN_OR_RETURN(
      out.positions_, tensors.floats(table + "position_embeddings.weight", {config.positions, h}));
  QUIRE_ASSIGN_OR_RETURN(out.types_,
                         tensors.floats(table + "token_type_embeddings.weight", {config.types, h}));
  QUIRE_RETURN_IF_ERROR(norm(table + "LayerNorm", out.embedding_norm_));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "encoder.layer." + std::to_string(i) + ".";
    const std::string self = name + "attention.self.";
    Layer& l = out.layers_.emplace_back();
    QUIRE_RETURN_IF_ERROR(product({self + "query", self + "key", self + "value"}, h, h, l.qkv));
    QUIRE_RETURN_IF_ERROR(product({name + "attention.output.dense"}, h, h, l.attention_out));
    QUIRE_RETURN_IF_ERROR(norm(name + "attention.output.LayerNorm", l.attention_norm));
    QUIRE_RETURN_IF_ERROR(product({name + "intermediate.dense"}, wide, h, l.up));
    QUIRE_RETURN_IF_ERROR(product({name + "output.dense"}, h, wide, l.down));
    QUIRE_RETURN_IF_ERROR(norm(name + "output.LayerNorm", l.norm));
  }
  return out;
}

std::int64_t Bert::bytes() const {
  std::int64_t n = count_of(words_.bytes);
  for (const Layer& l : layers_) {
    for (const Product* p : {&l.qkv, &l.attention_out, &l.up, &l.down}) n += p->weights->bytes();
  }
  return n;
}

Status Bert::check(std::span<const BertInput> inputs) const {
  for (const BertInput& input : inputs) {
    if (input.ids.empty() || count_of(input.ids) > config_.positions)
      return Status::invalid("input", "a text has " + std::to_string(input.ids.size()) +
                                          " tokens; the encoder takes 1 to " +
                                          std::to_string(config_.positions));
    if (std::ranges::any_of(input.ids,
                            [&](std::int32_t id) { return id < 0 || id >= config_.vocab; }))
      return Status::invalid("input", "a token id is outside of the encoder's vocabulary");
    if (input.second < input.ids.size() && config_.types < 2)
      return Status::invalid("input", "the encoder takes no pairs (type_vocab_size is 1)");
  }
  return {};
}

void Bert::embed(std::span<const BertInput> inputs, float* x) const {
  for (const BertInput& input : inputs) {
    for (std::size_t t = 0; t < input.ids.size(); ++t) {
      const std::int64_t word = input.ids[t] * config_.hidden;
      const float* position = positions_.data() + t * to_size(config_.hidden);
      const float* type = types_.data() + (t < input.second ? 0 : to_size(config_.hidden));
      for (std::int64_t c = 0; c < config_.hidden; ++c)
        x[c] = load_f32(words_.bytes.data(), words_.dtype, word + c) + position[c] + type[c];
      x += config_.hidden;
    }
  }
}

/// The rows of `qkv` serve as pages of keys and values; all positions are 0, so no key is masked.
Status Bert::attend(std::span<const BertInput> inputs, const float* qkv, float* out) const {
  const std::int64_t h = config_.hidden, ld = 3 * h, head_dim = h / config_.heads;
  std::size_t longest = 0;
  for (const BertInput& input : inputs) longest = std::max(longest, input.ids.size());
  const std::vector<std::int32_t> zeros(longest, 0);
  std::vector<const void*> pages;
  for (const BertInput& input : inputs) {
    const std::int64_t rows = count_of(input.ids);
    pages.clear();
    for (std::int64_t row = 0; row < rows; row += kPageTokens) pages.push_back(qkv + row * ld + h);
    AttentionArgs a{};
    a.q = qkv;
    a.query_positions = zeros.data();
    a.rows = rows;
    a.ldq = ld;
    a.num_heads = static_cast<std::int32_t>(config_.heads);
    a.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    a.kv.pages = pages.data();
    a.kv.positions = zeros.data();
    a.kv.num_rows = rows;
    a.kv.num_kv_heads = a.num_heads;
    a.kv.head_dim = static_cast<std::int32_t>(head_dim);
    a.kv.dtype = DType::kF32;
    a.kv.kv_stride = h * std::int64_t{sizeof(float)};
    a.kv.head_stride = head_dim * std::int64_t{sizeof(float)};
    a.kv.token_stride = ld * std::int64_t{sizeof(float)};
    a.out = out;
    a.ldo = h;
    QUIRE_RETURN_IF_ERROR(attention(a));
    qkv += rows * ld;
    out += rows * h;
  }
  return {};
}

Status Bert::apply(const Norm& norm, std::int64_t rows, float* x) const {
  return layer_norm(
      {x, norm.weight.data(), norm.bias.data(), x, rows, config_.hidden, config_.eps});
}

Status Bert::multiply(const Product& p, std::int64_t rows, const float* x, float* y) {
  return p.weights->multiply(x, rows, p.weights->k(), p.bias.data(), y, p.weights->n());
}

Status Bert::run(std::span<const BertInput> inputs, std::vector<float>& out) const {
  QUIRE_RETURN_IF_ERROR(check(inputs));
  std::int64_t rows = 0;
  for (const BertInput& input : inputs) rows += count_of(input.ids);
  const std::int64_t h = config_.hidden;
  out.resize(to_size(rows * h));
  float* x = out.data();
  std::vector<float> wide(to_size(rows * std::max(3 * h, config_.intermediate)));
  std::vector<float> attended(to_size(rows * h)), added(to_size(rows * h));
  embed(inputs, x);
  QUIRE_RETURN_IF_ERROR(apply(embedding_norm_, rows, x));
  for (const Layer& l : layers_) {
    QUIRE_RETURN_IF_ERROR(multiply(l.qkv, rows, x, wide.data()));
    QUIRE_RETURN_IF_ERROR(attend(inputs, wide.data(), attended.data()));
    QUIRE_RETURN_IF_ERROR(multiply(l.attention_out, rows, attended.data(), added.data()));
    add_inplace(x, added.data(), rows * h);
    QUIRE_RETURN_IF_ERROR(apply(l.attention_norm, rows, x));
    QUIRE_RETURN_IF_ERROR(multiply(l.up, rows, x, wide.data()));
    gelu(wide.data(), rows * config_.intermediate);
    QUIRE_RETURN_IF_ERROR(multiply(l.down, rows, wide.data(), added.data()));
    add_inplace(x, added.data(), rows * h);
    QUIRE_RETURN_IF_ERROR(apply(l.norm, rows, x));
  }
  return {};
}

}  // namespace quire
