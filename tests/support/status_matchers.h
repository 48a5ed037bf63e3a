/// ASSERT_OK and EXPECT_OK take a Status or a Result and show its message when it is an error.
#pragma once

#include <gtest/gtest.h>

#include "base/status.h"

namespace quire::test {

inline Status status_of(const Status& status) { return status; }
template <class T>
Status status_of(const Result<T>& result) {
  return result.status();
}

}  // namespace quire::test

/// The switch keeps an `else` after the macro away from its `if`.
#define QUIRE_TEST_OK(expr, check)                                                            \
  switch (0)                                                                                  \
  case 0:                                                                                     \
  default:                                                                                    \
    if (const ::quire::Status ok_status_ = ::quire::test::status_of(expr); ok_status_.ok()) { \
    } else                                                                                    \
      check(ok_status_.ok()) << ok_status_.to_string()

#define ASSERT_OK(expr) QUIRE_TEST_OK(expr, ASSERT_TRUE)
#define EXPECT_OK(expr) QUIRE_TEST_OK(expr, EXPECT_TRUE)
