/// The one way CPU kernels use more than one core.
///
/// A process has one team of helper threads, started at the first use and asleep when there is
/// nothing to do. The calling thread always works itself and waits only for helpers that have taken
/// a piece: on a busy machine a helper that gets no core costs nothing. One caller at a time has
/// the team (the engine thread); calls by others meanwhile, and calls from inside fn, run inline.
#pragma once

#include <cstdint>
#include <functional>

namespace quire {

/// Calls fn(begin, end) for disjoint ranges that cover [0, n), on up to num_threads() threads.
/// Ranges hold at least `grain` items. Runs inline if n < 2 * grain. fn must not throw.
void parallel_for(std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& fn);

/// Calls fn(i) for every i in [0, n); threads take the next i when they are free. For tasks of
/// unequal length. fn must not throw.
void parallel_tasks(std::int64_t n, const std::function<void(std::int64_t)>& fn);

/// Threads parallel_for may use in the calling thread; 1 inside fn.
int num_threads();

/// Sets the most threads the calling thread's calls may use (0: all cores it may run on).
void set_num_threads(int n);

}  // namespace quire
