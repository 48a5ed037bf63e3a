/// This file sends signed requests to a bucket of S3. It is internal to cachestore.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/remote/remote_url.h"

namespace quire {

/// One request to a bucket, and what came of it.
struct S3Request {
  virtual ~S3Request() = default;
  std::string method = "GET";  ///< GET, PUT, POST or DELETE
  std::string object;          ///< its name below the prefix of the bucket
  /// What stands behind the question mark: names in their order, values as encode() gives them
  std::string query;
  /// Bytes of the object that a GET wants, both ends included; none: all of it
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range;
  /// The body of a PUT or POST has so many bytes, and upload() copies up to `most` of them, the
  /// next ones, to `to`. It returns how many, or nothing to give the request up.
  std::uint64_t upload_bytes = 0;
  std::function<std::optional<std::size_t>(char* to, std::size_t most)> upload;
  std::size_t most_bytes = 0;  ///< of a good reply; a longer one is an error
  std::string body;            ///< of the reply
  std::string etag;            ///< of the reply, in its quotes; empty: it has none

  /// Sends these bytes, which must live as long as the request runs.
  void send(std::string_view bytes);
};

/// Sends requests with the signature that AWS calls version 4. Connections are kept. Threads: all
/// methods concurrently.
class S3Client {
 public:
  using Deadline = Clock::time_point;
  /// `credentials` is the id and the secret with a colon between them.
  S3Client(S3Bucket bucket, std::string credentials, const std::string& session_token);
  ~S3Client();

  /// Waits for one request. Errors: kNotFound, kDeadlineExceeded, kUnavailable (no answer, 429,
  /// 5xx), kFailedPrecondition (refuses this client), kCorruption (a reply that is too long; a
  /// range behind the object's end), kIo (anything else).
  Status perform(S3Request& request, Deadline deadline);
  /// Waits for many requests, at most `at_once` of them at a time. `next` returns the next one, or
  /// null when there is none now; it is asked again whenever one has ended. `done` receives each
  /// finished one with its outcome, in any order; its error ends the rest and is returned.
  Status perform_all(std::size_t at_once, Deadline deadline,
                     const std::function<Result<std::unique_ptr<S3Request>>()>& next,
                     const std::function<Status(S3Request&, Status)>& done);
  /// Ends requests in flight soon, with kUnavailable, and refuses further ones.
  void stop() { stopping_ = true; }
  /// Returns text as it stands in a query.
  static std::string encode(std::string_view text);

 private:
  struct Transfer;
  struct Handles;

  Result<std::unique_ptr<Transfer>> begin(S3Request& request, Deadline deadline);
  /// Tells what a finished request means, and keeps its connection.
  Status finish(Transfer& transfer, int code);

  const S3Bucket bucket_;
  const std::string credentials_, provider_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Handles> handles_;
};

}  // namespace quire
