#include <vector>

#include "engine/device/staged_view.h"

namespace quire {

Result<KvGatherArgs> staged_gather(ArgumentStage& stage, const KvGatherArgs& args) {
  QUIRE_RETURN_IF_ERROR(internal::check_gather(args));
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<KvMove> moves(args.moves, args.moves + args.num_moves);
  const auto pages_of = [](auto* const* pages, std::int32_t& row, std::int32_t rows, auto& out) {
    const std::int32_t first = row / kPageTokens, last = (row + rows - 1) / kPageTokens;
    row = static_cast<std::int32_t>(out.size()) * kPageTokens + row % kPageTokens;
    out.insert(out.end(), pages + first, pages + last + 1);
  };
  for (KvMove& move : moves) {
    pages_of(args.src.pages, move.from, move.rows, sources);
    pages_of(args.dst.pages, move.to, move.rows, targets);
  }
  KvGatherArgs a = args;
  a.src.num_rows = count_of(sources) * kPageTokens;
  a.dst.num_rows = count_of(targets) * kPageTokens;
  a.src.positions = nullptr;
  QUIRE_RETURN_IF_ERROR(stage.begin());
  QUIRE_ASSIGN_OR_RETURN(a.src.pages, stage.put(std::span<const void* const>(sources)));
  QUIRE_ASSIGN_OR_RETURN(a.dst.pages, stage.put(std::span<void* const>(targets)));
  QUIRE_ASSIGN_OR_RETURN(a.moves, stage.put(std::span<const KvMove>(moves)));
  QUIRE_RETURN_IF_ERROR(stage.send());
  return a;
}

}  // namespace quire
