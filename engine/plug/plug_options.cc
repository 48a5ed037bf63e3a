#include "engine/plug/plug_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace quire {
namespace {

const PlugOption* find(std::span<const PlugOption> table, std::string_view name) {
  const auto it = std::find_if(table.begin(), table.end(),
                               [&](const PlugOption& o) { return o.name == name; });
  return it == table.end() ? nullptr : &*it;
}

bool parse_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

std::string shortest(double x) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, x);
  return std::string(text, end);
}

Status check_value(const PlugOption& option, const std::string& value, const OptionOwner& owner) {
  const std::string field = std::string(owner.field) + "." + std::string(option.name);
  if (option.values.empty()) {
    double x = 0;
    if (parse_number(value, x) && x >= option.least && x <= option.most) return {};
    return Status::invalid(field, "must be a number from " + shortest(option.least) + " to " +
                                      shortest(option.most) + ", not '" + value + "'");
  }
  if (std::find(option.values.begin(), option.values.end(), value) != option.values.end())
    return {};
  std::string allowed;
  for (const std::string_view v : option.values) (allowed += allowed.empty() ? "" : ", ") += v;
  return Status::invalid(field, "'" + value + "' is not one of: " + allowed);
}

}  // namespace

std::string_view PlugOptions::word(std::span<const PlugOption> table, std::string_view name) const {
  const PlugOption* option = find(table, name);
  QUIRE_CHECK(option != nullptr, "a plug asked for an option that is not in its table");
  const auto it = given_.find(name);
  return it == given_.end() ? option->default_value : std::string_view(it->second);
}

double PlugOptions::number(std::span<const PlugOption> table, std::string_view name) const {
  double x = 0;
  QUIRE_CHECK(parse_number(word(table, name), x), "an option that is no number was not checked");
  return x;
}

Status check_options(const PlugOptions& given, std::span<const std::span<const PlugOption>> tables,
                     const OptionOwner& owner) {
  for (const auto& [name, value] : given.given()) {
    const PlugOption* option = nullptr;
    std::string known;
    for (const auto table : tables) {
      if (option == nullptr) option = find(table, name);
      for (const PlugOption& o : table) (known += known.empty() ? "" : ", ") += o.name;
    }
    if (option == nullptr) {
      return Status::invalid(
          std::string(owner.field) + "." + name,
          known.empty() ? std::string(owner.without) + " takes no options"
                        : "not an option of " + std::string(owner.with) + "; known: " + known);
    }
    QUIRE_RETURN_IF_ERROR(check_value(*option, value, owner));
  }
  return {};
}

}  // namespace quire
