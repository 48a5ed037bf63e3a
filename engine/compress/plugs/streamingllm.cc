#include "engine/compress/ranked.h"

#include "base/index.h"

namespace quire {
namespace {

OptionTable<RankedOptions> option_table() {
  return OptionTable<RankedOptions>().add(ranked_options());
}

/// Implements StreamingLLM after prefill (Xiao et al., arXiv 2309.17453): it keeps the first and
/// the last rows, whatever their content.
class StreamingLlmCompressor final : public RankedCompressor {
 public:
  explicit StreamingLlmCompressor(const RankedOptions& options)
      : RankedCompressor(options, Watch::kNothing) {}

 private:
  /// Gives all rows equal scores, as ties go to the lower row.
  std::vector<float> scores(std::int32_t, std::int32_t, const LayerRows& rows) const override {
    return std::vector<float>(to_size(rows.num_rows), 0.0f);
  }
};

}  // namespace

void register_streamingllm(PlugRegistry<Compressor>& compressors) {
  compressors.add("streamingllm", option_table(), [](const RankedOptions& options) {
    return std::make_unique<StreamingLlmCompressor>(options);
  });
}

}  // namespace quire
