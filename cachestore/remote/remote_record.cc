#include "cachestore/remote/remote_record.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <span>

#include "base/sha256.h"
#include "cachestore/format/byte_io.h"
#include "cachestore/remote/remote_keys.h"

namespace quire {
namespace {

/// Version 2 names the key of its values; a record without a key has version 1.
constexpr std::uint8_t kVersion = 1, kSealedVersion = 2;
constexpr std::size_t kMaxFingerprintBytes = 256;
constexpr std::uint64_t kMaxStored = 1u << 25;

Status damaged() { return Status::corruption("the record of a shared segment is damaged"); }

std::uint64_t sum_of(const ValueSlots& sizes, std::uint64_t first, std::uint64_t last) {
  std::uint64_t sum = 0, at = 0;
  for (const auto& run : sizes.runs()) {
    const std::uint64_t end = at + run.count;
    const std::uint64_t from = std::max(at, first), to = std::min(end, last);
    if (from < to) sum += (to - from) * run.payload_bytes;
    at = end;
  }
  return sum;
}

}  // namespace

std::uint64_t RemoteRecord::value_bytes() const { return sum_of(sizes, 0, num_values()); }
std::uint64_t RemoteRecord::sketch_bytes() const {
  return sum_of(sizes, num_values(), num_stored());
}
std::uint64_t RemoteRecord::bytes_beside() const {
  return record::kValueHeaderBytes + (key_id == 0 ? 0 : kSealBytes);
}
std::uint64_t RemoteRecord::stored_bytes() const {
  return value_bytes() + sketch_bytes() + num_stored() * bytes_beside();
}

std::string encode_remote_record(const RemoteRecord& r) {
  ByteWriter w;
  w.number(r.key_id == 0 ? kVersion : kSealedVersion);
  if (r.key_id != 0) w.number(r.key_id);
  w.digest(r.key);
  w.text(r.fingerprint);
  w.number(r.layout.num_blocks);
  w.number(r.layout.values_per_block);
  w.number(r.layout.num_sketches);
  w.varint(r.sizes.runs().size());
  for (const auto& run : r.sizes.runs()) {
    w.varint(run.payload_bytes);
    w.varint(run.count);
  }
  return record::encode_opaque(w.take());
}

Result<RemoteRecord> decode_remote_record(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const std::string payload, record::decode_opaque(bytes));
  ByteReader r(payload);
  RemoteRecord out;
  const auto version = r.number<std::uint8_t>();
  if (version == kSealedVersion) out.key_id = r.number<std::uint64_t>();
  if (version != kVersion && out.key_id == 0) return damaged();
  out.key = r.digest();
  out.fingerprint = r.text(kMaxFingerprintBytes);
  out.layout.num_blocks = r.number<std::uint32_t>();
  out.layout.values_per_block = r.number<std::uint32_t>();
  out.layout.num_sketches = r.number<std::uint32_t>();
  if (!r.ok() || out.layout.num_blocks == 0 || out.layout.values_per_block == 0 ||
      out.layout.num_blocks > kMaxStored || out.layout.values_per_block > kMaxStored ||
      out.layout.num_sketches > kMaxStored || out.num_stored() > kMaxStored)
    return damaged();
  std::uint64_t left = out.num_stored();
  const std::uint64_t num = r.varint(left);
  for (std::uint64_t i = 0; i < num && r.ok(); ++i) {
    const auto size = static_cast<std::uint32_t>(r.varint(record::kMaxValueBytes));
    const auto count = static_cast<std::uint32_t>(r.varint(left));
    const auto& runs = out.sizes.runs();
    if (!r.ok() || size == 0 || count == 0 || (!runs.empty() && runs.back().payload_bytes == size))
      return damaged();
    out.sizes.add(size, count);
    left -= count;
  }
  if (!r.ok() || left != 0 || !r.at_end()) return damaged();
  return out;
}

std::string remote_name(const ContextKey& key, std::string_view fingerprint, std::uint64_t key_id) {
  std::string out = std::string(fingerprint) + "." + key.hex();
  if (key_id == 0) return out;
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016" PRIx64, key_id);
  return out + "." + hex;
}

record::ValueName remote_value_name(const ContextKey& key, std::string_view fingerprint,
                                    const SegmentLayout& layout, std::uint64_t position) {
  Sha256 hash;
  hash.update_field("quire-remote-segment");
  hash.update(std::as_bytes(std::span(key.bytes)));
  hash.update_field(fingerprint);
  const Digest digest = hash.finish();
  record::ValueName name;
  std::memcpy(&name.segment, digest.bytes.data(), sizeof name.segment);
  const std::uint64_t values = std::uint64_t{layout.num_blocks} * layout.values_per_block;
  if (position < values) {
    name.block = static_cast<std::uint32_t>(position / layout.values_per_block);
    name.group = static_cast<std::uint32_t>(position % layout.values_per_block);
  } else {
    name.part = record::Part::kSketch;
    name.block = static_cast<std::uint32_t>(position - values);
  }
  return name;
}

}  // namespace quire
