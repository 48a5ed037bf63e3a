#include "engine/chat/jinja_template.h"

#include <boost/json.hpp>
#include <new>

#include "base/json_parse.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/parser.h"

namespace quire::tokenizer_internal {
namespace {

namespace json = boost::json;

jinja::Value value_of(const json::value& v, jinja::Mark mark) {
  switch (v.kind()) {
    case json::kind::null:
      return jinja::None{};
    case json::kind::bool_:
      return v.get_bool();
    case json::kind::int64:
      return v.get_int64();
    case json::kind::uint64:
      return static_cast<double>(v.get_uint64());  // above int64
    case json::kind::double_:
      return v.get_double();
    case json::kind::string:
      return jinja::Value::text(std::string_view(v.get_string().data(), v.get_string().size()),
                                mark);
    case json::kind::array: {
      std::vector<jinja::Value> items;
      for (const json::value& item : v.get_array()) items.push_back(value_of(item, mark));
      return jinja::Value::list(std::move(items));
    }
    case json::kind::object: {
      auto dict = std::make_shared<jinja::Dict>();
      for (const auto& item : v.get_object()) {
        // Not Dict::set(): the parser left each key once, and looking for it would cost squares.
        jinja::Value key = jinja::Value::text(
            std::string_view(item.key().data(), item.key().size()), mark);
        jinja::Value value = value_of(item.value(), mark);
        dict->depth = std::max(dict->depth, value.depth() + 1);
        dict->weight += key.weight() + value.weight();
        dict->items.emplace_back(std::move(key), std::move(value));
      }
      return jinja::Value(std::move(dict));
    }
  }
  return jinja::None{};
}

}  // namespace

struct JinjaTemplate::Parsed {
  jinja::Template tree;
  JinjaLimits limits;
};

Result<JinjaTemplate> JinjaTemplate::parse(std::string_view source, const JinjaLimits& limits) {
  if (source.size() > limits.template_bytes) {
    return Status::invalid("", "the chat template has " + std::to_string(source.size()) +
                                   " bytes, more than " + std::to_string(limits.template_bytes));
  }
  try {
    auto parsed = std::make_shared<Parsed>();
    parsed->tree = jinja::parse(source);
    parsed->limits = limits;
    return JinjaTemplate(std::move(parsed));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Status::invalid("", std::string("the chat template cannot be read: ") + e.what());
  }
}

Result<jinja::Text> JinjaTemplate::render(Inputs inputs, std::size_t input_bytes) const {
  const JinjaLimits& l = parsed_->limits;
  jinja::Interpreter run({.steps = l.steps + 16 * input_bytes,
                          .text_bytes = l.text_bytes + 64 * input_bytes,
                          .output_bytes = l.output_bytes + 8 * input_bytes,
                          .depth = l.depth});
  const auto at = [&] { return " (line " + std::to_string(run.line()) + " of the template)"; };
  try {
    return run.render(parsed_->tree, std::move(inputs));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const jinja::RaisedError& e) {
    return Status::invalid("", std::string("the model's chat template refuses it: ") + e.what());
  } catch (const jinja::LimitError& e) {
    return Status::exhausted(std::string("the model's chat template asks for too much: ") +
                             e.what() + at());
  } catch (const std::exception& e) {
    return Status::invalid(
        "", std::string("the model's chat template cannot render it: ") + e.what() + at());
  }
}

Result<jinja::Value> jinja_value_of_json(std::string_view text, jinja::Mark mark,
                                         const std::string& field) {
  json::value parsed;
  if (const auto error = parse_json(text, parsed))
    return Status::invalid(field, "is not valid JSON: " + error->reason);
  try {
    return value_of(parsed, mark);
  } catch (const jinja::Error& e) {
    return Status::invalid(field, e.what());
  }
}

}  // namespace quire::tokenizer_internal
