/// Reads the form that an answer must have: response_format and its relatives.
#pragma once

#include <memory>
#include <string_view>

#include "base/json_reader.h"
#include "engine/sample/grammar.h"
#include "engine/sample/sampler.h"

namespace quire {

/// Reads response_format (text, json_object, json_schema), structured_outputs, guided_json,
/// guided_regex, guided_choice and guided_grammar (as vLLM has them), json_schema and grammar (as
/// llama.cpp has them). At most one of them may say a form. Errors inside a schema name their place
/// in it. With a form, `stop` is refused: an answer cut there would not have it.
void read_answer_form(JsonReader& r, SamplingOptions& out);

/// Reads a JSON Schema that the answer must fulfil, or the text of one. Null: the member is missing
/// or wrong; errors inside the schema name their place in it.
std::shared_ptr<const Grammar> read_json_schema(JsonReader& r, std::string_view member);

}  // namespace quire
