/// Between a handler on any thread and the connection's coroutine: a queue of reply pieces with a
/// wake-up. Internal to http/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/http/http_message.h"

namespace quire {

struct ReplyPiece {
  enum class Kind : unsigned char { kRespond, kStreamHead, kChunk, kFinish, kAbort };
  Kind kind = Kind::kChunk;
  HttpResponse response;  ///< kRespond, kStreamHead
  std::string bytes;      ///< kChunk
};

class ReplyChannel {
 public:
  /// `wake` is called from any thread, without the lock, when the consumer said it waits.
  explicit ReplyChannel(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// False: refused, because the client is gone, the reply is complete, or too much waits.
  bool push(ReplyPiece piece);
  void set_ping(std::string piece, std::chrono::milliseconds interval);
  void on_disconnect(std::function<void()> callback);
  bool gone() const;
  /// Waits until `bytes` more may be queued; false: the client is gone, or took nothing for so
  /// long.
  bool wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most);
  /// A handler died: 500 if nothing was said, a broken stream if it was not ended.
  void abandon();

  // The connection's side.
  /// Everything queued; when that is nothing, the next push() wakes.
  std::deque<ReplyPiece> take_or_wait();
  std::pair<std::string, std::chrono::milliseconds> ping() const;
  /// Says that nobody reads any more. `client_left` calls the disconnect callback.
  void close(bool client_left);

 private:
  mutable std::mutex mu_;
  std::condition_variable drained_;  // queued_bytes_ went down, or closed_ or left_ became true
  std::deque<ReplyPiece> queue_;     // guarded by mu_
  std::size_t queued_bytes_ = 0;     // guarded by mu_
  bool waiting_ = false, closed_ = false;       // guarded by mu_
  bool left_ = false;                           // guarded by mu_: the client went before the end
  bool begun_ = false, complete_ = false;       // guarded by mu_: what the handler has said
  std::function<void()> disconnected_;          // guarded by mu_
  std::string ping_;                            // guarded by mu_
  std::chrono::milliseconds ping_interval_{0};  // guarded by mu_
  const std::function<void()> wake_;
};

}  // namespace quire
