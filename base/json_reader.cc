#include "base/json_reader.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/nearest_name.h"

namespace quire {
namespace json = boost::json;
namespace {

using Kind = JsonMismatch::Kind;

std::string_view type_name(JsonType type) {
  switch (type) {
    case JsonType::kObject:
      return "an object";
    case JsonType::kArray:
      return "an array";
    case JsonType::kString:
      return "a string";
    case JsonType::kBoolean:
      return "true or false";
    case JsonType::kInteger:
      return "an integer";
    case JsonType::kNumber:
      return "a number";
  }
  return "unknown";
}

std::string shown(double v) {
  if (v == std::floor(v) && std::fabs(v) < 1e15)
    return std::to_string(static_cast<std::int64_t>(v));
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", v);
  return text;
}

std::optional<double> as_number(const json::value& value) {
  if (value.is_double()) return value.get_double();
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  return std::nullopt;
}

std::string size_words(const JsonMismatch& m) {
  const bool array = m.wanted == JsonType::kArray;
  const std::size_t size = array ? m.found->get_array().size() : m.found->get_string().size();
  const std::string bound = size < m.min_size ? "at least " + std::to_string(m.min_size)
                                              : "at most " + std::to_string(m.max_size);
  return m.path + " has " + std::to_string(size) + (array ? " items; " : " bytes; ") + bound +
         " are taken";
}

}  // namespace

std::string json_words(const JsonMismatch& m) {
  switch (m.kind) {
    case Kind::kMissing:
      return m.path + " is missing; it must be " + std::string(type_name(m.wanted));
    case Kind::kType:
      return (m.path.empty() ? "the body" : m.path) + " must be " +
             std::string(type_name(m.wanted)) + ", not " + std::string(kind_name(*m.found));
    case Kind::kRange:
      if (m.wanted == JsonType::kInteger)
        return m.path + " is " + std::to_string(whole_number(*m.found).value_or(0)) +
               "; it must be between " + std::to_string(m.least) + " and " + std::to_string(m.most);
      return m.path + " is " + shown(as_number(*m.found).value_or(0)) + "; it must be between " +
             shown(m.low) + " and " + shown(m.high);
    case Kind::kSize:
      return size_words(m);
  }
  return m.path + " is wrong";
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
}

std::optional<std::int64_t> whole_number(const json::value& value) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64())
    return static_cast<std::int64_t>(
        std::min(value.get_uint64(), static_cast<std::uint64_t>(kLargest)));
  if (value.is_double() && value.get_double() == std::floor(value.get_double()) &&
      std::fabs(value.get_double()) < 9e15)
    return static_cast<std::int64_t>(value.get_double());
  return std::nullopt;
}

JsonReader::JsonReader(const json::value& value, std::string path, JsonWords words)
    : object_(value.if_object()), path_(std::move(path)), words_(words) {
  if (object_ != nullptr) return;
  error_ = JsonError{"invalid_value",
                     words_({.wanted = JsonType::kObject, .path = path_, .found = &value}), path_};
}

JsonReader::JsonReader(const json::object& object, std::string path, JsonWords words)
    : object_(&object), path_(std::move(path)), words_(words) {}

void JsonReader::fail(std::string_view member, std::string message, std::string code) {
  if (error_) return;
  error_ = JsonError{std::move(code), std::move(message), member.empty() ? path_ : path_of(member)};
}

std::string JsonReader::path_of(std::string_view member) const {
  return path_.empty() ? std::string(member) : path_ + "." + std::string(member);
}

const json::value* JsonReader::raw(std::string_view member) {
  known_.emplace_back(member);
  if (object_ == nullptr) return nullptr;
  const json::value* v = object_->if_contains(json::string_view(member.data(), member.size()));
  return v != nullptr && !v->is_null() ? v : nullptr;
}

const json::value* JsonReader::find(std::string_view member, JsonType wanted, JsonNeed need) {
  const json::value* v = raw(member);
  if (v == nullptr && need == JsonNeed::kRequired)
    refuse(member, {.kind = Kind::kMissing, .wanted = wanted});
  return v;
}

void JsonReader::refuse(std::string_view member, JsonMismatch mismatch) {
  if (error_) return;
  mismatch.path = path_of(member);
  fail(member, words_(mismatch));
}

const json::object* JsonReader::object(std::string_view member, JsonNeed need) {
  const json::value* v = find(member, JsonType::kObject, need);
  if (v == nullptr) return nullptr;
  if (!v->is_object()) refuse(member, {.wanted = JsonType::kObject, .found = v});
  return v->if_object();
}

