/// This file scores how well blocks match the question's words. It uses the text only, no keys and
/// no model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// Block scores, [context][block], not negative.
using BlockScores = std::vector<std::vector<float>>;

inline constexpr float kLexicalFade = 0.8f;

/// The words of contexts and question as numbers: equal stems have equal ids.
struct LexicalText {
  struct Word {
    std::int32_t id = 0, token = 0;  ///< token: index in the context where the word begins
  };
  std::vector<std::vector<Word>> contexts;  ///< [context]; empty: its text is unknown
  std::vector<std::int32_t> question;       ///< without template and instruction where known
  /// [context] words by which a text names the document (base/words.h); empty: none
  std::vector<std::vector<std::int32_t>> titles;
};
/// Reads the words of all contexts and of the question.
LexicalText lexical_text(const SelectionInput& input);

/// Returns the BM25 score of each block, treated as a document, over the question's words and pairs
/// of neighbouring words. A word belongs to the block in which it begins. Contexts without text,
/// and all contexts if there is no question, score zero.
BlockScores lexical_matches(std::span<const SelectableContext> contexts, const LexicalText& text);

/// Returns the BM25 score of each context, treated as a document, over the question's words.
std::vector<float> context_matches(const LexicalText& text);

/// Adds to each context's match `share` of the best match among contexts of other titles whose text
/// holds its title, word by word: what answers a question in two steps stands in a document that
/// the question does not name, but the one that it names does.
std::vector<float> follow_titles(const LexicalText& text, std::span<const float> matches,
                                 float share);

/// Adds neighbouring matches of the same context to each block's own: those before it, decaying by
/// `fade` per block, and half of the next one's. Facts often follow the name they are about, under
/// a pronoun.
BlockScores spread(std::span<const SelectableContext> contexts, const BlockScores& matches,
                   float fade = kLexicalFade);

/// Returns spread() of lexical_matches().
BlockScores lexical_scores(std::span<const SelectableContext> contexts, const LexicalText& text);

}  // namespace quire
