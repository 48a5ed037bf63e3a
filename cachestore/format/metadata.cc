#include "cachestore/format/metadata.h"

#include <algorithm>
#include <boost/json.hpp>
#include <compare>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "base/json_parse.h"
#include "cachestore/format/key.h"

namespace quire {
namespace {

namespace json = boost::json;

/// Returns the object in `text`; null for anything else.
json::value parse_object(std::string_view text) {
  json::value value;
  if (text.empty() || parse_json(text, value) || !value.is_object()) return nullptr;
  return value;
}

std::string text_form(const json::value& value) {
  return value.is_string() ? std::string(value.get_string()) : json::serialize(value);
}

std::string term_of(char kind, std::string_view key, std::string_view value) {
  std::string named(1, kind);
  for (int i = 0; i < 8; ++i) named += static_cast<char>(key.size() >> (8 * i));
  named += key;
  named += value;
  const Digest digest = sha256(named);
  return {reinterpret_cast<const char*>(digest.bytes.data()), kTermBytes};
}

/// A number as the widest type of C++, which holds every integer of 64 bits: as a double, those
/// above 2^53 would equal their neighbours.
using Number = long double;
static_assert(std::numeric_limits<Number>::digits >= 64);

/// Neighbours may have one term, so what it finds is compared.
std::string number_term(std::string_view key, Number number) {
  const double value = number == 0 ? 0 : static_cast<double>(number);  // without a zero's sign
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return term_of('n', key, {bytes, sizeof bytes});
}

/// Returns the number that a value is; none: it is none.
std::optional<Number> number_of(const json::value& value) {
  if (const std::int64_t* whole = value.if_int64()) return static_cast<Number>(*whole);
  if (const std::uint64_t* large = value.if_uint64()) return static_cast<Number>(*large);
  if (const double* any = value.if_double()) return *any;
  return std::nullopt;
}

std::optional<Number> number_in(std::string_view text) {
  json::value number;
  if (parse_json(text, number)) return std::nullopt;
  return number_of(number);
}

bool equals(const json::value& value, const std::string& wanted) {
  if (value.is_structured()) return false;
  if (text_form(value) == wanted) return true;
  // The library writes 1.5 as 1.5E0, so numbers are compared as numbers.
  return value.is_number() && number_in(wanted) == number_of(value);
}

/// Returns how the value compares with a bound; unordered: they cannot be compared.
std::partial_ordering compare(const json::value& value, const std::string& bound) {
  if (value.is_string()) return std::string_view(value.get_string()) <=> std::string_view(bound);
  const auto number = number_of(value), limit = number_in(bound);
  if (!number || !limit) return std::partial_ordering::unordered;
  return *number <=> *limit;
}

bool inside(const MetadataCondition& c, const json::value& value) {
  if (c.number_bounds && !value.is_number()) return false;
  return (!c.above || compare(value, *c.above) > 0) &&
         (!c.at_least || compare(value, *c.at_least) >= 0) &&
         (!c.below || compare(value, *c.below) < 0) &&
         (!c.at_most || compare(value, *c.at_most) <= 0);
}

/// Returns whether a condition holds for a member; null: it is missing.
bool holds(const MetadataCondition& c, const json::value* member) {
  if (c.exists && *c.exists != (member != nullptr && !member->is_null())) return false;
  const std::span<const json::value> values = !member ? std::span<const json::value>()
                                              : member->is_array()
                                                  ? std::span(member->get_array().data(),
                                                              member->get_array().size())
                                                  : std::span(member, 1);
  const auto one_of = [&](const std::vector<std::string>& wanted) {
    return std::ranges::any_of(values, [&](const json::value& value) {
      return std::ranges::any_of(wanted, [&](const auto& text) { return equals(value, text); });
    });
  };
  if (!c.any_of.empty() && !one_of(c.any_of)) return false;
  if (!c.none_of.empty() && one_of(c.none_of)) return false;
  const bool bounded = c.above || c.at_least || c.below || c.at_most;
  return !bounded ||
         std::ranges::any_of(values, [&](const json::value& value) { return inside(c, value); });
}

void add_term(std::string_view key, const json::value& value, std::vector<std::string>* terms) {
  if (const auto number = number_of(value))
    terms->push_back(number_term(key, *number));
  else if (!value.is_structured())
    terms->push_back(term_of('t', key, text_form(value)));
}

}  // namespace

bool metadata_matches(std::string_view text, const MetadataFilter& filter) {
  if (filter.empty()) return true;
  const json::value object = parse_object(text);
  if (object.is_null()) return false;
  return std::ranges::all_of(filter, [&](const MetadataCondition& condition) {
    return holds(condition, object.get_object().if_contains(condition.key));
  });
}

std::string status_term(DocumentStatus status) {
  return term_of('s', {}, document_status_name(status));
}

std::vector<std::string> document_terms(const DocumentManifest& m) {
  std::vector<std::string> terms = {status_term(m.status)};
  if (const json::value object = parse_object(m.metadata_json); object.is_object()) {
    for (const auto& [key, value] : object.get_object()) {
      add_term(key, value, &terms);
      if (!value.is_array()) continue;
      for (const json::value& one : value.get_array()) add_term(key, one, &terms);
    }
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
  return terms;
}

std::vector<std::string> filter_terms(const MetadataCondition& condition) {
  std::vector<std::string> terms;
  for (const std::string& value : condition.any_of) {
    terms.push_back(term_of('t', condition.key, value));
    if (const auto number = number_in(value)) terms.push_back(number_term(condition.key, *number));
  }
  return terms;
}

}  // namespace quire
