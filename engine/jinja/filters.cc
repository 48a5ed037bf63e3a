#include "engine/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/text_methods.h"
#include "engine/jinja/value_tests.h"

namespace quire::jinja {
namespace {

using Filter = Value (*)(Interpreter&, const Value&, Arguments&);

bool flag(Arguments& args, std::size_t index, std::string_view name, bool fallback) {
  const Value v = args.take(index, name);
  return v.is_undefined() ? fallback : v.truthy();
}

/// Lower case where case does not count, so that values can be compared.
Value folded(const Value& v, bool case_sensitive) {
  if (case_sensitive || v.as_text() == nullptr) return v;
  return Value(changed_case(*v.as_text(), Case::kLower));
}

/// A member, or one of a member ("a.b"), or an item by its number.
Value member(Interpreter& run, Value value, std::string_view path) {
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    value = number ? run.item(value, Value(std::int64_t{std::stol(std::string(part))}))
                   : run.item(value, Value::text(part));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return value;
}

/// What filters on lists compare or add: the member that their argument attribute names, if it
/// does.
Value part_of(Interpreter& run, const Value& one, const Value& attribute) {
  if (attribute.is_int()) return run.item(one, attribute);
  return attribute.as_text() != nullptr ? member(run, one, attribute.as_text()->bytes) : one;
}

// ---- filters on texts

Value filter_trim(Interpreter& run, const Value& v, Arguments& args) {
  const Value characters = args.take(0, "chars");
  const Text* only = characters.as_text();
  return run.text(strip(run.str(v), true, true, only == nullptr ? nullptr : &only->bytes));
}
Value filter_upper(Interpreter& run, const Value& v, Arguments&) {
  return run.text(changed_case(run.str(v), Case::kUpper));
}
Value filter_lower(Interpreter& run, const Value& v, Arguments&) {
  return run.text(changed_case(run.str(v), Case::kLower));
}
Value filter_title(Interpreter& run, const Value& v, Arguments&) {
  return run.text(changed_case(run.str(v), Case::kWords));
}
Value filter_capitalize(Interpreter& run, const Value& v, Arguments&) {
  return run.text(changed_case(run.str(v), Case::kCapitalize));
}
Value filter_string(Interpreter& run, const Value& v, Arguments&) {
  return v.as_text() != nullptr ? v : Value(run.str(v));
}
Value filter_same(Interpreter&, const Value& v, Arguments&) { return v; }

Value filter_replace(Interpreter& run, const Value& v, Arguments& args) {
  const Text from = run.str(args.take(0, "old")), to = run.str(args.take(1, "new"));
  const Value count = args.take(2, "count");
  const std::int64_t most = count.is_undefined() || count.is_none() ? -1 : count.to_int("count");
  return Value(replaced(run, run.str(v), from, to, most));
}

Value filter_escape(Interpreter& run, const Value& v, Arguments&) {
  const Text text = run.str(v);
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Mark mark = text.mark_at(i);
    switch (text.bytes[i]) {
      case '&':
        out.append("&amp;", mark);
        break;
      case '<':
        out.append("&lt;", mark);
        break;
      case '>':
        out.append("&gt;", mark);
        break;
      case '\'':
        out.append("&#39;", mark);
        break;
      case '"':
        out.append("&#34;", mark);
        break;
      default:
        out.append(text, i, 1);
    }
  }
  return run.text(std::move(out));
}

Value filter_indent(Interpreter& run, const Value& v, Arguments& args) {
  const Value width = args.take(0, "width");
  const bool first = flag(args, 1, "first", false), blank = flag(args, 2, "blank", false);
  Text margin;
  if (width.as_text() != nullptr) {
    margin = *width.as_text();
  } else {
    const std::int64_t count = width.is_undefined()
                                   ? 4
                                   : std::max<std::int64_t>(width.to_int("the width of indent"), 0);
    run.charge(static_cast<std::uint64_t>(count));
    margin = Text(std::string(to_size(count), ' '));
  }
  Text text = run.str(v);
  text.append("\n");  // the last line's break, which split_lines takes away again
  const std::vector<Text> lines = split_lines(text, false);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    run.step();
    run.charge(margin.size() + lines[i].size() + 1);
    if (i > 0) out.append("\n");
    const bool put = i == 0 ? first : blank || !lines[i].empty();
    if (put) out.append(margin);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Value filter_tojson(Interpreter& run, const Value& v, Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = flag(args, 0, "ensure_ascii", false);
  const Value indent = args.take(1, "indent"), separators = args.take(2, "separators");
  style.sort_keys = flag(args, 3, "sort_keys", false);
  if (!indent.is_undefined() && !indent.is_none()) {
    const std::int64_t width = indent.to_int("the indent of tojson");
    if (width > 64) throw LimitError("the indent of tojson is too wide");
    style.indent = static_cast<int>(std::max<std::int64_t>(width, 0));
    style.item_separator = ",";
  }
  if (const List* pair = separators.as_list()) {
    if (pair->items.size() != 2) throw Error("the separators of tojson must be two texts");
    style.item_separator = run.str(pair->items[0]).bytes;
    style.key_separator = run.str(pair->items[1]).bytes;
  }
  args.done("tojson", 4);
  run.step(v.weight());
  return run.text(to_json(v, style, run.room()));
}

// ---- filters on numbers

Value filter_int(Interpreter&, const Value& v, Arguments& args) {
  const Value fallback = args.take(0, "default"), base = args.take(1, "base");
  const Value other = fallback.is_undefined() ? Value(std::int64_t{0}) : fallback;
  if (v.is_int() || v.is_bool()) return v.to_int("");
  if (v.is_float()) {
    const double d = v.to_double();
    return std::fabs(d) < 9e18 ? Value(static_cast<std::int64_t>(d)) : other;
  }
  if (v.as_text() == nullptr) return other;
  if (!base.is_undefined()) {
    const std::int64_t given = base.to_int("the base of int");
    if (given < 2 || given > 36) throw Error("the base of int must be between 2 and 36");
    if (const auto i = whole_number_of(v.as_text()->bytes, static_cast<int>(given))) return *i;
  }
  return number_of(v.as_text()->bytes, /*integer=*/true, other);
}
Value filter_float(Interpreter&, const Value& v, Arguments& args) {
  const Value fallback = args.take(0, "default");
  const Value other = fallback.is_undefined() ? Value(0.0) : fallback;
  if (v.is_number()) return v.to_double();
  return v.as_text() != nullptr ? number_of(v.as_text()->bytes, /*integer=*/false, other) : other;
}
Value filter_abs(Interpreter&, const Value& v, Arguments&) {
  if (v.is_float()) return std::fabs(v.to_double());
  const std::int64_t i = v.to_int("the value of abs");
  if (i == std::numeric_limits<std::int64_t>::min()) throw Error("the number is too large");
  return i < 0 ? -i : i;
}
Value filter_round(Interpreter&, const Value& v, Arguments& args) {
  const Value precision = args.take(0, "precision"), method = args.take(1, "method");
  const std::int64_t digits = precision.is_undefined() ? 0
                                                       : precision.to_int("the precision of round");
  if (digits < 0 || digits > 15) throw Error("round takes 0 to 15 digits");
  const std::string way = method.as_text() != nullptr ? method.as_text()->bytes : "common";
  if (way != "common" && way != "ceil" && way != "floor")
    throw Error("the method of round must be common, ceil or floor");
  if (way == "common" && !v.is_float()) return v.to_int("the value of round");
  const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = v.to_double() * scale;
  return (way == "ceil"    ? std::ceil(scaled)
          : way == "floor" ? std::floor(scaled)
                           : std::nearbyint(scaled)) /
         scale;
}

// ---- filters on lists

Value filter_length(Interpreter& run, const Value& v, Arguments&) {
  if (const Text* text = v.as_text()) {
    run.step(v.weight());
    return static_cast<std::int64_t>(num_characters(text->bytes));
  }
  if (const List* list = v.as_list()) return count_of(list->items);
  if (const Dict* dict = v.as_dict()) return count_of(dict->items);
  if (v.is_undefined()) return std::int64_t{0};
  throw Error("a value of type " + v.type_name() + " has no length");
}
Value filter_list(Interpreter& run, const Value& v, Arguments&) {
  return Value::list(run.items(v));
}
Value filter_first(Interpreter& run, const Value& v, Arguments&) {
  const std::vector<Value> all = run.items(v);
  return all.empty() ? Value::undefined("first") : all.front();
}
Value filter_last(Interpreter& run, const Value& v, Arguments&) {
  const std::vector<Value> all = run.items(v);
  return all.empty() ? Value::undefined("last") : all.back();
}
Value filter_reverse(Interpreter& run, const Value& v, Arguments&) {
  std::vector<Value> all = run.items(v);
  std::reverse(all.begin(), all.end());
  if (v.as_text() == nullptr) return Value::list(std::move(all));
  Text out;
  for (const Value& one : all) out.append(*one.as_text());
  return run.text(std::move(out));
}
Value filter_default(Interpreter&, const Value& v, Arguments& args) {
  const Value other = args.take(0, "default_value");
  const bool also_false = flag(args, 1, "boolean", false);
  args.done("default", 2);
  if (v.is_undefined() || (also_false && !v.truthy()))
    return other.is_undefined() ? Value(Text()) : other;
  return v;
}
Value filter_join(Interpreter& run, const Value& v, Arguments& args) {
  const Value glue = args.take(0, "d"), by = args.take(1, "attribute");
  const Text between = glue.is_undefined() ? Text() : run.str(glue);
  Text out;
  bool first = true;
  for (const Value& one : run.items(v)) {
    run.step();
    if (!first) run.charge(between.size());
    if (!first) out.append(between);
    first = false;
    out.append(run.str(by.as_text() != nullptr ? member(run, one, by.as_text()->bytes) : one));
  }
  return Value(std::move(out));
}
Value filter_items(Interpreter&, const Value& v, Arguments&) {
  if (v.is_undefined()) return Value::list({});
  const Dict* dict = v.as_dict();
  if (dict == nullptr || dict->is_namespace) throw Error("items works on dictionaries only");
  std::vector<Value> all;
  for (const auto& [key, value] : dict->items) all.push_back(Value::list({key, value}, true));
  return Value::list(std::move(all));
}

/// Sorts `all` by `key`, stable. Counts the work before it is done.
template <class Key>
void sort_by(Interpreter& run, std::vector<Value>& all, bool reverse, const Key& key) {
  std::vector<std::pair<Value, Value>> rows;
  std::uint64_t work = 0;
  for (Value& one : all) {
    Value k = key(one);
    work += 20 * (1 + k.weight());
    rows.emplace_back(std::move(k), std::move(one));
  }
  run.step(work);
  // Checked before: a comparison that throws inside the sort would leave it half done.
  for (std::size_t i = 1; i < rows.size(); ++i) (void)compare(rows[0].first, rows[i].first);
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(a.first, b.first) > 0 : compare(a.first, b.first) < 0;
  });
  all.clear();
  for (auto& row : rows) all.push_back(std::move(row.second));
}

