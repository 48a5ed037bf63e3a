#include "server/http/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <ctime>

#include <openssl/sslerr.h>

#include "base/index.h"
#include "server/http/tls_certificate.h"

namespace quire {
namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 64 << 10;
/// Idle connections hold a buffer of this size, so it is small.
constexpr std::size_t kHeadReadBytes = 4 << 10;
constexpr std::size_t kSinkBytes = 4 << 10;
/// How long a body's sink has the thread before others have their turn.
constexpr std::chrono::milliseconds kSinkTurn{1};
constexpr std::size_t kMaxPipelinedBytes = 256 << 10;
/// A refused body of up to this size is read, so that the connection stays open.
constexpr std::uint64_t kDrainBodyBytes = 64 << 10;
constexpr std::chrono::milliseconds kLingerTime{2000};
/// How long the end of a connection waits for the client's own close_notify.
constexpr std::chrono::milliseconds kCloseTime{500};
constexpr std::string_view kSpeakTls =
    "HTTP/1.1 400 Bad Request\r\nServer: quire\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    "Content-Length: 48\r\n\r\nthis port speaks https; ask for https:// instead";
static_assert(kSpeakTls.size() - kSpeakTls.find("\r\n\r\n") - 4 == 48);

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[40];
  const auto n = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
  return std::string(text, n);
}

std::string chunk_of(const std::string& bytes) {
  char size[24];
  const int n = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string out(size, to_size(n));
  out.append(bytes).append("\r\n");
  return out;
}

/// Takes the body of a refused request and forgets it.
class DiscardSink final : public BodySink {
 public:
  std::optional<HttpResponse> write(std::string_view) override { return std::nullopt; }
};

}  // namespace

/// Framing and state of the current reply.
struct Session::Reply {
  bool head_request = false, http10 = false, keep_alive = false;
  bool streaming = false, chunked = false, finished = false;
  int status = 0;
  std::shared_ptr<Exchange> exchange;
};

/// Notices that the client closes while its reply is being made. `active` is cleared before
/// anything else reads the socket.
struct Session::Watch {
  bool active = true;
  asio::cancellation_signal cancel;
};

Session::Session(asio::ip::tcp::socket socket, const HttpServerOptions& options,
                 HttpService& service, const std::atomic<bool>& stopping,
                 std::atomic<std::uint64_t>& held_body_bytes)
    : socket_(std::move(socket)),
      options_(options),
      service_(service),
      stopping_(stopping),
      held_body_bytes_(held_body_bytes),
      watchdog_(socket_.get_executor()),
      wake_timer_(socket_.get_executor()) {
  error_code ec;
  const auto endpoint = socket_.remote_endpoint(ec);
  if (!ec) peer_ = endpoint.address().to_string();
  socket_.set_option(asio::ip::tcp::no_delay(true), ec);
  if (options_.certificate != nullptr) {
    tls_context_ = options_.certificate->context();
    tls_ = std::make_unique<asio::ssl::stream<asio::ip::tcp::socket&>>(socket_, *tls_context_);
  }
}

void Session::drain() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ec;
    if (self->idle_) self->socket_.close(ec);
  });
}

void Session::close() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ec;
    self->socket_.close(ec);
    self->woken_ = true;
    self->wake_timer_.cancel();
  });
}

void Session::consume(std::size_t n) {
  in_begin_ += n;
  if (in_begin_ == in_.size()) {
    in_.clear();
    in_begin_ = 0;
  } else if (in_begin_ > kReadBytes) {
    in_.erase(0, in_begin_);
    in_begin_ = 0;
  }
}

bool Session::hold(std::uint64_t bytes) {
  if (held_body_bytes_.fetch_add(bytes) + bytes > options_.max_held_body_bytes) {
    held_body_bytes_ -= bytes;
    return false;
  }
  held_here_ += bytes;
  return true;
}

HttpResponse Session::too_many_held(Exchange& exchange) {
  return service_.protocol_error(
      503,
      "the bodies of requests that run take the " + std::to_string(options_.max_held_body_bytes) +
          " bytes that are held at a time (server.max_held_body_bytes); try again",
      &exchange);
}

void Session::let_go() { held_body_bytes_ -= std::exchange(held_here_, 0); }

void Session::set_deadline(std::chrono::milliseconds from_now) {
  timed_out_ = false;
  deadline_ = Clock::now() + from_now;
  if (deadline_ < armed_for_) arm_watchdog();
}

