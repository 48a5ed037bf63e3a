#include "tests/support/simt/fiber.h"

#include <cstdint>
#include <utility>

// Sanitizers follow swapcontext() but report jumps to another stack as errors.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_FIBER_JUMPS 0
#else
#define QUIRE_FIBER_JUMPS 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace quire::simt {

Fiber::Fiber() : stack_(new std::byte[kStackBytes]) {
#if defined(__SANITIZE_THREAD__)
  own_shadow_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_.get(), kStackBytes);
#elif defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own_shadow_);
#endif
}

void Fiber::reset(std::function<void()> body) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_.get(), kStackBytes);
  own_shadow_ = nullptr;
#endif
  body_ = std::move(body);
  // A fiber that has finished its body and waits for the next one keeps its context.
  if (QUIRE_FIBER_JUMPS && entered_ && finished_) {
    finished_ = false;
    return;
  }
  finished_ = entered_ = false;
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes only ints
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
}

void Fiber::enter(unsigned low, unsigned high) {
  reinterpret_cast<Fiber*>(std::uintptr_t{low} | std::uintptr_t{high} << 32)->run();
}

void Fiber::run() {
  for (;;) {  // runs once where jumps are off
    switched_in();
    body_();
    finished_ = true;
    switch_out(/*for_good=*/true);
  }
}

void Fiber::switch_in() {
#if QUIRE_FIBER_JUMPS
  if (_setjmp(caller_jump_) != 0) return;
  if (entered_) _longjmp(own_jump_, 1);
  entered_ = true;
  setcontext(&own_);
#else
  entered_ = true;
  swapcontext(&caller_, &own_);
#endif
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_shadow_, stack_.get(), kStackBytes);
#elif defined(__SANITIZE_THREAD__)
  caller_shadow_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_shadow_, 0);
#endif
  switch_in();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_shadow_, nullptr, nullptr);
#endif
}

void Fiber::pause() {
  switch_out(/*for_good=*/false);
  switched_in();
}

void Fiber::switched_in() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_shadow_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fiber::switch_out([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own_shadow_, caller_stack_,
                                 caller_stack_bytes_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(caller_shadow_, 0);
#endif
#if QUIRE_FIBER_JUMPS
  if (_setjmp(own_jump_) == 0) _longjmp(caller_jump_, 1);
#else
  swapcontext(&own_, &caller_);
#endif
}

}  // namespace quire::simt
