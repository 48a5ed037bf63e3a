#include "base/status.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "base/log.h"

namespace quire {
namespace {

class ExceptionStatus : public ::testing::Test {
 protected:
  void TearDown() override { set_log_sink(nullptr, LogLevel::kInfo); }
  void log_to(LogSink sink) { set_log_sink(std::move(sink), LogLevel::kInfo); }
  /// Throws in a try block and returns what is made of it.
  template <class E>
  static Status thrown(const E& e) {
    try {
      throw e;
    } catch (...) {
      return exception_status("a test");
    }
  }
};

TEST_F(ExceptionStatus, TellsMemoryFromFaults) {
  log_to([](LogLevel, std::string_view, std::initializer_list<LogField>) {});
  EXPECT_EQ(thrown(std::bad_alloc()).code(), Code::kResourceExhausted);
  const Status fault = thrown(std::runtime_error("a wrong turn"));
  EXPECT_EQ(fault.code(), Code::kInternal);
  EXPECT_EQ(fault.message(), "a wrong turn");
  EXPECT_EQ(thrown(7).code(), Code::kInternal);
}

TEST_F(ExceptionStatus, LogsAnErrorThatNamesTheWork) {
  std::string line;
  log_to([&](LogLevel level, std::string_view, std::initializer_list<LogField> fields) {
    if (level == LogLevel::kError)
      for (const LogField& field : fields) line += std::string(field.key) + "=" + field.value + " ";
  });
  (void)thrown(std::runtime_error("a wrong turn"));
  EXPECT_EQ(line, "work=a test reason=a wrong turn ");
}

TEST_F(ExceptionStatus, ALogThatThrowsChangesNothing) {
  log_to(
      [](LogLevel, std::string_view, std::initializer_list<LogField>) { throw std::bad_alloc(); });
  EXPECT_EQ(thrown(std::bad_alloc()).code(), Code::kResourceExhausted);
  EXPECT_FALSE(thrown(std::runtime_error("a wrong turn")).ok());
}

}  // namespace
}  // namespace quire
