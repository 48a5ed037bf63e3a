/// This file scores blocks that match the question through a name that the question does not
/// contain. It uses the text only, no keys and no model.
///
/// Example: "Where was the winner of the regatta born?" The block about the regatta names its
/// winner, and the birthplace stands in an article about that name; aliases work alike. This is not
/// a published method. It resembles relevance feedback (Rocchio 1971), restricted to names: pairs
/// of neighbouring words that occur again, but in few blocks and few documents.
#pragma once

#include "engine/select/lexical_scores.h"

namespace quire {

/// Scores each block by equal parts of two measures and then applies spread(): what it shares with
/// the best matching blocks and their successors, and its own match with the question. The best
/// matching blocks score by their neighbours alone; without matches or shared names all scores are
/// zero.
///
/// `matches` holds lexical_matches() of the same contexts and text.
BlockScores linked_scores(std::span<const SelectableContext> contexts, const LexicalText& text,
                          const BlockScores& matches, float fade = kLexicalFade);

}  // namespace quire
