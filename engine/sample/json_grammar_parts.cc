#include "engine/sample/json_grammar_parts.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <charconv>

#include "base/index.h"

namespace quire {

namespace json = boost::json;
using Part = Grammar::Part;

Part JsonParts::make_character() {
  ByteSet plain;
  for (unsigned b = 0x20; b < 0x80; ++b) plain.set(b, b != '"' && b != '\\');
  const Part tail = b_.range(0x80, 0xbf);
  const auto hex = [&](std::string_view digits) {
    ByteSet set;
    for (const char c : digits) set.set(static_cast<unsigned char>(c));
    return b_.bytes(set);
  };
  const Part any = hex("0123456789abcdefABCDEF"), d = hex("dD");
  // In escaped UTF-16, a low surrogate always follows a high one.
  const Part single = b_.choice({b_.sequence({hex("0123456789abcABCefEF"), any, any, any}),
                                 b_.sequence({d, hex("01234567"), any, any})});
  const Part pair = b_.sequence(
      {d, hex("89abAB"), any, any, b_.literal("\\u"), d, hex("cdefCDEF"), any, any});
  const Part escape = b_.sequence(
      {b_.literal("\\"),
       b_.choice({hex("\"\\/bfnrt"), b_.sequence({b_.literal("u"), b_.choice({single, pair})})})});
  return b_.choice({b_.bytes(plain), escape,
                    // Well-formed UTF-8 according to table 3-7 of the Unicode standard.
                    b_.sequence({b_.range(0xc2, 0xdf), tail}),
                    b_.sequence({b_.range(0xe0, 0xe0), b_.range(0xa0, 0xbf), tail}),
                    b_.sequence({b_.range(0xe1, 0xec), tail, tail}),
                    b_.sequence({b_.range(0xed, 0xed), b_.range(0x80, 0x9f), tail}),
                    b_.sequence({b_.range(0xee, 0xef), tail, tail}),
                    b_.sequence({b_.range(0xf0, 0xf0), b_.range(0x90, 0xbf), tail, tail}),
                    b_.sequence({b_.range(0xf1, 0xf3), tail, tail, tail}),
                    b_.sequence({b_.range(0xf4, 0xf4), b_.range(0x80, 0x8f), tail, tail})});
}

Part JsonParts::character() {
  return once(character_, [this] { return make_character(); });
}

Part JsonParts::string(std::int32_t min, std::int32_t max) {
  const auto make = [&] {
    return b_.sequence({b_.literal("\""), b_.repeat(character(), min, max), b_.literal("\"")});
  };
  return min == 0 && max == Grammar::kUnbounded ? once(string_, make) : make();
}

Part JsonParts::integer() {
  return once(integer_, [this] {
    const Part digits = b_.sequence({b_.range('1', '9'), b_.repeat(b_.range('0', '9'), 0, 17)});
    return b_.sequence({b_.optional(b_.literal("-")), b_.choice({b_.literal("0"), digits})});
  });
}

Part JsonParts::make_number() {
  const Part digit = b_.range('0', '9');
  ByteSet e, sign;
  e.set('e').set('E');
  sign.set('+').set('-');
  return b_.sequence(
      {integer(), b_.optional(b_.sequence({b_.literal("."), b_.repeat(digit, 1, 17)})),
       b_.optional(
           b_.sequence({b_.bytes(e), b_.optional(b_.bytes(sign)), b_.repeat(digit, 1, 2)}))});
}

Part JsonParts::number() {
  return once(number_, [this] { return make_number(); });
}

Part JsonParts::boolean() {
  return once(boolean_, [this] { return b_.choice({b_.literal("true"), b_.literal("false")}); });
}

Part JsonParts::any(int depth) {
  any_.resize(std::max(any_.size(), to_size(depth) + 1));
  if (const auto made = any_[at(depth)]) return *made;
  std::vector<Part> kinds = {string(), number(), boolean(), null()};
  if (depth > 0) {
    const Part inner = any(depth - 1);
    kinds.push_back(array(inner));
    kinds.push_back(map(inner));
  }
  const Part part = b_.choice(std::move(kinds));
  any_[at(depth)] = part;
  return part;
}

Part JsonParts::array(Part item, std::int32_t min, std::int32_t max) {
  const Part open = b_.literal("["), close = b_.literal("]");
  if (max == 0) return b_.sequence({open, close});
  const Part more = b_.sequence({comma(), item});
  const Part items = b_.sequence(
      {item, b_.repeat(more, min > 0 ? min - 1 : 0, max == Grammar::kUnbounded ? max : max - 1)});
  return b_.sequence({open, min == 0 ? b_.optional(items) : items, close});
}

Part JsonParts::tuple(const std::vector<Part>& first, std::optional<Part> rest, std::int32_t min,
                      std::int32_t max) {
  const auto fixed = static_cast<std::int32_t>(first.size());
  // Builds from the last item to the first: the rest that may follow each item.
  Part after = b_.sequence({});
  if (rest && max > fixed)
    after = b_.repeat(b_.sequence({comma(), *rest}), std::max(0, min - fixed),
                      max == Grammar::kUnbounded ? max : max - fixed);
  for (std::int32_t i = std::min(fixed, max) - 1; i >= 0; --i) {
    const Part item = first[at(i)];
    const Part here = b_.sequence({i > 0 ? b_.sequence({comma(), item}) : item, after});
    after = i < min ? here : b_.optional(here);
  }
  return b_.sequence({b_.literal("["), after, b_.literal("]")});
}

Part JsonParts::map(Part value) {
  const Part member = b_.sequence({string(), colon(), value});
  return b_.sequence(
      {b_.literal("{"),
       b_.optional(b_.sequence({member, b_.repeat(b_.sequence({comma(), member}), 0)})),
       b_.literal("}")});
}

Part JsonParts::object(const std::vector<Member>& members) {
  // Builds from the last member to the first. `next`: this member or, where it may be missing, a
  // later one. `rest`: what follows a member before this one. A comma stands before all that may
  // follow it, so that a matcher does not follow one for each.
  const Part close = b_.literal("}");
  Part next = b_.choice({}), rest = close;
  bool may_close = true;
  for (auto m = members.rbegin(); m != members.rend(); ++m) {
    const std::string name = boost::json::serialize(boost::json::string_view(m->name));
    const Part here = b_.sequence({b_.literal(name), colon(), m->value, rest});
    next = m->required ? here : b_.choice({here, next});
    may_close = may_close && !m->required;
    const Part more = b_.sequence({comma(), next});
    rest = may_close ? b_.choice({more, close}) : more;
  }
  const Part first = may_close ? b_.choice({next, close}) : next;
  return b_.sequence({b_.literal("{"), first});
}

std::string json_spelling(const json::value& v) {
  if (const auto* list = v.if_array()) {
    std::string out = "[";
    for (const auto& item : *list) out += (out.size() > 1 ? "," : "") + json_spelling(item);
    return out + "]";
  }
  if (const auto* members = v.if_object()) {
    std::string out = "{";
    for (const auto& [name, item] : *members)
      out += (out.size() > 1 ? "," : "") + json::serialize(json::string_view(name)) + ":" +
             json_spelling(item);
    return out + "}";
  }
  if (!v.is_double()) return json::serialize(v);
  char text[32];
  std::string out(text, std::to_chars(text, text + sizeof text, v.get_double()).ptr);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace quire