void Session::clear_deadline() { deadline_ = Clock::time_point::max(); }

void Session::arm_watchdog() {
  armed_for_ = deadline_;
  watchdog_.expires_at(deadline_);
  watchdog_.async_wait([weak = weak_from_this()](error_code ec) {
    auto self = weak.lock();
    if (ec || !self) return;
    self->armed_for_ = Clock::time_point::max();
    if (Clock::now() < self->deadline_) {
      if (self->deadline_ != Clock::time_point::max()) self->arm_watchdog();
      return;
    }
    self->timed_out_ = true;
    self->deadline_ = Clock::time_point::max();
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

asio::awaitable<Session::ReadEnd> Session::read_some(std::size_t most) {
  const std::size_t old = in_.size();
  in_.resize(old + most);
  error_code ec;
  const auto room = asio::buffer(in_.data() + old, most);
  std::size_t n = 0;
  if (tls_)
    n = co_await tls_->async_read_some(room, asio::redirect_error(asio::use_awaitable, ec));
  else
    n = co_await socket_.async_read_some(room, asio::redirect_error(asio::use_awaitable, ec));
  in_.resize(old + n);
  if (timed_out_) co_return ReadEnd::kTimeout;
  if (ec || n == 0) co_return ReadEnd::kClosed;
  co_return ReadEnd::kOk;
}

asio::awaitable<void> Session::run() {
  const bool speaks = tls_ == nullptr || co_await shake_hands();
  if (speaks) co_await serve_all();
  error_code ec;
  if (speaks && tls_ && socket_.is_open()) {
    // Without a close_notify the client could not tell an end from a cut.
    set_deadline(kCloseTime);
    co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ec));
  }
  clear_deadline();
  watchdog_.cancel();
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ec);
  socket_.close(ec);
}

