/// A small thread pool for work that may wait (store reads, JSON of large bodies), so that I/O
/// threads never do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace quire {

/// Threads: any may post. `max_queued` bounds the queue, except for replies. One tenant, a
/// namespace, has at most all threads but `spare_threads` at a time, and of the queue then three
/// quarters: its work, which may take minutes, leaves room for that of others.
class WorkerPool {
 public:
  WorkerPool(int threads, std::size_t max_queued, int spare_threads = 0);
  ~WorkerPool() { stop(); }
  /// Queues work of a tenant; empty: of nobody. False: the queue is full, or the tenant's part of
  /// it, or the pool is stopping, and nothing was queued.
  [[nodiscard]] bool post(std::function<void()> work, const std::string& tenant = {});
  /// Queues work that ends a request which runs already, also where the queue is full: there is at
  /// most one for each request, and its thread has others to serve. False: the pool is stopping.
  [[nodiscard]] bool post_reply(std::function<void()> work);
  /// Runs all queued work, then ends the threads.
  void stop();
  std::size_t queued() const;

 private:
  struct Work {
    std::function<void()> run;
    std::string tenant;
  };
  struct Tenant {
    std::size_t waiting = 0;
    int running = 0;
  };
  bool queue(Work work, std::size_t most);
  std::deque<Work>::iterator next();
  void run();
  const std::size_t max_queued_;
  const int most_of_one_;  ///< threads that work of one tenant takes; 0: any number
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Work> queue_;                           // guarded by mu_
  std::unordered_map<std::string, Tenant> tenants_;  // guarded by mu_: those with work
  bool stopping_ = false;                            // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
