#include "server/commands/ask/conditions.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/array.hpp>
#include <iterator>
#include <utility>

namespace quire {
namespace json = boost::json;
namespace {

/// The operators of --metadata, the longer ones first, and their names in JSON.
constexpr std::pair<std::string_view, std::string_view> kOperators[] = {
    {">=", "gte"}, {"<=", "lte"}, {"!=", "not"}, {">", "gt"}, {"<", "lt"}, {"=", ""}};

/// Returns where an operator of a condition begins, and which it is; null: there is none.
const std::pair<std::string_view, std::string_view>* operator_of(std::string_view condition,
                                                                 std::size_t& begin) {
  begin = condition.find_first_of("=<>!");
  if (begin == 0 || begin == std::string_view::npos) return nullptr;
  const auto* found = std::ranges::find_if(
      kOperators, [&](const auto& one) { return condition.substr(begin).starts_with(one.first); });
  return found == std::end(kOperators) ? nullptr : found;
}

/// Adds a condition such as year>=2020 or lang=en. Two values for one key are alternatives.
void add_condition(const std::string& condition, json::object& metadata) {
  std::size_t begin = 0;
  const auto* op = operator_of(condition, begin);
  if (!op) return;
  const std::string value = condition.substr(begin + op->first.size());
  json::value& member = metadata[condition.substr(0, begin)];
  if (!member.is_object()) member = json::object();
  json::object& tests = member.get_object();
  if (op->second.empty() || op->second == "not") {
    json::value& values = tests[op->second.empty() ? "in" : "not"];
    if (!values.is_array()) values = json::array();
    values.get_array().emplace_back(value);
  } else {
    tests[op->second] = value;
  }
}

}  // namespace

void add_metadata_flag(CLI::App& command, std::vector<std::string>& conditions) {
  command
      .add_option(
          "--metadata", conditions,
          "Only documents with KEY=VALUE, or != > >= < <= (repeat: all must hold, but values "
          "of one KEY= are alternatives)")
      ->check([](const std::string& condition) {
        std::size_t begin = 0;
        return operator_of(condition, begin) ? std::string()
                                             : "'" + condition + "' is not KEY=VALUE";
      })
      ->allow_extra_args(false);
}

json::object metadata_of(const std::vector<std::string>& conditions) {
  json::object out;
  for (const std::string& condition : conditions) add_condition(condition, out);
  return out;
}

}  // namespace quire
