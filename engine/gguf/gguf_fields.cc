#include <cmath>

#include "engine/gguf/gguf.h"

namespace quire {

void GgufFields::fail(std::string_view key, const std::string& message) {
  if (!status_.ok()) return;
  status_ = Status::invalid(std::string(key), std::string(key) + " " + message);
}

const GgufValue* GgufFields::find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

std::int64_t GgufFields::integer(std::string_view key, std::int64_t low, std::int64_t high,
                                 std::optional<std::int64_t> fallback) {
  const std::int64_t otherwise = fallback.value_or(low);
  if (!status_.ok()) return otherwise;
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(key, "is missing");
    return otherwise;
  }
  const auto* number = std::get_if<std::int64_t>(value);
  if (number == nullptr) {
    fail(key, "must be a whole number");
  } else if (*number < low || *number > high) {
    fail(key, "is " + std::to_string(*number) + ", but must be in " + std::to_string(low) + ".." +
                  std::to_string(high));
  } else {
    return *number;
  }
  return otherwise;
}

double GgufFields::number(std::string_view key, std::optional<double> fallback) {
  const double otherwise = fallback.value_or(0);
  if (!status_.ok()) return otherwise;
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(key, "is missing");
    return otherwise;
  }
  double out = otherwise;
  if (const auto* real = std::get_if<double>(value)) {
    out = *real;
  } else if (const auto* whole = std::get_if<std::int64_t>(value)) {
    out = static_cast<double>(*whole);
  } else {
    fail(key, "must be a number");
  }
  if (!std::isfinite(out)) fail(key, "must be a finite number");
  return status_.ok() ? out : otherwise;
}

std::optional<bool> GgufFields::boolean(std::string_view key) {
  const GgufValue* value = status_.ok() ? find(key) : nullptr;
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  fail(key, "must be true or false");
  return std::nullopt;
}

std::optional<std::string_view> GgufFields::text(std::string_view key) {
  const GgufValue* value = status_.ok() ? find(key) : nullptr;
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  fail(key, "must be a string");
  return std::nullopt;
}

const GgufArray* GgufFields::array(std::string_view key) {
  const GgufValue* value = status_.ok() ? find(key) : nullptr;
  return value == nullptr ? nullptr : std::get_if<GgufArray>(value);
}

}  // namespace quire
