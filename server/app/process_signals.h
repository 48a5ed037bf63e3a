/// The signals that end or reload the service.
#pragma once

#include <memory>

namespace quire {

/// SIGTERM, SIGINT and SIGHUP go to next() as long as this object lives, whichever thread the
/// system gives them to: libraries start threads before main() that no mask of ours reaches. One
/// object a process. Threads: next() from one at a time, close() from any.
class ProcessSignals {
 public:
  ProcessSignals();
  ~ProcessSignals();
  ProcessSignals(const ProcessSignals&) = delete;
  ProcessSignals& operator=(const ProcessSignals&) = delete;

  /// Waits for the next signal; one that came before is not lost. 0: closed.
  int next();
  /// Ends next(), now and from here on.
  void close();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace quire
