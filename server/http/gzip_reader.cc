#include "server/http/gzip_reader.h"

#define ZLIB_CONST  // next_in points to bytes that zlib does not change
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

namespace quire {

constexpr int kGzipOnly = 16;  // added to the window: zlib's own format is refused
constexpr std::size_t kOutBytes = 64 << 10;

struct GzipReader::Stream {
  Stream() {
    if (inflateInit2(&z, kGzipOnly + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Stream() { inflateEnd(&z); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  z_stream z{};
  std::array<unsigned char, kOutBytes> out;
};

GzipReader::GzipReader() : stream_(std::make_unique<Stream>()) {}
GzipReader::~GzipReader() = default;

Status GzipReader::feed(std::string_view piece, const Take& take) {
  z_stream& z = stream_->z;
  while (!piece.empty()) {
    const std::size_t n = std::min<std::size_t>(piece.size(), std::numeric_limits<uInt>::max());
    z.next_in = reinterpret_cast<const Bytef*>(piece.data());
    z.avail_in = static_cast<uInt>(n);
    piece.remove_prefix(n);
    do {
      if (complete_ && z.avail_in > 0) {  // a member begins
        inflateReset(&z);
        complete_ = false;
      }
      z.next_out = stream_->out.data();
      z.avail_out = static_cast<uInt>(kOutBytes);
      const int rc = inflate(&z, Z_NO_FLUSH);
      if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return Status::invalid("Content-Encoding", std::string("the body is not valid gzip") +
                                                       (z.msg ? std::string(": ") + z.msg : ""));
      if (rc == Z_STREAM_END) complete_ = true;
      const std::size_t made = kOutBytes - z.avail_out;
      if (made > 0 && !take({reinterpret_cast<const char*>(stream_->out.data()), made})) return {};
    } while (z.avail_in > 0 || z.avail_out == 0);
  }
  return {};
}

}  // namespace quire
