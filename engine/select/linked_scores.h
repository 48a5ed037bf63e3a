/// What matches the question's words by way of a name that the question does not hold: token ids
/// alone, no keys, no model.
///
/// "Where was the winner of the regatta born?": the block about the regatta names its winner, and
/// the birthplace stands in an article about that name. The same for an alias. Not a published
/// method; a kin of relevance feedback (Rocchio 1971), held to names: pairs of neighbouring tokens
/// that occur again, but in few blocks and few documents.
#pragma once

#include "engine/select/lexical_scores.h"

namespace quire {

/// `matches`: lexical_matches() of the same contexts and question. A block scores what it shares
/// with the best matching blocks and the block behind each of them, and by half how it matches the
/// question itself (the relation that is asked for); then as spread(). The best matching blocks
/// themselves score by what is before and behind them. Nothing matches, or nothing is shared: all
/// zeros.
BlockScores linked_scores(std::span<const SelectableContext> contexts,
                          std::span<const std::int32_t> question, const BlockScores& matches,
                          float fade = kLexicalFade);

}  // namespace quire
