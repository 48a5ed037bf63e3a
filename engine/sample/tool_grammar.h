/// Grammars of answers that call functions.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/chat/tools.h"
#include "engine/sample/grammar.h"

namespace quire {

/// What an answer may be.
struct ToolAnswer {
  ToolStyle style = ToolStyle::kHermes;
  std::string only;       ///< the one function to call, once; empty: any
  bool must_call = true;  ///< false: the answer may also be text without a call, or text before one
  bool parallel = true;   ///< several calls may follow each other; never for kLlama3
  /// With must_call false: what the answer may be instead of calls; null: any text.
  std::shared_ptr<const Grammar> instead;
};

/// Compiles the grammar of answers that call these functions. Arguments follow the schema of a
/// function, or are any JSON object where `every_schema` is false and the function is not strict. A
/// schema without properties means no arguments. Errors: as json_schema_grammar(), with field
/// "tools[i].function.parameters...".
Result<std::shared_ptr<const Grammar>> tool_grammar(std::span<const ToolSpec> tools,
                                                    const ToolAnswer& answer, bool every_schema);

}  // namespace quire
