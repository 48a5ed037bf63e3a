/// This file turns trees of expressions into automata. Internal to sample/.
#pragma once

#include <optional>

#include "engine/sample/automata/automaton.h"
#include "engine/sample/pattern_tree.h"
#include "engine/sample/regex_tree.h"

namespace quire {

/// Returns the automaton, over code points, of the texts of a tree without rules; nothing: it has
/// too many states, or the budget is spent.
std::optional<Automaton> pattern_automaton(const PatternNode& tree, AutomatonBudget& budget);

/// The same of an expression, of which its look-aheads leave some texts out.
std::optional<Automaton> regex_automaton(const RegexTree& regex, AutomatonBudget& budget);

/// Returns the automaton over bytes of what an automaton over code points describes: in UTF-8, or
/// as the inside of a JSON string (RegexUse). Nothing: as above.
std::optional<Automaton> bytes_of(const Automaton& texts, bool json_string,
                                  AutomatonBudget& budget);

}  // namespace quire