asio::awaitable<bool> Session::shake_hands() {
  error_code ec;
  set_deadline(options_.header_timeout);
  idle_ = true;
  co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                 asio::redirect_error(asio::use_awaitable, ec));
  idle_ = false;
  clear_deadline();
  if (ec.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST) {
    set_deadline(kLingerTime);
    error_code ignored;
    co_await asio::async_write(socket_, asio::buffer(kSpeakTls),
                               asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return !ec;
}

asio::awaitable<void> Session::serve_all() {
  bool again = true;
  while (again && socket_.is_open()) {
    RequestParser parser(ParserLimits{options_.max_header_bytes});
    again = co_await read_head(parser);
    if (again) again = co_await serve(parser);
    if (stopping_) again = false;
  }
}

asio::awaitable<bool> Session::read_head(RequestParser& parser) {
  std::string body;
  bool begun = false;
  for (;;) {
    if (!pending().empty()) {
      if (!begun) set_deadline(options_.header_timeout);
      begun = true;
      consume(parser.feed(pending(), body));
      if (parser.head_done()) co_return true;
      if (parser.error()) {
        const ProtocolError e = *parser.error();
        co_await refuse(e.http_status, e.message, nullptr);
        co_return false;
      }
    } else {
      set_deadline(options_.idle_timeout);
      idle_ = true;
      if (stopping_) co_return false;
    }
    const ReadEnd end = co_await read_some(kHeadReadBytes);
    idle_ = false;
    if (end == ReadEnd::kTimeout && begun)
      co_await refuse(408, "the request did not arrive in time", nullptr);
    if (end != ReadEnd::kOk) co_return false;
  }
}

/// Sends a reply that the service cannot, then closes.
asio::awaitable<void> Session::refuse(int status, std::string message, Exchange* exchange) {
  Reply state;
  state.status = status;
  const HttpResponse response = service_.protocol_error(status, message, exchange);
  std::string head = head_text(response, state, false);
  (void)co_await write(std::move(head), response.body);
  co_await linger();
}

/// Ends the sending side and discards what the client still sends, so that it can read the reply.
asio::awaitable<void> Session::linger() {
  error_code ec;
  // Under TLS both directions end together, so what the client still sends is only read.
  if (!tls_) socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  set_deadline(kLingerTime);
  const auto end = Clock::now() + kLingerTime;
  while (!ec && !timed_out_ && Clock::now() < end) {
    in_.clear();
    in_begin_ = 0;
    if (co_await read_some(kReadBytes) != ReadEnd::kOk) break;
  }
}

asio::awaitable<bool> Session::serve(RequestParser& parser) {
  const auto started = Clock::now();
  clear_deadline();
  woken_ = false;
  auto wake = [weak = weak_from_this()] {
    if (auto self = weak.lock())
      asio::post(self->socket_.get_executor(), [self] {
        self->woken_ = true;
        self->wake_timer_.cancel();
      });
  };
  auto channel = std::make_shared<ReplyChannel>(std::move(wake));
  auto exchange = std::make_shared<Exchange>(std::move(parser.head()), channel);
  exchange->request.peer = peer_;
  Reply state;
  state.head_request = exchange->request.method == "HEAD";
  state.http10 = exchange->request.minor_version == 0;
  state.keep_alive = exchange->request.keep_alive;
  state.exchange = exchange;
  sent_bytes_ = 0;

  struct Holding {
    Session& session;
    ~Holding() { session.let_go(); }
  } const holding{*this};
  HeadDecision decision = service_.on_head(*exchange);
  bool readable = true;
  if (!decision.reject && parser.content_length().value_or(0) > decision.max_body_bytes)
    decision.reject = service_.protocol_error(
        413,
        "the body has " + std::to_string(*parser.content_length()) + " bytes; at most " +
            std::to_string(decision.max_body_bytes) + " are taken" + setting_words(decision),
        exchange.get());
  const bool small = parser.has_body() &&
                     parser.content_length().value_or(kDrainBodyBytes + 1) <= kDrainBodyBytes;
  if (parser.has_body() && (!decision.reject || (small && !parser.expects_continue()))) {
    if (decision.reject) {
      HeadDecision discard;
      discard.max_body_bytes = kDrainBodyBytes;
      discard.sink = std::make_shared<DiscardSink>();
      readable = co_await read_body(parser, *exchange, discard);
    } else {
      readable = co_await read_body(parser, *exchange, decision);
    }
  }
  const bool body_left = parser.has_body() && !parser.done();
  if (!readable && !decision.reject) {  // the client left or stalled in the middle of its body
    service_.on_finished(
        *exchange, ExchangeSummary{timed_out_ ? 408 : 499, true, 0, 0, Clock::now() - started});
    co_return false;
  }
  if (body_left) state.keep_alive = false;
  const std::uint64_t request_bytes = exchange->request.body.size();  // a handler may take the body
  if (decision.reject) {
    std::string().swap(exchange->request.body);
    let_go();
    channel->push({ReplyPiece::Kind::kRespond, std::move(*decision.reject), {}});
  } else {
    struct Guard {
      std::shared_ptr<Exchange> exchange;
      std::shared_ptr<ReplyChannel> channel;
      ~Guard() { channel->abandon(); }
    };
    auto guard = std::make_shared<Guard>();
    guard->exchange = exchange;
    guard->channel = channel;
    Exchange* raw = exchange.get();
    service_.handle(std::shared_ptr<Exchange>(std::move(guard), raw));
  }
  const bool ok = co_await reply(channel, state);
  stop_watch();
  // Nobody hears what follows the head of a stream, so its writer is told as of a client that left.
  channel->close(!state.finished || (state.streaming && state.head_request));
  ExchangeSummary summary{state.status ? state.status : 499, !state.finished, request_bytes,
                          sent_bytes_, Clock::now() - started};
  service_.on_finished(*exchange, summary);
  if (ok && body_left) co_await linger();
  co_return ok&& state.keep_alive && !body_left;
}

asio::awaitable<bool> Session::read_body(RequestParser& parser, Exchange& exchange,
                                         HeadDecision& decision) {
  if (parser.expects_continue() && pending().empty() && !decision.reject) {
    std::string go = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!co_await write(std::move(go), {})) co_return false;
  }
  std::string& body = exchange.request.body;
  if (const auto n = parser.content_length(); n && !decision.sink)
    body.reserve(std::min<std::uint64_t>(*n, 1 << 20));
  const auto begun = Clock::now();
  std::uint64_t total = 0;
  std::string piece;
  while (!parser.done()) {
    if (!pending().empty()) {
      std::string& target = decision.sink ? piece : body;
      const std::size_t before = target.size();
      consume(parser.feed(pending(), target));
      const std::size_t grown = target.size() - before;
      total += grown;
      if (parser.error()) {
        const ProtocolError e = *parser.error();
        decision.reject = service_.protocol_error(e.http_status, e.message, &exchange);
        co_return true;
      }
      if (total > decision.max_body_bytes) {
        decision.reject = service_.protocol_error(
            413,
            "the body has more than the " + std::to_string(decision.max_body_bytes) +
                " bytes that are taken" + setting_words(decision),
            &exchange);
        co_return true;
      }
      if (!decision.sink && !hold(grown)) {
        decision.reject = too_many_held(exchange);
        co_return true;
      }
      // A sink may expand what it gets, so it gets little at a time, and others have their turn.
      auto turn = Clock::now();
      for (std::size_t at = 0; decision.sink && at < piece.size(); at += kSinkBytes) {
        const std::size_t held = body.size();
        decision.reject = decision.sink->write(std::string_view(piece).substr(at, kSinkBytes));
        if (!decision.reject && !hold(body.size() - held))
          decision.reject = too_many_held(exchange);
        if (decision.reject) co_return true;
        if (Clock::now() - turn < kSinkTurn) continue;
        co_await asio::post(socket_.get_executor(), asio::use_awaitable);
        turn = Clock::now();
      }
      piece.clear();
      if (parser.done()) break;
    }
    const auto allowed = options_.body_timeout +
                         std::chrono::seconds(total / std::max<std::uint64_t>(
                                                          1, options_.min_body_bytes_per_second));
    set_deadline(options_.body_timeout);
    ReadEnd end = ReadEnd::kTimeout;
    if (Clock::now() - begun <= allowed) end = co_await read_some(kReadBytes);
    clear_deadline();
    if (end == ReadEnd::kTimeout) {
      decision.reject = service_.protocol_error(408, "the body did not arrive in time", &exchange);
      co_return true;
    }
    if (end == ReadEnd::kClosed) co_return false;
  }
  co_return true;
}

