#include "engine/compress/ranked.h"

namespace quire {
namespace {

struct SpecKvOptions : WindowOptions {
  SpecKvOptions() {
    reduction = ScoreReduction::kMax;
    lookahead = 12;
    window_share = 0.25;
  }
};

OptionTable<SpecKvOptions> option_table() {
  return OptionTable<SpecKvOptions>()
      .add(window_options())
      .add(lookahead_options())
      .add(sparse_prefill_options());
}

/// Implements SpecKV: the question's last rows and those of a draft's answer after it score all
/// others by their pooled attention in the target. Without a look-ahead it equals SnapKV with these
/// settings.
class SpecKvCompressor final : public RankedCompressor {
 public:
  explicit SpecKvCompressor(const SpecKvOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}
};

}  // namespace

void register_speckv(PlugRegistry<Compressor>& compressors) {
  compressors.add("speckv", option_table(), [](const SpecKvOptions& options) {
    return std::make_unique<SpecKvCompressor>(options);
  });
}

}  // namespace quire