const json::array* JsonReader::array(std::string_view member, std::size_t min_size,
                                     std::size_t max_size, JsonNeed need) {
  const json::value* v = find(member, JsonType::kArray, need);
  if (v == nullptr) return nullptr;
  const json::array* a = v->if_array();
  if (a == nullptr) {
    refuse(member, {.wanted = JsonType::kArray, .found = v});
  } else if (a->size() < min_size || a->size() > max_size) {
    refuse(member, {.kind = Kind::kSize,
                    .wanted = JsonType::kArray,
                    .found = v,
                    .min_size = min_size,
                    .max_size = max_size});
  }
  return a;
}

void JsonReader::string(std::string_view member, std::string& out, std::size_t max_bytes,
                        JsonNeed need) {
  const json::value* v = find(member, JsonType::kString, need);
  if (v == nullptr) return;
  if (!v->is_string()) return refuse(member, {.wanted = JsonType::kString, .found = v});
  const json::string& s = v->get_string();
  if (s.size() > max_bytes)
    return refuse(
        member,
        {.kind = Kind::kSize, .wanted = JsonType::kString, .found = v, .max_size = max_bytes});
  out.assign(s.data(), s.size());
}

void JsonReader::boolean(std::string_view member, bool& out, JsonNeed need) {
  const json::value* v = find(member, JsonType::kBoolean, need);
  if (v == nullptr) return;
  if (!v->is_bool()) return refuse(member, {.wanted = JsonType::kBoolean, .found = v});
  out = v->get_bool();
}

void JsonReader::integer(std::string_view member, std::int64_t& out, std::int64_t min,
                         std::int64_t max, JsonNeed need) {
  const json::value* v = find(member, JsonType::kInteger, need);
  if (v == nullptr) return;
  const std::optional<std::int64_t> x = whole_number(*v);
  if (!x || *x < min || *x > max)
    return refuse(member, {.kind = x ? Kind::kRange : Kind::kType,
                           .wanted = JsonType::kInteger,
                           .found = v,
                           .least = min,
                           .most = max});
  out = *x;
}

void JsonReader::number(std::string_view member, double& out, double min, double max,
                        JsonNeed need) {
  const json::value* v = find(member, JsonType::kNumber, need);
  if (v == nullptr) return;
  const std::optional<double> x = as_number(*v);
  if (!x || !(*x >= min && *x <= max))
    return refuse(member, {.kind = x ? Kind::kRange : Kind::kType,
                           .wanted = JsonType::kNumber,
                           .found = v,
                           .low = min,
                           .high = max});
  out = *x;
}

void JsonReader::one_of(std::string_view member, std::string& out,
                        std::initializer_list<std::string_view> names) {
  std::string value = out;
  string(member, value, 256);
  if (!ok() || value == out) return;
  if (std::find(names.begin(), names.end(), value) == names.end()) {
    std::string list;
    for (const auto n : names) list.append(list.empty() ? "" : ", ").append(n);
    return fail(member, path_of(member) + " is '" + value + "'; use one of: " + list);
  }
  out = std::move(value);
}

std::vector<std::string> JsonReader::strings(std::string_view member, std::size_t max_size,
                                             JsonNeed need) {
  std::vector<std::string> out;
  const json::array* a = array(member, 0, max_size, need);
  if (a == nullptr || !ok()) return out;
  for (std::size_t i = 0; i < a->size(); ++i) {
    const json::value& item = (*a)[i];
    if (!item.is_string()) {
      refuse(std::string(member) + "[" + std::to_string(i) + "]",
             {.wanted = JsonType::kString, .found = &item});
      return out;
    }
    out.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return out;
}

void JsonReader::pass_nulls() {
  if (object_ == nullptr) return;
  for (const auto& member : *object_)
    if (member.value().is_null()) known_.emplace_back(member.key().data(), member.key().size());
}

void JsonReader::finish() {
  if (!ok() || object_ == nullptr) return;
  for (const auto& member : *object_) {
    const std::string name(member.key().data(), member.key().size());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string near = nearest_name(name, known_);
    const std::string suggestion = near.empty() ? "" : "; did you mean '" + near + "'?";
    return fail(name.substr(0, 128),
                "unknown field '" + path_of(name.substr(0, 128)) + "'" + suggestion,
                "unknown_field");
  }
}

}  // namespace quire
