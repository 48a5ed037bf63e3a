/// Stacks that a thread switches between: what the emulation runs GPU threads on.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace quire::simt {

/// A function that can pause. One thread owns a fiber; resume() and pause() are called on that
/// thread.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next resume() enter `body`. What an unfinished earlier body left on the stack is
  /// forgotten, not destroyed.
  void reset(std::function<void()> body);
  /// Runs until the body pauses or returns.
  void resume();
  /// Called inside the body: back to the caller of resume().
  void pause();
  bool finished() const { return finished_; }

 private:
  static void enter(unsigned low, unsigned high);
  void run();
  void switched_in();
  void switch_out(bool for_good);
  void switch_in();

  static constexpr std::size_t kStackBytes = 128 * 1024;
  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> body_;
  ucontext_t own_{}, caller_{};
  /// Where both go on, without asking the system for the signal mask at every switch
  jmp_buf own_jump_, caller_jump_;
  bool finished_ = true, entered_ = false;
  // What sanitizers must be told at every switch; null without one.
  void *own_shadow_ = nullptr, *caller_shadow_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace quire::simt
