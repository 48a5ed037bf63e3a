#include "engine/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/index.h"

namespace quire::jinja {
namespace {

// Lists in lists and so on are bounded, so that printing, comparing and freeing them can exhaust
// neither the stack nor, where a list holds one list many times over, the time.
constexpr int kMaxValueDepth = 64;
constexpr std::size_t kMaxValueWeight = std::size_t{1} << 24;

void check_extent(int depth, std::size_t weight) {
  if (depth > kMaxValueDepth) throw LimitError("lists and dictionaries nest more than 64 deep");
  if (weight > kMaxValueWeight) throw LimitError("a list or a dictionary grows too large");
}

std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[40];
  const double size = std::fabs(d);
  const bool plain = d == 0 || (size >= 1e-4 && size < 1e16);
  const auto end =
      plain ? std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed).ptr
            : std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

/// Writes a value as Python or as JSON would.
class Writer {
 public:
  Writer(std::size_t limit, const JsonStyle* json) : limit_(limit), json_(json) {}

  Text take() { return std::move(out_); }

  void plain(const Value& v) {
    if (const Text* text = v.as_text()) return put(*text);
    if (v.is_undefined()) return;
    write(v, 0);
  }

  void write(const Value& v, int level) {
    if (const Text* text = v.as_text()) return string(*text);
    if (const List* list = v.as_list()) return array(*list, level);
    if (const Dict* dict = v.as_dict()) return object(*dict, level);
    if (v.is_none()) return put(json_ != nullptr ? "null" : "None");
    if (v.is_bool()) return put(boolean(v.truthy()));
    if (v.is_int()) return put(std::to_string(v.to_int("")));
    if (v.is_float()) return number(v.to_double());
    if (json_ != nullptr)
      throw Error("a value of type " + v.type_name() + " cannot be written as JSON");
    put(v.is_undefined() ? "Undefined" : "<" + v.type_name() + ">");
  }

 private:
  std::string_view boolean(bool b) const {
    if (json_ != nullptr) return b ? "true" : "false";
    return b ? "True" : "False";
  }

  void number(double d) {
    if (json_ != nullptr && std::isnan(d)) return put("NaN");
    if (json_ != nullptr && std::isinf(d)) return put(d < 0 ? "-Infinity" : "Infinity");
    put(float_text(d));
  }

  void put(std::string_view text, Mark mark = kTemplateMark) {
    if (out_.size() + text.size() > limit_) throw LimitError("the text grows too long");
    out_.append(text, mark);
  }
  void put(const Text& text) {
    if (out_.size() + text.size() > limit_) throw LimitError("the text grows too long");
    out_.append(text);
  }

  void escape(char32_t c, Mark mark, int digits, char kind) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\%c%0*x", kind, digits, static_cast<unsigned>(c));
    put(buffer, mark);
  }

  void string(const Text& text) {
    char quote = '"';
    if (json_ == nullptr) {
      const bool single = text.bytes.find('\'') != std::string::npos;
      const bool both = single && text.bytes.find('"') != std::string::npos;
      quote = single && !both ? '"' : '\'';
    }
    put(std::string_view(&quote, 1));
    const std::string_view s = text.bytes;
    for (std::size_t at = 0; at < s.size();) {
      const Character c = character_at(s, at);
      character(s.substr(c.begin, c.end - c.begin), c.code_point, text.mark_at(at), quote);
      at = c.end;
    }
    put(std::string_view(&quote, 1));
  }

  void character(std::string_view bytes, char32_t c, Mark mark, char quote) {
    if (c == '\\' || c == static_cast<unsigned char>(quote)) put("\\", mark);
    if (c == '\n') return put("\\n", mark);
    if (c == '\r') return put("\\r", mark);
    if (c == '\t') return put("\\t", mark);
    if (json_ != nullptr && c == '\b') return put("\\b", mark);
    if (json_ != nullptr && c == '\f') return put("\\f", mark);
    if (c < 0x20 || (c == 0x7F && json_ == nullptr)) {
      return json_ != nullptr ? escape(c, mark, 4, 'u') : escape(c, mark, 2, 'x');
    }
    if (json_ == nullptr && c >= 0x80 && c < 0xA1) return escape(c, mark, 2, 'x');
    if (json_ == nullptr || !json_->ensure_ascii || c < 0x80) return put(bytes, mark);
    if (c < 0x10000) return escape(c, mark, 4, 'u');
    escape(0xD800 + ((c - 0x10000) >> 10), mark, 4, 'u');
    escape(0xDC00 + ((c - 0x10000) & 0x3FF), mark, 4, 'u');
  }

