// Templates render as in transformers (template_golden.json, written by make_template_golden.py),
// within their bounds.
#include "engine/chat/jinja_template.h"

#include <boost/json.hpp>
#include <map>

#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

namespace json = boost::json;
using tokenizer_internal::jinja_value_of_json;
using tokenizer_internal::JinjaLimits;
using tokenizer_internal::JinjaTemplate;

const std::string kHere = QUIRE_SOURCE_DIR "/tests/unit/engine/chat/";

const json::value& golden() {
  static const json::value value = json::parse(*test::slurp(kHere + "template_golden.json"));
  return value;
}

jinja::Value value_of(const json::value& v, jinja::Mark mark = jinja::kTemplateMark) {
  return *jinja_value_of_json(json::serialize(v), mark, "test");
}

Result<std::string> rendered(const std::string& source, JinjaTemplate::Inputs inputs,
                             const JinjaLimits& limits = {}) {
  auto parsed = JinjaTemplate::parse(source, limits);
  if (!parsed.ok()) return parsed.status();
  auto text = parsed->render(std::move(inputs), 0);
  if (!text.ok()) return text.status();
  return text->bytes;
}

void expect_same(const Result<std::string>& ours, const json::value& theirs) {
  if (theirs.is_null()) {
    EXPECT_FALSE(ours.ok()) << "transformers refuses this, we render: " << *ours;
    return;
  }
  ASSERT_TRUE(ours.ok()) << ours.status().to_string();
  EXPECT_EQ(*ours, std::string(theirs.as_string()));
}

TEST(JinjaTemplateTest, PublishedTemplatesRenderAsTransformersRendersThem) {
  std::map<std::string, std::string> sources;
  for (const json::value& c : golden().at("cases").as_array()) {
    const std::string name(c.at("template").as_string()),
        conversation(c.at("conversation").as_string());
    SCOPED_TRACE(name + ", " + conversation);
    if (!sources.contains(name)) sources[name] = *test::slurp(kHere + "chat_templates/" + name);
    const json::value& messages = golden().at("conversations").at(conversation);
    const bool answered = messages.as_array().back().at("role").as_string() == "assistant";
    const bool tools = conversation.find("tool") != std::string::npos;
    const auto ours = rendered(sources[name], {{"messages", value_of(messages)},
                                               {"tools", tools ? value_of(golden().at("tools"))
                                                               : jinja::Value(jinja::None{})},
                                               {"documents", jinja::None{}},
                                               {"add_generation_prompt", !answered},
                                               {"enable_thinking", c.at("thinking").as_bool()},
                                               {"bos_token", jinja::Value::text("<s>")},
                                               {"eos_token", jinja::Value::text("</s>")}});
    expect_same(ours, c.at("text"));
  }
}

TEST(JinjaTemplateTest, FeaturesRenderAsTransformersRendersThem) {
  for (const json::value& s : golden().at("snippets").as_array()) {
    const std::string source(s.at("source").as_string());
    SCOPED_TRACE(source);
    JinjaTemplate::Inputs inputs;
    for (const auto& item : golden().at("values").as_object())
      inputs.emplace_back(item.key(), value_of(item.value()));
    expect_same(rendered(source, std::move(inputs)), s.at("text"));
  }
}

}  // namespace
}  // namespace quire
