/// A reply is a table of members. One line of it gives a member's name, what it holds, how to get
/// it, and what it means. The JSON of the reply and its schema both come from the table.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text_mark.h"
#include "server/json/text.h"
#include "server/reply/kind.h"

namespace quire {

/// Returns the JSON of a getter's result. None: the member is absent.
template <class X>
std::optional<boost::json::value> member_value(int decimals, bool nullable, X&& x) {
  using Value = std::remove_cvref_t<X>;
  if constexpr (requires { x.has_value(); }) {
    if (x) return member_value(decimals, nullable, *std::forward<X>(x));
    if (nullable) return boost::json::value(nullptr);
    return std::nullopt;
  } else if constexpr (std::is_floating_point_v<Value>) {
    const double number = static_cast<double>(x);
    return boost::json::value(decimals < 0 ? number : rounded(number, decimals));
  } else {
    return boost::json::value(std::forward<X>(x));
  }
}

/// Returns no value for an empty text, which replies show as null or leave out.
inline std::optional<std::string_view> unless_empty(std::string_view text) {
  if (text.empty()) return std::nullopt;
  return text;
}

/// Return the page where a text begins and ends; none: its document has no pages.
inline std::optional<std::uint32_t> page_of(const TextPlace& place) {
  return place.page > 0 ? std::optional(place.page) : std::nullopt;
}
inline std::optional<std::uint32_t> last_page_of(const TextPlace& place) {
  return place.last_page > 0 ? std::optional(place.last_page) : std::nullopt;
}

/// Returns null for an empty text, in optional members that are always there.
inline boost::json::value null_if_empty(std::string_view text) {
  if (text.empty()) return nullptr;
  return boost::json::value(text);
}

template <class T>
class Reply;

/// ReplyField is one member of a reply that is made of a T.
template <class T>
class ReplyField {
 public:
  /// `get` takes a const T& and returns what `kind` says: a number, a truth value, a text or JSON;
  /// or an optional of these, whose lack is null or absence, as `kind` says.
  template <class Get>
  requires std::is_invocable_v<Get, const T&> ReplyField(std::string_view name, Kind kind, Get get,
                                                         std::string_view about = {})
      : name_(name), kind_(std::move(kind)), about_(about) {
    value_ = [decimals = kind_.decimals, nullable = kind_.nullable, get = std::move(get)](
                 const T& of) { return member_value(decimals, nullable, get(of)); };
  }
  /// A member that is always the same text.
  ReplyField(std::string_view name, Kind constant)
      : name_(name),
        kind_(std::move(constant)),
        value_([text = kind_.schema.at("const")](const T&) { return std::optional(text); }) {}
  /// A member that is an object made of the same value.
  ReplyField(std::string_view name, Reply<T> part, std::string_view about = {})
      : name_(name), kind_(part.kind()), about_(about) {
    value_ = [part = std::move(part)](const T& of) {
      return std::optional<boost::json::value>(part.json(of));
    };
  }

  std::string_view name() const { return name_; }
  std::string_view about() const { return about_; }
  const Kind& kind() const { return kind_; }
  std::optional<boost::json::value> value(const T& of) const { return value_(of); }

  boost::json::object schema() const {
    boost::json::object out = kind_.schema;
    if (!about_.empty()) out["description"] = about_;
    return out;
  }

 private:
  std::string_view name_;
  Kind kind_;
  std::string_view about_;
  std::function<std::optional<boost::json::value>(const T&)> value_;
};

/// Reply is an object of the API that is made of a T: a value of the service, or a view of several.
/// Members stand in the table's order. Threads: immutable, so any.
template <class T>
class Reply {
 public:
  using Fields = std::vector<ReplyField<T>>;

  /// A reply with a name is a component of the description of the API, and others refer to it.
  /// Without one its schema stands where it is used. The texts must outlive the reply.
  Reply(std::string_view name, std::string_view about, Fields fields)
      : name_(name), about_(about), fields_(std::move(fields)) {}

  /// Returns the members of several tables, one behind the other.
  static Fields joined(std::initializer_list<Fields> tables) {
    Fields out;
    for (const Fields& table : tables) out.insert(out.end(), table.begin(), table.end());
    return out;
  }

  std::string_view name() const { return name_; }
  const Fields& fields() const { return fields_; }

  boost::json::object json(const T& of) const {
    boost::json::object out;
    for (const ReplyField<T>& field : fields_)
      if (auto value = field.value(of)) out[field.name()] = std::move(*value);
    return out;
  }
  /// Returns nothing for a value that is not set.
  std::optional<boost::json::object> json(const std::optional<T>& of) const {
    if (!of) return std::nullopt;
    return json(*of);
  }
  template <class Range>
  boost::json::array list(const Range& values) const {
    boost::json::array out;
    for (const T& value : values) out.push_back(json(value));
    return out;
  }

  boost::json::object schema() const {
    boost::json::object out{{"type", "object"}}, properties;
    if (!about_.empty()) out["description"] = about_;
    boost::json::array required;
    for (const ReplyField<T>& field : fields_) {
      if (field.kind().required) required.emplace_back(field.name());
      properties[field.name()] = field.schema();
    }
    if (!required.empty()) out["required"] = std::move(required);
    out["properties"] = std::move(properties);
    return out;
  }
  /// Returns the kind of a member that holds this reply.
  Kind kind() const { return name_.empty() ? Kind{.schema = schema()} : kind::component(name_); }

 private:
  std::string_view name_, about_;
  Fields fields_;
};

}  // namespace quire
