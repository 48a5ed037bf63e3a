#include "server/app/gzip_sink.h"

namespace quire {

std::optional<HttpResponse> GzipSink::write(std::string_view piece) {
  std::optional<HttpResponse> refused;
  const Status read = reader_->feed(piece, [&](std::string_view text) {
    bytes_ += text.size();
    if (bytes_ > max_bytes_) {
      refused = refuse_(make_problem("payload_too_large", "the expanded body has more than the " +
                                                              std::to_string(max_bytes_) +
                                                              " bytes that are taken" + setting_));
    } else if (inner_) {
      refused = inner_->write(text);
    } else {
      call_.exchange->request.body.append(text);
    }
    return !refused;
  });
  if (!refused && !read.ok()) refused = refuse_(problem_of(read));
  return refused;
}

}  // namespace quire