Value filter_sort(Interpreter& run, const Value& v, Arguments& args) {
  const bool reverse = flag(args, 0, "reverse", false),
             exact = flag(args, 1, "case_sensitive", false);
  const Value by = args.take(2, "attribute");
  std::vector<Value> all = run.items(v);
  sort_by(run, all, reverse, [&](const Value& one) {
    return folded(by.as_text() != nullptr ? member(run, one, by.as_text()->bytes) : one, exact);
  });
  return Value::list(std::move(all));
}
Value filter_dictsort(Interpreter& run, const Value& v, Arguments& args) {
  const bool exact = flag(args, 0, "case_sensitive", false);
  const Value by = args.take(1, "by");
  const bool reverse = flag(args, 2, "reverse", false);
  const std::size_t part = by.as_text() != nullptr && by.as_text()->bytes == "value" ? 1 : 0;
  Arguments none;
  std::vector<Value> all = filter_items(run, v, none).as_list()->items;
  sort_by(run, all, reverse,
          [&](const Value& one) { return folded(one.as_list()->items[part], exact); });
  return Value::list(std::move(all));
}
Value filter_unique(Interpreter& run, const Value& v, Arguments& args) {
  const bool exact = flag(args, 0, "case_sensitive", false);
  const Value by = args.take(1, "attribute");
  std::vector<Value> seen, all;
  for (const Value& one : run.items(v)) {
    const Value key = folded(part_of(run, one, by), exact);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return run.same(old, key); }))
      continue;
    seen.push_back(key);
    all.push_back(one);
  }
  return Value::list(std::move(all));
}
Value extreme(Interpreter& run, const Value& v, Arguments& args, int sign) {
  const bool exact = flag(args, 0, "case_sensitive", false);
  const Value by = args.take(1, "attribute");
  const std::vector<Value> all = run.items(v);
  if (all.empty()) return Value::undefined("item");
  const Value* best = &all.front();
  for (const Value& one : all) {
    run.step(1 + one.weight());
    const Value key = folded(part_of(run, one, by), exact);
    if (compare(key, folded(part_of(run, *best, by), exact)) * sign > 0) best = &one;
  }
  return *best;
}
Value filter_max(Interpreter& run, const Value& v, Arguments& args) {
  return extreme(run, v, args, 1);
}
Value filter_min(Interpreter& run, const Value& v, Arguments& args) {
  return extreme(run, v, args, -1);
}
Value filter_sum(Interpreter& run, const Value& v, Arguments& args) {
  const Value by = args.take(0, "attribute"), start = args.take(1, "start");
  double total = 0;
  bool whole = true;
  const auto add = [&](const Value& one) {
    if (!one.is_number()) throw Error("sum works on numbers only");
    whole = whole && !one.is_float();
    total += one.to_double();
  };
  if (!start.is_undefined()) add(start);
  for (const Value& one : run.items(v)) add(part_of(run, one, by));
  return whole && std::fabs(total) < 9e15 ? Value(static_cast<std::int64_t>(total)) : Value(total);
}

