/// Stacks that a thread switches between; the emulation runs GPU threads on them.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace quire::simt {

/// A function that can pause. One thread owns a fiber and calls resume() and pause().
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next resume() enter `body`. The stack of an unfinished earlier body is forgotten,
  /// not destroyed.
  void reset(std::function<void()> body);
  /// Runs the body until it pauses or returns.
  void resume();
  /// Returns to the caller of resume(). It is called inside the body.
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
  /// Where the fiber and its caller go on. Jumps avoid asking the system for the signal mask at
  /// every switch.
  jmp_buf own_jump_, caller_jump_;
  bool finished_ = true, entered_ = false;
  // State that sanitizers must be told at every switch; null without one.
  void *own_shadow_ = nullptr, *caller_shadow_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace quire::simt
