#include "server/json/reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/json/parse.h"

namespace quire {
namespace json = boost::json;
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t up = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = up;
    }
  }
  return row[b.size()];
}

std::string shown(double v) {
  std::string s = v == std::floor(v) && std::fabs(v) < 1e15
                      ? std::to_string(static_cast<std::int64_t>(v))
                      : std::to_string(v);
  return s;
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  if (word.size() > 64) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& name : names) {
    const auto d = edit_distance(word, name);
    if (d < best_distance) {
      best_distance = d;
      best = name;
    }
  }
  return best;
}

ObjectReader::ObjectReader(const json::value& value, std::string path) : path_(std::move(path)) {
  object_ = value.if_object();
  if (!object_) {
    error_ = ReadError{"invalid_value",
                       (path_.empty() ? std::string("the body") : path_) +
                           " must be an object, not " + std::string(kind_name(value)),
                       path_};
  }
}

std::string ObjectReader::path_of(std::string_view member) const {
  return path_.empty() ? std::string(member) : path_ + "." + std::string(member);
}

void ObjectReader::fail(std::string_view member, std::string message, std::string code) {
  if (!error_)
    error_ = ReadError{std::move(code), std::move(message),
                       member.empty() ? path_ : path_of(member)};
}

const json::value* ObjectReader::raw(std::string_view member) {
  known_.emplace_back(member);
  if (!object_) return nullptr;
  const auto* v = object_->if_contains(json::string_view(member.data(), member.size()));
  return v && !v->is_null() ? v : nullptr;
}

bool ObjectReader::has(std::string_view member) { return raw(member) != nullptr; }

const json::object* ObjectReader::object(std::string_view member) {
  const auto* v = raw(member);
  if (!v) return nullptr;
  if (!v->is_object())
    fail(member, path_of(member) + " must be an object, not " + std::string(kind_name(*v)));
  return v->if_object();
}

const json::array* ObjectReader::array(std::string_view member, std::size_t min_size,
                                       std::size_t max_size) {
  const auto* v = raw(member);
  if (!v) return nullptr;
  const auto* a = v->if_array();
  if (!a) {
    fail(member, path_of(member) + " must be an array, not " + std::string(kind_name(*v)));
  } else if (a->size() < min_size || a->size() > max_size) {
    fail(member, path_of(member) + " has " + std::to_string(a->size()) + " items; " +
                     (a->size() < min_size ? "at least " + std::to_string(min_size)
                                           : "at most " + std::to_string(max_size)) +
                     " are taken");
  }
  return a;
}

void ObjectReader::string(std::string_view member, std::string& out, std::size_t max_bytes) {
  const auto* v = raw(member);
  if (!v) return;
  const auto* s = v->if_string();
  if (!s)
    return fail(member, path_of(member) + " must be a string, not " + std::string(kind_name(*v)));
  if (s->size() > max_bytes)
    return fail(member, path_of(member) + " has " + std::to_string(s->size()) + " bytes; at most " +
                            std::to_string(max_bytes) + " are taken");
  out.assign(s->data(), s->size());
}

void ObjectReader::boolean(std::string_view member, bool& out) {
  const auto* v = raw(member);
  if (!v) return;
  if (!v->is_bool())
    return fail(member,
                path_of(member) + " must be true or false, not " + std::string(kind_name(*v)));
  out = v->get_bool();
}

void ObjectReader::integer(std::string_view member, std::int64_t& out, std::int64_t min,
                           std::int64_t max) {
  const auto* v = raw(member);
  if (!v) return;
  std::int64_t x = 0;
  if (v->is_int64()) {
    x = v->get_int64();
  } else if (v->is_uint64()) {
    x = v->get_uint64() > static_cast<std::uint64_t>(INT64_MAX)
            ? INT64_MAX
            : static_cast<std::int64_t>(v->get_uint64());
  } else if (v->is_double() && v->get_double() == std::floor(v->get_double()) &&
             std::fabs(v->get_double()) < 9e15) {
    x = static_cast<std::int64_t>(v->get_double());
  } else {
    return fail(member, path_of(member) + " must be an integer, not " + std::string(kind_name(*v)));
  }
  if (x < min || x > max)
    return fail(member, path_of(member) + " is " + std::to_string(x) + "; it must be between " +
                            std::to_string(min) + " and " + std::to_string(max));
  out = x;
}

void ObjectReader::number(std::string_view member, double& out, double min, double max) {
  const auto* v = raw(member);
  if (!v) return;
  if (!v->is_number())
    return fail(member, path_of(member) + " must be a number, not " + std::string(kind_name(*v)));
  const double x = v->to_number<double>();
  if (!(x >= min && x <= max))
    return fail(member, path_of(member) + " is " + shown(x) + "; it must be between " + shown(min) +
                            " and " + shown(max));
  out = x;
}

void ObjectReader::one_of(std::string_view member, std::string& out,
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

std::vector<std::string> ObjectReader::strings(std::string_view member, std::size_t max_size) {
  std::vector<std::string> out;
  const auto* a = array(member, 0, max_size);
  if (!a || !ok()) return out;
  for (std::size_t i = 0; i < a->size(); ++i) {
    const auto* s = (*a)[i].if_string();
    if (!s) {
      fail(std::string(member) + "[" + std::to_string(i) + "]",
           path_of(member) + "[" + std::to_string(i) + "] must be a string, not " +
               std::string(kind_name((*a)[i])));
      return out;
    }
    out.emplace_back(s->data(), s->size());
  }
  return out;
}

void ObjectReader::finish() {
  if (!ok() || !object_) return;
  for (const auto& member : *object_) {
    const std::string name(member.key().data(), member.key().size());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string near = nearest_name(name, known_);
    const std::string known_text = near.empty() ? "" : "; did you mean '" + near + "'?";
    return fail(name.substr(0, 128),
                "unknown field '" + path_of(name.substr(0, 128)) + "'" + known_text,
                "unknown_field");
  }
}

}  // namespace quire
