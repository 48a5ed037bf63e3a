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
std::vector<std::int32_t> spell_document(std::span<const std::int32_t> token_ids,
                                         const Tokenizer& target, const Tokenizer& draft);

class DraftPrompt {
 public:
  struct Piece {
    std::vector<std::int32_t> ids;  ///< of the draft's vocabulary
    std::vector<KvStretch> kept;    ///< of ids, ascending and not touching: the rest is left out
    bool document = false;
    std::optional<Respelling> respelling;
    /// Ids of the respelling that are left out in front: a BOS within the prompt
    std::int64_t own_begin = 0;
  };

  /// What the target says about the prompt: stretches of its token_ids, ascending.
  struct Stretches {
    std::span<const KvStretch> documents;
    std::span<const KvStretch> kept;  ///< the rest is left out; empty: nothing is
  };
  /// `spelled_alike`: both vocabularies are the same. Otherwise a token of the draft's is kept that
  /// shares a byte with a kept one.
  DraftPrompt(std::span<const std::int32_t> token_ids, const Stretches& stretches,
              const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Those left out among them.
  std::int64_t num_tokens() const;
  std::int64_t num_kept() const;
  /// The last piece of which anything is kept; null: none is.
  const Piece* last_kept() const;
  /// scores: [num_tokens()]. For each of the target's tokens the largest score of those that share
  /// a byte with it.
  std::vector<float> bring_back(std::span<const float> scores) const;

 private:
  void add(std::span<const std::int32_t> ids, std::vector<KvStretch> kept, bool document,
           const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  std::vector<Piece> pieces_;
};

}  // namespace quire
