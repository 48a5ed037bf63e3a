#include "engine/compress/compressor.h"

namespace quire {
namespace {

/// Keeps every row hot.
class NoneCompressor final : public Compressor {
 public:
  bool keeps_everything() const override { return true; }
  Result<RetainedRows> compress(const CompressInput&) override { return RetainedRows{}; }
};

}  // namespace

void register_none(PlugRegistry<Compressor>& compressors) {
  compressors.add("none", [] { return std::make_unique<NoneCompressor>(); });
}

}  // namespace quire
