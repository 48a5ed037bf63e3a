/// Compresses whole bodies as gzip, for those who take it.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace quire {

/// Returns the text as one gzip member (RFC 1952), as small as zlib makes it. The same text gives
/// the same bytes, because no time is written. Threads: any.
std::string gzip_of(std::string_view text);

/// Returns whether Accept-Encoding takes gzip (RFC 9110, section 12.5.3). A weight of 0 refuses it.
/// Without the field the reply comes as it is.
bool takes_gzip(const Headers& headers);

}  // namespace quire
