/// Named options of plugs: what the ablations and variants of a method switch. A request gives them
/// as `cache.options`
/// ({"bias": "off", "keep_rule": "total_over_D"}); what is not given has its published or chosen
/// default.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// One option of a plug, in a static table of the plug.
struct PlugOption {
  std::string_view name;
  std::string_view default_value;
  std::vector<std::string_view> values;  ///< allowed words; empty: a number in [least, most]
  double least = 0, most = 0;
  std::string_view summary;
};

/// Given options, by name. Names and values were checked against the tables of the strategy's plugs
/// before a plug sees them.
class PlugOptions {
 public:
  PlugOptions() = default;
  explicit PlugOptions(std::map<std::string, std::string, std::less<>> given)
      : given_(std::move(given)) {}

  /// The value in force: the given one, else the table's default. The option must be in `table`.
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

/// How messages speak of options.
struct OptionOwner {
  std::string_view field = "cache.options";   ///< where they stand in a request
  std::string_view without = "the strategy";  ///< who takes none
  std::string_view with = "the strategy or of cache.compress";
};

/// Checks given options against the tables of all plugs that they may be meant for. Errors:
/// kInvalidArgument, field
/// "<owner.field>.<name>", naming the known options or the allowed values.
Status check_options(const PlugOptions& given, std::span<const std::span<const PlugOption>> tables,
                     const OptionOwner& owner = {});

}  // namespace quire
