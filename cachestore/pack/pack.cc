#include "cachestore/pack/pack.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "cachestore/format/byte_io.h"

namespace quire {
namespace {

constexpr std::string_view kMagic = "QPAK";
constexpr std::uint32_t kVersion = 1;
constexpr char kHeader = 'H', kDocument = 'D', kSegment = 'S', kValue = 'V', kEnd = 'E';
constexpr std::size_t kFrameBytes = 13;  ///< kind, u32 length, u64 checksum
constexpr std::size_t kReadStepBytes = 1u << 20;
constexpr std::size_t kMaxFingerprintBytes = 4096;

/// Returns the checksum of a record. It includes the position in the pack, so moved, duplicated or
/// missing records do not pass.
std::uint64_t checksum(char kind, std::uint64_t index, std::string_view front,
                       std::string_view back) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset_withSeed(state, index << 8 | static_cast<unsigned char>(kind));
  XXH3_64bits_update(state, front.data(), front.size());
  XXH3_64bits_update(state, back.data(), back.size());
  const std::uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return hash;
}

Status damaged(const std::string& what) {
  return Status::corruption("the pack is damaged: " + what);
}

}  // namespace

Status PackWriter::put(char kind, std::string_view front, std::string_view back) {
  if (front.size() + back.size() > kMaxPackRecordBytes)
    return Status::invalid("pack", "a record is larger than a pack can hold");
  ByteWriter w;
  if (index_ == 0) {
    w.raw(kMagic);
    w.number(kVersion);
  }
  w.number(static_cast<std::uint8_t>(kind));
  w.number(static_cast<std::uint32_t>(front.size() + back.size()));
  w.number(checksum(kind, index_, front, back));
  ++index_;
  w.raw(front);
  if (!sink_(w.take()) || (!back.empty() && !sink_(back)))
    return Status::cancelled("the pack is no longer wanted");
  return {};
}

Status PackWriter::header(const PackHeader& h) {
  ByteWriter w;
  w.number(h.created_ms);
  w.text(h.fingerprint);
  w.text(h.writer);
  return put(kHeader, w.take());
}

Status PackWriter::document(const DocumentManifest& manifest, std::string_view text) {
  ++counts_.documents;
  ByteWriter w;
  DocumentManifest head = manifest;
  head.text_name.clear();  // it names a record of this store
  w.text32(record::encode_head(head));
  w.text32(record::encode_tokens(manifest));
  return put(kDocument, w.take(), text);
}

Status PackWriter::segment(const PackSegment& s) {
  ++counts_.segments;
  ByteWriter w;
  w.digest(s.key);
  w.number(s.layout.num_blocks);
  w.number(s.layout.values_per_block);
  w.number(s.layout.num_sketches);
  w.number(s.value_bytes);
  w.number(s.sketch_bytes);
  w.text(s.fingerprint);
  return put(kSegment, w.take());
}

