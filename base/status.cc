#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace quire {
namespace {
const std::string kEmpty;
}

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

namespace internal {
void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "quire: broken invariant at %s:%d: %s: %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}
}  // namespace internal
}  // namespace quire
