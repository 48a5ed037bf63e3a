#include "engine/model/json_fields.h"

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace quire {

namespace json = boost::json;

void JsonFields::fail(std::string_view key, std::string message) {
  if (status_.ok()) status_ = Status::invalid(path(key), path(key) + " " + std::move(message));
}

void JsonFields::unsupported(std::string_view key, std::string message) {
  if (status_.ok()) status_ = Status(Code::kUnimplemented, std::move(message), path(key));
}

void JsonFields::adopt(const Status& status) {
  if (status_.ok()) status_ = status;
}

const json::value* JsonFields::find(std::string_view key) const {
  const json::value* v = object_.if_contains(json::string_view(key.data(), key.size()));
  return v && !v->is_null() ? v : nullptr;
}

std::int64_t JsonFields::integer(std::string_view key, std::int64_t low, std::int64_t high,
                                 std::optional<std::int64_t> fallback) {
  const json::value* v = find(key);
  if (!v) {
    if (!fallback) fail(key, "is missing; a whole number is needed");
    return fallback.value_or(low);
  }
  const std::optional<std::int64_t> x = whole_number(*v);
  if (!x || *x < low || *x > high) {
    fail(key, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
                  ", not " + shown(*v));
    return fallback.value_or(low);
  }
  return *x;
}

double JsonFields::number(std::string_view key, double low, double high,
                          std::optional<double> fallback) {
  const json::value* v = find(key);
  if (!v) {
    if (!fallback) fail(key, "is missing; a number is needed");
    return fallback.value_or(low);
  }
  const double x = v->is_double()   ? v->get_double()
                   : v->is_int64()  ? static_cast<double>(v->get_int64())
                   : v->is_uint64() ? static_cast<double>(v->get_uint64())
                                    : std::numeric_limits<double>::quiet_NaN();
  if (!(x >= low && x <= high)) {
    std::ostringstream message;
    message << "must be a number from " << low << " to " << high << ", not " << shown(*v);
    fail(key, message.str());
    return fallback.value_or(low);
  }
  return x;
}

bool JsonFields::boolean(std::string_view key, bool fallback) {
  const json::value* v = find(key);
  if (!v) return fallback;
  if (!v->is_bool()) {
    fail(key, "must be true or false, not " + shown(*v));
    return fallback;
  }
  return v->get_bool();
}

std::string JsonFields::text(std::string_view key) {
  const json::value* v = find(key);
  if (!v) return {};
  if (!v->is_string()) {
    fail(key, "must be text, not " + shown(*v));
    return {};
  }
  return std::string(v->get_string().data(), v->get_string().size());
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

std::optional<std::int64_t> JsonFields::whole_number(const json::value& v) {
  if (v.is_int64()) return v.get_int64();
  if (v.is_double() && std::abs(v.get_double()) < 9e15 &&
      v.get_double() == std::floor(v.get_double())) {
    return static_cast<std::int64_t>(v.get_double());
  }
  return std::nullopt;
}

}  // namespace quire
