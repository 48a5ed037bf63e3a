/// What the members of replies hold: JSON schemas of the API, and how numbers are rounded.
#pragma once

#include <boost/json/object.hpp>
#include <initializer_list>
#include <string_view>

namespace quire {

/// Kind is the type of one member. Threads: immutable once made, so any.
struct Kind {
  boost::json::object schema;
  int decimals = -1;      ///< places that numbers are rounded to; -1: they are not rounded
  bool required = true;   ///< false: the member may be absent
  bool nullable = false;  ///< a getter without a value gives null
};

namespace kind {

Kind text();
Kind flag();
/// An integer, 0 or more: tokens, bytes, blocks.
Kind count();
/// Any integer.
Kind whole_number();
/// Milliseconds with three places.
Kind milliseconds();
/// A share from 0 to 1.
Kind ratio(int decimals = 4);
/// A number, 0 or more.
Kind amount(int decimals);
/// Any number.
Kind number(int decimals);
/// RFC 3339 text in UTC.
Kind time();
Kind time_or_null();
/// A half-open range: an array of two integers.
Kind range();
Kind tier_or_null();
/// An object whose members have no fixed names.
Kind map();
/// One of these words.
Kind one_of(std::initializer_list<std::string_view> names);
/// Always this text; such a member needs no getter.
Kind constant(std::string_view text);
/// What the component of this name describes, of a reply or of a file in server/openapi.
Kind component(std::string_view name);
Kind list(const Kind& item);
Kind or_null(Kind kind);
/// The member is absent where its getter gives no value; a getter that wants null says so itself.
/// A member may be optional and yet always there: the API then does not promise it.
Kind optional(Kind kind);

}  // namespace kind
}  // namespace quire
