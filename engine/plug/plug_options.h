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

/// Describes one option of a plug. An OptionTable (option_table.h) makes it from a typed field.
struct PlugOption {
  std::string_view name;
  std::string default_value;
  /// Allowed words; empty: the value is a number in [least, most].
  std::vector<std::string_view> values;
  double least = 0, most = 0;
  bool whole = false;  ///< the number must be a whole one
  std::string_view summary;
};

/// Holds the options that a request gives, by name. A plug sees them parsed, as its own struct.
class PlugOptions {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  PlugOptions() = default;
  explicit PlugOptions(Values given) : given_(std::move(given)) {}

  const Values& given() const { return given_; }
  bool operator==(const PlugOptions&) const = default;

 private:
  Values given_;
};

/// Words that error messages use for options.
struct OptionOwner {
  std::string_view field = "cache.options";   ///< field of the request that holds them
  std::string_view without = "the strategy";  ///< owner that takes no options
  std::string_view with = "the strategy or of cache.compress";
};

/// Parses a finite number. Returns false if `text` is anything else.
bool parse_number(std::string_view text, double& out);
/// Returns the shortest usual spelling of a number, such as "0.15" or "2048".
std::string number_text(double x);

/// Checks one value. Errors: kInvalidArgument, field "<field>.<name>", naming the allowed values.
Status check_value(const PlugOption& option, std::string_view value, std::string_view field);

/// Checks that every given option is in one of the tables, and its value against that table.
/// Errors: kInvalidArgument, field "<owner.field>.<name>", naming the known options or the allowed
/// values.
Status check_options(const PlugOptions& given, std::span<const std::span<const PlugOption>> tables,
                     const OptionOwner& owner = {});

}  // namespace quire
