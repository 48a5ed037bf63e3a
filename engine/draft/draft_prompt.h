/// This file tokenizes a prompt for a draft, in pieces, so that documents are tokenized alone as at
/// ingest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prompt/retokenization.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// Retokenizes a context that is prefilled alone for a draft with another tokenizer; no BOS is
/// added.
std::vector<std::int32_t> spell_document(std::span<const std::int32_t> token_ids,
                                         const Tokenizer& target, const Tokenizer& draft);

class DraftPrompt {
 public:
  struct Piece {
    std::vector<std::int32_t> ids;  ///< ids of the draft's vocabulary
    std::vector<RowRange> kept;     ///< kept ranges of ids, ascending and not touching
    bool document = false;
    std::optional<Retokenization> retokenization;
    /// Number of leading retokenized ids that are left out: a BOS within the prompt.
    std::int64_t own_begin = 0;
  };

  /// Ascending ranges of the target's token_ids.
  struct Ranges {
    std::span<const RowRange> documents;
    std::span<const RowRange> kept;  ///< kept tokens; empty: all
  };
  /// Tokenizes the prompt; `spelled_alike`: both vocabularies are equal. Otherwise a draft token is
  /// kept if it shares a byte with a kept token.
  DraftPrompt(std::span<const std::int32_t> token_ids, const Ranges& ranges,
              const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Returns the number of draft tokens, including those left out.
  std::int64_t num_tokens() const;
  std::int64_t num_kept() const;
  /// Returns the last piece with kept tokens; null: none.
  const Piece* last_kept() const;
  /// Maps scores, [num_tokens()], to the target's tokens. Each gets the largest score of the draft
  /// tokens that share a byte with it.
  std::vector<float> bring_back(std::span<const float> scores) const;

 private:
  void add(std::span<const std::int32_t> ids, std::vector<RowRange> kept, bool document,
           const Tokenizer& target, const Tokenizer& draft, bool spelled_alike);

  std::vector<Piece> pieces_;
};

}  // namespace quire
