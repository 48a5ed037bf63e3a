#include "engine/recompute/recomputer.h"

#include "base/index.h"

namespace quire {
namespace {

/// Computes all but token-identical prefixes of the concatenation, so that the output equals a full
/// prefill.
class InexactRecomputer final : public Recomputer {
 public:
  bool computes_in_place(const RecomputeInput& input, std::int32_t context) const override {
    return !input.contexts[at(context)].exact;
  }
};

}  // namespace

void register_inexact(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("inexact", [] { return std::make_unique<InexactRecomputer>(); });
}

}  // namespace quire
