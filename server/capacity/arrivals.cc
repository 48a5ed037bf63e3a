#include "server/capacity/arrivals.h"

#include <algorithm>
#include <cmath>

namespace quire::capacity {
namespace {

/// The fractional parts of its multiples lie evenly between 0 and 1, however many there are.
constexpr double kGoldenRatio = 0.6180339887498949;

}  // namespace

Arrivals::Arrivals(const Trace& trace, std::uint64_t copies, double speed)
    : trace_(trace), speed_(speed) {
  const auto& entries = trace.entries();
  for (std::uint64_t i = 0; i < copies && !entries.empty(); ++i) {
    Copy copy{0, i, 0, 0, entries.size()};
    const double turns = static_cast<double>(i) * kGoldenRatio;
    copy.offset = (turns - std::floor(turns)) * trace.period();
    if (i > 0) {
      const auto wraps = std::ranges::partition_point(
          entries, [&](const Trace::Entry& e) { return e.seconds + copy.offset < trace.period(); });
      copy.next = wraps == entries.end() ? 0 : static_cast<std::size_t>(wraps - entries.begin());
    }
    copy.seconds = time_of(copy);
    copies_.push(copy);
  }
}

double Arrivals::time_of(const Copy& copy) const {
  const double at = trace_.entries()[copy.next].seconds + copy.offset;
  return (at >= trace_.period() ? at - trace_.period() : at) / speed_;
}

bool Arrivals::next(Arrival& out) {
  if (copies_.empty()) return false;
  Copy copy = copies_.top();
  copies_.pop();
  out.seconds = copy.seconds;
  out.entry = &trace_.entries()[copy.next];
  out.salt = copy.number == 0 ? 0 : mix(copy.number);
  copy.next = (copy.next + 1) % trace_.entries().size();
  if (--copy.left > 0) {
    copy.seconds = time_of(copy);
    copies_.push(copy);
  }
  return true;
}

}  // namespace quire::capacity
