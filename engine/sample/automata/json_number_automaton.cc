#include "engine/sample/automata/json_number_automaton.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace quire {
namespace {

using Count = std::int32_t;

/// A divisor as factor * 10^zeros or factor / 10^places.
struct Divisor {
  std::uint64_t factor = 1;
  Count zeros = 0, places = 0;

  explicit Divisor(const Decimal& number) {
    std::string digits = number.whole() + number.fraction();
    places = static_cast<Count>(number.fraction().size());
    while (digits.ends_with('0')) {
      digits.pop_back();
      ++zeros;
    }
    factor = std::stoull(digits);
  }

  std::uint64_t next(std::uint64_t rest, std::uint64_t digit) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(rest) * 10 + digit) % factor);
  }
  std::uint64_t shifted(std::uint64_t rest, Count times) const {
    while (rest != 0 && times-- > 0) rest = next(rest, 0);
    return rest;
  }
};

/// A bound of absolute values, and how the digits of a text compare with it.
struct Bound {
  std::string whole, fraction;
  bool excluded = false;

  Count num_whole() const { return static_cast<Count>(whole.size()); }

  /// Returns the order of a number's beginning to the bound's after one more digit before the
  /// point. A number with more digits than the bound is above it.
  int after_whole(int order, Count num_before, char digit) const {
    if (num_before >= num_whole()) return 1;
    return order != 0 ? order : compared(digit, whole[at(num_before)]);
  }
  int after_fraction(int order, Count num_before, char digit) const {
    if (order != 0) return order;
    return compared(digit, at(num_before) < fraction.size() ? fraction[at(num_before)] : '0');
  }
  /// Returns the order once all `num_digits` digits before the point are read.
  int at_point(int order, Count num_digits) const { return num_digits < num_whole() ? -1 : order; }
  /// Returns the order of a number that ends with this many digits after the point.
  int at_end(int order, Count num_after) const {
    return order == 0 && at(num_after) < fraction.size() ? -1 : order;
  }

 private:
  static int compared(char a, char b) { return a < b ? -1 : a > b ? 1 : 0; }
};

/// The bounds of the numbers with one sign.
struct Side {
  bool any = true;  ///< there may be such numbers
  std::optional<Bound> low, high;
};

/// What a text has shown so far.
struct Seen {
  enum class Place : std::uint8_t { kStart, kSign, kWhole, kPoint, kFraction };
  Place place = Place::kStart;
  bool negative = false;
  bool nonzero = false;  ///< a digit was not zero
  Count num_digits = 0;  ///< before the point, or after it once it is read
  int low = 0, high = 0;
  /// Number of zeros at the end of the digits before the point, up to the divisor's, and the
  /// remainder of the digits before them.
  Count zeros = 0;
  std::uint64_t rest = 0;

  bool operator==(const Seen&) const = default;
};

struct SeenHash {
  std::size_t operator()(const Seen& seen) const {
    // The small fields fill the upper bits, as remainders rarely do.
    std::uint64_t small = 0;
    for (const int field :
         {static_cast<int>(seen.place), static_cast<int>(seen.negative),
          static_cast<int>(seen.nonzero), seen.low + 1, seen.high + 1, seen.num_digits, seen.zeros})
      small = small * 8 + static_cast<std::uint64_t>(field);
    const std::uint64_t mixed = (seen.rest ^ small << 40) * 0x9e3779b97f4a7c15u;
    return mixed ^ mixed >> 29;
  }
};

class Builder {
 public:
  explicit Builder(const JsonNumbers& numbers) : numbers_(numbers) {
    if (numbers.multiple_of) divisor_.emplace(*numbers.multiple_of);
    sides_[0] = side(numbers.min, numbers.above_min, numbers.max, numbers.below_max, false);
    sides_[1] = side(numbers.max, numbers.below_max, numbers.min, numbers.above_min, true);
    if (numbers.whole) {
      most_whole_ = kMostIntegerDigits;
    } else if (divisor_) {
      const Count before = std::max(bound_digits(), 1);
      most_fraction_ = std::min(std::max(divisor_->places, 2), kMostNumberDigits - before);
      most_whole_ = kMostNumberDigits - most_fraction_;
    } else {
      most_fraction_ = std::min(bound_places() + 6, kMostNumberDigits - bound_digits());
      most_whole_ = kMostNumberDigits;
    }
  }

