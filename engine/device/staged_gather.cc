#include <vector>

#include "engine/device/staged_view.h"

namespace quire {

Result<KvGatherArgs> staged_gather(ArgumentStage& stage, const KvGatherArgs& args) {
  QUIRE_RETURN_IF_ERROR(internal::check_gather(args));
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<KvMove> moves(args.moves, args.moves + args.num_moves);
  /// The pages of a side that the last move touched, which the next one often touches, too: that of
  /// another head.
  struct Pages {
    std::int32_t first = 0, last = -1;
  } read, written;
  const auto pages_of = [](auto* const* pages, std::int32_t& row, std::int32_t rows, Pages& before,
                           auto& out) {
    const Pages now{row / kPageTokens, (row + rows - 1) / kPageTokens};
    if (now.first != before.first || now.last != before.last)
      out.insert(out.end(), pages + now.first, pages + now.last + 1);
    before = now;
    row = static_cast<std::int32_t>(out.size()) * kPageTokens -
          (now.last - now.first + 1) * kPageTokens + row % kPageTokens;
  };
  for (KvMove& move : moves) {
    pages_of(args.src.pages, move.from, move.rows, read, sources);
    pages_of(args.dst.pages, move.to, move.rows, written, targets);
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
