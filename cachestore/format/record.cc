#include "cachestore/format/record.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cachestore/format/byte_io.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/value_hash.h"

namespace quire::record {
namespace {

enum class Kind : std::uint8_t {
  kHead = 1,
  kTokens = 2,
  kText = 3,
  kSegment = 4,
  kOpaque = 5,
  kPlacement = 6
};
/// Layout 1 stored positions of values with the segment. They are read over.
constexpr std::size_t kMaxLocatorBytes = 64 << 10;
constexpr std::uint8_t kVersion = 1;
/// Version of a head with left contexts, so that a program without them does not read it.
constexpr std::uint8_t kLeftContextVersion = 2;
/// Version of token ids that pages and headings follow.
constexpr std::uint8_t kMarksVersion = 2;
/// Version of token ids that pages and headings, which may be none, and related chunks follow.
constexpr std::uint8_t kRelatedVersion = 3;
/// Version of a head whose text lies under a name of its own.
constexpr std::uint8_t kTextNameVersion = 3;
constexpr std::size_t kEnvelopeBytes = 12;

std::uint64_t envelope_hash(Kind kind, std::uint8_t version, std::string_view payload) {
  const auto seed = static_cast<std::uint64_t>(kind) | (std::uint64_t{version} << 8);
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

ByteWriter begin_record(std::size_t reserve = 256) { return ByteWriter(kEnvelopeBytes, reserve); }

std::string seal(ByteWriter& w, Kind kind, std::uint8_t version = kVersion) {
  std::string out = w.take();
  const std::uint64_t h = envelope_hash(kind, version,
                                        std::string_view(out).substr(kEnvelopeBytes));
  out[0] = 'Q';
  out[1] = 'R';
  out[2] = static_cast<char>(kind);
  out[3] = static_cast<char>(version);
  for (std::size_t i = 0; i < 8; ++i) out[4 + i] = static_cast<char>(h >> (8 * i));
  return out;
}

Status damaged(const char* what) {
  return Status::corruption(std::string("a stored ") + what + " record is damaged");
}

/// Returns the newest version of a kind of record that this program writes.
std::uint8_t newest_version(Kind kind) {
  switch (kind) {
    case Kind::kHead:
      return kTextNameVersion;
    case Kind::kTokens:
      return kRelatedVersion;
    default:
      return kVersion;
  }
}

Result<ByteReader> open_envelope(std::string_view bytes, Kind kind, const char* what) {
  if (bytes.size() < kEnvelopeBytes || bytes[0] != 'Q' || bytes[1] != 'R' ||
      bytes[2] != static_cast<char>(kind))
    return damaged(what);
  const auto version = static_cast<std::uint8_t>(bytes[3]);
  ByteReader header(bytes.substr(4, 8));
  const std::uint64_t want = header.number<std::uint64_t>();
  const std::string_view payload = bytes.substr(kEnvelopeBytes);
  if (envelope_hash(kind, version, payload) != want) return damaged(what);
  if (version < kVersion || version > newest_version(kind))
    return Status::corruption(std::string("a stored ") + what + " record has version " +
                              std::to_string(version) + ", newer than this program knows");
  return ByteReader(payload);
}

void write_optional(ByteWriter& w, bool has, std::uint64_t value) {
  w.number<std::uint8_t>(has ? 1 : 0);
  if (has) w.number<std::uint64_t>(value);
}

}  // namespace

std::string encode_head(const DocumentManifest& m) {
  ByteWriter w = begin_record(256 + m.metadata_json.size() + 48 * m.chunks.size());
  w.text(m.ns);
  w.text(m.id);
  w.number<std::uint64_t>(m.version);
  w.text(m.title);
  w.text(m.metadata_json);
  w.text(m.content_hash);
  w.varint(m.text_bytes);
  w.varint(m.num_tokens);
  w.number<std::uint8_t>(static_cast<std::uint8_t>(m.status));
  w.text(m.error_code);
  w.text(m.error_message);
  w.number<std::uint8_t>(m.pinned ? 1 : 0);
  write_optional(w, m.ttl_seconds.has_value(), m.ttl_seconds.value_or(0));
  w.number<std::uint8_t>(static_cast<std::uint8_t>(m.ttl_anchor));
  write_optional(w, m.expires_at_ms.has_value(),
                 static_cast<std::uint64_t>(m.expires_at_ms.value_or(0)));
  w.number<std::uint64_t>(static_cast<std::uint64_t>(m.created_ms));
  w.number<std::uint64_t>(static_cast<std::uint64_t>(m.updated_ms));
  w.number<std::uint64_t>(static_cast<std::uint64_t>(m.ttl_start_ms));
  w.number<std::uint64_t>(static_cast<std::uint64_t>(m.last_used_ms));
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
  const bool named = !m.text_name.empty();
  const bool left = named ||
                    std::ranges::any_of(m.chunks, [](const auto& c) { return c.left_chunks > 0; });
  // Without companions nothing is written, so records without this field decode as well.
  if (left || !m.companions.empty()) w.varint(m.companions.size());
  for (const auto& key : m.companions) w.digest(key);
  if (!left) return seal(w, Kind::kHead);
  for (const auto& c : m.chunks) w.varint(c.left_chunks);
  if (!named) return seal(w, Kind::kHead, kLeftContextVersion);
  w.text(m.text_name);
  return seal(w, Kind::kHead, kTextNameVersion);
}

Result<DocumentManifest> decode_head(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(ByteReader r, open_envelope(bytes, Kind::kHead, "document"));
  const bool left = bytes[3] >= static_cast<char>(kLeftContextVersion),
             named = bytes[3] == static_cast<char>(kTextNameVersion);
  DocumentManifest m;
  m.ns = r.text(kMaxIdBytes);
  m.id = r.text(kMaxIdBytes);
  m.version = r.number<std::uint64_t>();
  m.title = r.text(kMaxTitleBytes);
  m.metadata_json = r.text(kMaxMetadataBytes);
  m.content_hash = r.text(kMaxIdBytes);
  m.text_bytes = r.varint(kMaxTextBytes);
  m.num_tokens = r.varint(kMaxDocumentTokens);
  m.status = static_cast<DocumentStatus>(r.number<std::uint8_t>());
  m.error_code = r.text(kMaxTitleBytes);
  m.error_message = r.text(kMaxTitleBytes);
  const std::uint8_t pinned = r.number<std::uint8_t>();
  m.pinned = pinned == 1;
  const std::uint8_t has_ttl = r.number<std::uint8_t>();
  if (has_ttl) m.ttl_seconds = r.number<std::uint64_t>();
  const std::uint8_t anchor = r.number<std::uint8_t>();
  m.ttl_anchor = static_cast<TtlAnchor>(anchor);
  const std::uint8_t has_expiry = r.number<std::uint8_t>();
  if (has_expiry) m.expires_at_ms = r.number<std::int64_t>();
  m.created_ms = r.number<std::int64_t>();
  m.updated_ms = r.number<std::int64_t>();
  m.ttl_start_ms = r.number<std::int64_t>();
  m.last_used_ms = r.number<std::int64_t>();
  m.hits = r.varint(UINT64_MAX);
  m.chunking = r.text(kMaxTitleBytes);
  m.fingerprint = r.text(kMaxTitleBytes);
  m.salt_digest = r.digest();
  m.job_id = r.text(kMaxTitleBytes);
  const std::uint64_t num_chunks = r.varint(kMaxChunks);
  if (!r.ok() || num_chunks > r.left() / 36 || pinned > 1 || has_ttl > 1 || has_expiry > 1 ||
      anchor > 1)
    return damaged("document");
  m.chunks.resize(num_chunks);
  for (auto& c : m.chunks) {
    c.byte_begin = r.varint(kMaxTextBytes);
    c.byte_end = r.varint(kMaxTextBytes);
    c.num_tokens = static_cast<std::uint32_t>(r.varint(kMaxDocumentTokens));
    c.block_tokens = static_cast<std::uint32_t>(r.varint(4096));
    c.key = r.digest();
  }
  if (r.ok() && (left || !r.at_end())) {
    const std::uint64_t count = r.varint(kMaxCompanions);
    if (!r.ok() || (count == 0 && !left) || count > r.left() / 32) return damaged("document");
    m.companions.resize(count);
    for (auto& key : m.companions) key = r.digest();
    for (std::size_t i = 0; left && i < m.chunks.size(); ++i)
      m.chunks[i].left_chunks = static_cast<std::uint32_t>(r.varint(i));
    if (named) m.text_name = r.text(kMaxIdBytes);
    if (named && m.text_name.empty()) return damaged("document");
  }
  if (!r.ok() || !r.at_end() || !validate_manifest(m).ok()) return damaged("document");
  return m;
}

namespace {

void put_ids(ByteWriter& w, std::span<const std::int32_t> ids) {
  w.varint(ids.size());
  for (const std::int32_t id : ids) w.varint(static_cast<std::uint32_t>(id));
}

/// Reads `count` ids, whose number has been read and checked.
void get_ids(ByteReader& r, std::uint64_t count, std::vector<std::int32_t>& ids) {
  ids.resize(count);
  for (auto& id : ids)
    id = static_cast<std::int32_t>(static_cast<std::uint32_t>(r.varint(UINT32_MAX)));
}

}  // namespace

std::string encode_tokens(const DocumentManifest& m) {
  std::size_t total = 0;
  for (const auto& c : m.chunks) total += c.token_ids.size();
  ByteWriter w = begin_record(16 + 3 * total);
  w.varint(m.chunks.size());
  for (const auto& c : m.chunks) put_ids(w, c.token_ids);
  if (m.marks.empty() && m.related.empty()) return seal(w, Kind::kTokens);
  w.varint(m.marks.size());
  const TextMark* last = nullptr;
  for (const TextMark& mark : m.marks) {
    w.varint(mark.offset - (last ? last->offset : 0));
    w.varint(mark.page);
    // A heading holds over many pages, so it is written once.
    const bool same = last && last->heading == mark.heading;
    w.number<std::uint8_t>(same ? 1 : 0);
    if (!same) w.text(mark.heading);
    last = &mark;
  }
  if (m.related.empty()) return seal(w, Kind::kTokens, kMarksVersion);
  w.varint(m.related.size());
  for (const RelatedChunk& r : m.related) {
    w.text(r.document_id);
    w.text(r.content_hash);
    w.varint(r.chunk);
    put_ids(w, r.token_ids);
  }
  return seal(w, Kind::kTokens, kRelatedVersion);
}

Status decode_tokens(std::string_view bytes, DocumentManifest* m) {
  auto opened = open_envelope(bytes, Kind::kTokens, "token");
  if (!opened.ok()) return opened.status();
  ByteReader r = *opened;
  if (r.varint(kMaxChunks) != m->chunks.size() || !r.ok()) return damaged("token");
  for (auto& c : m->chunks) {
    const std::uint64_t n = r.varint(kMaxDocumentTokens);
    if (!r.ok() || n != c.num_tokens || n > r.left()) return damaged("token");
    get_ids(r, n, c.token_ids);
  }
  m->marks.clear();
  m->related.clear();
  const bool has_related = bytes[3] == static_cast<char>(kRelatedVersion);
  if (r.ok() && (has_related || bytes[3] == static_cast<char>(kMarksVersion))) {
    const std::uint64_t count = r.varint(kMaxMarks);
    if (!r.ok() || (count == 0 && !has_related) || count > r.left() / 3) return damaged("token");
    m->marks.resize(count);
    std::size_t heading_bytes = 0;
    const TextMark* last = nullptr;
    for (TextMark& mark : m->marks) {
      mark.offset = (last ? last->offset : 0) + r.varint(kMaxTextBytes);
      mark.page = static_cast<std::uint32_t>(r.varint(UINT32_MAX));
      const std::uint8_t same = r.number<std::uint8_t>();
      if (!r.ok() || same > 1 || (same == 1 && !last)) return damaged("token");
      mark.heading = same ? last->heading : r.text(kMaxHeadingBytes);
      heading_bytes += mark.heading.size();
      if (heading_bytes > kMaxMarkBytes) return damaged("token");
      last = &mark;
    }
    if (!r.ok() || !check_marks(m->marks, m->text_bytes).ok()) return damaged("token");
  }
  if (r.ok() && has_related) {
    const std::uint64_t count = r.varint(kMaxRelated);
    if (!r.ok() || count == 0) return damaged("token");
    m->related.resize(count);
    for (RelatedChunk& related : m->related) {
      related.document_id = r.text(kMaxIdBytes);
      related.content_hash = r.text(kMaxIdBytes);
      related.chunk = static_cast<std::uint32_t>(r.varint(kMaxChunks));
      const std::uint64_t n = r.varint(kMaxDocumentTokens);
      if (!r.ok() || n > r.left()) return damaged("token");
      get_ids(r, n, related.token_ids);
    }
  }
  if (!r.ok() || !r.at_end()) return damaged("token");
  return {};
}

std::string encode_text(std::string_view text) {
  ByteWriter w = begin_record(text.size());
  w.raw(text);
  return seal(w, Kind::kText);
}
Result<std::string> decode_text(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(ByteReader r, open_envelope(bytes, Kind::kText, "text"));
  return std::string(r.rest());
}

Status check_envelope(std::string_view bytes) {
  if (bytes.size() < kEnvelopeBytes) return damaged("small");
  return open_envelope(bytes, static_cast<Kind>(bytes[2]), "catalog").status();
}

std::string encode_opaque(std::string_view value) {
  ByteWriter w = begin_record(value.size());
  w.raw(value);
  return seal(w, Kind::kOpaque);
}
Result<std::string> decode_opaque(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(ByteReader r, open_envelope(bytes, Kind::kOpaque, "small"));
  return std::string(r.rest());
}

std::string encode_segment(const SegmentInfo& s) {
  ByteWriter w = begin_record();
  w.digest(s.key);
  w.number<std::uint64_t>(s.id);
  w.varint(s.layout.num_blocks);
  w.varint(s.layout.values_per_block);
  w.varint(s.layout.num_sketches);
  w.varint(s.value_bytes);
  w.varint(s.sketch_bytes);
  w.varint(s.disk_bytes);
  w.number<std::uint64_t>(static_cast<std::uint64_t>(s.created_ms));
  w.text(s.tenant);
  w.text(s.fingerprint);
  w.text({});
  return seal(w, Kind::kSegment);
}

Result<SegmentInfo> decode_segment(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(ByteReader r, open_envelope(bytes, Kind::kSegment, "segment"));
  SegmentInfo s;
  s.key = r.digest();
  s.id = r.number<std::uint64_t>();
  s.layout.num_blocks = static_cast<std::uint32_t>(r.varint(1u << 24));
  s.layout.values_per_block = static_cast<std::uint32_t>(r.varint(4096));
  s.layout.num_sketches = static_cast<std::uint32_t>(r.varint(1u << 20));
  s.value_bytes = r.varint(UINT64_MAX);
  s.sketch_bytes = r.varint(UINT64_MAX);
  s.disk_bytes = r.varint(UINT64_MAX);
  s.created_ms = r.number<std::int64_t>();
  s.tenant = r.text(kMaxIdBytes);
  s.fingerprint = r.text(kMaxTitleBytes);
  (void)r.text(kMaxLocatorBytes);
  if (!r.ok() || !r.at_end() || s.layout.num_blocks == 0 || s.layout.values_per_block == 0)
    return damaged("segment");
  return s;
}

std::string encode_placement(const Placement& p) {
  ByteWriter w = begin_record(64);
  w.varint(p.range.extent);
  w.varint(p.range.offset / kExtentPage);
  w.varint(p.range.bytes / kExtentPage);
  w.varint(p.num_blocks);
  w.varint(p.values_per_block);
  w.varint(p.num_sketches);
  for (const auto& run : p.slots.runs()) {
    w.varint(run.payload_bytes);
    w.varint(run.count);
  }
  return seal(w, Kind::kPlacement);
}

Result<Placement> decode_placement(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(ByteReader r, open_envelope(bytes, Kind::kPlacement, "placement"));
  Placement p;
  p.range.extent = static_cast<std::uint32_t>(r.varint(UINT32_MAX));
  p.range.offset = r.varint(kMaxExtentBytes / kExtentPage) * kExtentPage;
  p.range.bytes = r.varint(kMaxExtentBytes / kExtentPage) * kExtentPage;
  p.num_blocks = static_cast<std::uint32_t>(r.varint(1u << 24));
  p.values_per_block = static_cast<std::uint32_t>(r.varint(4096));
  p.num_sketches = static_cast<std::uint32_t>(r.varint(1u << 20));
  const std::uint64_t num = std::uint64_t{p.num_blocks} * p.values_per_block + p.num_sketches;
  std::uint64_t left = num;
  while (r.ok() && !r.at_end()) {
    const auto payload = static_cast<std::uint32_t>(r.varint(kMaxValueBytes));
    const auto count = static_cast<std::uint32_t>(r.varint(num));
    const auto& runs = p.slots.runs();
    if (payload == 0 || count == 0 || count > left ||
        (!runs.empty() && runs.back().payload_bytes == payload))
      return damaged("placement");
    p.slots.add(payload, count);
    left -= count;
  }
  if (!r.ok() || p.range.extent == 0 || num == 0 || left > 0 || p.slots.bytes() > p.range.bytes)
    return damaged("placement");
  return p;
}

namespace {

constexpr std::uint32_t kValueMagic = 0x31564b51;  // "QKV1"

Hash128 value_hash(const ValueName& name, std::span<const std::byte> payload) {
  const std::uint64_t id[3] = {name.segment, (std::uint64_t{name.block} << 32) | name.group,
                               (static_cast<std::uint64_t>(name.part) << 56) | payload.size()};
  return value_hash128(payload.data(), payload.size(), XXH3_64bits(id, sizeof id));
}

}  // namespace

void write_value_header(const ValueName& name, std::span<const std::byte> payload,
                        std::byte* header) {
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
    return Status::corruption(
        "the checksum of a stored value does not match (segment " + std::to_string(name.segment) +
        ", block " + std::to_string(name.block) + ", group " + std::to_string(name.group) + ")");
  }
  return {};
}

}  // namespace quire::record
