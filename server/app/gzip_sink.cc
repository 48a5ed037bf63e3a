#include "server/app/gzip_sink.h"

namespace quire {

std::optional<HttpResponse> GzipSink::write(std::string_view piece) {
  std::optional<HttpResponse> refused;
  received_ += piece.size();
  const Status read = reader_->feed(piece, [&](std::string_view text) {
    bytes_ += text.size();
    if (bytes_ > max_bytes_) {
      refused = refuse_(make_problem("payload_too_large", "the expanded body has more than the " +
                                                              std::to_string(max_bytes_) +
                                                              " bytes that are taken" + setting_));
    } else if (bytes_ > most_at_once_ && bytes_ / kMostGrowth > received_) {
      refused = refuse_(make_problem(
          "payload_too_large", "the body expands to more than " + std::to_string(kMostGrowth) +
                                   " times its bytes; send it as it is, or in parts of " +
                                   std::to_string(most_at_once_) +
                                   " bytes (server.max_body_bytes)"));
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
