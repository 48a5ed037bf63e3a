#include "engine/record/fingerprint.h"

#include <bit>

namespace quire {
namespace {

void add_rope(const RopeConfig& rope, Sha256& hash) {
  const auto f32 = [&hash](float x) { hash.update_u64(std::bit_cast<std::uint32_t>(x)); };
  hash.update_u64(static_cast<std::uint64_t>(rope.head_dim))
      .update_u64(static_cast<std::uint64_t>(rope.rotary_dim));
  hash.update_u64(rope.interleaved ? 1 : 0).update_u64(static_cast<std::uint64_t>(rope.scaling));
  for (float x : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                  rope.beta_fast, rope.beta_slow, rope.attention_factor})
    f32(x);
  hash.update_u64(static_cast<std::uint64_t>(rope.original_max_position));
  for (const float divisor : rope.divisors) f32(divisor);
}

}  // namespace

Digest kv_fingerprint(std::string_view key_space, const Model& model, const Tokenizer& tokenizer,
                      std::span<const std::int32_t> ingest_prefix) {
  Sha256 hash;
  hash.update_field(key_space);
  hash.update_u64(kKvLayoutVersion).update_u64(kKvNumericsVersion);
  hash.update(std::as_bytes(std::span(model.weights_digest())));
  hash.update_field(weight_format_name(model.options().weights));
  hash.update_field(dtype_name(model.options().kv_dtype));
  add_rope(model.config().rope, hash);
  hash.update(std::as_bytes(std::span(tokenizer.digest())));
  hash.update_u64(ingest_prefix.size()).update(std::as_bytes(ingest_prefix));
  return hash.finish();
}

}  // namespace quire