  void line_break(int level) {
    if (json_ == nullptr || json_->indent < 0) return;
    put("\n");
    for (int i = 0; i < level; ++i) put(std::string(to_size(json_->indent), ' '));
  }
  void separator(int level) {
    put(json_ == nullptr ? std::string_view(", ") : std::string_view(json_->item_separator));
    line_break(level);
  }

  void array(const List& list, int level) {
    const bool tuple = json_ == nullptr && list.tuple;
    put(tuple ? "(" : "[");
    if (!list.items.empty()) line_break(level + 1);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) separator(level + 1);
      write(list.items[i], level + 1);
    }
    if (tuple && list.items.size() == 1) put(",");
    if (!list.items.empty()) line_break(level);
    put(tuple ? ")" : "]");
  }

  void object(const Dict& dict, int level) {
    if (dict.is_namespace) {
      if (json_ != nullptr) throw Error("a namespace cannot be written as JSON");
      return put("<Namespace>");
    }
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& item : dict.items) order.push_back(&item);
    if (json_ != nullptr && json_->sort_keys) {
      std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first) < 0;
      });
    }
    put("{");
    if (!order.empty()) line_break(level + 1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) separator(level + 1);
      key(order[i]->first, level);
      put(json_ == nullptr ? std::string_view(": ") : std::string_view(json_->key_separator));
      write(order[i]->second, level + 1);
    }
    if (!order.empty()) line_break(level);
    put("}");
  }

  void key(const Value& key, int level) {
    const bool quoted = json_ != nullptr && key.as_text() == nullptr;
    if (quoted) put("\"");
    write(key, level);
    if (quoted) put("\"");
  }

  Text out_;
  std::size_t limit_;
  const JsonStyle* json_;
};

}  // namespace

Value::Value(Text text) : v_(std::make_shared<const Text>(std::move(text))) {}
Value::Value(std::shared_ptr<const List> list) : v_(std::move(list)) {}
Value::Value(std::shared_ptr<Dict> dict) : v_(std::move(dict)) {}
Value::Value(std::shared_ptr<const Callable> call) : v_(std::move(call)) {}
Value::Value(std::shared_ptr<LoopState> loop) : v_(std::move(loop)) {}

Value Value::text(std::string_view text, Mark mark) { return Value(Text(std::string(text), mark)); }

Value Value::undefined(std::string name) {
  Value value;
  value.v_ = Undefined{std::make_shared<const std::string>(std::move(name))};
  return value;
}

Value Value::list(std::vector<Value> items, bool tuple) {
  int depth = 1;
  std::size_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth() + 1);
    weight += item.weight();
    check_extent(depth, weight);
  }
  return Value(std::make_shared<const List>(List{std::move(items), tuple, depth, weight}));
}

const Text* Value::as_text() const {
  const auto* p = std::get_if<std::shared_ptr<const Text>>(&v_);
  return p == nullptr ? nullptr : p->get();
}
const List* Value::as_list() const {
  const auto* p = std::get_if<std::shared_ptr<const List>>(&v_);
  return p == nullptr ? nullptr : p->get();
}
Dict* Value::as_dict() const {
  const auto* p = std::get_if<std::shared_ptr<Dict>>(&v_);
  return p == nullptr ? nullptr : p->get();
}
const Callable* Value::as_callable() const {
  const auto* p = std::get_if<std::shared_ptr<const Callable>>(&v_);
  return p == nullptr ? nullptr : p->get();
}
LoopState* Value::as_loop() const {
  const auto* p = std::get_if<std::shared_ptr<LoopState>>(&v_);
  return p == nullptr ? nullptr : p->get();
}

std::int64_t Value::to_int(std::string_view what) const {
  if (const auto* i = std::get_if<std::int64_t>(&v_)) return *i;
  if (const auto* b = std::get_if<bool>(&v_)) return *b ? 1 : 0;
  throw Error(std::string(what) + " must be an integer, not of type " + type_name());
}

