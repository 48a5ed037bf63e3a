#include "engine/sample/json_schema_grammar.h"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/system/error_code.hpp>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/json_parse.h"
#include "engine/sample/automata/json_number_automaton.h"
#include "engine/sample/first_ways.h"
#include "engine/sample/json_grammar_parts.h"
#include "engine/sample/json_string_part.h"
#include "engine/sample/token_mask.h"

namespace quire {
namespace json = boost::json;
namespace {

using Part = Grammar::Part;

constexpr std::size_t kMaxParts = 200'000;
constexpr std::int64_t kMaxCount = 1 << 20;
constexpr int kMaxDepth = 200;

enum Keywords : unsigned { kNoType = 0, kObject = 1, kArray = 2, kString = 4, kNumber = 8 };

/// Returns the type that a keyword applies to; nothing: unknown.
struct Keyword {
  std::string_view name;
  unsigned type;
};
constexpr std::array kTyped = {Keyword{"properties", kObject},
                               Keyword{"required", kObject},
                               Keyword{"additionalProperties", kObject},
                               Keyword{"items", kArray},
                               Keyword{"prefixItems", kArray},
                               Keyword{"minItems", kArray},
                               Keyword{"maxItems", kArray},
                               Keyword{"minLength", kString},
                               Keyword{"maxLength", kString},
                               Keyword{"format", kString},
                               Keyword{"pattern", kString},
                               Keyword{"minimum", kNumber},
                               Keyword{"maximum", kNumber},
                               Keyword{"exclusiveMinimum", kNumber},
                               Keyword{"exclusiveMaximum", kNumber},
                               Keyword{"multipleOf", kNumber}};
constexpr std::array<std::string_view, 13> kIgnored = {
    "title",         "description", "default", "examples", "deprecated", "readOnly",   "writeOnly",
    "discriminator", "$schema",     "$id",     "$comment", "$defs",      "definitions"};

std::string joined(const std::string& path, std::string_view member) {
  return path.empty() ? std::string(member) : path + "." + std::string(member);
}

class Compiler {
 public:
  explicit Compiler(const json::value& root) : root_(root), json_(builder_) {}

  Result<std::shared_ptr<const Grammar>> compile() {
    QUIRE_ASSIGN_OR_RETURN(const Part part, schema(root_, ""));
    auto grammar = builder_.finish(part);
    if (!grammar.ok())
      return Status::invalid("",
                             "no finite value fulfils the schema: it needs itself again and again");
    QUIRE_RETURN_IF_ERROR(check_ways(**grammar));
    return grammar;
  }

 private:
  static Status unsupported(const std::string& path, const std::string& what) {
    return Status(Code::kUnimplemented, what, path);
  }

  /// Refuses a grammar of which a matcher would drop alternatives.
  Status check_ways(const Grammar& grammar) const {
    // Beside alternatives, an end may come or a space, or a number before them may go on.
    constexpr std::int64_t kMost = kMostAlternatives + 8;
    static_assert(kMost + 8 <= GrammarMatcher::kMaxWays);
    const FirstWays ways(grammar);
    const auto place = std::ranges::find_if(
        alternatives_, [&](const auto& known) { return ways.of(known.first) > kMostAlternatives; });
    if (place == alternatives_.end() && ways.most() <= kMost) return {};
    return unsupported(place == alternatives_.end() ? "" : place->second,
                       "more than " + std::to_string(kMostAlternatives) +
                           " alternatives in one place, besides fixed values, are not supported; "
                           "write fixed values as enum or const, or use fewer alternatives");
  }

  Result<Part> schema(const json::value& value, const std::string& path) {
    if (builder_.size() > kMaxParts) return Status::invalid(path, "the schema is too large");
    if (depth_ == kMaxDepth)
      return Status::invalid(path, "the schema nests deeper than " + std::to_string(kMaxDepth) +
                                       " levels, references included");
    ++depth_;
    auto part = any_schema(value, path);
    --depth_;
    return part;
  }

