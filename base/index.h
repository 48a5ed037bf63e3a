/// Conversions between the signed numbers of this code and the unsigned ones of containers. `at`
/// and `to_size` check their values in builds without optimisation and under AddressSanitizer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/status.h"

#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__)
#define QUIRE_CHECK_INDEX(cond) QUIRE_CHECK(cond, "an index or a size is negative")
#else
#define QUIRE_CHECK_INDEX(cond) static_cast<void>(0)
#endif

namespace quire {

/// Integer is any integer type that counts: no bool and no character type.
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> &&
                  !std::same_as<T, char32_t>;

/// Returns the number of elements to reserve, resize or compare with. `n` must not be negative.
template <Integer T>
constexpr std::size_t to_size(T n) {
  QUIRE_CHECK_INDEX(std::in_range<std::size_t>(n));
  return static_cast<std::size_t>(n);
}

/// Returns the index of an element in a container: `rows[at(i)]`. `i` must not be negative.
template <Integer T>
constexpr std::size_t at(T i) {
  return to_size(i);
}

/// Returns the index of an element of a table that an enumeration orders.
template <class E>
requires std::is_enum_v<E>
constexpr std::size_t at(E e) { return to_size(static_cast<std::underlying_type_t<E>>(e)); }

/// Returns the number of elements of a container, an array or a string.
template <class Container>
constexpr std::int64_t count_of(const Container& container) {
  return std::ssize(container);
}

/// Returns `from` as a `To`, and aborts in every build if `To` does not hold it. No request, file
/// or peer may choose the value, and no hot loop calls this.
template <Integer To, Integer From>
constexpr To narrow(From from) {
  QUIRE_CHECK(std::in_range<To>(from), "a number does not fit its type");
  return static_cast<To>(from);
}

}  // namespace quire

#undef QUIRE_CHECK_INDEX
