#include "engine/compress/ranked.h"

namespace quire {
namespace {

OptionTable<LookaheadOptions> option_table() {
  return OptionTable<LookaheadOptions>()
      .add(window_options())
      .add(lookahead_options())
      .add(sparse_prefill_options());
}

/// Implements SpecKV: the question's last rows and those of a draft's answer after it score all
/// others by their pooled attention in the target. Without a look-ahead it equals SnapKV with these
/// settings.
class SpecKvCompressor final : public RankedCompressor {
 public:
  explicit SpecKvCompressor(const LookaheadOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}
};

}  // namespace

void register_speckv(PlugRegistry<Compressor>& compressors) {
  compressors.add("speckv", option_table(), [](const LookaheadOptions& options) {
    return std::make_unique<SpecKvCompressor>(options);
  });
}

}  // namespace quire
