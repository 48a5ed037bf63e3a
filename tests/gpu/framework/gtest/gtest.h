/// The part of GoogleTest that the tests for a machine with a GPU use. main.cc runs each test in a
/// process of its own.
#pragma once

#include <cmath>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace testing {

/// Base class of fixtures.
class Test {
 public:
  virtual ~Test() = default;
  /// Writes a value down with the test's result: of numbers of one key the largest. Defined by
  /// main.cc.
  static void RecordProperty(const std::string& key, const std::string& value);
};

struct Case {
  std::string name;
  void (*body)();
};
/// Returns all tests in the order of their definitions, file by file.
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
/// Returns the active texts of SCOPED_TRACE, outermost first.
inline std::vector<std::string>& traces() {
  static std::vector<std::string> all;
  return all;
}
/// Returns the number of failures of the running test.
inline int& failures() {
  static int count = 0;
  return count;
}
/// Returns whether the running test was skipped.
inline bool& skipped() {
  static bool value = false;
  return value;
}

namespace internal {

struct Registration {
  Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

/// Collects the text after a failed check and prints it when it is destroyed.
class Message {
 public:
  template <class T>
  Message& operator<<(const T& value) {
    text_ << value;
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

/// The left side of `Report(...) = Message() << ...`. It makes a failed ASSERT a statement of type
/// void, which can be returned.
struct Report {
  const char* file;
  int line;
  std::string what;
  void operator=(const Message& message) const {
    ++failures();
    std::cout << file << ":" << line << ": " << what << " " << message.text() << std::endl;
    for (const std::string& trace : traces()) std::cout << "  in: " << trace << std::endl;
  }
};

/// The left side of a skipped test's statement of type void, which can be returned.
struct Skip {
  void operator=(const Message& message) const {
    skipped() = true;
    std::cout << "skipped: " << message.text() << std::endl;
  }
};

/// A trace that is active while the object exists.
class Trace {
 public:
  template <class T>
  explicit Trace(const T& text) {
    traces().push_back((std::ostringstream() << text).str());
  }
  ~Trace() { traces().pop_back(); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
};

template <class T, class = void>
struct Printable : std::false_type {};
template <class T>
struct Printable<T,
                 std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>>
    : std::true_type {};

template <class T>
std::string print(const T& value) {
  std::ostringstream out;
  if constexpr (Printable<T>::value)
    out << value;
  else if constexpr (requires { value.size(); })
    out << value.size() << " elements";
  else
    out << sizeof(T) << " bytes";
  return out.str();
}

/// Returns where two arrays differ: their sizes, the first element that differs, and how many do.
template <class A, class B>
std::string differences(const A& a, const B& b) {
  if (a.size() != b.size())
    return std::to_string(a.size()) + " elements against " + std::to_string(b.size());
  std::size_t first = a.size(), count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return "equal elements";
  Test::RecordProperty("first_bad_index", std::to_string(first));
  return "[" + std::to_string(first) + "] is " + print(a[first]) + " against " + print(b[first]) +
         "; " + std::to_string(count) + " of " + std::to_string(a.size()) + " differ";
}

template <class A, class B, class Compare>
std::string compare(const A& a, const B& b, Compare holds, const char* text) {
  if (holds(a, b)) return {};
  std::string what = print(a) + " against " + print(b);
  if constexpr (!Printable<A>::value && !Printable<B>::value &&
                requires { a.size(), b.size(), a[0] == b[0]; })
    what = differences(a, b);
  return std::string(text) + " does not hold: " + what;
}

}  // namespace internal
}  // namespace testing

#define QUIRE_TEST_NAME(suite, name) suite##_##name##_test
#define TEST(suite, name)                                                       \
  static void QUIRE_TEST_NAME(suite, name)();                                   \
  static const ::testing::internal::Registration suite##_##name##_registration( \
      #suite "." #name, &QUIRE_TEST_NAME(suite, name));                         \
  static void QUIRE_TEST_NAME(suite, name)()

#define TEST_F(fixture, name)                                                     \
  namespace {                                                                     \
  class QUIRE_TEST_NAME(fixture, name) final : public fixture {                   \
   public:                                                                        \
    void run();                                                                   \
  };                                                                              \
  }                                                                               \
  static const ::testing::internal::Registration fixture##_##name##_registration( \
      #fixture "." #name, [] {                                                    \
        QUIRE_TEST_NAME(fixture, name)                                            \
        ().run();                                                                 \
      });                                                                         \
  void QUIRE_TEST_NAME(fixture, name)::run()

#define QUIRE_JOINED_(a, b) a##b
#define QUIRE_JOINED(a, b) QUIRE_JOINED_(a, b)
#define SCOPED_TRACE(text) \
  const ::testing::internal::Trace QUIRE_JOINED(quire_trace_, __LINE__)(text)

/// Keeps an `else` after a check away from the check's own `if`.
#define QUIRE_NO_ELSE \
  switch (0)          \
  case 0:             \
  default:

#define QUIRE_CHECK_TRUE(on_failure, value, text)              \
  QUIRE_NO_ELSE                                                \
  if (value)                                                   \
    ;                                                          \
  else                                                         \
    on_failure ::testing::internal::Report{__FILE__, __LINE__, \
                                           text} = ::testing::internal::Message()
#define QUIRE_CHECK_COMPARED(on_failure, a, b, op)                                           \
  QUIRE_NO_ELSE                                                                              \
  if (const std::string quire_failed = ::testing::internal::compare(                         \
          a, b, [](const auto& quire_a, const auto& quire_b) { return quire_a op quire_b; }, \
          #a " " #op " " #b);                                                                \
      quire_failed.empty())                                                                  \
    ;                                                                                        \
  else                                                                                       \
    on_failure ::testing::internal::Report{__FILE__, __LINE__,                               \
                                           quire_failed} = ::testing::internal::Message()

#define EXPECT_TRUE(value) QUIRE_CHECK_TRUE(, value, #value " is false")
#define EXPECT_FALSE(value) QUIRE_CHECK_TRUE(, !(value), #value " is true")
#define EXPECT_EQ(a, b) QUIRE_CHECK_COMPARED(, a, b, ==)
#define EXPECT_NE(a, b) QUIRE_CHECK_COMPARED(, a, b, !=)
#define EXPECT_GT(a, b) QUIRE_CHECK_COMPARED(, a, b, >)
#define EXPECT_GE(a, b) QUIRE_CHECK_COMPARED(, a, b, >=)
#define EXPECT_LT(a, b) QUIRE_CHECK_COMPARED(, a, b, <)
#define EXPECT_LE(a, b) QUIRE_CHECK_COMPARED(, a, b, <=)
#define EXPECT_NEAR(a, b, most) \
  QUIRE_CHECK_TRUE(, std::abs((a) - (b)) <= (most), #a " is not near " #b)
#define ASSERT_TRUE(value) QUIRE_CHECK_TRUE(return, value, #value " is false")
#define ASSERT_EQ(a, b) QUIRE_CHECK_COMPARED(return, a, b, ==)
#define ASSERT_NE(a, b) QUIRE_CHECK_COMPARED(return, a, b, !=)
#define ASSERT_LT(a, b) QUIRE_CHECK_COMPARED(return, a, b, <)
#define ASSERT_LE(a, b) QUIRE_CHECK_COMPARED(return, a, b, <=)
#define ASSERT_NEAR(a, b, most) \
  QUIRE_CHECK_TRUE(return, std::abs((a) - (b)) <= (most), #a " is not near " #b)
#define ADD_FAILURE() QUIRE_CHECK_TRUE(, false, "failed:")
#define GTEST_SKIP() return ::testing::internal::Skip{} = ::testing::internal::Message()
#define FAIL() QUIRE_CHECK_TRUE(return, false, "failed:")
