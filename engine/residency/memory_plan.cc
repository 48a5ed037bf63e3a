#include "engine/residency/memory_plan.h"

#include <algorithm>
#include <string>

#include "engine/model/model.h"

namespace quire {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int32_t kLeastChunk = 64, kMostChunk = 4096, kMostRows = 64;
constexpr std::int64_t kMostMeans = 1024 * kMiB;
/// The rows whose logits are computed at once, keys of a chunk of decode attention, and rows of a
/// document that one copy uploads.
constexpr std::int64_t kLogitRows = 64, kDecodeKeys = 256, kCopiedRows = 8192;
/// The statistics of a context's column in one layer.
constexpr std::int64_t kColumnBytes = 3 * static_cast<std::int64_t>(sizeof(double));
/// The partial results of attention, and a tile of expanded weights.
constexpr std::int64_t kScratch = 128 * kMiB;
/// The passes that may be between two layers at the same time, each with its own buffers: a
/// query's, one that waits for its documents, and ingest's.
constexpr std::int64_t kPasses = 3;

}  // namespace

std::int64_t compute_bytes(const MemoryRequest& w, std::int32_t chunk_tokens,
                           std::int32_t decode_rows) {
  const ModelConfig& c = w.model;
  const std::int64_t hidden = c.hidden_size, wide = c.intermediate_size,
                     q = std::int64_t{c.num_heads} * c.head_dim,
                     kv = std::int64_t{c.num_kv_heads} * c.head_dim;
  const std::int64_t rows = std::max<std::int64_t>(chunk_tokens, decode_rows),
                     piece = std::min<std::int64_t>(rows, kDevicePieceRows);
  const std::int64_t of_pass = kPasses * rows * (2 * hidden + 3 * q + c.num_heads);
  const std::int64_t of_model = rows * (q + 4 * kv) +
                                piece * (2 * hidden + 3 * wide + std::max({hidden, q, wide}));
  const std::int64_t logits = (kLogitRows + decode_rows) * c.vocab_size;
  const std::int64_t partial = decode_rows * c.num_heads *
                               ((w.window + kDecodeKeys - 1) / kDecodeKeys) * (c.head_dim + 1);
  // Four uploads of half as many rows, and what arrives for one of them before a gather.
  const std::int64_t copies = 5 * std::min(w.window, kCopiedRows) * w.kv_row_bytes / 2;
  // Buffers of hooks (compute/fetch_ops.h): rotated queries, two buffers for a layer's rows, sums
  // of a context's columns and a compressor's scores in every layer.
  const std::int64_t hooks = rows * (q * static_cast<std::int64_t>(sizeof(float)) +
                                     2 * w.kv_row_bytes) +
                             c.num_layers * w.window *
                                 (kColumnBytes +
                                  c.num_kv_heads * static_cast<std::int64_t>(sizeof(float)));
  // What the first of several devices gathers: outputs of a product, and activated channels.
  const std::int64_t gathered = w.devices > 1
                                    ? std::max(piece * std::max(hidden, q + 2 * kv),
                                               (kLogitRows + decode_rows) * c.vocab_size) +
                                          piece * wide
                                    : 0;
  // What it broadcasts and gathers of KV and attention: new rows, outputs, scores, and all rows of
  // a layer for the statistics of ingest.
  const std::int64_t split = w.split_kv ? rows * (q + 2 * kv) + c.num_kv_heads * w.window +
                                              2 * w.window * w.kv_row_bytes /
                                                  static_cast<std::int64_t>(sizeof(float))
                                        : 0;
  return (of_pass + of_model + logits + partial + gathered + split) *
             static_cast<std::int64_t>(sizeof(float)) +
         copies + hooks + kScratch;
}

Result<MemoryPlan> plan_memory(std::int64_t left, const MemoryRequest& w) {
  const std::int64_t beside = w.cache_bytes > 0 ? left - w.cache_bytes : left;
  const std::int32_t least = w.chunk_tokens > 0 ? w.chunk_tokens : kLeastChunk;
  // Requested caches may take everything but what the smallest sizes need; other caches get at
  // least half.
  if (compute_bytes(w, least, 1) > (w.cache_bytes > 0 ? beside : left / 2)) {
    return Status(Code::kResourceExhausted,
                  "of the " + std::to_string(left) +
                      " bytes that the device has left, computing needs " +
                      std::to_string(compute_bytes(w, least, 1)) + " with pieces of " +
                      std::to_string(least) + " tokens" +
                      (w.cache_bytes > 0 ? " and model.working_cache_bytes asks for " +
                                               std::to_string(w.cache_bytes) + "; lower it"
                                         : "") +
                      ", or free memory (nvidia-smi)",
                  "model.working_cache_bytes");
  }
  MemoryPlan plan{.left_bytes = left, .chunk_tokens = least, .decode_rows = 1};
  for (std::int32_t chunk = kMostChunk; w.chunk_tokens == 0 && chunk > least; chunk /= 2) {
    if (compute_bytes(w, chunk, 1) > std::min(left / 8, beside)) continue;
    plan.chunk_tokens = chunk;
    break;
  }
  for (std::int32_t rows = kMostRows; rows > 1; rows /= 2) {
    if (compute_bytes(w, plan.chunk_tokens, rows) > std::min(left / 6, beside)) continue;
    plan.decode_rows = rows;
    break;
  }
  plan.compute_bytes = compute_bytes(w, plan.chunk_tokens, plan.decode_rows);
  plan.means_bytes = std::clamp<std::int64_t>(beside - plan.compute_bytes, 0,
                                              std::min(left / 64, kMostMeans));
  const std::int64_t rest = beside - plan.compute_bytes - plan.means_bytes;
  if (w.retrieved_bytes > (w.cache_bytes > 0 ? rest : rest / 2)) {
    return Status(
        Code::kResourceExhausted,
        "of the " + std::to_string(left) + " bytes that the device has left, computing takes " +
            std::to_string(plan.compute_bytes) + " and model.device_cache_bytes asks for " +
            std::to_string(w.retrieved_bytes) +
            ", which leaves too little for working caches; lower it",
        "model.device_cache_bytes");
  }
  plan.retrieved_bytes = w.retrieved_bytes >= 0 ? w.retrieved_bytes
                                                : std::clamp<std::int64_t>(
                                                      rest, 1, std::max<std::int64_t>(1, left / 4));
  plan.cache_bytes = w.cache_bytes > 0 ? w.cache_bytes : rest - plan.retrieved_bytes;
  return plan;
}

}  // namespace quire
