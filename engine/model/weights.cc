#include "engine/model/weights.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "base/index.h"
#include "kernels/matmul/group_of_blocks.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  TensorEntry entry;
  entry.shape.assign(shape.begin(), shape.end());
  return entry.shape_text();
}

std::int64_t count(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

class FileWeights final : public WeightSource {
 public:
  FileWeights(const TensorFolder& folder, std::string location)
      : folder_(folder), location_(std::move(location)) {}

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    const TensorView view = folder_.find(name);
    if (!view.entry) {
      return Status::invalid(name, location_ + ": tensor " + name +
                                       " is missing; it must have the shape " + shape_text(shape) +
                                       " (" + from + " of config.json)");
    }
    if (view.entry->shape != shape) {
      return Status::invalid(*view.file, location_ + "/" + *view.file + ": tensor " + name +
                                             " has the shape " + view.entry->shape_text() +
                                             ", but config.json (" + from + ") says " +
                                             shape_text(shape));
    }
    const std::optional<DType> dtype = view.entry->dtype;
    if (!dtype || *dtype == DType::kI8) {
      return Status(Code::kUnimplemented,
                    location_ + "/" + *view.file + ": tensor " + name + " is stored as " +
                        view.entry->dtype_name + "; only F32, F16 and BF16 are supported",
                    *view.file);
    }
    used_.insert(name);
    WeightTensor tensor{
        .name = name, .data = view.bytes.data(), .dtype = *dtype, .shape = std::move(shape)};
    tensor.num_elements = count(tensor.shape);
    tensor.mapped = reinterpret_cast<std::uintptr_t>(tensor.data) % dtype_bytes(*dtype) == 0;
    if (tensor.mapped) return tensor;
    // The format does not guarantee alignment, so copy the bytes.
    auto& copy = copies_[name];
    copy.assign(view.bytes.begin(), view.bytes.end());
    tensor.data = copy.data();
    return tensor;
  }

  void drop(const WeightTensor& tensor) override {
    if (copies_.erase(tensor.name) == 0) folder_.drop_pages(folder_.find(tensor.name));
  }
  std::string location() const override { return location_; }
  std::int64_t total_bytes() const override {
    return static_cast<std::int64_t>(folder_.total_bytes());
  }
  std::vector<std::string> unused() const override {
    std::vector<std::string> out;
    for (std::string& name : folder_.names()) {
      if (!used_.contains(name)) out.push_back(std::move(name));
    }
    return out;
  }

 private:
  const TensorFolder& folder_;
  std::string location_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<std::byte>> copies_;
};

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char*) override {
    WeightTensor tensor{.name = name, .dtype = DType::kBF16, .shape = std::move(shape)};
    tensor.num_elements = count(tensor.shape);
    std::vector<std::uint16_t>& values = values_[name];
    values.resize(to_size(tensor.num_elements));
    fill(tensor, values);
    tensor.data = values.data();
    return tensor;
  }

  void drop(const WeightTensor& tensor) override { values_.erase(tensor.name); }
  std::string location() const override { return "random weights"; }
  std::int64_t total_bytes() const override { return 0; }
  std::vector<std::string> unused() const override { return {}; }

 protected:
  /// Computes the tensor's values.
  void fill(const WeightTensor& tensor, std::vector<std::uint16_t>& values) const {
    const std::string& name = tensor.name;
    std::uint64_t stream = seed_;
    for (char c : name) stream = mix(stream ^ static_cast<unsigned char>(c));
    const bool vector = tensor.shape.size() == 1;
    const float center = vector && name.find("norm") != std::string::npos ? 1.0f : 0.0f;
    // Values are uniform in +-sqrt(3 / k): variance 1 / k, as in a trained initialisation.
    const float limit = vector ? 0.1f : std::sqrt(3.0f / static_cast<float>(tensor.shape.back()));
    parallel_for(tensor.num_elements, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::uint64_t word = mix(stream + static_cast<std::uint64_t>(i) / 4) >>
                                   (16 * (i % 4));
        const auto unit = static_cast<float>(static_cast<std::int16_t>(word & 0xffff)) / 32768.0f;
        values[at(i)] = f32_to_bf16(center + limit * unit);
      }
    });
  }

 private:
  std::uint64_t seed_;
  std::map<std::string, std::vector<std::uint16_t>> values_;
};

/// Keeps one array for each number of columns, as long as the largest matrix that has them.
class RepeatingWeights final : public RandomWeights {
 public:
  using RandomWeights::RandomWeights;

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    if (shape.size() == 1) return RandomWeights::get(name, std::move(shape), from);
    WeightTensor tensor{.name = name, .dtype = DType::kBF16, .shape = std::move(shape)};
    tensor.num_elements = count(tensor.shape);
    // A longer array is a new one, because tensors given before still lie in the shorter.
    std::vector<std::vector<std::uint16_t>>& arrays = arrays_[tensor.shape.back()];
    if (arrays.empty() || arrays.back().size() < to_size(tensor.num_elements)) {
      arrays.emplace_back(to_size(tensor.num_elements));
      fill(tensor, arrays.back());
    }
    tensor.data = arrays.back().data();
    return tensor;
  }
  void drop(const WeightTensor& tensor) override {
    if (tensor.shape.size() == 1) RandomWeights::drop(tensor);
  }
  bool hashes_bytes() const override { return false; }

 private:
  std::map<std::int64_t, std::vector<std::vector<std::uint16_t>>> arrays_;
};

