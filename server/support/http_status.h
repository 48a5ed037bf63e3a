/// The only table from our error codes to HTTP.
#pragma once

#include <string_view>

#include "base/status.h"

namespace quire {

struct HttpError {
  int status;
  std::string_view code;  ///< of api error bodies, when the caller knows nothing better
};
HttpError http_error_of(Code code);

}  // namespace quire
