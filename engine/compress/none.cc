#include "engine/compress/compressor.h"

namespace quire {
namespace {

/// Everything stays, and everything is hot.
class NoneCompressor final : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  Result<Heat> compress(const CompressInput&) override { return Heat{}; }
};

}  // namespace

std::unique_ptr<Compressor> make_none_compressor() { return std::make_unique<NoneCompressor>(); }

}  // namespace quire
