#include "engine/compress/compressor.h"

namespace quire {
namespace {

/// Everything stays, and everything is hot.
class NoneCompressor final : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  bool keeps_everything() const override { return true; }
  Result<Heat> compress(const CompressInput&) override { return Heat{}; }
};

}  // namespace

std::unique_ptr<Compressor> make_none_compressor() { return std::make_unique<NoneCompressor>(); }

}  // namespace quire
