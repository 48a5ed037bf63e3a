#include "engine/api/requests.h"

#include <set>

namespace quire {

std::vector<ReadBehind> readings_of(std::span<const QueryContext> contexts) {
  std::set<ReadBehind> out;
  for (const QueryContext& context : contexts) {
    if (!context.token_ids.empty()) out.insert(context.read_behind);
  }
  return {out.begin(), out.end()};
}

}  // namespace quire
