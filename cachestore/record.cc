#include "cachestore/record.h"

#include <xxhash.h>

#include <cstring>
#include <utility>

#include "cachestore/value_hash.h"

namespace quire::record {
namespace {

enum class Kind : std::uint8_t { kHead = 1, kTokens = 2, kText = 3, kSegment = 4, kOpaque = 5 };
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kEnvelopeBytes = 12;

std::uint64_t envelope_hash(Kind kind, std::uint8_t version, std::string_view payload) {
  const auto seed = static_cast<std::uint64_t>(kind) | (std::uint64_t{version} << 8);
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

class Writer {
 public:
  explicit Writer(std::size_t reserve = 256) {
    out_.reserve(reserve + kEnvelopeBytes);
    out_.resize(kEnvelopeBytes);
  }
  void u8(std::uint8_t v) { out_ += static_cast<char>(v); }
  void u64(std::uint64_t v) {
    for (int i = 0; i < 8; ++i) out_ += static_cast<char>(v >> (8 * i));
  }
  void varint(std::uint64_t v) {
    for (; v >= 128; v >>= 7) out_ += static_cast<char>(v | 128);
    out_ += static_cast<char>(v);
  }
  void text(std::string_view s) {
    varint(s.size());
    out_ += s;
  }
  void raw(std::string_view s) { out_ += s; }
  void digest(const Digest& d) { out_.append(reinterpret_cast<const char*>(d.bytes.data()), d.bytes.size()); }

  std::string finish(Kind kind) {
    const std::uint64_t h = envelope_hash(kind, kVersion, std::string_view(out_).substr(kEnvelopeBytes));
    out_[0] = 'Q';
    out_[1] = 'R';
    out_[2] = static_cast<char>(kind);
    out_[3] = static_cast<char>(kVersion);
    for (std::size_t i = 0; i < 8; ++i) out_[4 + i] = static_cast<char>(h >> (8 * i));
    return std::move(out_);
  }

 private:
  std::string out_;
};

/// After the first failure every read gives zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }
  std::size_t left() const { return in_.size(); }

  std::uint8_t u8() { return take(1) ? static_cast<std::uint8_t>(taken_[0]) : 0; }
  std::uint64_t u64() {
    if (!take(8)) return 0;
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < 8; ++i) v |= std::uint64_t{static_cast<std::uint8_t>(taken_[i])} << (8 * i);
    return v;
  }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  std::uint64_t varint(std::uint64_t limit) {
    std::uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t b = u8();
      if (!ok_) return 0;
      if (shift == 63 && b > 1) break;
      v |= std::uint64_t{b & 127u} << shift;
      if (b < 128) return v <= limit ? v : fail();
    }
    return fail();
  }
  std::string text(std::size_t limit) {
    const std::uint64_t n = varint(limit);
    return ok_ && take(n) ? std::string(taken_) : std::string();
  }
  Digest digest() {
    Digest d;
    if (take(d.bytes.size())) std::memcpy(d.bytes.data(), taken_.data(), d.bytes.size());
    return d;
  }
  std::string_view rest() { return std::exchange(in_, {}); }

 private:
  std::uint64_t fail() {
    ok_ = false;
    return 0;
  }
  bool take(std::uint64_t n) {
    if (!ok_ || n > in_.size()) return ok_ = false;
    taken_ = in_.substr(0, static_cast<std::size_t>(n));
    in_.remove_prefix(static_cast<std::size_t>(n));
    return true;
  }
  std::string_view in_, taken_;
  bool ok_ = true;
};

Status damaged(const char* what) { return Status::corruption(std::string("a stored ") + what + " record is damaged"); }

Result<Reader> open_envelope(std::string_view bytes, Kind kind, const char* what) {
  if (bytes.size() < kEnvelopeBytes || bytes[0] != 'Q' || bytes[1] != 'R' || bytes[2] != static_cast<char>(kind)) return damaged(what);
  const auto version = static_cast<std::uint8_t>(bytes[3]);
  Reader header(bytes.substr(4, 8));
  const std::uint64_t want = header.u64();
  const std::string_view payload = bytes.substr(kEnvelopeBytes);
  if (envelope_hash(kind, version, payload) != want) return damaged(what);
  if (version != kVersion) return Status::corruption(std::string("a stored ") + what + " record has version " + std::to_string(version) + ", newer than this program knows");
  return Reader(payload);
}

void write_optional(Writer& w, bool has, std::uint64_t value) {
  w.u8(has ? 1 : 0);
  if (has) w.u64(value);
}

}  // namespace

