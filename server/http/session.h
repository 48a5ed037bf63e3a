/// Session is one connection. Internal to http/.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/reply_channel.h"
#include "server/http/request_parser.h"

namespace quire {

/// Reads requests one after the other, passes each to the service and writes its reply. Everything
/// runs on the socket's strand; drain() and close() may be called from any thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// `stopping` belongs to the server; once it is true, no further request is read. So does
  /// `held_body_bytes`, which counts the bytes of all sessions' bodies.
  Session(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options,
          HttpService& service, const std::atomic<bool>& stopping,
          std::atomic<std::uint64_t>& held_body_bytes);

  /// Serves the connection until it is closed.
  boost::asio::awaitable<void> run();
  /// Closes the connection if it is idle, else after the current request, because the server stops.
  void drain();
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  enum class ReadEnd : unsigned char { kOk, kClosed, kTimeout };
  struct Reply;
  struct Watch;

  boost::asio::awaitable<void> serve_all();
  /// Returns whether the client and this end speak TLS now. A client that does not is told so.
  boost::asio::awaitable<bool> shake_hands();
  boost::asio::awaitable<ReadEnd> read_some(std::size_t most);
  boost::asio::awaitable<bool> read_head(RequestParser& parser);
  boost::asio::awaitable<bool> serve(RequestParser& parser);
  boost::asio::awaitable<bool> read_body(RequestParser& parser, Exchange& exchange,
                                         HeadDecision& decision);
  boost::asio::awaitable<bool> reply(std::shared_ptr<ReplyChannel> channel, Reply& state);
  boost::asio::awaitable<bool> wait_for_pieces(std::shared_ptr<ReplyChannel> channel, Reply& state);
  boost::asio::awaitable<bool> write(std::string head, std::string body);
  boost::asio::awaitable<void> linger();
  boost::asio::awaitable<void> refuse(int status, std::string message, Exchange* exchange);
  std::string head_text(const HttpResponse& response, const Reply& state, bool chunked) const;
  void set_deadline(std::chrono::milliseconds from_now);
  void clear_deadline();
  void arm_watchdog();
  void start_watch(std::shared_ptr<ReplyChannel> channel);
  /// Takes what has arrived without waiting. Returns whether the client is still there.
  bool take_arrived();
  void stop_watch();
  std::string_view pending() const { return std::string_view(in_).substr(in_begin_); }
  void consume(std::size_t n);
  /// Counts bytes of a body until let_go(). False: too many are held already.
  bool hold(std::uint64_t bytes);
  void let_go();
  HttpResponse too_many_held(Exchange& exchange);

  boost::asio::ip::tcp::socket socket_;
  std::shared_ptr<boost::asio::ssl::context> tls_context_;
  /// Over socket_; null: the connection is not encrypted.
  std::unique_ptr<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  const HttpServerOptions& options_;
  HttpService& service_;
  const std::atomic<bool>& stopping_;
  std::atomic<std::uint64_t>& held_body_bytes_;
  std::uint64_t held_here_ = 0;  ///< of held_body_bytes_, for the current request
  boost::asio::steady_timer watchdog_, wake_timer_;
  Clock::time_point deadline_ = Clock::time_point::max(), armed_for_ = Clock::time_point::max();
  bool timed_out_ = false, idle_ = false, woken_ = false, writing_ = false;
  std::string in_;  ///< bytes received; the unused ones begin at in_begin_
  std::size_t in_begin_ = 0;
  std::string peer_;
  std::shared_ptr<Watch> watch_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace quire