  Result<Part> any_schema(const json::value& value, const std::string& path) {
    if (value.is_bool()) {
      if (value.get_bool()) return json_.any(kFreeDepth);
      return Status::invalid(path, "false allows no value");
    }
    const auto* s = value.if_object();
    if (!s) return Status::invalid(path, "a schema must be an object or a boolean");
    std::string_view alone;
    for (const auto& [key, _] : *s) {
      const std::string_view name(key.data(), key.size());
      if (name == "$ref" || name == "anyOf" || name == "oneOf" || name == "allOf" ||
          name == "enum" || name == "const") {
        if (!alone.empty())
          return unsupported(joined(path, name), std::string(name) + " beside " +
                                                     std::string(alone) + " is not supported");
        alone = name;
      }
    }
    if (alone.empty()) return typed(*s, path);
    const bool values = alone == "enum" || alone == "const";
    for (const auto& [key, _] : *s) {
      const std::string_view name(key.data(), key.size());
      if (name == alone || (values && name == "type") || is_ignored(name)) continue;
      return unsupported(joined(path, name),
                         std::string(name) + " beside " + std::string(alone) + " is not supported");
    }
    if (alone == "$ref") return reference(s->at("$ref"), joined(path, "$ref"));
    if (values) {
      QUIRE_ASSIGN_OR_RETURN(auto texts, texts_of_values(*s, path));
      return builder_.one_of(std::move(texts));
    }
    if (alone == "allOf") return only_one(s->at("allOf"), joined(path, "allOf"));
    return alternatives(s->at(alone), joined(path, alone));
  }

  static bool is_ignored(std::string_view name) {
    return std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end();
  }

  Result<Part> reference(const json::value& value, const std::string& path) {
    if (!value.is_string()) return Status::invalid(path, "$ref must be a string");
    const std::string target(value.as_string());
    if (target != "#" && !target.starts_with("#/"))
      return unsupported(path,
                         "only references inside the schema are supported: \"#\" or \"#/...\"");
    if (const auto known = references_.find(target); known != references_.end())
      return known->second;
    boost::system::error_code ec;
    const json::value* found = target == "#"
                                   ? &root_
                                   : root_.find_pointer(std::string_view(target).substr(1), ec);
    if (!found)
      return Status::invalid(path, "there is no '" + target.substr(0, 128) + "' in the schema");
    // The part is declared first, so that it may refer to itself.
    const Part part = builder_.forward();
    references_.emplace(target, part);
    std::string found_path = target == "#" ? std::string() : target.substr(2);
    std::replace(found_path.begin(), found_path.end(), '/', '.');
    QUIRE_ASSIGN_OR_RETURN(const Part meaning, schema(*found, found_path));
    builder_.define(part, meaning);
    return part;
  }

  /// Handles `allOf` of one schema, which some generators use to annotate a reference.
  Result<Part> only_one(const json::value& value, const std::string& path) {
    const auto* list = value.if_array();
    if (!list || list->empty())
      return Status::invalid(path, "must be a list of at least one schema");
    if (list->size() > 1)
      return unsupported(path, "allOf of several schemas is not supported; write them as one");
    return schema((*list)[0], path + "[0]");
  }

  Result<Part> alternatives(const json::value& value, const std::string& path) {
    const auto* list = value.if_array();
    if (!list || list->empty())
      return Status::invalid(path, "must be a list of at least one schema");
    std::vector<Part> parts;
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string place = path + "[" + std::to_string(i) + "]";
      if (is_values((*list)[i])) {
        // Together, values share the parts of their beginnings.
        QUIRE_ASSIGN_OR_RETURN(auto some, texts_of_values((*list)[i].get_object(), place));
        std::ranges::move(some, std::back_inserter(texts));
        continue;
      }
      QUIRE_ASSIGN_OR_RETURN(const Part part, schema((*list)[i], place));
      parts.push_back(part);
    }
    if (!texts.empty()) parts.push_back(builder_.one_of(std::move(texts)));
    const Part choice = builder_.choice(std::move(parts));
    alternatives_.emplace_back(choice, path);
    return choice;
  }

  /// Returns whether a schema has nothing but an enum or a const, besides the type and annotations.
  static bool is_values(const json::value& value) {
    const auto* s = value.if_object();
    if (!s || s->contains("enum") == s->contains("const")) return false;
    return std::ranges::all_of(*s, [](const auto& member) {
      const std::string_view name(member.key().data(), member.key().size());
      return name == "enum" || name == "const" || name == "type" || is_ignored(name);
    });
  }

