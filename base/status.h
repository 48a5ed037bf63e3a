/// Expected failures as values: Status, and Result<T> (a T or a non-OK Status).
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace quire {

/// Closed list of failure kinds. server/support/http_status.cc maps each to HTTP; nothing else may.
enum class Code : unsigned char {
  kOk = 0,
  kInvalidArgument,  ///< the caller's value is wrong; field() names it
  kNotFound,         ///< an ordinary miss
  kAlreadyExists,
  kFailedPrecondition,  ///< the state does not allow it now (not ready, wrong version)
  kResourceExhausted,   ///< a budget, queue or pool is full
  kCorruption,          ///< stored bytes do not match their checksum or format
  kIo,                  ///< disk or network
  kUnavailable,         ///< not able to serve now (draining, loading)
  kDeadlineExceeded,
  kCancelled,
  kUnimplemented,  ///< a named feature this build or model does not have
  kDeviceLost,     ///< the accelerator's context is gone; drain and exit
  kInternal,       ///< a bug
};

std::string_view code_name(Code code);

/// OK, or a code with a message for people and the name of the offending field (may be empty).
/// Copies are cheap (shared, immutable payload). An OK status allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : Status(code, std::move(message), {}) {}
  Status(Code code, std::string message, std::string field);

  static Status ok_status() { return {}; }
  /// Wrong value of `field` (a JSON path, config key or file name) and how to fix it.
  static Status invalid(std::string field, std::string message) {
    return Status(Code::kInvalidArgument, std::move(message), std::move(field));
  }
  static Status not_found(std::string message) {
    return Status(Code::kNotFound, std::move(message));
  }
  static Status corruption(std::string message) {
    return Status(Code::kCorruption, std::move(message));
  }
  static Status io(std::string message) { return Status(Code::kIo, std::move(message)); }
  static Status exhausted(std::string message) {
    return Status(Code::kResourceExhausted, std::move(message));
  }
  static Status cancelled(std::string message) {
    return Status(Code::kCancelled, std::move(message));
  }
  static Status internal(std::string message) {
    return Status(Code::kInternal, std::move(message));
  }
  static Status precondition(std::string message) {
    return Status(Code::kFailedPrecondition, std::move(message));
  }
  static Status unimplemented(std::string message) {
    return Status(Code::kUnimplemented, std::move(message));
  }
  static Status unavailable(std::string message) {
    return Status(Code::kUnavailable, std::move(message));
  }
  static Status deadline(std::string message) {
    return Status(Code::kDeadlineExceeded, std::move(message));
  }

  bool ok() const { return rep_ == nullptr; }
  explicit operator bool() const { return ok(); }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;
  const std::string& field() const;
  /// "kNotFound: message (field)" for logs.
  std::string to_string() const;
  /// The same failure with `context: ` put before the message.
  Status with_context(std::string_view context) const;
  Status with_field(std::string field) const;

 private:
  struct Rep {
    Code code;
    std::string message, field;
  };
  std::shared_ptr<const Rep> rep_;
};

/// Logs the exception that is being handled as an error of `work` (a few words) and returns it:
/// kResourceExhausted for std::bad_alloc, else kInternal. It never throws. Threads: any, within a
/// catch block.
Status exception_status(std::string_view work) noexcept;

/// A T, or why there is none. value() on a failure aborts: check ok() first.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Status status) : v_(std::in_place_index<1>, std::move(status)) {
    assert(!std::get<1>(v_).ok());
  }  // NOLINT

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(v_); }
  Code code() const { return ok() ? Code::kOk : std::get<1>(v_).code(); }
  T& value() & {
    check();
    return *std::get_if<0>(&v_);
  }
  const T& value() const& {
    check();
    return *std::get_if<0>(&v_);
  }
  T&& value() && {
    check();
    return std::move(*std::get_if<0>(&v_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T value_or(T other) const& { return ok() ? value() : std::move(other); }

 private:
  void check() const;
  std::variant<T, Status> v_;
};

namespace internal {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}

template <class T>
void Result<T>::check() const {
  if (!ok())
    internal::check_failed("Result::ok()", __FILE__, __LINE__, std::get<1>(v_).to_string());
}

}  // namespace quire

/// A broken invariant: aborts, also in release. No request, file or peer may ever trigger one.
#define QUIRE_CHECK(cond, msg)                                         \
  do {                                                                 \
    if (!(cond)) [[unlikely]]                                          \
      ::quire::internal::check_failed(#cond, __FILE__, __LINE__, msg); \
  } while (0)

#define QUIRE_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::quire::Status quire_status_ = (expr); !quire_status_.ok()) return quire_status_; \
  } while (0)

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)
/// QUIRE_ASSIGN_OR_RETURN(auto x, make_x());
#define QUIRE_ASSIGN_OR_RETURN(lhs, expr) \
  QUIRE_ASSIGN_OR_RETURN_IMPL(QUIRE_CONCAT(quire_result_, __LINE__), lhs, expr)
#define QUIRE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()
