#include "server/chat/answer_form.h"

#include <boost/json.hpp>
#include <string>
#include <utility>

#include "base/json_parse.h"
#include "engine/sample/json_schema_grammar.h"
#include "engine/sample/regex_grammar.h"
#include "engine/sample/text_grammar.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxChoices = 1024, kMaxChoiceBytes = 4096;

using Form = std::shared_ptr<const Grammar>;

/// Reads the members of one object; `member` names the one that says a form.
class FormReader {
 public:
  explicit FormReader(JsonReader& r) : r_(r) {}

  Form schema(std::string_view member) {
    const auto* given = r_.raw(member);
    if (!given || !r_.ok()) return nullptr;
    // vLLM takes a schema as a text, too.
    json::value parsed;
    if (const auto* text = given->if_string()) {
      if (parse_json(*text, parsed)) {
        r_.fail(member, r_.path_of(member) + " is a text that is no JSON");
        return nullptr;
      }
      given = &parsed;
    }
    return taken(member, json_schema_grammar(json::serialize(*given)));
  }

  Form regex(std::string_view member) {
    std::string text;
    r_.string(member, text);
    return r_.ok() && r_.has(member) ? taken(member, regex_grammar(text)) : nullptr;
  }

  Form grammar(std::string_view member) {
    std::string text;
    r_.string(member, text);
    // llama.cpp's clients send an empty grammar where they want none.
    if (!r_.ok() || text.empty()) return nullptr;
    return taken(member, text_grammar(text));
  }

  Form choice(std::string_view member) {
    auto texts = r_.strings(member, kMaxChoices);
    if (!r_.ok() || !r_.has(member)) return nullptr;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].empty() || texts[i].size() > kMaxChoiceBytes) {
        const std::string item = std::string(member) + "[" + std::to_string(i) + "]";
        r_.fail(item,
                r_.path_of(item) + " must have 1 to " + std::to_string(kMaxChoiceBytes) + " bytes");
        return nullptr;
      }
    }
    if (texts.empty()) {
      r_.fail(member, r_.path_of(member) + " must have at least one text");
      return nullptr;
    }
    GrammarBuilder builder;
    const Grammar::Part one = builder.one_of(std::move(texts));
    return taken(member, builder.finish(one));
  }

 private:
  Form taken(std::string_view member, Result<Form> made) {
    if (made.ok()) return std::move(*made);
    const Status& status = made.status();
    const std::string place = std::string(member) +
                              (status.field().empty() ? "" : "." + status.field());
    r_.fail(place, r_.path_of(place) + ": " + status.message(),
            status.code() == Code::kUnimplemented ? "unsupported_parameter" : "invalid_value");
    return nullptr;
  }

  JsonReader& r_;
};

/// Reads {"type", "json_schema": {"name", "strict", "schema"}}. Every schema is followed strictly.
Form read_response_format(JsonReader& r) {
  const auto* format = r.object("response_format");
  if (!format || !r.ok()) return nullptr;
  JsonReader f(*format, "response_format");
  std::string type;
  Form form;
  f.string("type", type, 64);
  if (type == "json_object") {
    // llama.cpp takes a schema here.
    form = f.has("schema") ? FormReader(f).schema("schema") : json_object_grammar();
  } else if (type == "json_schema") {
    const auto* given = f.object("json_schema");
    if (!given && f.ok())
      f.fail("json_schema", "response_format.json_schema is missing; it holds the schema");
    if (given) {
      JsonReader s(*given, "response_format.json_schema");
      std::string name, description;  // a schema's own matter
      bool strict = true;
      s.string("name", name, 256);
      s.string("description", description, 64 << 10);
      s.boolean("strict", strict);
      if (!s.has("schema")) s.fail("schema", s.path_of("schema") + " is missing");
      form = FormReader(s).schema("schema");
      s.finish();
      f.adopt(s.error());
    }
  } else if (f.ok() && type != "text") {
    f.fail("type",
           "response_format.type is " + (type.empty() ? "missing" : "'" + type + "'") +
               "; use text, json_object or json_schema (structured_outputs takes other forms)",
           type.empty() ? "invalid_value" : "unsupported_parameter");
  }
  for (const char* schema : {"schema", "json_schema"}) {
    const bool used = type == (schema == std::string_view("schema") ? "json_object" : schema);
    if (f.ok() && !used && f.has(schema))
      f.fail(schema, f.path_of(schema) + " has no effect beside type '" + type + "'");
  }
  f.finish();
  r.adopt(f.error());
  return form;
}

/// Reads {"json"}, {"regex"}, {"choice"}, {"grammar"} or {"json_object": true}.
Form read_structured_outputs(JsonReader& r) {
  const auto* given = r.object("structured_outputs");
  if (!given || !r.ok()) return nullptr;
  JsonReader s(*given, "structured_outputs");
  FormReader forms(s);
  bool object = false;
  s.boolean("json_object", object);
  std::vector<Form> all = {forms.schema("json"), forms.regex("regex"), forms.choice("choice"),
                           forms.grammar("grammar"), object ? json_object_grammar() : nullptr};
  s.finish();
  std::erase(all, nullptr);
  if (s.ok() && all.size() != 1)
    s.fail("",
           "structured_outputs must have exactly one of json, regex, choice, grammar and "
           "json_object");
  r.adopt(s.error());
  return all.empty() ? nullptr : all.front();
}

}  // namespace

std::shared_ptr<const Grammar> read_json_schema(JsonReader& r, std::string_view member) {
  return FormReader(r).schema(member);
}

void read_answer_form(JsonReader& r, SamplingOptions& out) {
  FormReader forms(r);
  const auto take = [&](std::string_view member, Form form) {
    if (!form || !r.ok()) return;
    if (out.grammar)
      return r.fail(member, std::string(member) +
                                " is given beside another form of the answer; give one of them");
    out.grammar = std::move(form);
  };
  take("response_format", read_response_format(r));
  take("structured_outputs", read_structured_outputs(r));
  take("guided_json", forms.schema("guided_json"));
  take("guided_regex", forms.regex("guided_regex"));
  take("guided_choice", forms.choice("guided_choice"));
  take("guided_grammar", forms.grammar("guided_grammar"));
  take("json_schema", forms.schema("json_schema"));
  take("grammar", forms.grammar("grammar"));
  if (r.ok() && out.grammar && !out.stop.empty())
    r.fail("stop",
           "stop cannot be combined with a form of the answer: one that is cut would not have it",
           "unsupported_parameter");
}

}  // namespace quire