std::string encode_head(const DocumentManifest& m) {
  Writer w(256 + m.metadata_json.size() + 48 * m.chunks.size());
  w.text(m.ns);
  w.text(m.id);
  w.u64(m.version);
  w.text(m.title);
  w.text(m.metadata_json);
  w.text(m.content_hash);
  w.varint(m.text_bytes);
  w.varint(m.num_tokens);
  w.u8(static_cast<std::uint8_t>(m.status));
  w.text(m.error_code);
  w.text(m.error_message);
  w.u8(m.pinned ? 1 : 0);
  write_optional(w, m.ttl_seconds.has_value(), m.ttl_seconds.value_or(0));
  w.u8(static_cast<std::uint8_t>(m.ttl_anchor));
  write_optional(w, m.expires_at_ms.has_value(), static_cast<std::uint64_t>(m.expires_at_ms.value_or(0)));
  w.u64(static_cast<std::uint64_t>(m.created_ms));
  w.u64(static_cast<std::uint64_t>(m.updated_ms));
  w.u64(static_cast<std::uint64_t>(m.committed_ms));
  w.u64(static_cast<std::uint64_t>(m.last_used_ms));
  w.varint(m.hits);
  w.text(m.chunking);
  w.text(m.fingerprint);
  w.digest(m.salt_digest);
  w.text(m.job_id);
  w.varint(m.chunks.size());
  for (const auto& c : m.chunks) {
    w.varint(c.byte_begin);
    w.varint(c.byte_end);
    w.varint(c.num_tokens);
    w.varint(c.block_tokens);
    w.digest(c.key);
  }
  return w.finish(Kind::kHead);
}

Result<DocumentManifest> decode_head(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(Reader r, open_envelope(bytes, Kind::kHead, "document"));
  DocumentManifest m;
  m.ns = r.text(kMaxIdBytes);
  m.id = r.text(kMaxIdBytes);
  m.version = r.u64();
  m.title = r.text(kMaxTitleBytes);
  m.metadata_json = r.text(kMaxMetadataBytes);
  m.content_hash = r.text(kMaxIdBytes);
  m.text_bytes = r.varint(kMaxTextBytes);
  m.num_tokens = r.varint(kMaxDocumentTokens);
  m.status = static_cast<DocumentStatus>(r.u8());
  m.error_code = r.text(kMaxTitleBytes);
  m.error_message = r.text(kMaxTitleBytes);
  const std::uint8_t pinned = r.u8();
  m.pinned = pinned == 1;
  const std::uint8_t has_ttl = r.u8();
  if (has_ttl) m.ttl_seconds = r.u64();
  const std::uint8_t anchor = r.u8();
  m.ttl_anchor = static_cast<TtlAnchor>(anchor);
  const std::uint8_t has_expiry = r.u8();
  if (has_expiry) m.expires_at_ms = r.i64();
  m.created_ms = r.i64();
  m.updated_ms = r.i64();
  m.committed_ms = r.i64();
  m.last_used_ms = r.i64();
  m.hits = r.varint(UINT64_MAX);
  m.chunking = r.text(kMaxTitleBytes);
  m.fingerprint = r.text(kMaxTitleBytes);
  m.salt_digest = r.digest();
  m.job_id = r.text(kMaxTitleBytes);
  const std::uint64_t num_chunks = r.varint(kMaxChunks);
  if (!r.ok() || num_chunks > r.left() / 36 || pinned > 1 || has_ttl > 1 || has_expiry > 1 || anchor > 1) return damaged("document");
  m.chunks.resize(num_chunks);
  for (auto& c : m.chunks) {
    c.byte_begin = r.varint(kMaxTextBytes);
    c.byte_end = r.varint(kMaxTextBytes);
    c.num_tokens = static_cast<std::uint32_t>(r.varint(kMaxDocumentTokens));
    c.block_tokens = static_cast<std::uint32_t>(r.varint(4096));
    c.key = r.digest();
  }
  if (!r.ok() || !r.at_end() || !validate_manifest(m).ok()) return damaged("document");
  return m;
}

std::string encode_tokens(const DocumentManifest& m) {
  std::size_t total = 0;
  for (const auto& c : m.chunks) total += c.token_ids.size();
  Writer w(16 + 3 * total);
  w.varint(m.chunks.size());
  for (const auto& c : m.chunks) {
    w.varint(c.token_ids.size());
    for (std::int32_t id : c.token_ids) w.varint(static_cast<std::uint32_t>(id));
  }
  return w.finish(Kind::kTokens);
}

