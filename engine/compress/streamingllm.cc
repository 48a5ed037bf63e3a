#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = ranked_options();
  return kTable;
}

/// Implements StreamingLLM after prefill (Xiao et al., arXiv 2309.17453): it keeps the first and
/// the last rows, whatever their content.
class StreamingLlmCompressor final : public RankedCompressor {
 public:
  StreamingLlmCompressor() : RankedCompressor(table(), Watch::kNothing) {}
  std::string_view name() const override { return "streamingllm"; }

 private:
  /// Gives all rows equal scores, as ties go to the lower row.
  std::vector<float> scores(std::int32_t, std::int32_t, const LayerRows& rows) const override {
    return std::vector<float>(static_cast<std::size_t>(rows.num_rows), 0.0f);
  }
};

}  // namespace

std::unique_ptr<Compressor> make_streamingllm_compressor() {
  return std::make_unique<StreamingLlmCompressor>();
}

}  // namespace quire
