/// RetrievalHead (SpeContext) holds the query and key projections of one attention layer, which
/// score every cached token before the target runs. They are distilled to attend where the target
/// attends. Its files are those of an EAGLE-3 checkpoint: config.json and safetensors.
///
/// Input of token x_t, dm = hidden size of the target:
///   embed mode:   u_t = [RMS(emb(x_t)); 0]
///   feature mode: u_t = [RMS(emb(x_t)); RMS(g_{t-1})], g = fc [low; mid; high], the residual
///                 stream entering three layers of the target at the previous token
/// raw q_t = Wq u_t, raw k_t = Wk u_t. The head rotates both by its own RoPE and leaves the
/// target's unchanged.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/model/model.h"
#include "kernels/rows/rope.h"

namespace quire {

/// RetrievalHeadConfig holds the validated values of a head's config.json.
struct RetrievalHeadConfig {
  std::int32_t hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float rope_theta = 10000.0f, rms_norm_eps = 1e-5f;
  /// "max_position_embeddings"; YaRN extends longer contexts.
  std::int64_t trained_positions = 2048;
  std::vector<std::int32_t>
      feature_layers;  ///< three, low to high; empty: chosen by the target's depth
  /// "input_mode": "embed": features are not used even if `fc` exists.
  bool embeds_only = false;

  std::int64_t query_dim() const { return std::int64_t{num_heads} * head_dim; }
  std::int64_t key_dim() const { return std::int64_t{num_kv_heads} * head_dim; }
};

/// Parses a head's config.json and never throws. Errors: kInvalidArgument, kUnimplemented; field()
/// is the JSON key.
Result<RetrievalHeadConfig> parse_retrieval_head_config(std::string_view json);

/// RetrievalHead is immutable after load. Threads: any.
class RetrievalHead {
 public:
  virtual ~RetrievalHead() = default;

  /// Reads the folder `dir` and checks it against `target`, which must outlive the head. Tensors
  /// are named "midlayer.*" or "layers.0.*", and "fc.weight"; a head without fc has embed mode
  /// only. Others (v_proj, o_proj, mlp, lm_head, d2t, t2d ...) are not read. Errors: kNotFound,
  /// kInvalidArgument, kUnimplemented, kIo, naming the tensor or key, its value and what the target
  /// needs.
  static Result<std::unique_ptr<RetrievalHead>> load(const std::filesystem::path& dir,
                                                     const Model& target);

  /// Makes random weights of a given shape for measurements, with features unless `config` says
  /// embeddings only. Deterministic in `seed`.
  static Result<std::unique_ptr<RetrievalHead>> random(const RetrievalHeadConfig& config,
                                                       const Model& target, std::uint64_t seed);

  virtual const RetrievalHeadConfig& config() const = 0;
  /// Returns the layers of the target whose input is a token's feature, in order, possibly
  /// repeated; empty in embed mode.
  virtual std::span<const std::int32_t> feature_layers() const = 0;
  bool uses_features() const { return !feature_layers().empty(); }
  /// Returns the floats of one token's feature: 3 * hidden_size.
  std::int64_t feature_dim() const { return std::int64_t{3} * config().hidden_size; }
  /// Returns the head's RoPE table, as long as the target's. Past trained_positions it uses YaRN by
  /// a constant factor, because keys are stored rotated.
  virtual const RopeTable& rope() const = 0;
  /// Returns a SHA-256 over the tensors in use and config.json's values. Keys of one head are
  /// meaningless to another.
  virtual const std::array<std::uint8_t, 32>& digest() const = 0;
  virtual std::int64_t memory_bytes() const = 0;

  /// Projects tokens to raw (unrotated) queries [rows, query_dim()] and keys [rows, key_dim()];
  /// either may be null. `features` [rows, feature_dim()] are of each row's previous token, zeros
  /// if unknown; they are not read in embed mode, and null means zeros for all. A row does not
  /// depend on the others. Errors: kInvalidArgument (an id outside the vocabulary).
  virtual Status project(std::span<const std::int32_t> token_ids, const float* features,
                         float* queries, float* keys) const = 0;
};

}  // namespace quire
