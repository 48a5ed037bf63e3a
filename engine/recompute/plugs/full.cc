#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// Prefills the whole concatenation: the reference for quality and TTFT (Recompute).
class FullRecomputer final : public Recomputer {
 public:
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return true; }
};

}  // namespace

void register_full(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("full", [] { return std::make_unique<FullRecomputer>(); });
}

}  // namespace quire
