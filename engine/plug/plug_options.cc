#include "engine/plug/plug_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace quire {

bool parse_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

std::string number_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", x);
  return text;
}

Status check_value(const PlugOption& option, std::string_view value, std::string_view owner) {
  const std::string field = std::string(owner) + "." + std::string(option.name);
  std::string given = "'" + std::string(value) + "'";
  if (option.values.empty()) {
    double x = 0;
    const bool number = parse_number(value, x);
    // JSON spells 1.5 as 1.5E0.
    if (number) given = number_text(x);
    if (!number || x < option.least || x > option.most) {
      return Status::invalid(field, "must be a number from " + number_text(option.least) + " to " +
                                        number_text(option.most) + ", not " + given);
    }
    if (option.whole && x != std::floor(x))
      return Status::invalid(field, "must be a whole number, not " + given);
    return {};
  }
  if (std::find(option.values.begin(), option.values.end(), value) != option.values.end())
    return {};
  std::string allowed;
  for (const std::string_view v : option.values) (allowed += allowed.empty() ? "" : ", ") += v;
  return Status::invalid(field, given + " is not one of: " + allowed);
}

Status check_options(const PlugOptions& given, std::span<const std::span<const PlugOption>> tables,
                     const OptionOwner& owner) {
  for (const auto& [name, value] : given.given()) {
    const PlugOption* option = nullptr;
    std::string known;
    for (const auto table : tables) {
      for (const PlugOption& o : table) {
        if (option == nullptr && o.name == name) option = &o;
        (known += known.empty() ? "" : ", ") += o.name;
      }
    }
    if (option == nullptr) {
      return Status::invalid(
          std::string(owner.field) + "." + name,
          known.empty() ? std::string(owner.without) + " takes no options"
                        : "not an option of " + std::string(owner.with) + "; known: " + known);
    }
    QUIRE_RETURN_IF_ERROR(check_value(*option, value, owner.field));
  }
  return {};
}

}  // namespace quire