double Value::to_double() const {
  if (const auto* d = std::get_if<double>(&v_)) return *d;
  return static_cast<double>(to_int("the number"));
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return is_float() ? to_double() != 0 : to_int("") != 0;
  if (const Text* text = as_text()) return !text->empty();
  if (const List* list = as_list()) return !list->items.empty();
  if (const Dict* dict = as_dict()) return dict->is_namespace || !dict->items.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (as_text() != nullptr) return "str";
  if (const List* list = as_list()) return list->tuple ? "tuple" : "list";
  if (const Dict* dict = as_dict()) return dict->is_namespace ? "Namespace" : "dict";
  if (as_loop() != nullptr) return "LoopContext";
  return "function";
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->is_namespace ? 0 : dict->depth;
  if (const Callable* call = as_callable()) return call->depth;
  if (const LoopState* loop = as_loop()) return loop->depth;
  return 0;
}

std::size_t Value::weight() const {
  if (const Text* text = as_text()) return 1 + text->size() / 64;
  if (const List* list = as_list()) return list->weight;
  if (const Dict* dict = as_dict()) return dict->is_namespace ? 1 : dict->weight;
  return 1;
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.as_text()) return find(text->bytes);
  for (const auto& [k, v] : items) {
    if (equal(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (const Text* text = k.as_text(); text != nullptr && text->bytes == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (key.depth() > 0 || key.as_dict() != nullptr) {
    throw Error("a value of type " + key.type_name() + " cannot be a key");
  }
  if (!is_namespace) {
    depth = std::max(depth, value.depth() + 1);
    weight += key.weight() + value.weight();
    check_extent(depth, weight);
  }
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
  } else {
    items.emplace_back(std::move(key), std::move(value));
  }
}

Value Arguments::take(std::size_t index, std::string_view name) {
  taken_.emplace_back(name);
  if (index < positional.size()) return positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return {};
}

void Arguments::done(std::string_view function, std::size_t most) const {
  if (positional.size() > most)
    throw Error(std::string(function) + "() was given too many arguments");
  for (const auto& [key, value] : named) {
    if (std::find(taken_.begin(), taken_.end(), key) == taken_.end()) {
      throw Error(std::string(function) + "() has no argument '" + key.substr(0, 80) + "'");
    }
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.to_double() == b.to_double();
    return a.to_int("") == b.to_int("");
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr)
    return a.as_text()->bytes == b.as_text()->bytes;
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    const List &x = *a.as_list(), &y = *b.as_list();
    return x.tuple == y.tuple &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal);
  }
  if (a.as_dict() != nullptr && b.as_dict() != nullptr) {
    const Dict &x = *a.as_dict(), &y = *b.as_dict();
    if (x.is_namespace || y.is_namespace) return &x == &y;
    return x.items.size() == y.items.size() &&
           std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
             const Value* other = y.find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  return a.as_callable() != nullptr && a.as_callable() == b.as_callable();
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) {
      return a.to_double() < b.to_double() ? -1 : (a.to_double() > b.to_double() ? 1 : 0);
    }
    const std::int64_t x = a.to_int(""), y = b.to_int("");
    return x < y ? -1 : (x > y ? 1 : 0);
  }
  // UTF-8 sorts as its code points do.
  if (a.as_text() != nullptr && b.as_text() != nullptr)
    return a.as_text()->bytes.compare(b.as_text()->bytes);
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    const auto &x = a.as_list()->items, &y = b.as_list()->items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : (x.size() > y.size() ? 1 : 0);
  }
  throw Error("values of type " + a.type_name() + " and " + b.type_name() + " have no order");
}

Text to_text(const Value& value, std::size_t limit) {
  Writer writer(limit, nullptr);
  writer.plain(value);
  return writer.take();
}

Text to_repr(const Value& value, std::size_t limit) {
  Writer writer(limit, nullptr);
  writer.write(value, 0);
  return writer.take();
}

Text to_json(const Value& value, const JsonStyle& style, std::size_t limit) {
  Writer writer(limit, &style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace quire::jinja
