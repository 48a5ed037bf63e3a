/// Bodies sent with Content-Encoding: gzip.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/gzip_reader.h"
#include "server/http/http_server.h"
#include "server/service/call.h"
#include "server/support/problem.h"

namespace quire {

/// Expands a body and gives it to another sink, or collects it as the request's body. The limit is
/// that of the expanded body. Where that may be longer than `most_at_once`, as a stream may, it may
/// be kMostGrowth times as long as the body: what fills a disk is to cost its client something.
class GzipSink final : public BodySink {
 public:
  static constexpr std::uint64_t kMostGrowth = 100;
  /// `inner` null: the body is collected. The exchange owns `call`. `setting` ends the message of a
  /// body of more than `max_bytes`; `refuse` makes the reply.
  using Refuse = std::function<HttpResponse(const Problem&)>;
  GzipSink(Call& call, std::shared_ptr<BodySink> inner, std::uint64_t max_bytes,
           std::uint64_t most_at_once, std::string setting, Refuse refuse)
      : call_(call),
        inner_(std::move(inner)),
        max_bytes_(max_bytes),
        most_at_once_(most_at_once),
        setting_(std::move(setting)),
        refuse_(std::move(refuse)) {}

  std::optional<HttpResponse> write(std::string_view piece) override;
  std::shared_ptr<const GzipReader> reader() const { return reader_; }

 private:
  Call& call_;
  const std::shared_ptr<BodySink> inner_;
  const std::uint64_t max_bytes_, most_at_once_;
  const std::string setting_;
  const Refuse refuse_;
  const std::shared_ptr<GzipReader> reader_ = std::make_shared<GzipReader>();
  std::uint64_t received_ = 0, bytes_ = 0;
};

}  // namespace quire
