/// Behind what text the KV of a document was read.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "cachestore/format/document.h"

namespace quire {

/// What the first chunk of a document attended to. Later chunks saw the same and then the
/// document's own chunks. What is measured of documents that were read behind one text says nothing
/// of those behind another, so two values are equal only where the texts are.
struct ReadBehind {
  enum class Kind : std::uint8_t {
    kNothing,  ///< the document was read alone
    kLeadIn,   ///< behind a fixed text of no document
    kRelated,  ///< behind chunks of other documents, and maybe a fixed text
  };
  Kind kind = Kind::kNothing;
  Digest lead_in;  ///< of the fixed text's tokens; zero but with kLeadIn

  friend bool operator==(const ReadBehind&, const ReadBehind&) = default;
  friend auto operator<=>(const ReadBehind&, const ReadBehind&) = default;
};

/// Returns behind what a document was read whose chunks attend to `related`
/// (DocumentManifest::related).
ReadBehind read_behind(std::span<const RelatedChunk> related);

/// Returns "nothing", "lead_in" or "related", as the API and stored records spell them.
std::string_view read_behind_name(ReadBehind::Kind kind);
std::optional<ReadBehind::Kind> parse_read_behind(std::string_view name);

}  // namespace quire
