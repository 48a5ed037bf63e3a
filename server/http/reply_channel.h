/// A queue of reply pieces from a handler on any thread to the connection's coroutine, which it
/// wakes. Internal to http/.
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
  HttpResponse response;  ///< for kRespond, kStreamHead
  std::string bytes;      ///< for kChunk
};

class ReplyChannel {
 public:
  /// `wake` is called from any thread, without the lock, if the consumer waits.
  explicit ReplyChannel(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// Queues a piece. False: refused, because the client is gone, the reply is complete, or too many
  /// bytes are queued.
  bool push(ReplyPiece piece);
  void set_ping(std::string piece, std::chrono::milliseconds interval);
  void on_disconnect(std::function<void()> callback);
  bool gone() const;
  /// Waits until `bytes` more may be queued. False: the client is gone, or took nothing for
  /// `at_most`.
  bool wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most);
  /// Ends the reply of a handler that died: with 500 if no reply was begun, else with a broken
  /// stream.
  void abandon();

  // The methods below are for the connection.
  /// Returns all queued pieces. If there are none, the next push() wakes the connection.
  std::deque<ReplyPiece> take_or_wait();
  std::pair<std::string, std::chrono::milliseconds> ping() const;
  /// Marks the channel as no longer read. With `client_left` it calls the disconnect callback.
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
