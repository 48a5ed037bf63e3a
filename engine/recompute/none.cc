#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// Uses stored KV unchanged.
class NoneRecomputer final : public Recomputer {
 public:
  std::string_view name() const override { return "none"; }
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
};

}  // namespace

std::unique_ptr<Recomputer> make_none_recomputer() { return std::make_unique<NoneRecomputer>(); }

}  // namespace quire
