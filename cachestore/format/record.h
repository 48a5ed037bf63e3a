/// This file declares the bytes of catalog records and of stored values. A record is "QR", kind and
/// version (one byte each), XXH3-64 of kind, version and payload (little-endian), then the payload.
/// Decoders never read past the end, bound every length, and return kCorruption for anything that
/// the encoder did not write. The layout is in README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/document.h"
#include "cachestore/format/segment.h"

namespace quire::record {

/// Encodes everything except token ids and text.
std::string encode_head(const DocumentManifest& manifest);
Result<DocumentManifest> decode_head(std::string_view bytes);

/// Encodes the token ids of all chunks in order, then the marks and the related chunks.
std::string encode_tokens(const DocumentManifest& manifest);
/// Fills the chunks, the marks and the related chunks of a decoded head. Errors: kCorruption (the
/// counts disagree with the head).
Status decode_tokens(std::string_view bytes, DocumentManifest* manifest);

std::string encode_text(std::string_view text);
Result<std::string> decode_text(std::string_view bytes);

std::string encode_segment(const SegmentInfo& info);
Result<SegmentInfo> decode_segment(std::string_view bytes);

/// Encodes opaque bytes of other modules (jobs, meta).
std::string encode_opaque(std::string_view value);
Result<std::string> decode_opaque(std::string_view bytes);

/// Checks only the checksum of any kind of record. Errors: kCorruption.
Status check_envelope(std::string_view bytes);

/// ---- stored values: a 32-byte header, then the payload ----
enum class Part : std::uint8_t { kValue = 0, kSketch = 1 };

/// Identifies a stored value. It is part of the checksum, so bytes of another value never pass.
struct ValueName {
  SegmentId segment = 0;
  Part part = Part::kValue;
  std::uint32_t block = 0, group = 0;  ///< sketches: index, 0
  friend bool operator==(const ValueName&, const ValueName&) = default;
};
inline constexpr std::size_t kValueHeaderBytes = 32;
inline constexpr std::size_t kMaxValueBytes = 64u << 20;

/// Writes the header of `payload` to 32 bytes at `header`.
void write_value_header(const ValueName& name, std::span<const std::byte> payload,
                        std::byte* header);
/// Checks `stored`, which is header and payload. Errors: kCorruption.
Status check_value(const ValueName& name, std::span<const std::byte> stored);

}  // namespace quire::record
