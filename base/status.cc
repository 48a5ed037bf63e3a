#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "base/log.h"

namespace quire {
namespace {

const std::string kEmpty;
// It is made while the program is loaded, as there may be no memory when it is wanted.
const Status& g_out_of_memory = *new Status(Code::kResourceExhausted, "out of memory");

Status current_status() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return g_out_of_memory;
  } catch (const std::exception& e) {
    return Status::internal(e.what());
  } catch (...) {
    return Status::internal("an exception that is no std::exception");
  }
}

}  // namespace

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kCorruption:
      return "corruption";
    case Code::kIo:
      return "io";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnimplemented:
      return "unimplemented";
    case Code::kDeviceLost:
      return "device_lost";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

Status::Status(Code code, std::string message, std::string field) {
  if (code != Code::kOk)
    rep_ = std::make_shared<const Rep>(Rep{code, std::move(message), std::move(field)});
}

const std::string& Status::message() const { return rep_ ? rep_->message : kEmpty; }
const std::string& Status::field() const { return rep_ ? rep_->field : kEmpty; }

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = std::string(code_name(rep_->code)) + ": " + rep_->message;
  if (!rep_->field.empty()) text += " (" + rep_->field + ")";
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return {};
  return Status(rep_->code, std::string(context) + ": " + rep_->message, rep_->field);
}

Status Status::with_field(std::string field) const {
  if (ok()) return {};
  return Status(rep_->code, rep_->message, std::move(field));
}

Status exception_status(std::string_view work) noexcept {
  try {
    const Status status = current_status();
    log_error("work ended with an exception",
              {{"work", std::string(work)}, {"reason", status.message()}});
    return status;
  } catch (...) {
    return g_out_of_memory;  // the log has none, either
  }
}

namespace internal {
void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "quire: broken invariant at %s:%d: %s: %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}
}  // namespace internal
}  // namespace quire
