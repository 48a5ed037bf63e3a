// Replaces what the engine needs of other libraries on a machine that has none: a store in memory,
// and token ids without a vocabulary.
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/stems.h"
#include "cachestore/disk/rocksdb_disk_tier.h"
#include "engine/chat/token_words.h"
#include "engine/model/gguf_model.h"
#include "engine/tokenizer/gguf_vocab.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/harness/memory_tier.h"

namespace quire {

/// Opens a store that begins empty and is lost when it closes.
Result<std::unique_ptr<DiskTier>> open_rocksdb_tier(StoreFolder, const RocksDbTierOptions&) {
  return std::unique_ptr<DiskTier>(
      std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
}

namespace {

/// Gives each byte of a text an id, without a vocabulary. The model answers nonsense, which is the
/// same on the CPU and on the device.
class ByteIds final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text, Special special,
                                   Start start) const override {
    return encode_with_offsets(text, special, start).ids;
  }
  Encoding encode_with_offsets(std::string_view text, Special, Start) const override {
    Encoding out;
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      out.ids.push_back(kFirstByte + static_cast<std::int32_t>((byte * 131u + before * 17u) %
                                                               (kVocabulary - kFirstByte)));
      out.spans.push_back({i, i + 1});
      before = byte;
    }
    return out;
  }
  std::string_view token_bytes(std::int32_t id) const override {
    for (const auto& [piece, known] : pieces_) {
      if (known == id) return piece;
    }
    return id >= 0 && id < static_cast<std::int32_t>(kVocabulary) ? "x" : "";
  }
  bool is_special(std::int32_t id) const override { return id < kFirstByte; }
  std::optional<std::int32_t> token_id(std::string_view piece) const override {
    const auto found = pieces_.find(piece);
    return found == pieces_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int32_t vocab_size() const override { return kVocabulary; }
  std::optional<std::int32_t> bos_id() const override { return 1; }
  const std::vector<std::int32_t>& eos_ids() const override { return eos_; }
  bool add_bos() const override { return true; }
  bool strips_first_space() const override { return false; }
  bool space_after_special() const override { return false; }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::string_view description() const override { return "an id for each byte"; }

 private:
  static constexpr std::uint32_t kVocabulary = 4096;
  static constexpr std::int32_t kFirstByte = 260;
  const std::map<std::string, std::int32_t, std::less<>> pieces_ = {
      {"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"<pad>", 3},
      {"<doc>", 4}, {"<q>", 5}, {"<a>", 6},  {"</a>", 7}};
  const std::vector<std::int32_t> eos_ = {2, 7};
  const std::array<std::uint8_t, 32> digest_{1};
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path&) {
  return std::unique_ptr<Tokenizer>(std::make_unique<ByteIds>());
}

// Without a vocabulary there are no words: each token counts as one.
Status check_stem_language(std::string_view, std::string_view) { return {}; }
std::vector<TokenWord> token_words(const Tokenizer&, std::span<const std::int32_t> ids,
                                   std::string_view) {
  std::vector<TokenWord> words;
  for (std::size_t i = 0; i < ids.size(); ++i)
    words.push_back({std::to_string(ids[i]), static_cast<std::int32_t>(i)});
  return words;
}

// GGUF metadata becomes JSON text with a part of Boost.JSON that the stand-in lacks.
Result<ModelConfig> gguf_model_config(const GgufFile&) {
  return Status::unimplemented("GGUF models need Boost.JSON, which this build does not have");
}

namespace tokenizer_internal {
Result<std::optional<std::string>> gguf_tokenizer_config(const std::filesystem::path&) {
  return std::optional<std::string>();
}
}  // namespace tokenizer_internal

}  // namespace quire
