/// The only table from error codes to HTTP.
#pragma once

#include <string_view>

#include "base/status.h"

namespace quire {

struct HttpError {
  int status;
  std::string_view code;  ///< code in API error bodies, unless the caller knows a better one
};
HttpError http_error_of(Code code);

}  // namespace quire
