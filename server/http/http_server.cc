#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "server/http/session.h"

namespace quire {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

class AsioHttpServer final : public HttpServer {
 public:
  AsioHttpServer(const HttpServerOptions& options, HttpService& service)
      : options_(options),
        service_(service),
        acceptor_(asio::make_strand(io_)),
        retry_(acceptor_.get_executor()) {}
  ~AsioHttpServer() override { (void)stop(std::chrono::milliseconds(0)); }

  Status start();
  std::uint16_t port() const override { return port_; }
  int open_connections() const override {
    std::lock_guard lock(mu_);
    return static_cast<int>(sessions_.size());
  }
  bool stop(std::chrono::milliseconds grace) override;
  void stop_now() override {
    std::lock_guard lock(mu_);
    hurry_ = true;
    changed_.notify_all();
  }

 private:
  asio::awaitable<void> accept_loop();
  void add(tcp::socket socket);
  void remove(const Session* session);
  void for_each_session(void (Session::*call)());

  const HttpServerOptions options_;
  HttpService& service_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> held_body_bytes_{0};
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::unordered_map<const Session*, std::shared_ptr<Session>> sessions_;  // guarded by mu_
  bool hurry_ = false;                                                     // guarded by mu_
};

Status AsioHttpServer::start() {
  error_code ec;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive, ec);
  if (ec || found.empty())
    return Status::invalid("server.host",
                           "cannot resolve '" + options_.host + "': " + ec.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(1024, ec);
  if (ec == asio::error::address_in_use)
    return Status::invalid("server.port", "port " + std::to_string(options_.port) + " on " +
                                              options_.host +
                                              " is in use by another process; stop it or set "
                                              "server.port to another number (0: any free port)");
  if (ec)
    return Status::invalid("server.host", "cannot listen on " + options_.host + ":" +
                                              std::to_string(options_.port) + ": " + ec.message());
  port_ = acceptor_.local_endpoint(ec).port();
  asio::co_spawn(acceptor_.get_executor(), accept_loop(), asio::detached);
  for (int i = 0; i < std::max(1, options_.threads); ++i)
    threads_.emplace_back([this] { io_.run(); });
  return {};
}

asio::awaitable<void> AsioHttpServer::accept_loop() {
  while (acceptor_.is_open()) {
    error_code ec;
    tcp::socket socket = co_await acceptor_.async_accept(
        asio::make_strand(io_), asio::redirect_error(asio::use_awaitable, ec));
    if (stopping_) co_return;
    if (ec == asio::error::operation_aborted) co_return;
    if (ec) {  // usually out of file descriptors: wait until some close
      log_warning("cannot accept a connection", {{"reason", ec.message()}});
      retry_.expires_after(std::chrono::milliseconds(100));
      co_await retry_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    add(std::move(socket));
  }
}

void AsioHttpServer::add(tcp::socket socket) {
  const auto executor = socket.get_executor();
  if (open_connections() >= options_.max_connections) {
    error_code ec;
    static constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nServer: quire\r\nContent-Length: 0\r\nRetry-After: "
        "1\r\nConnection: close\r\n\r\n";
    socket.non_blocking(true, ec);
    (void)socket.write_some(asio::buffer(kBusy), ec);
    return;
  }
  auto session = std::make_shared<Session>(std::move(socket), options_, service_, stopping_,
                                           held_body_bytes_);
  {
    std::lock_guard lock(mu_);
    sessions_.emplace(session.get(), session);
  }
  asio::co_spawn(
      executor, [session]() -> asio::awaitable<void> { return session->run(); },
      [this, session](std::exception_ptr error) {
        if (error) {
          try {
            std::rethrow_exception(error);
          } catch (const std::exception& e) {
            log_error("a connection ended with an exception", {{"reason", e.what()}});
          }
        }
        remove(session.get());
      });
  if (stopping_) session->drain();
}

void AsioHttpServer::remove(const Session* session) {
  std::lock_guard lock(mu_);
  sessions_.erase(session);
  if (sessions_.empty()) changed_.notify_all();
}

void AsioHttpServer::for_each_session(void (Session::*call)()) {
  std::vector<std::shared_ptr<Session>> all;
  {
    std::lock_guard lock(mu_);
    for (auto& [_, s] : sessions_) all.push_back(s);
  }
  for (auto& s : all) (s.get()->*call)();
}

bool AsioHttpServer::stop(std::chrono::milliseconds grace) {
  if (threads_.empty()) return true;
  stopping_ = true;
  asio::post(acceptor_.get_executor(), [this] {
    error_code ec;
    acceptor_.close(ec);
    retry_.cancel();
  });
  for_each_session(&Session::drain);
  bool all_done = true;
  {
    std::unique_lock lock(mu_);
    all_done = changed_.wait_for(lock, grace, [this] { return sessions_.empty() || hurry_; }) &&
               sessions_.empty();
  }
  if (!all_done) {
    for_each_session(&Session::close);
    std::unique_lock lock(mu_);
    (void)changed_.wait_for(lock, std::chrono::seconds(5), [this] { return sessions_.empty(); });
  }
  io_.stop();
  for (auto& t : threads_) t.join();
  threads_.clear();
  std::lock_guard lock(mu_);
  sessions_.clear();
  return all_done;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> start_http_server(const HttpServerOptions& options,
                                                      HttpService& service) {
  auto server = std::make_unique<AsioHttpServer>(options, service);
  QUIRE_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace quire
