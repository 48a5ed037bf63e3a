#include "ingest/embed/encoder_embedder.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr std::size_t kBatchTexts = 64;

class EncoderEmbedder final : public Embedder {
 public:
  EncoderEmbedder(std::shared_ptr<const TextEncoder> encoder, int threads)
      : encoder_(std::move(encoder)), threads_(threads) {}

  Digest fingerprint() const override { return encoder_->info().fingerprint; }
  Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts, EmbedRole role,
                                                const EmbedLimits& limits) override {
    const auto kind = role == EmbedRole::kQuestion ? EncoderRole::kQuestion : EncoderRole::kText;
    std::vector<std::vector<float>> out;
    while (out.size() < texts.size()) {
      if (limits.stop.stop_requested()) return Status::unavailable("the service is stopping");
      if (std::chrono::steady_clock::now() > limits.deadline)
        return Status::deadline("the texts could not be embedded in time; ask again");
      const auto batch = texts.subspan(out.size(),
                                       std::min(kBatchTexts, texts.size() - out.size()));
      QUIRE_ASSIGN_OR_RETURN(auto found, encoder_->embed_texts(batch, kind, threads_));
      for (auto& vector : found.vectors) out.push_back(std::move(vector));
    }
    return out;
  }

 private:
  const std::shared_ptr<const TextEncoder> encoder_;
  const int threads_;
};

}  // namespace

std::shared_ptr<Embedder> make_encoder_embedder(std::shared_ptr<const TextEncoder> encoder,
                                                int threads) {
  return std::make_shared<EncoderEmbedder>(std::move(encoder), threads);
}

}  // namespace quire