  /// Returns the names in `type`; empty if it is absent.
  Result<std::vector<std::string>> types(const json::object& s, const std::string& path) {
    std::vector<std::string> names;
    const auto* type = s.if_contains("type");
    if (!type) return names;
    const auto add = [&](const json::value& v) {
      if (!v.is_string()) return false;
      const std::string name(v.as_string());
      static constexpr std::array<std::string_view, 7> kTypes = {
          "object", "array", "string", "integer", "number", "boolean", "null"};
      names.push_back(name);
      return std::find(kTypes.begin(), kTypes.end(), name) != kTypes.end();
    };
    bool ok = true;
    if (const auto* list = type->if_array()) {
      ok = !list->empty();
      for (const auto& v : *list) ok = ok && add(v);
    } else {
      ok = add(*type);
    }
    if (!ok)
      return Status::invalid(
          joined(path, "type"),
          "must be object, array, string, integer, number, boolean or null, or a list of them");
    return names;
  }

  static bool has_type(const json::value& v, const std::string& type) {
    if (type == "object") return v.is_object();
    if (type == "array") return v.is_array();
    if (type == "string") return v.is_string();
    if (type == "boolean") return v.is_bool();
    if (type == "null") return v.is_null();
    return v.is_number() &&
           (type == "number" || !v.is_double() || v.get_double() == std::floor(v.get_double()));
  }

  Result<std::vector<std::string>> texts_of_values(const json::object& s, const std::string& path) {
    QUIRE_ASSIGN_OR_RETURN(const auto names, types(s, path));
    std::vector<std::string> texts;
    const auto add = [&](const json::value& v) {
      if (names.empty() ||
          std::any_of(names.begin(), names.end(), [&](const auto& n) { return has_type(v, n); }))
        texts.push_back(json_spelling(v));
    };
    if (const auto* fixed = s.if_contains("const")) {
      add(*fixed);
    } else {
      const auto* list = s.at("enum").if_array();
      if (!list) return Status::invalid(joined(path, "enum"), "must be a list of values");
      for (const auto& v : *list) add(v);
    }
    if (texts.empty())
      return Status::invalid(joined(path, s.contains("const") ? "const" : "enum"),
                             "allows no value");
    return texts;
  }

  Result<Part> typed(const json::object& s, const std::string& path) {
    unsigned wanted = kNoType;
    for (const auto& [key, _] : s) {
      const std::string_view name(key.data(), key.size());
      if (name == "type" || is_ignored(name)) continue;
      const auto keyword = std::find_if(kTyped.begin(), kTyped.end(),
                                        [&](const Keyword& k) { return k.name == name; });
      if (keyword == kTyped.end())
        return unsupported(joined(path, name),
                           std::string(name.substr(0, 64)) + " is not supported");
      wanted |= keyword->type;
    }
    QUIRE_ASSIGN_OR_RETURN(auto names, types(s, path));
    if (names.empty()) {
      // A schema whose keywords apply to one type means that type.
      if (wanted == kNoType) return json_.any(kFreeDepth);
      if (!std::has_single_bit(wanted))
        return unsupported(joined(path, "type"),
                           "type is missing, and the schema speaks of several");
      names = {wanted == kObject   ? "object"
               : wanted == kArray  ? "array"
               : wanted == kString ? "string"
                                   : "number"};
    }
    std::vector<Part> parts;
    for (const std::string& name : names) {
      QUIRE_ASSIGN_OR_RETURN(const Part part, of_type(name, s, path));
      parts.push_back(part);
    }
    return parts.size() == 1 ? parts[0] : builder_.choice(std::move(parts));
  }

  Result<Part> of_type(const std::string& type, const json::object& s, const std::string& path) {
    if (type == "object") return object(s, path);
    if (type == "array") return array(s, path);
    if (type == "string") return string(s, path);
    if (type == "integer" || type == "number") return number(type == "integer", s, path);
    return type == "boolean" ? json_.boolean() : json_.null();
  }