  std::optional<Automaton> build(AutomatonBudget& budget) {
    std::vector<Automaton::Node> nodes;
    id({});
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      const Seen from = seen_[i];
      Automaton::Node& node = nodes.emplace_back();
      node.accepting = may_end(from);
      for (const char c : std::string_view("-.0123456789")) {
        const auto to = after(from, c);
        const auto symbol = static_cast<unsigned char>(c);
        if (to) append_edge(node.edges, {symbol, symbol, id(*to)});
      }
      if (seen_.size() > Automaton::kMaxStates || !budget.spend(1 + node.edges.size()))
        return std::nullopt;
    }
    return Automaton(nodes);
  }

 private:
  using Place = Seen::Place;

  /// Bounds of absolute values; `near` is the bound towards zero.
  static Side side(const std::optional<Decimal>& near, bool near_excluded,
                   const std::optional<Decimal>& far, bool far_excluded, bool negative) {
    Side out;
    if (far && !far->zero() && far->negative() != negative) out.any = false;
    // Zero has no sign, so it is on the side of the positive numbers only.
    if (far && far->zero() && (negative || far_excluded)) out.any = false;
    if (far) out.high = Bound{far->whole(), far->fraction(), far_excluded};
    const bool bounds = near && (near->zero() ? near_excluded : near->negative() == negative);
    if (bounds) out.low = Bound{near->whole(), near->fraction(), near_excluded};
    return out;
  }

  /// Returns the digits before the point of the largest bound that a number can reach.
  Count bound_digits() const {
    Count most = 0;
    for (const auto& bound : {numbers_.min, numbers_.max}) {
      const std::size_t digits = bound && bound->whole() != "0" ? bound->whole().size() : 0;
      if (digits <= at(kMostNumberDigits)) most = std::max(most, static_cast<Count>(digits));
    }
    return most;
  }
  Count bound_places() const {
    std::size_t most = 0;
    for (const auto& bound : {numbers_.min, numbers_.max})
      if (bound) most = std::max(most, bound->fraction().size());
    return static_cast<Count>(most);
  }

  Automaton::State id(const Seen& seen) {
    const auto [it, fresh] = ids_.emplace(seen, static_cast<Automaton::State>(seen_.size()));
    if (fresh) seen_.push_back(seen);
    return it->second;
  }

  const Side& side_of(const Seen& seen) const { return sides_[seen.negative ? 1 : 0]; }

  std::optional<Seen> after(Seen seen, char c) const {
    if (c == '-') {
      if (seen.place != Place::kStart || !sides_[1].any) return std::nullopt;
      seen.place = Place::kSign;
      seen.negative = true;
      return seen;
    }
    if (c == '.') return at_point(seen);
    if (!side_of(seen).any) return std::nullopt;
    return seen.place == Place::kPoint || seen.place == Place::kFraction ? after_point(seen, c)
                                                                         : before_point(seen, c);
  }

  std::optional<Seen> at_point(Seen seen) const {
    if (seen.place != Place::kWhole || most_fraction_ <= 0) return std::nullopt;
    const Side& side = side_of(seen);
    if (side.low) seen.low = side.low->at_point(seen.low, seen.num_digits);
    if (side.high) seen.high = side.high->at_point(seen.high, seen.num_digits);
    if (seen.low < 0 || seen.high > 0) return std::nullopt;
    seen.place = Place::kPoint;
    seen.num_digits = 0;
    return seen;
  }

  std::optional<Seen> before_point(Seen seen, char c) const {
    if (seen.num_digits == most_whole_) return std::nullopt;
    if (seen.num_digits > 0 && !seen.nonzero) return std::nullopt;  // no digit follows a first 0
    const Side& side = side_of(seen);
    if (side.low) seen.low = side.low->after_whole(seen.low, seen.num_digits, c);
    if (side.high) seen.high = side.high->after_whole(seen.high, seen.num_digits, c);
    ++seen.num_digits;
    // No further digit brings the number below the bound again.
    if (side.high && seen.high > 0 && seen.num_digits >= side.high->num_whole())
      return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (divisor_ && digit == 0 && seen.nonzero && seen.zeros < divisor_->zeros) {
      ++seen.zeros;
    } else if (divisor_ && digit == 0) {
      seen.rest = divisor_->next(seen.rest, 0);
    } else if (divisor_) {
      seen.rest = divisor_->next(divisor_->shifted(seen.rest, seen.zeros), digit);
      seen.zeros = 0;
    }
    seen.nonzero = seen.nonzero || digit != 0;
    seen.place = Place::kWhole;
    return seen;
  }

  std::optional<Seen> after_point(Seen seen, char c) const {
    if (seen.num_digits == most_fraction_) return std::nullopt;
    const Side& side = side_of(seen);
    if (side.low) seen.low = side.low->after_fraction(seen.low, seen.num_digits, c);
    if (side.high) seen.high = side.high->after_fraction(seen.high, seen.num_digits, c);
    if (seen.low < 0 || seen.high > 0) return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (divisor_ && seen.num_digits < divisor_->places)
      seen.rest = divisor_->next(seen.rest, digit);
    else if (divisor_ && digit != 0)
      return std::nullopt;
    ++seen.num_digits;
    seen.nonzero = seen.nonzero || digit != 0;
    seen.place = Place::kFraction;
    return seen;
  }

  bool may_end(const Seen& seen) const {
    const bool point = seen.place == Place::kFraction;
    if (!point && seen.place != Place::kWhole) return false;
    if (seen.negative && !seen.nonzero) return false;
    const Count num_after = point ? seen.num_digits : 0;
    const auto order = [&](const Bound& bound, int before) {
      return bound.at_end(point ? before : bound.at_point(before, seen.num_digits), num_after);
    };
    const Side& side = side_of(seen);
    if (side.low) {
      const int above = order(*side.low, seen.low);
      if (above < 0 || (above == 0 && side.low->excluded)) return false;
    }
    if (side.high) {
      const int above = order(*side.high, seen.high);
      if (above > 0 || (above == 0 && side.high->excluded)) return false;
    }
    if (!divisor_ || !seen.nonzero) return true;
    return seen.zeros == divisor_->zeros &&
           divisor_->shifted(seen.rest, std::max(0, divisor_->places - num_after)) == 0;
  }

  const JsonNumbers& numbers_;
  std::optional<Divisor> divisor_;
  Side sides_[2];  ///< positive and zero, negative
  Count most_whole_ = 0, most_fraction_ = 0;
  std::vector<Seen> seen_;
  std::unordered_map<Seen, Automaton::State, SeenHash> ids_;
};

}  // namespace

void JsonNumbers::from(const Decimal& bound, bool excluded) {
  if (min && bound < *min) return;
  above_min = excluded || (min == bound && above_min);
  min = bound;
}

void JsonNumbers::to(const Decimal& bound, bool excluded) {
  if (max && bound > *max) return;
  below_max = excluded || (max == bound && below_max);
  max = bound;
}

std::optional<Automaton> json_number_automaton(const JsonNumbers& numbers,
                                               AutomatonBudget& budget) {
  return Builder(numbers).build(budget);
}

}  // namespace quire
