/// A retrieval head (SpeContext): the queries and keys of one attention layer, distilled to attend
/// where the target attends, which score every cached token before the target runs. Its files are
/// those of an EAGLE-3 checkpoint: config.json and safetensors.
///
/// Input of token x_t, dm = hidden size of the target:
///   embed mode    u_t = [RMS(emb(x_t)); 0]
///   feature mode  u_t = [RMS(emb(x_t)); RMS(g_{t-1})],  g = fc [low; mid; high], the residual
///   stream entering three layers of the target at the token before
/// raw q_t = Wq u_t, raw k_t = Wk u_t. The head rotates both by a RoPE of its own; the target's is
/// not touched.
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
#include "kernels/rope.h"

namespace quire {

/// What config.json of a head says; every number checked for sense.
struct RetrievalHeadConfig {
  std::int32_t hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float rope_theta = 10000.0f, rms_norm_eps = 1e-5f;
  /// "max_position_embeddings"; contexts beyond it are reached by YaRN
  std::int64_t trained_positions = 2048;
  std::vector<std::int32_t> feature_layers;  ///< three, low to high; empty: by the target's depth
  /// "input_mode": "embed": features are not used even where `fc` is there
  bool embeds_only = false;

  std::int64_t query_dim() const { return std::int64_t{num_heads} * head_dim; }
  std::int64_t key_dim() const { return std::int64_t{num_kv_heads} * head_dim; }
};

/// Errors: kInvalidArgument, kUnimplemented; field() is the JSON key. Never throws.
Result<RetrievalHeadConfig> parse_retrieval_head_config(std::string_view json);

/// Immutable after load. Threads: any.
class RetrievalHead {
 public:
  virtual ~RetrievalHead() = default;

  /// Reads the folder `dir` and checks it against `target`, which must outlive the head. Tensors
  /// are named "midlayer.*" or "layers.0.*", and "fc.weight"; a head without fc has embed mode
  /// only. Others (v_proj, o_proj, mlp, lm_head, d2t, t2d ...) are not read. Errors: kNotFound,
  /// kInvalidArgument, kUnimplemented, kIo, naming the tensor or key, what it has and what the
  /// target needs.
  static Result<std::unique_ptr<RetrievalHead>> load(const std::filesystem::path& dir,
                                                     const Model& target);

  /// Random weights of a given shape, with features unless `config` says embeddings only: for
  /// measurements. Deterministic in `seed`.
  static Result<std::unique_ptr<RetrievalHead>> random(const RetrievalHeadConfig& config,
                                                       const Model& target, std::uint64_t seed);

  virtual const RetrievalHeadConfig& config() const = 0;
  /// Layers of the target whose input is a token's feature, in order; they may repeat. Empty in
  /// embed mode.
  virtual std::span<const std::int32_t> feature_layers() const = 0;
  bool uses_features() const { return !feature_layers().empty(); }
  /// Floats of one token's feature: 3 * hidden_size.
  std::int64_t feature_dim() const { return std::int64_t{3} * config().hidden_size; }
  /// As many positions as the target's table. Past trained_positions: YaRN by a factor fixed here,
  /// because keys are kept rotated.
  virtual const RopeTable& rope() const = 0;
  /// SHA-256 over the tensors in use and what config.json says: keys of one head mean nothing to
  /// another.
  virtual const std::array<std::uint8_t, 32>& digest() const = 0;
  virtual std::int64_t memory_bytes() const = 0;

  /// Raw (unrotated) rows: queries [rows, query_dim()], keys [rows, key_dim()], either may be null.
  /// `features`: [rows, feature_dim()] of the token before each, zeros where there is none; null,
  /// and in embed mode not read: zeros for all. A row does not depend on the others. Errors:
  /// kInvalidArgument (an id outside the vocabulary).
  virtual Status project(std::span<const std::int32_t> token_ids, const float* features,
                         float* queries, float* keys) const = 0;
};

}  // namespace quire