  Result<std::pair<std::int32_t, std::int32_t>> counts(const json::object& s,
                                                       const std::string& path,
                                                       std::string_view min_name,
                                                       std::string_view max_name) {
    std::pair<std::int32_t, std::int32_t> out{0, Grammar::kUnbounded};
    const auto read = [&](std::string_view name, std::int32_t& to) {
      const auto* v = s.if_contains(json::string_view(name.data(), name.size()));
      if (!v) return true;
      if (!v->is_int64() || v->get_int64() < 0 || v->get_int64() > kMaxCount) return false;
      to = static_cast<std::int32_t>(v->get_int64());
      return true;
    };
    for (const auto& [name, to] :
         {std::pair{min_name, &out.first}, std::pair{max_name, &out.second}}) {
      if (!read(name, *to))
        return Status::invalid(joined(path, name),
                               "must be an integer between 0 and " + std::to_string(kMaxCount));
    }
    if (out.first > out.second)
      return Status::invalid(joined(path, max_name), "is below " + std::string(min_name));
    return out;
  }

  Result<Part> string(const json::object& s, const std::string& path) {
    JsonStrings strings;
    QUIRE_ASSIGN_OR_RETURN(const auto count, counts(s, path, "minLength", "maxLength"));
    std::tie(strings.min, strings.max) = count;
    for (const auto& [name, to] :
         {std::pair{"format", &strings.format}, std::pair{"pattern", &strings.pattern}}) {
      const auto* v = s.if_contains(name);
      if (!v) continue;
      if (!v->is_string()) return Status::invalid(joined(path, name), "must be a string");
      *to = std::string(v->get_string());
    }
    if (!strings.format && !strings.pattern) return json_.string(count.first, count.second);
    auto part = json_string_part(builder_, strings);
    if (!part.ok()) return part.status().with_field(joined(path, part.status().field()));
    return part;
  }

  static Decimal decimal(const json::value& number) {
    if (number.is_int64()) return Decimal(number.get_int64());
    return number.is_uint64() ? Decimal(number.get_uint64()) : Decimal(number.get_double());
  }

  Result<Part> number(bool whole, const json::object& s, const std::string& path) {
    JsonNumbers numbers;
    numbers.whole = whole;
    std::string last;  // the keyword to name where they leave no number
    const auto read = [&](std::string_view name, const auto& take) -> Status {
      const auto* v = s.if_contains(json::string_view(name.data(), name.size()));
      if (!v) return {};
      last = joined(path, name);
      if (!v->is_number()) return Status::invalid(last, "must be a number");
      return take(decimal(*v));
    };
    for (const bool exclusive : {false, true}) {
      QUIRE_RETURN_IF_ERROR(
          read(exclusive ? "exclusiveMinimum" : "minimum", [&](const auto& bound) {
            numbers.from(bound, exclusive);
            return Status();
          }));
    }
    for (const bool exclusive : {true, false}) {
      QUIRE_RETURN_IF_ERROR(
          read(exclusive ? "exclusiveMaximum" : "maximum", [&](const auto& bound) {
            numbers.to(bound, exclusive);
            return Status();
          }));
    }
    QUIRE_RETURN_IF_ERROR(read("multipleOf", [&](const Decimal& divisor) -> Status {
      if (divisor.zero() || divisor.negative()) return Status::invalid(last, "must be above zero");
      numbers.multiple_of = divisor;
      return {};
    }));
    if (last.empty()) return whole ? json_.integer() : json_.number();
    auto automaton = json_number_automaton(numbers, builder_.budget());
    if (!automaton)
      return unsupported(last,
                         "takes too many states; use closer bounds, or a multipleOf of fewer "
                         "digits, and fewer of both");
    if (automaton->empty())
      return Status::invalid(
          last, "leaves no number of at most " +
                    std::to_string(whole ? kMostIntegerDigits : kMostNumberDigits) + " digits");
    return builder_.automaton(std::move(*automaton));
  }

  Result<Part> array(const json::object& s, const std::string& path) {
    QUIRE_ASSIGN_OR_RETURN(const auto count, counts(s, path, "minItems", "maxItems"));
    std::optional<Part> item = json_.any(kFreeDepth - 1);
    if (const auto* items = s.if_contains("items")) {
      if (items->is_bool() && !items->get_bool()) {
        item.reset();
      } else {
        QUIRE_ASSIGN_OR_RETURN(item, schema(*items, joined(path, "items")));
      }
    }
    const auto* prefix = s.if_contains("prefixItems");
    std::vector<Part> first;
    const std::string prefix_path = joined(path, "prefixItems");
    if (prefix && !prefix->is_array())
      return Status::invalid(prefix_path, "must be a list of schemas");
    const bool only_items = !prefix || prefix->as_array().empty();
    if (only_items && item) return json_.array(*item, count.first, count.second);
    for (std::size_t i = 0; prefix && i < prefix->as_array().size(); ++i) {
      QUIRE_ASSIGN_OR_RETURN(const Part part, schema(prefix->as_array()[i],
                                                     prefix_path + "[" + std::to_string(i) + "]"));
      first.push_back(part);
    }
    if (!item && static_cast<std::size_t>(count.first) > first.size())
      return Status::invalid(joined(path, "minItems"), "is more than there may be items");
    return json_.tuple(first, item, count.first, count.second);
  }