Status PackWriter::value(record::Part part, std::uint32_t block, std::uint32_t group,
                         std::span<const std::byte> bytes) {
  ++counts_.values;
  ByteWriter w;
  w.number(part);
  w.number(block);
  w.number(group);
  return put(kValue, w.take(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Status PackWriter::end() {
  ByteWriter w;
  w.number(counts_.documents);
  w.number(counts_.segments);
  w.number(counts_.values);
  return put(kEnd, w.take());
}

/// Reads into `out`, which grows with the bytes that arrive: a length in a damaged pack reserves
/// nothing.
Status PackReader::fill(std::string& out, std::size_t bytes) {
  out.clear();
  while (out.size() < bytes) {
    const std::size_t at = out.size(), step = std::min(bytes - at, kReadStepBytes);
    out.resize(at + step);
    QUIRE_ASSIGN_OR_RETURN(const std::size_t got, source_(std::span(out).subspan(at)));
    if (got > step) return Status::internal("a source gave more than was asked for");
    out.resize(at + got);
    if (got == 0) return damaged("it ends in the middle");
  }
  return {};
}

Status PackReader::check_order(char kind) const {
  if (kind != kHeader && kind != kDocument && kind != kSegment && kind != kValue && kind != kEnd)
    return damaged("a record of an unknown kind");
  if ((kind == kHeader) != (index_ == 0)) return damaged("its header is not its first record");
  if (kind == kSegment && counts_.documents == 0) return damaged("KV without a document");
  if (kind == kValue && !layout_) return damaged("a value without its segment");
  return {};
}

Result<std::optional<PackRecord>> PackReader::next() {
  if (ended_) return std::optional<PackRecord>();
  std::string bytes;
  if (!begun_) {
    if (const Status s = fill(bytes, kMagic.size() + 4); !s.ok() || !bytes.starts_with(kMagic)) {
      if (s.code() != Code::kCorruption && !s.ok()) return s;
      return Status::corruption("this is no pack: it does not begin as one");
    }
    ByteReader r(std::string_view(bytes).substr(kMagic.size()));
    if (const auto version = r.number<std::uint32_t>(); version != kVersion)
      return Status::precondition("the pack has version " + std::to_string(version) +
                                  "; this program reads version " + std::to_string(kVersion));
    begun_ = true;
  }
  QUIRE_RETURN_IF_ERROR(fill(bytes, kFrameBytes));
  ByteReader frame(bytes);
  const char kind = static_cast<char>(frame.number<std::uint8_t>());
  const auto size = frame.number<std::uint32_t>();
  const auto hash = frame.number<std::uint64_t>();
  QUIRE_RETURN_IF_ERROR(check_order(kind));
  if (size > kMaxPackRecordBytes) return damaged("a record is too long");
  QUIRE_RETURN_IF_ERROR(fill(bytes, size));
  if (checksum(kind, index_, bytes, {}) != hash)
    return damaged("record " + std::to_string(index_) + " fails its checksum");
  ++index_;
  QUIRE_ASSIGN_OR_RETURN(auto record, decode(kind, bytes));
  if (kind != kEnd) return std::optional<PackRecord>(std::move(record));
  ended_ = true;
  char more = 0;
  QUIRE_ASSIGN_OR_RETURN(const std::size_t extra, source_(std::span(&more, 1)));
  if (extra > 0) return damaged("bytes follow its end");
  return std::optional<PackRecord>(std::move(record));
}

Result<PackRecord> PackReader::decode(char kind, std::string_view payload) {
  ByteReader r(payload);
  if (kind == kHeader) {
    PackHeader h;
    h.created_ms = r.number<std::int64_t>();
    h.fingerprint = r.text(kMaxFingerprintBytes);
    h.writer = r.text(kMaxFingerprintBytes);
    if (!r.ok() || !r.at_end()) return damaged("its header");
    return PackRecord(std::move(h));
  }
  if (kind == kDocument) {
    const std::string head = r.text32(), tokens = r.text32();
    if (!r.ok()) return damaged("a document");
    PackDocument d;
    QUIRE_ASSIGN_OR_RETURN(d.manifest, record::decode_head(head));
    QUIRE_RETURN_IF_ERROR(record::decode_tokens(tokens, &d.manifest));
    d.text = r.rest();
    ++counts_.documents;
    layout_.reset();
    return PackRecord(std::move(d));
  }
  if (kind == kSegment) {
    PackSegment s;
    s.key = r.digest();
    s.layout.num_blocks = r.number<std::uint32_t>();
    s.layout.values_per_block = r.number<std::uint32_t>();
    s.layout.num_sketches = r.number<std::uint32_t>();
    s.value_bytes = r.number<std::uint64_t>();
    s.sketch_bytes = r.number<std::uint64_t>();
    s.fingerprint = r.text(kMaxFingerprintBytes);
    if (!r.ok() || !r.at_end()) return damaged("a segment");
    ++counts_.segments;
    layout_ = s.layout;
    return PackRecord(std::move(s));
  }
  if (kind == kValue) {
    PackValue v;
    v.part = r.choice(record::Part::kSketch);
    v.block = r.number<std::uint32_t>();
    v.group = r.number<std::uint32_t>();
    const bool inside = v.part == record::Part::kSketch
                            ? v.block < layout_->num_sketches && v.group == 0
                            : v.block < layout_->num_blocks && v.group < layout_->values_per_block;
    if (!r.ok() || !inside) return damaged("a value outside its segment");
    v.bytes = r.rest();
    ++counts_.values;
    return PackRecord(std::move(v));
  }
  PackEnd end;
  end.documents = r.number<std::uint64_t>();
  end.segments = r.number<std::uint64_t>();
  end.values = r.number<std::uint64_t>();
  if (!r.ok() || !r.at_end() || end.documents != counts_.documents ||
      end.segments != counts_.segments || end.values != counts_.values)
    return damaged("its counts");
  return PackRecord(end);
}

}  // namespace quire
