/// Exchange is one request and the channel of its reply.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http_message.h"

namespace quire {

class ReplyChannel;

/// The connection hands an Exchange to the service. The reply may come from any thread, at once or
/// later; the I/O thread waits without blocking. The service calls exactly one of respond() or
/// start_stream() ... finish()/abort(). When the last pointer given to the handler dies without a
/// reply, the client gets 500, so that no client waits for ever.
///
/// Threads: the current handler owns request and state; the reply methods may be called from any
/// thread.
class Exchange {
 public:
  Exchange(HttpRequest request, std::shared_ptr<ReplyChannel> channel);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  HttpRequest request;
  std::shared_ptr<void> state;  ///< owned by the service

  void respond(HttpResponse response);
  /// Sends status and headers. Body pieces follow by write(), then finish(). `response.body` is not
  /// sent.
  void start_stream(HttpResponse response);
  /// Queues a piece. False: the client is gone or too slow (kMaxQueuedBytes waiting), and the
  /// caller should stop.
  bool write(std::string piece);
  /// Waits until a piece of `bytes` can be written. False: the client is gone or took nothing for
  /// `at_most`. An I/O thread must not call it.
  bool wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most);
  void finish();
  /// Closes the connection without a proper end, so that the client sees a broken reply, not a
  /// short one.
  void abort();
  /// Sends `piece` (an SSE comment) after that much silence in a stream. It must be called before
  /// start_stream().
  void set_ping(std::string piece, std::chrono::milliseconds interval);

  /// Sets a callback that runs at most once, when the client leaves before the reply is complete;
  /// at once if it already left. It runs on an I/O thread, or in the write() that finds the client
  /// too slow, and must not block. clear_on_disconnect() does not wait for a running callback.
  void on_disconnect(std::function<void()> callback);
  void clear_on_disconnect();
  bool client_gone() const;

  static constexpr std::size_t kMaxQueuedBytes = 8u << 20;

 private:
  std::shared_ptr<ReplyChannel> channel_;
};

}  // namespace quire