std::string Session::head_text(const HttpResponse& response, const Reply& state,
                               bool chunked) const {
  std::string out;
  out.reserve(512);
  out.append("HTTP/1.1 ")
      .append(std::to_string(response.status))
      .append(" ")
      .append(reason_phrase(response.status))
      .append("\r\n");
  out.append("Server: quire\r\nDate: ").append(http_date()).append("\r\n");
  if (!response.content_type.empty())
    out.append("Content-Type: ").append(response.content_type).append("\r\n");
  for (const auto& [name, value] : response.headers.fields()) {
    out.append(name).append(": ");
    // This prevents header injection.
    for (const char c : value)
      out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c);
    out.append("\r\n");
  }
  if (chunked)
    out.append("Transfer-Encoding: chunked\r\n");
  else if (!state.streaming && response.status != 204 && response.status != 304 &&
           response.status >= 200)
    out.append("Content-Length: ").append(std::to_string(response.body.size())).append("\r\n");
  if (!state.keep_alive)
    out.append("Connection: close\r\n");
  else if (state.http10)
    out.append("Connection: keep-alive\r\n");
  out.append("\r\n");
  return out;
}

asio::awaitable<bool> Session::write(std::string head, std::string body) {
  error_code ec;
  set_deadline(options_.write_timeout);
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(head), asio::buffer(body)};
  const auto latest = Clock::now() + options_.write_timeout;
  // A large reply may take a slow client longer than the timeout. Each part that the client takes
  // extends the deadline, up to the time that the lowest allowed rate needs for it.
  const auto next = [this, latest](const error_code& failed, std::size_t taken) -> std::size_t {
    constexpr std::size_t kMost = 64 << 10;
    if (failed) return 0;
    const std::chrono::seconds slow(
        static_cast<std::int64_t>(taken / options_.min_reply_bytes_per_second));
    set_deadline(std::chrono::duration_cast<std::chrono::milliseconds>(
        std::min<Clock::duration>(options_.write_timeout, latest + slow - Clock::now())));
    return kMost;
  };
  writing_ = true;
  if (tls_)
    co_await asio::async_write(*tls_, buffers, next, asio::redirect_error(asio::use_awaitable, ec));
  else
    co_await asio::async_write(socket_, buffers, next,
                               asio::redirect_error(asio::use_awaitable, ec));
  writing_ = false;
  clear_deadline();
  co_return !ec && !timed_out_;
}