  Result<Part> object(const json::object& s, const std::string& path) {
    std::vector<JsonParts::Member> members;
    if (const auto* properties = s.if_contains("properties")) {
      if (!properties->is_object())
        return Status::invalid(joined(path, "properties"), "must be an object of schemas");
      for (const auto& [name, value] : properties->as_object()) {
        QUIRE_ASSIGN_OR_RETURN(const Part part,
                               schema(value, joined(path, "properties." + std::string(name))));
        members.push_back({std::string(name), part, false});
      }
    }
    const auto* others = s.if_contains("additionalProperties");
    const bool closed = others && others->is_bool() && !others->get_bool();
    QUIRE_RETURN_IF_ERROR(require(s, path, closed, members));
    QUIRE_RETURN_IF_ERROR(check_optional(members, path));
    const std::string others_path = joined(path, "additionalProperties");
    if (!members.empty()) {
      if (others && !others->is_bool())
        return unsupported(
            others_path,
            "a schema for further members is not supported beside properties; use false");
      return json_.object(members);
    }
    if (closed) return json_.object({});
    if (!others || others->is_bool()) return json_.map(json_.any(kFreeDepth - 1));
    QUIRE_ASSIGN_OR_RETURN(const Part value, schema(*others, others_path));
    return json_.map(value);
  }

  /// Marks required members. A name that is not among the properties becomes a member of any value,
  /// unless the object is closed.
  Status require(const json::object& s, const std::string& path, bool closed,
                 std::vector<JsonParts::Member>& members) {
    const auto* required = s.if_contains("required");
    if (!required) return {};
    const std::string required_path = joined(path, "required");
    if (!required->is_array()) return Status::invalid(required_path, "must be a list of names");
    for (const auto& v : required->as_array()) {
      if (!v.is_string()) return Status::invalid(required_path, "must be a list of names");
      const std::string name(v.as_string());
      const auto member = std::find_if(members.begin(), members.end(),
                                       [&](const auto& m) { return m.name == name; });
      if (member != members.end())
        member->required = true;
      else if (closed)
        return Status::invalid(required_path, "'" + name.substr(0, 64) +
                                                  "' is required, but not among the properties");
      else
        members.push_back({name, json_.any(kFreeDepth - 1), true});
    }
    return {};
  }

  /// Refuses more members in a row that may be missing than a matcher follows: each of them may
  /// come next, or what is behind them.
  static Status check_optional(const std::vector<JsonParts::Member>& members,
                               const std::string& path) {
    std::int64_t in_a_row = 0;
    for (const JsonParts::Member& member : members) {
      in_a_row = member.required ? 0 : in_a_row + 1;
      if (in_a_row > kMostAlternatives)
        return unsupported(joined(path, "properties"),
                           "more than " + std::to_string(kMostAlternatives) +
                               " members in a row that are not required are not supported; "
                               "require some of them");
    }
    return {};
  }

  const json::value& root_;
  GrammarBuilder builder_;
  JsonParts json_;
  std::map<std::string, Part> references_;
  std::vector<std::pair<Part, std::string>> alternatives_;  ///< of anyOf and oneOf, with their path
  int depth_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes)
    return Status::invalid("", "the schema has " + std::to_string(schema.size()) +
                                   " bytes; at most " + std::to_string(kMaxSchemaBytes) +
                                   " are taken");
  json::value value;
  if (const auto error = parse_json(schema, value))
    return Status::invalid("", "the schema is no JSON: " + error->reason);
  return Compiler(value).compile();
}

std::shared_ptr<const Grammar> json_object_grammar() {
  GrammarBuilder builder;
  JsonParts parts(builder);
  return *builder.finish(parts.map(parts.any(kFreeDepth - 1)));
}

}  // namespace quire
