#include "engine/model/json_fields.h"

#include <boost/json.hpp>
#include <sstream>
#include <utility>

namespace quire {
namespace json = boost::json;
namespace {

constexpr const char* kUnsupported = "unsupported";

std::string field_words(const JsonMismatch& m) {
  const bool integer = m.wanted == JsonType::kInteger;
  std::ostringstream out;
  out << m.path;
  if (m.kind == JsonMismatch::Kind::kMissing) {
    out << " is missing; " << (integer ? "a whole number" : "a number") << " is needed";
    return out.str();
  }
  if (integer)
    out << " must be a whole number from " << m.least << " to " << m.most;
  else if (m.wanted == JsonType::kNumber)
    out << " must be a number from " << m.low << " to " << m.high;
  else
    out << " must be " << (m.wanted == JsonType::kBoolean ? "true or false" : "text");
  out << ", not " << JsonFields::shown(*m.found);
  return out.str();
}

template <class T>
JsonNeed need_of(const std::optional<T>& fallback) {
  return fallback ? JsonNeed::kOptional : JsonNeed::kRequired;
}

}  // namespace

JsonFields::JsonFields(const json::object& object, std::string path)
    : reader_(object, std::move(path), field_words) {}

Status JsonFields::status() const {
  if (reader_.ok()) return {};
  const JsonError& e = *reader_.error();
  return Status(e.code == kUnsupported ? Code::kUnimplemented : Code::kInvalidArgument, e.message,
                e.path);
}

void JsonFields::fail(std::string_view key, std::string message) {
  reader_.fail(key, path(key) + " " + std::move(message));
}

void JsonFields::unsupported(std::string_view key, std::string message) {
  reader_.fail(key, std::move(message), kUnsupported);
}

std::int64_t JsonFields::integer(std::string_view key, std::int64_t low, std::int64_t high,
                                 std::optional<std::int64_t> fallback) {
  std::int64_t out = fallback.value_or(low);
  reader_.integer(key, out, low, high, need_of(fallback));
  return out;
}

double JsonFields::number(std::string_view key, double low, double high,
                          std::optional<double> fallback) {
  double out = fallback.value_or(low);
  reader_.number(key, out, low, high, need_of(fallback));
  return out;
}

bool JsonFields::boolean(std::string_view key, bool fallback) {
  bool out = fallback;
  reader_.boolean(key, out);
  return out;
}

std::string JsonFields::text(std::string_view key) {
  std::string out;
  reader_.string(key, out);
  return out;
}

std::vector<float> JsonFields::numbers(std::string_view key, std::size_t count, double low,
                                       double high) {
  std::vector<float> out;
  const json::value* v = find(key);
  if (!v || !v->is_array() || v->get_array().size() != count) {
    fail(key, "must be a list of " + std::to_string(count) + " numbers");
    return {};
  }
  for (const json::value& item : v->get_array()) {
    boost::system::error_code wrong;
    const auto number = item.to_number<double>(wrong);
    if (wrong || !(number >= low && number <= high)) {
      fail(key, "holds " + shown(item) + ", which is no number from " + shown(json::value(low)) +
                    " to " + shown(json::value(high)));
      return {};
    }
    out.push_back(static_cast<float>(number));
  }
  return out;
}

std::vector<std::int32_t> JsonFields::indices(std::string_view key, std::int64_t end,
                                              std::size_t most, std::string_view what) {
  std::vector<std::int32_t> out;
  const json::value* v = find(key);
  if (!v) return out;
  auto add = [&](const json::value& item) {
    const std::optional<std::int64_t> index = whole_number(item);
    if (!index || *index < 0 || *index >= end) {
      fail(key, "holds " + shown(item) + ", which is no " + std::string(what) + " of " +
                    std::to_string(end));
      return;
    }
    out.push_back(static_cast<std::int32_t>(*index));
  };
  if (v->is_array()) {
    if (v->get_array().size() > most)
      fail(key, "lists more than " + std::to_string(most));
    else
      for (const json::value& item : v->get_array()) add(item);
  } else {
    add(*v);
  }
  return out;
}

std::string JsonFields::shown(const json::value& v) {
  std::string text = json::serialize(v);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace quire
