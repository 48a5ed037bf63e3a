/// This file turns named options into the typed options struct of a plug. The plug describes each
/// member once: its name, what it may hold, and what it means. Defaults are those of the struct.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/plug/plug_options.h"

namespace quire {

/// Describes one member of an options struct.
template <class Options>
struct OptionField {
  PlugOption option;                                      ///< without its default
  std::function<void(Options&, std::string_view)> set;    ///< takes a value that was checked
  std::function<std::string(const Options&)> as_written;  ///< the member as a request gives it

  OptionField(PlugOption described, std::function<void(Options&, std::string_view)> setter,
              std::function<std::string(const Options&)> writer)
      : option(std::move(described)), set(std::move(setter)), as_written(std::move(writer)) {}
  /// Takes a field of a struct that Options derives from, for options that plugs share.
  template <class Base, std::enable_if_t<std::is_base_of_v<Base, Options>, int> = 0>
  OptionField(const OptionField<Base>& base)
      : option(base.option), set(base.set), as_written(base.as_written) {}
};

struct OptionRange {
  double least = 0, most = 0;
};

/// Describes a number. Members of an integer type take whole numbers only.
template <class Options, class T>
OptionField<Options> number_option(std::string_view name, T Options::*member, OptionRange range,
                                   std::string_view summary) {
  return {PlugOption{name, {}, {}, range.least, range.most, std::is_integral_v<T>, summary},
          [member](Options& options, std::string_view value) {
            double x = 0;
            QUIRE_CHECK(parse_number(value, x), "an option's value was not checked");
            options.*member = static_cast<T>(x);
          },
          [member](const Options& options) {
            return number_text(static_cast<double>(options.*member));
          }};
}

/// Describes a number that stays empty unless it is given. `otherwise` says what then holds; it is
/// kept as a copy, because callers make it from a number.
template <class Options, class T>
OptionField<Options> number_option(std::string_view name, std::optional<T> Options::*member,
                                   OptionRange range, std::string otherwise,
                                   std::string_view summary) {
  return {PlugOption{name, {}, {}, range.least, range.most, std::is_integral_v<T>, summary},
          [member](Options& options, std::string_view value) {
            double x = 0;
            QUIRE_CHECK(parse_number(value, x), "an option's value was not checked");
            options.*member = static_cast<T>(x);
          },
          [otherwise = std::move(otherwise)](const Options&) { return otherwise; }};
}

/// Describes a choice between words, each of which stands for a value of the member. The first
/// word is the default of an empty std::optional.
template <class Options, class T>
OptionField<Options> words_option(
    std::string_view name, T Options::*member,
    std::type_identity_t<std::initializer_list<std::pair<std::string_view, T>>> values,
    std::string_view summary) {
  const std::vector<std::pair<std::string_view, T>> meanings(values);
  PlugOption option{name, {}, {}, 0, 0, false, summary};
  for (const auto& [word, value] : meanings) option.values.push_back(word);
  return {std::move(option),
          [member, meanings](Options& options, std::string_view given) {
            for (const auto& [word, value] : meanings) {
              if (word == given) options.*member = value;
            }
          },
          [member, meanings](const Options& options) {
            for (const auto& [word, value] : meanings) {
              if (value == options.*member) return std::string(word);
            }
            return std::string(meanings.front().first);
          }};
}

/// Describes a switch: "on" or "off".
template <class Options>
OptionField<Options> flag_option(std::string_view name, bool Options::*member,
                                 std::string_view summary) {
  return words_option(name, member, {{"on", true}, {"off", false}}, summary);
}

template <class Options>
using OptionFields = std::vector<OptionField<Options>>;

/// The options of one plug. If Options has `Status finish(std::string_view field)`, parse() calls
/// it for what no field can check or decide alone; `field` is the request's field of the options.
template <class Options>
class OptionTable {
 public:
  OptionTable() = default;
  OptionTable(std::initializer_list<OptionField<Options>> fields) { add(fields); }

  /// Appends fields, also those of a base of Options.
  template <class Fields>
  OptionTable& add(const Fields& fields) {
    for (const auto& field : fields) {
      fields_.emplace_back(field);
      described_.push_back(fields_.back().option);
      described_.back().default_value = fields_.back().as_written(Options{});
    }
    return *this;
  }

  const std::vector<PlugOption>& described() const { return described_; }

  /// Returns the struct with the given values. Names that are not in this table are left to the
  /// other plugs of the request. Errors: kInvalidArgument, field "<field>.<name>".
  Result<Options> parse(const PlugOptions& given, std::string_view field) const {
    Options options;
    for (const OptionField<Options>& f : fields_) {
      const auto value = given.given().find(f.option.name);
      if (value == given.given().end()) continue;
      QUIRE_RETURN_IF_ERROR(check_value(f.option, value->second, field));
      f.set(options, value->second);
    }
    if constexpr (requires { options.finish(field); }) {
      QUIRE_RETURN_IF_ERROR(options.finish(field));
    }
    return options;
  }

 private:
  OptionFields<Options> fields_;
  std::vector<PlugOption> described_;
};

}  // namespace quire
