// What the stand-in for Boost.JSON does not define in its headers.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdio>

namespace boost::json {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
      out += escape;
    }
  }
  return out + '"';
}

}  // namespace

const value* object::if_contains(string_view key) const {
  for (const key_value_pair& member : members_) {
    if (member.key() == key) return &member.value();
  }
  return nullptr;
}

void object::insert(std::string key, value v) {
  for (key_value_pair& member : members_) {
    if (member.key() == key) return member.set(std::move(v));
  }
  members_.emplace_back(std::move(key), std::move(v));
}

const char* error_code::message() const {
  switch (error_) {
    case error::none:
      return "no error";
    case error::syntax:
      return "syntax error";
    case error::extra_data:
      return "extra data";
    case error::incomplete:
      return "incomplete JSON";
    case error::exponent_overflow:
      return "exponent overflow";
    case error::too_deep:
      return "too deep";
    case error::not_number:
      return "not a whole number";
  }
  return "unknown error";
}

void value_stack::push_array(std::size_t count) {
  array out;
  const auto first = values_.end() - static_cast<std::ptrdiff_t>(count);
  for (auto it = first; it != values_.end(); ++it) out.push_back(std::move(*it));
  values_.erase(first, values_.end());
  values_.emplace_back(std::move(out));
}

void value_stack::push_object(std::size_t count) {
  object out;
  const auto first = values_.end() - static_cast<std::ptrdiff_t>(count);
  const auto key = keys_.end() - static_cast<std::ptrdiff_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::ptrdiff_t>(i);
    out.insert(std::move(key[n]), std::move(first[n]));
  }
  values_.erase(first, values_.end());
  keys_.erase(key, keys_.end());
  values_.emplace_back(std::move(out));
}

std::string serialize(const value& v) {
  if (v.is_null()) return "null";
  if (v.is_bool()) return v.get_bool() ? "true" : "false";
  if (v.is_int64()) return std::to_string(v.get_int64());
  if (v.is_uint64()) return std::to_string(v.get_uint64());
  if (v.is_double()) return std::to_string(v.get_double());
  if (v.is_string()) return quoted(v.get_string());
  std::string out;
  if (v.is_array()) {
    for (const value& item : v.get_array()) out += (out.empty() ? "" : ",") + serialize(item);
    return "[" + out + "]";
  }
  for (const key_value_pair& member : v.get_object())
    out += (out.empty() ? "" : ",") + quoted(member.key()) + ":" + serialize(member.value());
  return "{" + out + "}";
}

}  // namespace boost::json