/// Waits for the next piece and sends pings in the meantime. Returns false if the client is gone.
asio::awaitable<bool> Session::wait_for_pieces(std::shared_ptr<ReplyChannel> channel,
                                               Reply& state) {
  start_watch(channel);
  const auto [ping, interval] = channel->ping();
  const bool pings = state.streaming && interval.count() > 0;
  while (!woken_ && socket_.is_open() && !channel->gone()) {
    if (pings)
      wake_timer_.expires_after(interval);
    else
      wake_timer_.expires_at(Clock::time_point::max());
    error_code ec;
    co_await wake_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    if (ec || woken_ || !pings) continue;
    std::string piece = state.chunked ? chunk_of(ping) : ping;
    if (!co_await write(std::move(piece), {})) co_return false;
  }
  woken_ = false;
  co_return socket_.is_open() && !channel->gone();
}

/// Writes the reply as its pieces arrive. Returns true if it is complete and the connection is
/// usable.
asio::awaitable<bool> Session::reply(std::shared_ptr<ReplyChannel> channel, Reply& state) {
  using Kind = ReplyPiece::Kind;
  while (!state.finished) {
    auto pieces = channel->take_or_wait();
    if (pieces.empty()) {
      if (!co_await wait_for_pieces(channel, state)) co_return false;
      continue;
    }
    std::string head, tail;
    bool aborted = false;
    for (auto& piece : pieces) {
      if (piece.kind == Kind::kRespond || piece.kind == Kind::kStreamHead) {
        HttpResponse& response = piece.response;
        if (response.status == 500 && response.body.empty())
          response = service_.protocol_error(500, "the request ended without an answer",
                                             state.exchange.get());
        if (stopping_) state.keep_alive = false;
        state.status = response.status;
        state.streaming = piece.kind == Kind::kStreamHead;
        state.chunked = state.streaming && !state.http10;
        if (state.streaming && state.http10) state.keep_alive = false;
        // The reply to HEAD is a head, also where GET would have a stream without an end.
        state.finished = !state.streaming || state.head_request;
        head = head_text(response, state, state.chunked);
        if (!state.streaming && !state.head_request) tail = std::move(response.body);
        if (!state.streaming) sent_bytes_ += tail.size();
      } else if (piece.kind == Kind::kChunk) {
        if (piece.bytes.empty() || state.head_request) continue;
        sent_bytes_ += piece.bytes.size();
        tail += state.chunked ? chunk_of(piece.bytes) : piece.bytes;
      } else if (piece.kind == Kind::kFinish) {
        if (state.chunked && !state.head_request) tail += "0\r\n\r\n";
        state.finished = true;
      } else {
        aborted = true;
      }
    }
    const bool sent = co_await write(std::move(head), std::move(tail));
    if (aborted || !sent) {
      if (!sent) state.finished = false;
      state.keep_alive = false;
      co_return false;
    }
  }
  co_return true;
}

void Session::start_watch(std::shared_ptr<ReplyChannel> channel) {
  if (watch_) return;
  auto watch = std::make_shared<Watch>();
  watch_ = watch;
  auto seen = [self = shared_from_this(), watch, channel](error_code ec) {
    if (!watch->active) return;
    self->watch_ = nullptr;
    watch->active = false;
    if (!ec && self->take_arrived()) {
      // Beyond the bound, and while a reply is written, only the next write notices that the client
      // has left.
      const bool room = self->in_.size() < kMaxPipelinedBytes;
      if (room && !self->writing_) self->start_watch(channel);
      return;
    }
    channel->close(true);
    self->woken_ = true;
    self->wake_timer_.cancel();
  };
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     asio::bind_cancellation_slot(watch->cancel.slot(), std::move(seen)));
}

bool Session::take_arrived() {
  const bool room = in_.size() < kMaxPipelinedBytes;
  char bytes[4096];
  if (!tls_) {
    const auto n = ::recv(socket_.native_handle(), bytes, sizeof bytes,
                          MSG_DONTWAIT | (room ? 0 : MSG_PEEK));
    if (n > 0 && room) in_.append(bytes, to_size(n));
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  }
  // A read may have to write, and must not do so in the middle of a record.
  if (!room || writing_) return true;
  error_code ec;
  socket_.non_blocking(true, ec);
  const std::size_t n = tls_->read_some(asio::buffer(bytes), ec);
  in_.append(bytes, n);
  return n > 0 || !ec || ec == asio::error::would_block || ec == asio::error::try_again;
}

void Session::stop_watch() {
  if (!watch_) return;
  auto watch = std::move(watch_);
  watch_ = nullptr;
  watch->active = false;
  watch->cancel.emit(asio::cancellation_type::all);
}

}  // namespace quire
