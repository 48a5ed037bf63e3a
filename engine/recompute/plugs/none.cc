#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// Uses stored KV unchanged.
class NoneRecomputer final : public Recomputer {
 public:
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
};

}  // namespace

void register_none(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("none", [] { return std::make_unique<NoneRecomputer>(); });
}

}  // namespace quire
