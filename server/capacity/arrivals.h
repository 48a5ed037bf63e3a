/// The questions of a trace in order of time, or of many tenants that behave like it.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "server/capacity/trace.h"

namespace quire::capacity {

/// Merges copies of a trace. Each copy has contexts of its own, and begins at another place of the
/// trace, so that they do not come in step; after its end a copy goes on from its beginning. The
/// trace must outlive it. Threads: not shared.
class Arrivals {
 public:
  struct Arrival {
    double seconds = 0;
    const Trace::Entry* entry = nullptr;
    std::uint64_t salt = 0;  ///< of the copy; 0: the trace itself
  };

  /// `speed` divides all times.
  Arrivals(const Trace& trace, std::uint64_t copies, double speed);

  /// Returns whether there is one more, which is then in `out`.
  bool next(Arrival& out);
  /// Returns the key of a context, or of what routes a question, in a copy. Its bits are even,
  /// whatever those of the trace are. 0 stays 0.
  static std::uint64_t salted(std::uint64_t key, std::uint64_t salt) {
    return key == 0 ? 0 : mix(key ^ salt);
  }
  double period() const { return trace_.period() / speed_; }

 private:
  struct Copy {
    double seconds;  ///< of its next request
    std::uint64_t number;
    double offset;
    std::size_t next, left;
    bool operator>(const Copy& other) const {
      return seconds != other.seconds ? seconds > other.seconds : number > other.number;
    }
  };
  double time_of(const Copy& copy) const;

  const Trace& trace_;
  const double speed_;
  std::priority_queue<Copy, std::vector<Copy>, std::greater<>> copies_;
};

}  // namespace quire::capacity
