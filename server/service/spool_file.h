/// Keeps a request body in a temporary file instead of in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_server.h"
#include "server/service/call.h"

namespace quire {

/// A file without a name. It disappears with its descriptor, also after a crash.
///
/// Threads: append() belongs to one thread; sources may be read from any thread once it has ended.
class SpoolFile {
 public:
  explicit SpoolFile(const std::string& folder);
  ~SpoolFile();
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  /// Errors: kIo; kResourceExhausted before the file system has less than 256 MiB left.
  Status append(std::string_view piece);

  /// Fills `out` from the start of the file on, and returns how many bytes it got; 0 at the end.
  using Source = std::function<Result<std::size_t>(std::span<char> out)>;
  /// Returns a source with an offset of its own. The file must outlive it.
  Source source() const;

 private:
  const int fd_;
  std::uint64_t until_check_ = 0;  // bytes that may be written before the room is asked again
};

/// Writes a body to a file. It fails the call if the file takes no more.
class SpoolSink : public BodySink {
 public:
  SpoolSink(Call& call, std::shared_ptr<SpoolFile> file) : call_(call), file_(std::move(file)) {}
  std::optional<HttpResponse> write(std::string_view piece) override;

 protected:
  HttpResponse refusal(const Problem& problem) const;

 private:
  Call& call_;  // the exchange owns both
  const std::shared_ptr<SpoolFile> file_;
};

}  // namespace quire
