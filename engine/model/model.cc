#include "engine/model/model.h"

#include <string>

#include "base/system/free_memory.h"
#include "engine/model/benchmark_model.h"
#include "engine/model/gguf_model.h"
#include "engine/model/llama_model.h"
#include "engine/model/quantisation.h"
#include "engine/model/weights.h"
#include "kernels/matmul/group_of_blocks.h"

namespace quire {
namespace {

Status check_options(const ModelConfig& config, const ModelOptions& options) {
  if (options.kv_dtype == DType::kI8 || options.kv_dtype == DType::kF8)
    return Status::invalid("kv_dtype", "KV is stored in f16, bf16 or f32, not " +
                                           std::string(dtype_name(options.kv_dtype)));
  if (options.max_positions < 0) return Status::invalid("max_model_len", "must not be negative");
  const std::int64_t window = options.max_positions > 0 ? options.max_positions
                                                        : config.max_position_embeddings;
  if (config.sliding_window > 0 && window > config.sliding_window) {
    return Status(Code::kUnimplemented,
                  "the model attends through a sliding window of " +
                      std::to_string(config.sliding_window) + " tokens, but would be loaded for " +
                      std::to_string(window) + "; set max_model_len to at most " +
                      std::to_string(config.sliding_window),
                  "sliding_window");
  }
  return {};
}

/// Limits `config` to the layers that the options ask for.
Status keep_first_layers(ModelConfig& config, const ModelOptions& options) {
  if (options.first_layers == 0) return {};
  if (options.first_layers < 0 || options.first_layers > config.num_layers) {
    return Status::invalid("first_layers", "the model has " + std::to_string(config.num_layers) +
                                               " layers, so its first " +
                                               std::to_string(options.first_layers) +
                                               " cannot be read");
  }
  config.left_out_layers = config.num_layers - options.first_layers;
  config.num_layers = options.first_layers;
  return {};
}

/// Returns the approximate bytes of a weight, scales and a head of more bits included.
double bytes_of_weight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 4;
    case WeightFormat::kBF16:
      return 2;
    case WeightFormat::kInt8:
    case WeightFormat::kW8A8:
    case WeightFormat::kW8:
      return 1.0625;
    case WeightFormat::kW4:
      return 0.7;
  }
  return 4;
}

/// The same of blocks with kW4, which keep the bits that they have.
double bytes_of_weight(BlockType type) {
  switch (group_kind({nullptr, 0, type}, WeightFormat::kW4)) {
    case GroupKind::kFour:
      return 18.0 / 32;
    case GroupKind::kFourMin:
      return 20.0 / 32;
    default:
      return 34.0 / 32;
  }
}

double bytes_of_weight(const GgufFile& file, WeightFormat format) {
  if (format != WeightFormat::kW4) return bytes_of_weight(format);
  double weights = 0, bytes = 0;
  for (const auto& [name, view] : file.tensors()) {
    const GgufType& type = view.tensor->type;
    if (!type.blocks) continue;
    double count = 1;
    for (const std::int64_t n : view.tensor->shape) count *= static_cast<double>(n);
    weights += count;
    bytes += count * bytes_of_weight(*type.blocks);
  }
  return weights > 0 ? bytes / weights : bytes_of_weight(format);
}

double bytes_of_weight(const std::optional<Quantisation>& quantised, WeightFormat format) {
  const auto* compressed = quantised ? std::get_if<CompressedLayout>(&*quantised) : nullptr;
  const bool eight = compressed != nullptr &&
                     compressed->numbers != CompressedLayout::Numbers::kInt4;
  return bytes_of_weight(format == WeightFormat::kW4 && eight ? WeightFormat::kW8 : format);
}

std::string mib(double bytes) {
  return std::to_string(static_cast<std::int64_t>(bytes / (1 << 20)));
}

Status does_not_fit(const std::string& needs, std::int64_t available, const std::string& where) {
  return Status(Code::kResourceExhausted,
                "the model needs " + needs + ", but only " + mib(static_cast<double>(available)) +
                    " MiB of memory are free" + where,
                "model");
}

/// Refuses a model that cannot fit in memory, before the system swaps or kills the process. `file`:
/// the GGUF file it is read from, if any.
Status check_memory(const ModelConfig& config, const ModelOptions& options, Compute& compute,
                    double bytes_per_weight, const GgufFile* file = nullptr) {
  std::int64_t available = 0;
  if (const auto memory = compute.memory()) {
    QUIRE_ASSIGN_OR_RETURN(available, memory->budget(0, "model"));
  } else {
    available = available_memory();
    if (available == 0) return {};
  }
  const std::int64_t window = options.max_positions > 0 ? options.max_positions
                                                        : config.max_position_embeddings;
  const double table = static_cast<double>(window) * config.rope.rotary_dim * sizeof(float);
  double needed = static_cast<double>(config.num_parameters()) * bytes_per_weight + table;
  if (file != nullptr && compute.memory() == nullptr)
    needed += static_cast<double>(gguf_extra_bytes(*file, config, bytes_per_weight));
  if (file != nullptr && compute.memory() != nullptr) {
    // The embedding table on a device is bf16, and an untied head counts separately.
    const double rows = static_cast<double>(config.hidden_size) *
                        static_cast<double>(config.vocab_size);
    needed += rows * (config.tie_word_embeddings ? 2 : 2 - bytes_per_weight);
  }
  if (const std::int64_t ranks = compute.devices(); ranks > 1) {
    // All but the embedding table is cut; the first device has the rest, too.
    const double table_rows = static_cast<double>(config.hidden_size) *
                              static_cast<double>(config.vocab_size);
    const auto share_of = [&](double weights) {
      return weights * bytes_per_weight / static_cast<double>(ranks);
    };
    const double share = share_of(static_cast<double>(config.num_parameters()) - table_rows);
    const double of_each = share + (config.tie_word_embeddings ? share_of(table_rows) : 0) +
                           static_cast<double>(share_compute_bytes(config, ranks));
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t free, compute.share_budget("model"));
    if (of_each > static_cast<double>(free)) {
      return does_not_fit(mib(of_each) + " MiB on each of " + std::to_string(ranks) + " GPUs", free,
                          " on one of them; use more GPUs (model.tensor_parallel), larger ones or "
                          "a smaller model");
    }
    needed -= share * static_cast<double>(ranks - 1);
  }
  if (needed <= static_cast<double>(available)) return {};
  return does_not_fit(
      mib(needed) + " MiB (" + mib(table) + " of them for " + std::to_string(window) +
          " positions)",
      available,
      compute.memory() != nullptr
          ? " on the device; use a smaller max_model_len, a smaller model or a larger device"
          : "; use int8 or w4 weights, a smaller max_model_len or a smaller model");
}