/// Returns the index of the first value that is infinite or not a number, or -1.
template <class Word>
std::int64_t first_not_finite(const Word* words, std::int64_t n, Word exponent) {
  constexpr std::int64_t kRun = 4096;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = std::min(n, begin + kRun);
    unsigned found = 0;
    for (std::int64_t i = begin; i < end; ++i)
      found |= static_cast<unsigned>((words[i] & exponent) == exponent);
    if (!found) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if ((words[i] & exponent) == exponent) return i;
    }
  }
  return -1;
}

/// Returns the first weight of the first block with a scale that is infinite or not a number, or
/// -1.
std::int64_t first_not_finite(BlockType type, const std::byte* blocks, std::int64_t num_blocks) {
  constexpr std::int64_t kRun = 1024;
  for (std::int64_t begin = 0; begin < num_blocks; begin += kRun) {
    const std::int64_t end = std::min(num_blocks, begin + kRun);
    if (blocks_are_finite(type, blocks + begin * block_bytes(type), end - begin)) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (!blocks_are_finite(type, blocks + i * block_bytes(type), 1))
        return i * block_weights(type);
    }
  }
  return -1;
}

std::int64_t first_not_finite(const WeightTensor& t) {
  if (t.blocks) {
    return first_not_finite(*t.blocks, static_cast<const std::byte*>(t.data),
                            t.num_elements / block_weights(*t.blocks));
  }
  switch (t.dtype) {
    case DType::kF32:
      return first_not_finite(static_cast<const std::uint32_t*>(t.data), t.num_elements,
                              std::uint32_t{0x7f800000});
    case DType::kF16:
      return first_not_finite(static_cast<const std::uint16_t*>(t.data), t.num_elements,
                              std::uint16_t{0x7c00});
    case DType::kBF16:
      return first_not_finite(static_cast<const std::uint16_t*>(t.data), t.num_elements,
                              std::uint16_t{0x7f80});
    case DType::kI8:
    case DType::kF8:
      break;
  }
  return -1;
}

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes) {
  Digest out{};
  unsigned size = 0;
  QUIRE_CHECK(
      EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, EVP_sha256(), nullptr) == 1 &&
          size == out.size(),
      "SHA-256 failed");
  return out;
}

}  // namespace

std::unique_ptr<WeightSource> file_weights(const TensorFolder& folder, std::string location) {
  return std::make_unique<FileWeights>(folder, std::move(location));
}

std::unique_ptr<WeightSource> random_weights(std::uint64_t seed) {
  return std::make_unique<RandomWeights>(seed);
}

std::unique_ptr<WeightSource> repeating_weights(std::uint64_t seed) {
  return std::make_unique<RepeatingWeights>(seed);
}

struct WeightsDigest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
  void update(const void* data, std::size_t bytes) {
    QUIRE_CHECK(EVP_DigestUpdate(context, data, bytes) == 1, "SHA-256 failed");
  }
};

WeightsDigest::WeightsDigest() : state_(std::make_unique<State>()) {
  QUIRE_CHECK(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
              "SHA-256 failed");
}
WeightsDigest::~WeightsDigest() = default;

Status WeightsDigest::add(std::span<const WeightTensor> tensors) {
  std::vector<Digest> digests(tensors.size());
  std::vector<std::int64_t> bad(tensors.size(), -1);
  parallel_for(count_of(tensors), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = at(begin); i < static_cast<std::size_t>(end); ++i) {
      digests[i] = sha256(tensors[i].bytes());
      bad[i] = first_not_finite(tensors[i]);
    }
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const WeightTensor& t = tensors[i];
    if (bad[i] >= 0) {
      return Status::invalid(t.name, "tensor " + t.name +
                                         " holds a value that is not a finite number (element " +
                                         std::to_string(bad[i]) + "); the weights are damaged");
    }
    const int version = t.blocks ? group_version(*t.blocks) : 1;
    add_text(t.name + " " + std::string(t.type_name()) +
             (version > 1 ? "/" + std::to_string(version) : "") + " " + shape_text(t.shape) + "\n");
    state_->update(digests[i].data(), digests[i].size());
  }
  return {};
}

void WeightsDigest::add_text(std::string_view text) { state_->update(text.data(), text.size()); }

std::array<std::uint8_t, 32> WeightsDigest::finish() {
  Digest out{};
  unsigned size = 0;
  QUIRE_CHECK(EVP_DigestFinal_ex(state_->context, out.data(), &size) == 1 && size == out.size(),
              "SHA-256 failed");
  return out;
}

std::string config_digest_text(const ModelConfig& c) {
  auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  const RopeConfig& r = c.rope;
  std::ostringstream out;
  out << "family " << static_cast<int>(c.family) << " layers " << c.num_layers << " hidden "
      << c.hidden_size << " ff " << c.intermediate_size << " heads " << c.num_heads << " kv "
      << c.num_kv_heads << " d " << c.head_dim << " vocab " << c.vocab_size << " eps "
      << bits(c.rms_norm_eps) << " tied " << c.tie_word_embeddings << " bias " << c.qkv_bias
      << c.attention_output_bias << c.mlp_bias << " qknorm " << c.qk_norm << " rope "
      << r.rotary_dim << " " << bits(r.theta) << " " << r.interleaved << " "
      << static_cast<int>(r.scaling) << " " << bits(r.factor) << " " << bits(r.low_freq_factor)
      << " " << bits(r.high_freq_factor) << " " << bits(r.beta_fast) << " " << bits(r.beta_slow)
      << " " << bits(r.attention_factor) << " " << r.original_max_position;
  for (const float divisor : c.short_divisors) out << " " << bits(divisor);
  for (const float divisor : c.long_divisors) out << " " << bits(divisor);
  out << "\n";
  return out.str();
}

}  // namespace quire
