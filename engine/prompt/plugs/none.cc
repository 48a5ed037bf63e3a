#include "engine/prompt/prompt_compressor.h"

namespace quire {
namespace {

/// Leaves the prompt unchanged.
class NonePromptCompressor final : public PromptCompressor {
 public:
  bool keeps_everything() const override { return true; }
};

}  // namespace

void register_none(PlugRegistry<PromptCompressor>& compressors) {
  compressors.add("none", [] { return std::make_unique<NonePromptCompressor>(); });
}

}  // namespace quire