Result<std::unique_ptr<Model>> load_gguf(const std::filesystem::path& path,
                                         const ModelOptions& options,
                                         std::shared_ptr<Compute> compute) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::open(path));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, gguf_model_config(*file));
  QUIRE_RETURN_IF_ERROR(check_options(config, options));
  QUIRE_RETURN_IF_ERROR(check_gguf_tensors(*file, config));
  QUIRE_RETURN_IF_ERROR(keep_first_layers(config, options));
  QUIRE_RETURN_IF_ERROR(
      check_memory(config, options, *compute, bytes_of_weight(*file, options.weights), file.get()));
  const std::unique_ptr<WeightSource> source = gguf_weights(file, config);
  QUIRE_ASSIGN_OR_RETURN(LlamaWeights weights,
                         read_llama_weights(config, options.weights, *source, *compute));
  std::vector<std::string> unused = source->unused();
  std::erase_if(unused, [&](const std::string& name) { return is_left_out(config, name); });
  if (!unused.empty()) {
    return Status(Code::kUnimplemented,
                  file->path() + ": tensor " + unused.front() +
                      " has no place in a model of type " + config.model_type,
                  unused.front());
  }
  if (weights.embedding_copy.empty()) weights.files = std::move(file);
  return make_llama_model(std::move(config), options, std::move(weights), std::move(compute));
}

/// Makes a model of made-up weights.
Result<std::unique_ptr<Model>> model_of(WeightSource& source, const ModelConfig& config,
                                        const ModelOptions& options,
                                        std::shared_ptr<Compute> compute) {
  if (compute == nullptr) compute = make_cpu_compute();
  QUIRE_RETURN_IF_ERROR(check_options(config, options));
  QUIRE_RETURN_IF_ERROR(check_memory(config, options, *compute, bytes_of_weight(options.weights)));
  QUIRE_ASSIGN_OR_RETURN(LlamaWeights weights,
                         read_llama_weights(config, options.weights, source, *compute));
  return make_llama_model(config, options, std::move(weights), std::move(compute));
}

}  // namespace

std::int64_t share_compute_bytes(const ModelConfig& c, std::int64_t devices) {
  // A tile of expanded weights, and partial sums of few rows.
  constexpr std::int64_t kScratch = std::int64_t{128} << 20;
  const std::int64_t q = std::int64_t{c.num_heads} * c.head_dim,
                     kv = std::int64_t{c.num_kv_heads} * c.head_dim, hidden = c.hidden_size,
                     wide = c.intermediate_size;
  const std::int64_t inputs = std::max(hidden, q) + 2 * wide,
                     outputs = (2 * wide + std::max(hidden, q + 2 * kv)) / devices + 1;
  return kDevicePieceRows * (inputs + outputs) * static_cast<std::int64_t>(sizeof(float)) +
         kScratch;
}

Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& dir,
                                          const ModelOptions& options,
                                          std::shared_ptr<Compute> compute) {
  if (compute == nullptr) compute = make_cpu_compute();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(dir));
  if (gguf) return load_gguf(*gguf, options, std::move(compute));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, load_model_config(dir));
  QUIRE_RETURN_IF_ERROR(check_options(config, options));
  QUIRE_RETURN_IF_ERROR(keep_first_layers(config, options));
  QUIRE_ASSIGN_OR_RETURN(const std::string json, read_json_file(dir / "config.json"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<Quantisation> quantised, quantisation_of(json));
  QUIRE_RETURN_IF_ERROR(
      check_memory(config, options, *compute, bytes_of_weight(quantised, options.weights)));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<TensorFolder> folder, TensorFolder::open(dir));
  const std::unique_ptr<WeightSource> source = quantised ? quantised_weights(*folder, dir.string(),
                                                                             *quantised)
                                                         : file_weights(*folder, dir.string());
  QUIRE_ASSIGN_OR_RETURN(LlamaWeights weights,
                         read_llama_weights(config, options.weights, *source, *compute));
  if (weights.embedding_copy.empty()) weights.files = std::move(folder);
  return make_llama_model(std::move(config), options, std::move(weights), std::move(compute));
}

Result<std::unique_ptr<Model>> make_random_model(const ModelConfig& config,
                                                 const ModelOptions& options, std::uint64_t seed,
                                                 std::shared_ptr<Compute> compute) {
  return model_of(*random_weights(seed), config, options, std::move(compute));
}

Result<std::unique_ptr<Model>> make_benchmark_model(const ModelConfig& config,
                                                    const ModelOptions& options, std::uint64_t seed,
                                                    std::shared_ptr<Compute> compute) {
  return model_of(*repeating_weights(seed), config, options, std::move(compute));
}

}  // namespace quire