Status decode_tokens(std::string_view bytes, DocumentManifest* m) {
  auto opened = open_envelope(bytes, Kind::kTokens, "token");
  if (!opened.ok()) return opened.status();
  Reader r = *opened;
  if (r.varint(kMaxChunks) != m->chunks.size() || !r.ok()) return damaged("token");
  for (auto& c : m->chunks) {
    const std::uint64_t n = r.varint(kMaxDocumentTokens);
    if (!r.ok() || n != c.num_tokens || n > r.left()) return damaged("token");
    c.token_ids.resize(n);
    for (auto& id : c.token_ids) id = static_cast<std::int32_t>(static_cast<std::uint32_t>(r.varint(UINT32_MAX)));
  }
  if (!r.ok() || !r.at_end()) return damaged("token");
  return {};
}

std::string encode_text(std::string_view text) {
  Writer w(text.size());
  w.raw(text);
  return w.finish(Kind::kText);
}
Result<std::string> decode_text(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(Reader r, open_envelope(bytes, Kind::kText, "text"));
  return std::string(r.rest());
}

Status check_envelope(std::string_view bytes) {
  if (bytes.size() < kEnvelopeBytes) return damaged("small");
  auto opened = open_envelope(bytes, static_cast<Kind>(bytes[2]), "catalog");
  return opened.status();
}

std::string encode_opaque(std::string_view value) {
  Writer w(value.size());
  w.raw(value);
  return w.finish(Kind::kOpaque);
}
Result<std::string> decode_opaque(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(Reader r, open_envelope(bytes, Kind::kOpaque, "small"));
  return std::string(r.rest());
}

std::string encode_segment(const SegmentInfo& s) {
  Writer w;
  w.digest(s.key);
  w.u64(s.id);
  w.varint(s.layout.num_blocks);
  w.varint(s.layout.values_per_block);
  w.varint(s.layout.num_sketches);
  w.varint(s.value_bytes);
  w.varint(s.sketch_bytes);
  w.varint(s.disk_bytes);
  w.u64(static_cast<std::uint64_t>(s.created_ms));
  w.text(s.tenant);
  w.text(s.fingerprint);
  w.text(s.locator);
  return w.finish(Kind::kSegment);
}

Result<SegmentInfo> decode_segment(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(Reader r, open_envelope(bytes, Kind::kSegment, "segment"));
  SegmentInfo s;
  s.key = r.digest();
  s.id = r.u64();
  s.layout.num_blocks = static_cast<std::uint32_t>(r.varint(1u << 24));
  s.layout.values_per_block = static_cast<std::uint32_t>(r.varint(4096));
  s.layout.num_sketches = static_cast<std::uint32_t>(r.varint(1u << 20));
  s.value_bytes = r.varint(UINT64_MAX);
  s.sketch_bytes = r.varint(UINT64_MAX);
  s.disk_bytes = r.varint(UINT64_MAX);
  s.created_ms = r.i64();
  s.tenant = r.text(kMaxIdBytes);
  s.fingerprint = r.text(kMaxTitleBytes);
  s.locator = r.text(kMaxLocatorBytes);
  if (!r.ok() || !r.at_end() || s.layout.num_blocks == 0 || s.layout.values_per_block == 0) return damaged("segment");
  return s;
}

namespace {

constexpr std::uint32_t kValueMagic = 0x31564b51;  // "QKV1"

Hash128 value_hash(const ValueName& name, std::span<const std::byte> payload) {
  const std::uint64_t id[3] = {name.segment, (std::uint64_t{name.block} << 32) | name.group,
                               (static_cast<std::uint64_t>(name.part) << 56) | payload.size()};
  return value_hash128(payload.data(), payload.size(), XXH3_64bits(id, sizeof id));
}

}  // namespace

void write_value_header(const ValueName& name, std::span<const std::byte> payload, std::byte* header) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  const Hash128 hash = value_hash(name, payload);
  std::memset(header, 0, kValueHeaderBytes);
  std::memcpy(header, &kValueMagic, 4);
  std::memcpy(header + 4, &size, 4);
  std::memcpy(header + 16, hash.data(), 16);
}

Status check_value(const ValueName& name, std::span<const std::byte> stored) {
  if (stored.size() < kValueHeaderBytes) return Status::corruption("a stored value is truncated");
  alignas(8) std::byte want[kValueHeaderBytes];
  write_value_header(name, stored.subspan(kValueHeaderBytes), want);
  if (std::memcmp(want, stored.data(), kValueHeaderBytes) != 0) {
    return Status::corruption("the checksum of a stored value does not match (segment " + std::to_string(name.segment) + ", block " +
                              std::to_string(name.block) + ", group " + std::to_string(name.group) + ")");
  }
  return {};
}

}  // namespace quire::record
