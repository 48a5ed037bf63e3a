#include "cachestore/format/read_behind.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"nothing", "lead_in", "related"};

}  // namespace

ReadBehind read_behind(std::span<const RelatedChunk> related) {
  if (related.empty()) return {};
  if (!std::ranges::all_of(related, &std::string::empty, &RelatedChunk::document_id))
    return {ReadBehind::Kind::kRelated, {}};
  Sha256 digest;
  for (const std::int32_t id : related_tokens(related))
    digest.update_u64(static_cast<std::uint32_t>(id));
  return {ReadBehind::Kind::kLeadIn, digest.finish()};
}

std::string_view read_behind_name(ReadBehind::Kind kind) { return kNames[at(kind)]; }

std::optional<ReadBehind::Kind> parse_read_behind(std::string_view name) {
  const auto it = std::ranges::find(kNames, name);
  if (it == kNames.end()) return std::nullopt;
  return static_cast<ReadBehind::Kind>(it - kNames.begin());
}

}  // namespace quire
