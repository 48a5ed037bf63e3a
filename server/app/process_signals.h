/// Waits for the signals that end or reload the service.
#pragma once

#include <memory>

namespace quire {

/// While this object lives, SIGTERM, SIGINT and SIGHUP go to next(), whichever thread the system
/// delivers them to. A signal mask would not do: libraries start threads before main(). There is
/// one object per process. Threads: next() from one at a time, close() from any.
class ProcessSignals {
 public:
  ProcessSignals();
  ~ProcessSignals();
  ProcessSignals(const ProcessSignals&) = delete;
  ProcessSignals& operator=(const ProcessSignals&) = delete;

  /// Waits for the next signal and returns it; 0: closed. A signal that came before the call is not
  /// lost.
  int next();
  /// Ends next(), and every later call of it.
  void close();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace quire
