/// One connection. Internal to http/.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/reply_channel.h"
#include "server/http/request_parser.h"

namespace quire {

/// Reads requests one after the other, hands each to the service and writes its reply. Everything
/// runs on the socket's strand; drain() and close() may be called from any thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// `stopping`: the server's own; once true no further request is read.
  Session(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options,
          HttpService& service, const std::atomic<bool>& stopping);

  /// Ends when the connection is closed.
  boost::asio::awaitable<void> run();
  /// Closes when idle; else the connection ends after the request in work, because the server is
  /// stopping.
  void drain();
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  enum class ReadEnd : unsigned char { kOk, kClosed, kTimeout };
  struct Reply;
  struct Watch;

  boost::asio::awaitable<ReadEnd> read_some();
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
  void stop_watch();
  std::string_view pending() const { return std::string_view(in_).substr(in_begin_); }
  void consume(std::size_t n);

  boost::asio::ip::tcp::socket socket_;
  const HttpServerOptions& options_;
  HttpService& service_;
  const std::atomic<bool>& stopping_;
  boost::asio::steady_timer watchdog_, wake_timer_;
  Clock::time_point deadline_ = Clock::time_point::max(), armed_for_ = Clock::time_point::max();
  bool timed_out_ = false, idle_ = false, woken_ = false;
  std::string in_;  ///< bytes received and not yet used begin at in_begin_
  std::size_t in_begin_ = 0;
  std::string peer_;
  std::shared_ptr<Watch> watch_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace quire
