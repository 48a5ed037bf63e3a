#include "server/support/http_status.h"

namespace quire {

HttpError http_error_of(Code code) {
  switch (code) {
    case Code::kOk:
      return {200, ""};
    case Code::kInvalidArgument:
      return {400, "invalid_value"};
    case Code::kNotFound:
      return {404, "document_not_found"};
    case Code::kAlreadyExists:
      return {409, "document_exists"};
    case Code::kFailedPrecondition:
      return {412, "precondition_failed"};
    case Code::kResourceExhausted:
      return {503, "overloaded"};
    case Code::kCorruption:
      return {503, "storage_unavailable"};
    case Code::kIo:
      return {503, "storage_unavailable"};
    case Code::kUnavailable:
      return {503, "draining"};
    case Code::kDeadlineExceeded:
      return {504, "deadline_exceeded"};
    case Code::kCancelled:
      return {409, "request_cancelled"};
    case Code::kUnimplemented:
      return {501, "not_supported"};
    case Code::kDeviceLost:
      return {503, "draining"};
    case Code::kInternal:
      return {500, "internal"};
  }
  return {500, "internal"};
}

}  // namespace quire
