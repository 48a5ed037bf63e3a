/// JSON Schemas as grammars: every text of the grammar is one JSON value that the schema accepts,
/// in the form stated here.
///
/// The subset:
/// - `type` (one name or several), `enum`, `const`; `{}` and `true` are any value, of at most
/// kFreeDepth levels.
/// - object: `properties`, `required`, `additionalProperties`. Members come in the order of
/// `properties`; members that are not listed there
///   are never written, unless the object lists none: then it has any members, or those of the
///   schema `additionalProperties`.
/// - array: `items`, `prefixItems`, `minItems`, `maxItems`. string: `minLength`, `maxLength`,
/// counted in characters; `format`, alone: date, time,
///   date-time, uuid. integer, number: `minimum`, `maximum`, `exclusiveMinimum`,
///   `exclusiveMaximum`, whole for numbers.
/// - `anyOf`; `oneOf` as `anyOf`; `allOf` of one; `$ref` to "#" and "#/..." inside the schema, also
/// recursive; `$defs`, `definitions`.
/// - Annotations are ignored: title, description, default, examples, deprecated, readOnly,
/// writeOnly, discriminator, $schema, $id, $comment.
/// `$ref`, `anyOf`, `oneOf`, `allOf`, `enum` and `const` stand alone, but for annotations,
/// definitions and the `type` of an enum. Anything else is refused.
///
/// The form: no white space but at most one space behind ',' and ':'; integers of at most 18
/// digits; numbers with at most 17 digits behind the point and two in the exponent, with bounds 6
/// and none; strings are UTF-8, an escaped surrogate never stands alone. Names may repeat in an
/// object that lists none.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/sample/grammar.h"

namespace quire {

inline constexpr int kFreeDepth = 16;
inline constexpr std::size_t kMaxSchemaBytes = 64 << 10;

/// `schema`: JSON text. Errors name the place in the schema (field, "properties.age.minimum"):
/// kUnimplemented for what the subset lacks, kInvalidArgument for what is no schema, and for
/// schemas that no finite value can fulfil.
Result<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema);

/// Any JSON object.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace quire