Value filter_map(Interpreter& run, const Value& v, Arguments& args) {
  std::vector<Value> all;
  if (!v.truthy()) return Value::list({});  // also none
  const Value by = args.positional.empty() ? args.take(0, "attribute") : Value();
  if (by.as_text() != nullptr) {
    const Value fallback = args.take(1, "default");
    for (const Value& one : run.items(v)) {
      Value got = member(run, one, by.as_text()->bytes);
      if (got.is_undefined() && !fallback.is_undefined()) got = fallback;
      all.push_back(std::move(got));
    }
    return Value::list(std::move(all));
  }
  if (args.positional.empty() || args.positional[0].as_text() == nullptr)
    throw Error("map needs a filter or an attribute");
  const std::string name = args.positional[0].as_text()->bytes;
  if (!is_filter(name)) throw Error("there is no filter '" + name.substr(0, 80) + "'");
  for (const Value& one : run.items(v)) {
    Arguments inner;
    inner.positional.assign(args.positional.begin() + 1, args.positional.end());
    inner.named = args.named;
    run.step(1 + one.weight() / 16);
    all.push_back(apply_filter(run, name, one, inner));
  }
  return Value::list(std::move(all));
}

/// select, reject, selectattr and rejectattr: `first` is where the name of the test stands.
Value chosen(Interpreter& run, const Value& v, Arguments& args, std::size_t first, bool wanted) {
  std::string path;
  if (!v.truthy()) return Value::list({});  // also none
  if (first == 1) {
    if (args.positional.empty() || args.positional[0].as_text() == nullptr)
      throw Error("selectattr needs an attribute");
    path = args.positional[0].as_text()->bytes;
  }
  std::string name;
  if (args.positional.size() > first) {
    if (args.positional[first].as_text() == nullptr)
      throw Error("the name of a test must be a text");
    name = args.positional[first].as_text()->bytes;
    if (!is_test(name)) throw Error("there is no test '" + name.substr(0, 80) + "'");
  }
  std::vector<Value> all;
  for (const Value& one : run.items(v)) {
    run.step();
    const Value asked = first == 1 ? member(run, one, path) : one;
    bool holds = asked.truthy();
    if (!name.empty()) {
      Arguments inner;
      inner.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                              args.positional.end());
      holds = apply_test(run, name, asked, inner);
    }
    if (holds == wanted) all.push_back(one);
  }
  return Value::list(std::move(all));
}
Value filter_select(Interpreter& run, const Value& v, Arguments& args) {
  return chosen(run, v, args, 0, true);
}
Value filter_reject(Interpreter& run, const Value& v, Arguments& args) {
  return chosen(run, v, args, 0, false);
}
Value filter_selectattr(Interpreter& run, const Value& v, Arguments& args) {
  return chosen(run, v, args, 1, true);
}
Value filter_rejectattr(Interpreter& run, const Value& v, Arguments& args) {
  return chosen(run, v, args, 1, false);
}

