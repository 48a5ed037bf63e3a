#include "cachestore/format/metadata.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>

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

std::string number_term(std::string_view key, double number) {
  const double value = number == 0 ? 0 : number;  // without the sign of a zero
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return term_of('n', key, {bytes, sizeof bytes});
}

}  // namespace

bool metadata_matches(std::string_view text, const MetadataFilter& filter) {
  if (filter.empty()) return true;
  const json::value object = parse_object(text);
  if (object.is_null()) return false;
  for (const auto& [key, wanted] : filter) {
    const json::value* value = object.get_object().if_contains(key);
    if (value == nullptr || value->is_structured()) return false;
    if (text_form(*value) == wanted) continue;
    // The library writes 1.5 as 1.5E0, so numbers are compared as numbers.
    if (!value->is_number()) return false;
    json::value number;
    if (parse_json(wanted, number) || !number.is_number() ||
        number.to_number<double>() != value->to_number<double>())
      return false;
  }
  return true;
}

std::string status_term(DocumentStatus status) {
  return term_of('s', {}, document_status_name(status));
}

std::vector<std::string> document_terms(const DocumentManifest& m) {
  std::vector<std::string> terms = {status_term(m.status)};
  if (const json::value object = parse_object(m.metadata_json); object.is_object()) {
    for (const auto& [key, value] : object.get_object()) {
      if (value.is_number())
        terms.push_back(number_term(key, value.to_number<double>()));
      else if (!value.is_structured())
        terms.push_back(term_of('t', key, text_form(value)));
    }
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
  return terms;
}

std::vector<std::string> filter_terms(std::string_view key, std::string_view value) {
  std::vector<std::string> terms = {term_of('t', key, value)};
  json::value number;
  if (!parse_json(value, number) && number.is_number())
    terms.push_back(number_term(key, number.to_number<double>()));
  return terms;
}

}  // namespace quire
