/// A prompt as a draft spells it: in pieces, so that documents are spelled alone as at ingest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prompt/respelling.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention_mass.h"

namespace quire {

/// What a draft that spells otherwise makes of a context prefilled alone; no BOS.
std::vector<std::int32_t> spell_document(std::span<const std::int32_t> token_ids, const Tokenizer& target, const Tokenizer& draft);

class DraftPrompt {
 public:
  struct Piece {
    std::vector<std::int32_t> ids;   ///< of the draft's vocabulary
    bool document = false;
    std::optional<Respelling> respelling;
    std::int64_t own_begin = 0;      ///< ids of the respelling that are left out in front: a BOS within the prompt
  };

  /// documents: stretches of token_ids, ascending. `spelled_alike`: both vocabularies are the same.
  DraftPrompt(std::span<const std::int32_t> token_ids, std::span<const KvStretch> documents, const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  const std::vector<Piece>& pieces() const { return pieces_; }
  std::int64_t num_tokens() const;
  /// scores: [num_tokens()]. For each of the target's tokens the largest score of those that share a byte with it.
  std::vector<float> bring_back(std::span<const float> scores) const;

 private:
  void add(std::span<const std::int32_t> ids, bool document, const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  std::vector<Piece> pieces_;
};

}  // namespace quire
