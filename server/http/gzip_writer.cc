#include "server/http/gzip_writer.h"

#define ZLIB_CONST  // next_in points to bytes that zlib does not change
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include "server/http/entity_tags.h"

namespace quire {

std::string gzip_of(std::string_view text) {
  constexpr int kGzip = 16;  // added to the window
  constexpr int kMemory = 8;
  z_stream z{};
  if (deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip + MAX_WBITS, kMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  std::string out;
  std::string room(std::size_t{32} << 10, '\0');
  int rc = Z_OK;
  do {
    if (z.avail_in == 0) {
      const std::size_t n = std::min<std::size_t>(text.size(), std::numeric_limits<uInt>::max());
      z.next_in = reinterpret_cast<const Bytef*>(text.data());
      z.avail_in = static_cast<uInt>(n);
      text.remove_prefix(n);
    }
    z.next_out = reinterpret_cast<Bytef*>(room.data());
    z.avail_out = static_cast<uInt>(room.size());
    rc = deflate(&z, text.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.append(room.data(), room.size() - z.avail_out);
  } while (rc == Z_OK);
  deflateEnd(&z);
  return out;
}

bool takes_gzip(const Headers& headers) {
  const auto field = joined_fields(headers, "accept-encoding");
  std::string_view rest = field ? std::string_view(*field) : std::string_view();
  bool any = false;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto begin = item.find_first_not_of(" \t");
    if (begin == std::string_view::npos) continue;
    const std::string_view name = item.substr(begin, item.find_first_of("; \t", begin) - begin);
    const std::string weight = header_parameter(item, "q").value_or("1");
    const bool takes = weight.find_first_of("123456789") != std::string::npos;
    if (iequals(name, "gzip") || iequals(name, "x-gzip")) return takes;
    if (name == "*") any = takes;
  }
  return any;
}

}  // namespace quire
