#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// Prefills the whole concatenation: the reference for quality and TTFT (Recompute).
class FullRecomputer final : public Recomputer {
 public:
  std::string_view name() const override { return "full"; }
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return true; }
};

}  // namespace

std::unique_ptr<Recomputer> make_full_recomputer() { return std::make_unique<FullRecomputer>(); }

}  // namespace quire
