#include "engine/prompt/prompt_compressor.h"

namespace quire {
namespace {

/// Leaves the prompt unchanged.
class NonePromptCompressor final : public PromptCompressor {
 public:
  std::string_view name() const override { return "none"; }
  bool keeps_everything() const override { return true; }
};

}  // namespace

std::unique_ptr<PromptCompressor> make_none_prompt_compressor() {
  return std::make_unique<NonePromptCompressor>();
}

}  // namespace quire
