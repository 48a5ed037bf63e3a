/// This file defines the named options of plugs, which select the ablations and variants of a
/// method. A request gives them as `cache.options` ({"bias": "off", "keep_rule": "total_over_D"}).
/// Options that are not given keep their published or chosen default.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// Describes one option of a plug, in a static table of the plug.
struct PlugOption {
  std::string_view name;
  std::string_view default_value;
  /// Allowed words; empty: the value is a number in [least, most].
  std::vector<std::string_view> values;
  double least = 0, most = 0;
  std::string_view summary;
};

/// Holds the given options by name. Names and values are checked against the tables of the
/// strategy's plugs before a plug sees them.
class PlugOptions {
 public:
  PlugOptions() = default;
  explicit PlugOptions(std::map<std::string, std::string, std::less<>> given)
      : given_(std::move(given)) {}

  /// Returns the given value, else the table's default. The option must be in `table`.
  std::string_view word(std::span<const PlugOption> table, std::string_view name) const;
  double number(std::span<const PlugOption> table, std::string_view name) const;
  bool on(std::span<const PlugOption> table, std::string_view name) const {
    return word(table, name) == "on";
  }

  const std::map<std::string, std::string, std::less<>>& given() const { return given_; }
  bool operator==(const PlugOptions&) const = default;

 private:
  std::map<std::string, std::string, std::less<>> given_;
};

/// Words that error messages use for options.
struct OptionOwner {
  std::string_view field = "cache.options";   ///< field of the request that holds them
  std::string_view without = "the strategy";  ///< owner that takes no options
  std::string_view with = "the strategy or of cache.compress";
};

/// Checks the given options against the tables of all plugs that they may belong to. Errors:
/// kInvalidArgument, field "<owner.field>.<name>", naming the known options or the allowed values.
Status check_options(const PlugOptions& given, std::span<const std::span<const PlugOption>> tables,
                     const OptionOwner& owner = {});

}  // namespace quire
