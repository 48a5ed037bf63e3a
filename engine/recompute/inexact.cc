#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// Computes all but token-identical prefixes of the concatenation, so that the output equals a full
/// prefill.
class InexactRecomputer final : public Recomputer {
 public:
  std::string_view name() const override { return "inexact"; }
  bool computes_in_place(const RecomputeInput& input, std::int32_t context) const override {
    return !input.contexts[static_cast<std::size_t>(context)].exact;
  }
};

}  // namespace

std::unique_ptr<Recomputer> make_inexact_recomputer() {
  return std::make_unique<InexactRecomputer>();
}

}  // namespace quire
