/// This file declares packs: documents with their texts and KV as one byte stream, for backups and
/// for moving a cache to another store. The byte layout is in README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "cachestore/format/document.h"
#include "cachestore/format/record.h"
#include "cachestore/format/segment.h"

namespace quire {

/// The largest part of a pack that is held in memory at once.
inline constexpr std::size_t kMaxPackRecordBytes = 320u << 20;

struct PackHeader {
  std::int64_t created_ms = 0;  ///< Unix milliseconds
  std::string fingerprint;      ///< fingerprint of the loaded model
  std::string writer;           ///< program and version
};
/// A document; the stored segments of its contexts follow it.
struct PackDocument {
  DocumentManifest manifest;  ///< complete, token ids included
  std::string text;
};
/// KV of one context of the document before it. Its values follow, each once.
struct PackSegment {
  ContextKey key;
  SegmentLayout layout;
  std::uint64_t value_bytes = 0, sketch_bytes = 0;
  std::string fingerprint;
};
struct PackValue {
  record::Part part = record::Part::kValue;
  std::uint32_t block = 0, group = 0;  ///< sketches: index, 0
  std::string bytes;
};
/// The number of each kind of record before it.
struct PackEnd {
  std::uint64_t documents = 0, segments = 0, values = 0;
};
using PackRecord = std::variant<PackHeader, PackDocument, PackSegment, PackValue, PackEnd>;

/// Writes a pack. Threads: one at a time.
class PackWriter {
 public:
  /// Takes the next bytes; false ends the writing with kCancelled.
  using Sink = std::function<bool(std::string_view)>;
  explicit PackWriter(Sink sink) : sink_(std::move(sink)) {}

  Status header(const PackHeader& header);
  Status document(const DocumentManifest& manifest, std::string_view text);
  Status segment(const PackSegment& segment);
  Status value(record::Part part, std::uint32_t block, std::uint32_t group,
               std::span<const std::byte> bytes);
  Status end();
  const PackEnd& written() const { return counts_; }

 private:
  Status put(char kind, std::string_view front, std::string_view back = {});
  const Sink sink_;
  std::uint64_t index_ = 0;
  PackEnd counts_;
};

/// Reads a pack record by record and holds one at a time. Threads: one at a time.
class PackReader {
 public:
  /// Fills the buffer with the next bytes and returns their number; 0: the end.
  using Source = std::function<Result<std::size_t>(std::span<char>)>;
  explicit PackReader(Source source) : source_(std::move(source)) {}

  /// Returns the next record, or nothing once the pack was read completely. The header comes first
  /// and the end last; values must lie inside their segment's layout, and each segment follows a
  /// document. Errors: kCorruption (not a pack, truncated, damaged, records out of order),
  /// kFailedPrecondition (a newer version), those of the source.
  Result<std::optional<PackRecord>> next();

 private:
  Status fill(std::string& out, std::size_t bytes);
  Status check_order(char kind) const;
  Result<PackRecord> decode(char kind, std::string_view payload);

  const Source source_;
  std::uint64_t index_ = 0;
  PackEnd counts_;
  std::optional<SegmentLayout> layout_;  ///< layout of the segment that values now belong to
  bool begun_ = false, ended_ = false;
};

}  // namespace quire
