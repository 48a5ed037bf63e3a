/// What the fuzz targets of readers share: any bytes give documents that the parent accepts, or an
/// error with a message.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "readers/formats/format.h"
#include "readers/result_codec.h"

namespace quire {

inline int fuzz_reader(ReadFunction read, const std::uint8_t* data, std::size_t size,
                       const char* name) {
  ReaderRequest request;
  request.name = name;
  request.limits.text_bytes = 4u << 20;
  request.limits.documents = 1000;
  const auto result = finish_documents(
      read(std::string_view(reinterpret_cast<const char*>(data), size), request), request);
  if (!result.ok() && result.status().message().empty()) std::abort();
  const auto decoded = decode_result(encode_format("x") + encode_result(result), request.limits);
  if (decoded.ok() != result.ok()) std::abort();
  if (decoded.ok() && *decoded != *result) std::abort();
  return 0;
}

}  // namespace quire
