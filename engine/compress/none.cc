#include "engine/compress/compressor.h"

namespace quire {
namespace {

/// Keeps every row hot.
class NoneCompressor final : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  bool keeps_everything() const override { return true; }
  Result<RetainedRows> compress(const CompressInput&) override { return RetainedRows{}; }
};

}  // namespace

std::unique_ptr<Compressor> make_none_compressor() { return std::make_unique<NoneCompressor>(); }

}  // namespace quire
