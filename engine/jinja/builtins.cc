#include "engine/jinja/builtins.h"

#include <ctime>

#include "engine/jinja/interpreter.h"
#include "engine/jinja/text_methods.h"

namespace quire::jinja {
namespace {

Value function(std::string name, std::function<Value(Interpreter&, Arguments&)> call) {
  return Value(std::make_shared<const Callable>(Callable{std::move(name), std::move(call)}));
}

Value call_range(Interpreter& run, Arguments& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
    throw Error("range takes one to three numbers");
  std::int64_t bounds[3] = {0, 0, 1};
  for (std::size_t i = 0; i < args.positional.size(); ++i)
    bounds[i] = args.positional[i].to_int("an argument of range");
  if (args.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [from, to, by] = bounds;
  if (by == 0) throw Error("the step of range must not be 0");
  std::vector<Value> all;
  for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
    if (all.size() >= 100'000)
      throw LimitError("range gives more than 100000 numbers");  // as Jinja's sandbox
    run.step();
    all.emplace_back(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return Value::list(std::move(all));
}

Value call_namespace(Interpreter& run, Arguments& args) {
  std::shared_ptr<Dict> space = run.new_namespace();
  for (const Value& given : args.positional) {
    if (given.as_dict() == nullptr) throw Error("namespace takes a dictionary or named values");
    for (const auto& [key, value] : given.as_dict()->items) space->set(key, value);
  }
  for (const auto& [name, value] : args.named) space->set(Value::text(name), value);
  return Value(std::move(space));
}

Value call_dict(Interpreter& run, Arguments& args) {
  auto dict = std::make_shared<Dict>();
  for (const Value& given : args.positional) {
    if (given.as_dict() == nullptr) throw Error("dict takes a dictionary or named values");
    run.step(given.weight());
    for (const auto& [key, value] : given.as_dict()->items) dict->set(key, value);
  }
  for (const auto& [name, value] : args.named) dict->set(Value::text(name), value);
  return Value(std::move(dict));
}

Value call_raise(Interpreter& run, Arguments& args) {
  throw RaisedError(run.str(args.take(0, "message")).bytes.substr(0, 500));
}

/// The date is that of the example in Llama-3.1's template, for ever: with today's, no prompt that
/// was cached yesterday would be found again.
Value call_strftime(Interpreter& run, Arguments& args) {
  std::tm date{};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  const std::string format = run.str(args.take(0, "format")).bytes;
  char buffer[512];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &date);
  return run.text(std::string_view(buffer, size));
}

Value call_joiner(Interpreter& run, Arguments& args) {
  const Value sep = args.take(0, "sep");
  const Text between = sep.is_undefined() ? Text(", ") : run.str(sep);
  return function("joiner",
                  [between, used = std::make_shared<bool>(false)](Interpreter& r, Arguments&) {
                    if (std::exchange(*used, true)) return r.text(between);
                    return Value(Text());
                  });
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.as_text() != nullptr) return is_text_method(name);
  if (const Dict* dict = object.as_dict(); dict != nullptr && !dict->is_namespace) {
    return name == "items" || name == "keys" || name == "values" || name == "get" || name == "copy";
  }
  if (object.as_list() != nullptr) return name == "index" || name == "count" || name == "copy";
  return false;
}

Value call_method(Interpreter& run, const Value& object, std::string_view name, Arguments& args) {
  if (const Text* text = object.as_text()) return call_text_method(run, *text, name, args);
  std::vector<Value> all;
  if (const Dict* dict = object.as_dict()) {
    run.step(dict->items.size());
    if (name == "get") {
      const Value key = args.take(0, "key"), fallback = args.take(1, "default");
      if (const Value* value = dict->find(key)) return *value;
      return fallback.is_undefined() ? Value(None{}) : fallback;
    }
    if (name == "copy") return object;
    for (const auto& [key, value] : dict->items) {
      all.push_back(name == "keys" ? key
                                   : (name == "values" ? value : Value::list({key, value}, true)));
    }
    return Value::list(std::move(all));
  }
  if (name == "copy") return object;
  const Value wanted = args.take(0, "value");
  std::int64_t count = 0, at = 0;
  for (const Value& one : object.as_list()->items) {
    const bool same = run.same(one, wanted);
    if (same && name == "index") return at;
    count += same ? 1 : 0;
    ++at;
  }
  if (name == "index") throw Error("the list does not hold the value index() looks for");
  return count;
}

std::vector<std::pair<std::string, Value>> global_functions() {
  std::vector<std::pair<std::string, Value>> all;
  for (const auto& [name, call] :
       std::initializer_list<std::pair<const char*, Value (*)(Interpreter&, Arguments&)>>{
           {"range", call_range},
           {"namespace", call_namespace},
           {"dict", call_dict},
           {"raise_exception", call_raise},
           {"strftime_now", call_strftime},
           {"joiner", call_joiner}}) {
    all.emplace_back(name, function(name, call));
  }
  return all;
}

Value format_percent(Interpreter& run, const Text& format, const Value& values) {
  std::vector<Value> given = {values};
  if (const List* list = values.as_list(); list != nullptr && list->tuple) given = list->items;
  Text out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format.bytes[at] != '%') {
      out.append(format, at, 1);
      continue;
    }
    const char kind = ++at < format.size() ? format.bytes[at] : '\0';
    if (kind == '%') {
      out.append(format, at, 1);
      continue;
    }
    if (next >= given.size()) throw Error("the format has more places than values");
    const Value& value = given[next++];
    if (kind == 's') {
      out.append(run.str(value));
    } else if (kind == 'r') {
      out.append(to_repr(value, run.room()));
    } else if (kind == 'd' || kind == 'i') {
      out.append(std::to_string(value.is_float() ? static_cast<std::int64_t>(value.to_double())
                                                 : value.to_int("the value of %d")));
    } else {
      throw Error("a format may hold %s, %r, %d and %% only");
    }
  }
  if (next < given.size() && values.as_list() != nullptr)
    throw Error("the format has fewer places than values");
  return run.text(std::move(out));
}

}  // namespace quire::jinja