Value filter_attr(Interpreter& run, const Value& v, Arguments& args) {
  const Value name = args.take(0, "name");
  return name.as_text() == nullptr ? Value() : run.item(v, name);
}

struct NamedFilter {
  std::string_view name;
  Filter call;
};
constexpr NamedFilter kFilters[] = {
    {"abs", filter_abs},           {"attr", filter_attr},       {"capitalize", filter_capitalize},
    {"count", filter_length},      {"d", filter_default},       {"default", filter_default},
    {"dictsort", filter_dictsort}, {"e", filter_escape},        {"escape", filter_escape},
    {"first", filter_first},       {"float", filter_float},     {"indent", filter_indent},
    {"int", filter_int},           {"items", filter_items},     {"join", filter_join},
    {"last", filter_last},         {"length", filter_length},   {"list", filter_list},
    {"lower", filter_lower},       {"map", filter_map},         {"max", filter_max},
    {"min", filter_min},           {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},   {"reverse", filter_reverse}, {"round", filter_round},
    {"safe", filter_same},         {"select", filter_select},   {"selectattr", filter_selectattr},
    {"sort", filter_sort},         {"string", filter_string},   {"sum", filter_sum},
    {"title", filter_title},       {"tojson", filter_tojson},   {"trim", filter_trim},
    {"unique", filter_unique},     {"upper", filter_upper},
};

}  // namespace

bool is_filter(std::string_view name) {
  return std::any_of(std::begin(kFilters), std::end(kFilters),
                     [&](const auto& f) { return f.name == name; });
}

Value apply_filter(Interpreter& run, std::string_view name, const Value& subject, Arguments& args) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.call(run, subject, args);
  }
  throw Error("there is no filter '" + std::string(name.substr(0, 80)) + "'");
}

}  // namespace quire::jinja
