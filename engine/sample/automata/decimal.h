/// This file defines decimal numbers as texts have them, without rounding. Internal to sample/.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

/// A decimal number. Immutable; threads: any.
class Decimal {
 public:
  Decimal() = default;  ///< zero
  explicit Decimal(std::int64_t value);
  explicit Decimal(std::uint64_t value);
  /// Takes the shortest decimal number that is read as `value`, which must be finite.
  explicit Decimal(double value);

  bool negative() const { return negative_; }
  bool zero() const { return whole_ == "0" && fraction_.empty(); }
  /// Returns the digits before the point, without zeros in front; "0": there are none.
  const std::string& whole() const { return whole_; }
  /// Returns the digits after the point, without zeros at the end.
  const std::string& fraction() const { return fraction_; }
  /// Returns the number as JSON has it, without an exponent.
  std::string text() const;

  bool operator==(const Decimal&) const = default;
  std::strong_ordering operator<=>(const Decimal& other) const;

 private:
  /// Takes digits of which `num_whole` stand before the point; it may be negative or beyond them.
  void set(std::string_view digits, std::int64_t num_whole);

  bool negative_ = false;
  std::string whole_ = "0", fraction_;
};

}  // namespace quire
