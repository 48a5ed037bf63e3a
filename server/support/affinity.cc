#include "server/support/affinity.h"

#include <algorithm>
#include <vector>

#include "base/sha256.h"

namespace quire {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::string affinity_of(std::string_view ns, std::span<const std::string> document_ids) {
  if (document_ids.empty()) return {};
  std::vector<std::string_view> ids(document_ids.begin(), document_ids.end());
  std::ranges::sort(ids);
  const auto [first, last] = std::ranges::unique(ids);
  ids.erase(first, last);
  // Neither namespaces nor ids have a zero byte, so no two sets give the same text.
  constexpr std::string_view kBetween("\0", 1);
  Sha256 hash;
  hash.update(ns);
  for (const std::string_view id : ids) hash.update(kBetween).update(id);
  return hash.finish().hex().substr(0, kDigits);
}

}  // namespace quire
