/// Functions that a model may call: what a caller says of them, and the forms in which families of
/// models write their calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// One function.
struct ToolSpec {
  std::string name, description;
  std::string parameters;  ///< the JSON Schema of its arguments as text; empty: it takes none
  bool strict = false;     ///< a call of it must follow the schema
};

/// How a model writes a call. Texts of users never count as one of these markers, as only the
/// model's answer is parsed.
enum class ToolStyle : unsigned char {
  kHermes,  ///< <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen)
  kSmolLm,  ///< <tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call> (SmolLM2)
  kLlama3,  ///< {"name": ..., "parameters": {...}} as the whole answer (Llama 3.1 and later)
  kMistral  ///< [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] (Mistral v0.3 and later)
};
std::string_view tool_style_name(ToolStyle style);

enum class ToolChoice : unsigned char {
  kAuto,     ///< the model decides
  kRequired  ///< at least one call, and nothing else
};

/// The functions of one request. A request whose functions may not be called has none.
struct ToolUse {
  std::vector<ToolSpec> tools;
  std::string json;  ///< the same as a JSON array, as OpenAI's API has it
  ToolChoice choice = ToolChoice::kAuto;
  std::string only;      ///< kRequired: the one function to call; empty: any
  bool parallel = true;  ///< several calls in one answer
};

/// One call that a model made.
struct ToolCall {
  std::string id;  ///< "call_..."; nine letters and digits for kMistral, as it demands
  std::string name;
  std::string arguments;  ///< JSON text as the model wrote it
};

/// Returns the special tokens of the vocabulary that mark calls, ascending: their spelling must be
/// part of an answer's text, or its calls cannot be seen.
std::vector<std::int32_t> tool_marker_ids(const Tokenizer& tokenizer);

}  // namespace quire
