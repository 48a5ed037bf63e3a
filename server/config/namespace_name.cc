#include "server/config/namespace_name.h"

#include <algorithm>

namespace quire {

bool valid_namespace(std::string_view ns) {
  if (ns.empty() || ns.size() > 64) return false;
  const auto letter_or_digit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  if (!letter_or_digit(ns.front())) return false;
  return std::all_of(ns.begin(), ns.end(), [&](char c) {
    return letter_or_digit(c) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace quire
