/// This file declares the thread pool, the only way in which CPU kernels use more than one core.
///
/// A process has one pool of helper threads, which start at the first use and sleep while idle. The
/// calling thread always works too and waits only for helpers that have taken a piece. On a busy
/// machine a helper that gets no core therefore costs nothing. One caller at a time (the engine
/// thread) owns the pool. Calls by other threads meanwhile, and calls from inside fn, run inline.
///
/// What fn throws, first where several threads do, is thrown by the call once no thread is inside
/// fn. Pieces that had not begun are then left out.
#pragma once

#include <cstdint>
#include <functional>

namespace quire {

/// Calls fn(begin, end) for disjoint ranges that cover [0, n), on up to num_threads() threads.
/// Ranges hold at least `grain` items. It runs inline if n < 2 * grain.
void parallel_for(std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& fn);

/// Calls fn(i) for every i in [0, n). Each thread takes the next i when it is free, which suits
/// tasks of unequal length.
void parallel_tasks(std::int64_t n, const std::function<void(std::int64_t)>& fn);

/// Returns how many threads parallel_for() may use in the calling thread; 1 inside fn.
int num_threads();

/// Sets how many threads the calling thread's calls may use at most (0: all cores it may run on).
void set_num_threads(int n);

}  // namespace quire
