/// This file turns JSON Schemas into grammars. Every text of such a grammar is one JSON value that
/// the schema accepts, in the form stated here.
///
/// It supports this subset of JSON Schema and rejects anything else:
/// - `type` (one name or several), `enum` and `const`. `{}` and `true` are any value of at most
///   kFreeDepth levels.
/// - Objects: `properties`, `required`, `additionalProperties`. Members are written in the order of
///   `properties`. Other members are written only if the object lists no properties; they are then
///   any members, or those of the schema `additionalProperties`.
/// - Arrays: `items`, `prefixItems`, `minItems`, `maxItems`.
/// - Strings: `minLength` and `maxLength`, counted in characters, `format` (json_formats.h) and
///   `pattern` (regex_grammar.h).
/// - Integers and numbers: `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, and
///   `multipleOf`, which divides decimal numbers exactly.
/// - `anyOf`; `oneOf`, which is treated as `anyOf`; `allOf` of one schema; `$ref` to "#" and
///   "#/..." inside the schema, also recursive; `$defs`, `definitions`.
/// - These annotations, which are ignored: title, description, default, examples, deprecated,
///   readOnly, writeOnly, discriminator, $schema, $id, $comment.
///
/// In one place at most kMostAlternatives are taken besides any number of fixed values, and at most
/// as many members in a row that are not required.
///
/// `$ref`, `anyOf`, `oneOf`, `allOf`, `enum` and `const` may be combined only with annotations,
/// definitions and the `type` of an enum.
///
/// The texts have this form: no white space except at most one space after ',' and ':'. Integers
/// have at most 18 digits. Numbers have at most 17 digits after the point and two in the exponent;
/// numbers with bounds or a divisor have the form of json_number_automaton.h. Strings are UTF-8,
/// and an escaped surrogate never stands alone. Names may repeat in an object that lists no
/// properties.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/sample/grammar.h"

namespace quire {

inline constexpr int kFreeDepth = 16;
inline constexpr std::int64_t kMostAlternatives = 240;
inline constexpr std::size_t kMaxSchemaBytes = 64 << 10;

/// Compiles `schema`, a JSON text; errors name the place in it (field, "properties.age.minimum").
/// Errors: kUnimplemented for what the subset lacks, kInvalidArgument for an invalid schema or one
/// that no finite value satisfies.
Result<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema);

/// Returns the grammar of any JSON object.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace quire
