#include "engine/sample/tool_grammar.h"

#include <algorithm>
#include <boost/json.hpp>
#include <vector>

#include "base/json_parse.h"
#include "engine/sample/json_grammar_parts.h"
#include "engine/sample/json_schema_grammar.h"

namespace quire {
namespace {

namespace json = boost::json;
using Part = Grammar::Part;

constexpr std::int32_t kMostCalls = 127;  ///< after the first

/// Whether the schema describes an object without members.
bool takes_nothing(const std::string& schema) {
  json::value value;
  if (schema.empty()) return true;
  if (parse_json(schema, value) || !value.is_object()) return false;
  const json::object& o = value.get_object();
  const json::value* properties = o.if_contains("properties");
  const json::value* others = o.if_contains("additionalProperties");
  const bool open = others != nullptr && !(others->is_bool() && !others->get_bool());
  for (const char* key : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "required"})
    if (const json::value* v = o.if_contains(key); v && !(v->is_array() && v->get_array().empty()))
      return false;
  return !open &&
         (properties == nullptr || (properties->is_object() && properties->get_object().empty()));
}

class Builder {
 public:
  Builder(std::span<const ToolSpec> tools, const ToolAnswer& answer, bool every_schema)
      : tools_(tools), answer_(answer), every_schema_(every_schema), json_(b_) {}

  Result<std::shared_ptr<const Grammar>> build() {
    QUIRE_ASSIGN_OR_RETURN(const Part call, one_of_the_calls());
    const Part calls = all_calls(call);
    if (answer_.must_call) return b_.finish(calls);
    if (answer_.instead) return b_.finish(b_.choice({b_.include(*answer_.instead), calls}));
    return b_.finish(text_and(calls));
  }

 private:
  /// {"name": "f", "arguments": {...}} of each function.
  Result<Part> one_of_the_calls() {
    std::vector<Part> calls;
    for (std::size_t i = 0; i < tools_.size(); ++i) {
      const ToolSpec& tool = tools_[i];
      if (!answer_.only.empty() && tool.name != answer_.only) continue;
      QUIRE_ASSIGN_OR_RETURN(const Part arguments, arguments_of(tool, i));
      const char* key = answer_.style == ToolStyle::kLlama3 ? "parameters" : "arguments";
      calls.push_back(
          b_.sequence({b_.literal("{\"name\": " + json::serialize(json::string_view(tool.name)) +
                                  ", \"" + key + "\": "),
                       arguments, b_.literal("}")}));
    }
    return b_.choice(std::move(calls));
  }

  Result<Part> arguments_of(const ToolSpec& tool, std::size_t i) {
    if (takes_nothing(tool.parameters)) return b_.literal("{}");
    if (!every_schema_ && !tool.strict) {
      if (!any_object_) any_object_ = json_.map(json_.any(kFreeDepth - 1));
      return *any_object_;
    }
    auto grammar = json_schema_grammar(tool.parameters);
    if (grammar.ok()) return b_.include(**grammar);
    const Status& status = grammar.status();
    const std::string field = "tools[" + std::to_string(i) + "].function.parameters";
    return status.with_field(status.field().empty() ? field : field + "." + status.field());
  }

  Part all_calls(Part call) {
    const std::int32_t more = answer_.parallel && answer_.only.empty() ? kMostCalls : 0;
    switch (answer_.style) {
      case ToolStyle::kLlama3:
        return call;
      case ToolStyle::kHermes: {
        const Part one = b_.sequence(
            {b_.literal("<tool_call>\n"), call, b_.literal("\n</tool_call>")});
        if (more == 0) return one;
        return b_.sequence({one, b_.repeat(b_.sequence({b_.literal("\n"), one}), 0, more)});
      }
      case ToolStyle::kSmolLm:
        return b_.sequence(
            {b_.literal("<tool_call>"), list(call, more), b_.literal("</tool_call>")});
      case ToolStyle::kMistral:
        return b_.sequence({b_.literal("[TOOL_CALLS]"), list(call, more)});
    }
    return call;
  }

  Part list(Part call, std::int32_t more) {
    std::vector<Part> items = {b_.literal("["), call};
    if (more > 0) items.push_back(b_.repeat(b_.sequence({b_.literal(", "), call}), 0, more));
    items.push_back(b_.literal("]"));
    return b_.sequence(std::move(items));
  }

  Part any_byte() {
    ByteSet all;
    return b_.bytes(all.set());
  }

  /// Text of any kind, in which calls follow the first marker.
  Part text_and(Part calls) {
    if (answer_.style == ToolStyle::kLlama3) {
      // Without markers, an answer is a call if it begins like JSON.
      ByteSet other;
      other.set().reset('{').reset(' ').reset('\n').reset('\r').reset('\t');
      const Part text = b_.sequence({b_.bytes(other), b_.repeat(any_byte(), 0)});
      return b_.choice({calls, text});
    }
    const std::string marker = answer_.style == ToolStyle::kMistral ? "[TOOL_CALLS]"
                                                                    : "<tool_call>";
    // One part for each beginning of the marker that the text may end with. The calls begin with
    // the marker itself, so each part first leaves that way open.
    std::vector<Part> after;
    for (std::size_t i = 0; i < marker.size(); ++i) after.push_back(b_.forward());
    const Part end = b_.sequence({});
    for (std::size_t i = 0; i < marker.size(); ++i) {
      std::vector<Part> ways = {end};
      if (i == 0) ways.push_back(calls);
      std::vector<ByteSet> to(marker.size());
      for (unsigned byte = 0; byte < 256; ++byte) {
        std::string seen = marker.substr(0, i) + static_cast<char>(byte);
        while (!seen.empty() && !marker.starts_with(seen)) seen.erase(0, 1);
        // The whole marker is written only where calls begin.
        if (seen.size() < marker.size()) to[seen.size()].set(byte);
      }
      for (std::size_t k = 0; k < marker.size(); ++k)
        if (to[k].any()) ways.push_back(b_.sequence({b_.bytes(to[k]), after[k]}));
      b_.define(after[i], b_.choice(std::move(ways)));
    }
    return after[0];
  }

  const std::span<const ToolSpec> tools_;
  const ToolAnswer& answer_;
  const bool every_schema_;
  GrammarBuilder b_;
  JsonParts json_;
  std::optional<Part> any_object_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> tool_grammar(std::span<const ToolSpec> tools,
                                                    const ToolAnswer& answer, bool every_schema) {
  return Builder(tools, answer, every_schema).build();
}

}  // namespace quire
