/// Folders of retrieval heads with random weights, and the results of such a head in plain loops.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/model_files.h"

namespace quire::testing {

struct HeadShape {
  std::int64_t hidden = 48, heads = 6, kv_heads = 2, head_dim = 16;
  bool fc = true;
  std::string prefix = "midlayer.";
  std::string config;  ///< more fields, each after a comma
};

/// Writes a head and keeps its tensors.
class HeadFolder {
 public:
  explicit HeadFolder(const HeadShape& shape = {}, std::uint32_t seed = 11)
      : shape_(shape), random_(seed) {
    add(shape.prefix + "input_layernorm.weight", {shape.hidden});
    add(shape.prefix + "hidden_norm.weight", {shape.hidden});
    add(shape.prefix + "self_attn.q_proj.weight", {shape.heads * shape.head_dim, 2 * shape.hidden});
    add(shape.prefix + "self_attn.k_proj.weight",
        {shape.kv_heads * shape.head_dim, 2 * shape.hidden});
    // The head does not use this tensor.
    add(shape.prefix + "self_attn.v_proj.weight",
        {shape.kv_heads * shape.head_dim, 2 * shape.hidden});
    if (shape.fc) add("fc.weight", {shape.hidden, 3 * shape.hidden});
    write();
  }
  const fs::path& path() const { return folder_.path(); }
  const HeadShape& shape() const { return shape_; }
  const std::vector<float>& tensor(const std::string& name) const { return values_.at(name); }

  /// Removes a tensor from the file.
  void drop(const std::string& name) {
    std::erase_if(tensors_, [&](const FileTensor& t) { return t.name == name; });
    write();
  }
  void reshape(const std::string& name, std::vector<std::int64_t> shape) {
    std::erase_if(tensors_, [&](const FileTensor& t) { return t.name == name; });
    add(name, std::move(shape));
    write();
  }
  void set_config(std::string more) {
    shape_.config = std::move(more);
    write();
  }

  /// Returns W [norm(embedding); norm(fc feature)] in f64; empty feature: the second half is 0.
  std::vector<double> project(const std::string& matrix, std::span<const float> embedding,
                              std::span<const float> feature) const {
    const auto h = static_cast<std::size_t>(shape_.hidden);
    std::vector<double> u = norm({embedding.begin(), embedding.end()},
                                 shape_.prefix + "input_layernorm.weight"),
                        g(h, 0.0);
    if (!feature.empty())
      g = norm(multiply("fc.weight", {feature.begin(), feature.end()}),
               shape_.prefix + "hidden_norm.weight");
    u.insert(u.end(), g.begin(), g.end());
    return multiply(shape_.prefix + "self_attn." + matrix, u);
  }

 private:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f,
                                           shape.size() == 1 ? 0.1f : 0.3f);
    std::vector<float>& values = values_[name];
    values.resize(static_cast<std::size_t>(n));
    for (float& x : values) x = normal(random_);
    tensors_.push_back(f32_tensor(name, std::move(shape), values));
  }
  void write() const {
    const auto text = [](std::int64_t x) { return std::to_string(x); };
    write_file(folder_.path() / "config.json",
               "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"hidden_size\":" +
                   text(shape_.hidden) + ",\"num_attention_heads\":" + text(shape_.heads) +
                   ",\"num_key_value_heads\":" + text(shape_.kv_heads) + ",\"head_dim\":" +
                   text(shape_.head_dim) + ",\"rms_norm_eps\":1e-5" + shape_.config + "}");
    write_file(folder_.path() / "model.safetensors", safetensors_bytes(tensors_));
  }
  std::vector<double> multiply(const std::string& name, const std::vector<double>& x) const {
    const std::vector<float>& w = values_.at(name);
    std::vector<double> out(w.size() / x.size(), 0.0);
    for (std::size_t r = 0; r < out.size(); ++r) {
      for (std::size_t c = 0; c < x.size(); ++c) out[r] += double{w[r * x.size() + c]} * x[c];
    }
    return out;
  }
  std::vector<double> norm(std::vector<double> x, const std::string& weight) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    const std::vector<float>& w = values_.at(weight);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * double{w[i]};
    return x;
  }

  HeadShape shape_;
  std::mt19937 random_;
  TempFolder folder_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::vector<float>> values_;
};

}  // namespace quire::testing
