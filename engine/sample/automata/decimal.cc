#include "engine/sample/automata/decimal.h"

#include <algorithm>
#include <charconv>

#include "base/index.h"

namespace quire {

Decimal::Decimal(std::int64_t value) : negative_(value < 0) {
  whole_ = std::to_string(value).substr(negative_ ? 1 : 0);
}

Decimal::Decimal(std::uint64_t value) : whole_(std::to_string(value)) {}

Decimal::Decimal(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  std::string_view rest(text, to_size(end.ptr - text));
  negative_ = rest.starts_with('-') && value != 0;
  if (rest.starts_with('-')) rest.remove_prefix(1);
  const std::size_t e = rest.find('e');
  std::string digits(rest.substr(0, e));
  std::erase(digits, '.');
  rest.remove_prefix(e + 1);
  if (rest.starts_with('+')) rest.remove_prefix(1);
  int exponent = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), exponent);
  set(digits, exponent + 1);
}

void Decimal::set(std::string_view digits, std::int64_t num_whole) {
  std::string all(to_size(std::max<std::int64_t>(0, -num_whole)), '0');
  all += digits;
  const std::size_t before = to_size(std::max<std::int64_t>(0, num_whole));
  if (all.size() < before) all.append(before - all.size(), '0');
  whole_ = all.substr(0, before);
  whole_.erase(0, std::min(whole_.find_first_not_of('0'), whole_.size()));
  if (whole_.empty()) whole_ = "0";
  fraction_ = all.substr(before);
  fraction_.erase(fraction_.find_last_not_of('0') + 1);
}

std::string Decimal::text() const {
  return (negative_ ? "-" : "") + whole_ + (fraction_.empty() ? "" : "." + fraction_);
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative_ != other.negative_)
    return negative_ ? std::strong_ordering::less : std::strong_ordering::greater;
  auto order = whole_.size() <=> other.whole_.size();
  if (order == 0) order = whole_ <=> other.whole_;
  if (order == 0) order = fraction_ <=> other.fraction_;
  return negative_ ? 0 <=> order : order;
}

}  // namespace quire
