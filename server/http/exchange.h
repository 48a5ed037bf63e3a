/// One request and the channel its reply goes through.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http_message.h"

namespace quire {

class ReplyChannel;

/// Handed to the service by the connection. The reply may come from any thread, now or later; the
/// I/O thread waits without blocking. Exactly one of respond() or start_stream() ...
/// finish()/abort() must be called; when the last pointer given to the handler dies without a
/// reply, 500 is sent, so that no client waits for ever.
///
/// Threads: request and state belong to whoever handles the request; the reply methods may be
/// called from any thread.
class Exchange {
 public:
  Exchange(HttpRequest request, std::shared_ptr<ReplyChannel> channel);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  HttpRequest request;
  std::shared_ptr<void> state;  ///< the service's own

  void respond(HttpResponse response);
  /// Status and headers now, body pieces by write(), then finish(). `response.body` is not sent.
  void start_stream(HttpResponse response);
  /// Queues a piece. False once the client is gone or too slow (kMaxQueuedBytes waiting): stop the
  /// work.
  bool write(std::string piece);
  /// Waits until a piece of `bytes` can be written; false once the client is gone or takes nothing
  /// for `at_most`. Never on an I/O thread.
  bool wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most);
  void finish();
  /// Closes the connection without a proper end, so that the client sees a broken reply, not a
  /// short one.
  void abort();
  /// After that much silence in a stream, `piece` is sent (an SSE comment). Call before
  /// start_stream().
  void set_ping(std::string piece, std::chrono::milliseconds interval);

  /// Called at most once, on an I/O thread, when the client closes before the reply is complete; at
  /// once if it already has. Must not block. clear_on_disconnect() waits for nothing: a call
  /// already running goes on.
  void on_disconnect(std::function<void()> callback);
  void clear_on_disconnect();
  bool client_gone() const;

  static constexpr std::size_t kMaxQueuedBytes = 8u << 20;

 private:
  std::shared_ptr<ReplyChannel> channel_;
};

}  // namespace quire
