#include "server/http/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/index.h"
#include "server/http/chunk_decoder.h"

namespace quire {
namespace {
namespace beast = boost::beast;
namespace http = boost::beast::http;
using error_code = boost::beast::error_code;
using beast_view = boost::beast::string_view;

std::string text(beast_view v) { return std::string(v.data(), v.size()); }
}  // namespace

struct RequestParser::Impl final : http::basic_parser<true> {
  explicit Impl(const ParserLimits& limits) {
    header_limit(limits.header_bytes);
    body_limit(boost::none);  // the session counts, because its limit comes with a better message
  }

  // These are callbacks of basic_parser.
  void on_request_impl(http::verb, beast_view method, beast_view target, int version,
                       error_code&) override {
    head.method = text(method);
    head.target = text(target);
    head.minor_version = version % 10;
  }
  void on_response_impl(int, beast_view, int, error_code&) override {}
  void on_field_impl(http::field, beast_view name, beast_view value, error_code&) override {
    head.headers.add(text(name), text(value));
  }
  void on_header_impl(error_code&) override { head_seen = true; }
  // The library parses the head only; bodies are read below.
  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code&) override {}
  std::size_t on_body_impl(beast_view, error_code&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, beast_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, beast_view, error_code&) override { return 0; }
  void on_finish_impl(error_code&) override {}

  void fail(int status, std::string message) { error = ProtocolError{status, std::move(message)}; }
  void check_head();
  void look_for_folds(std::string_view taken);
  std::size_t feed_head(std::string_view data);
  std::size_t feed_lines(std::string_view data);
  std::size_t feed_body(std::string_view data, std::string& body);

  HttpRequest head;
  std::string read_last;  ///< last bytes consumed of the head, at most two
  ChunkDecoder chunks;
  std::uint64_t left = 0;  ///< bytes of a body with Content-Length still to come
  bool folded = false;     ///< a header line begins with white space
  bool begun = false;      ///< bytes were fed
  bool head_seen = false, head_checked = false, finished = false, wants_continue = false;
  std::optional<ProtocolError> error;
};

/// Refuses what the parser accepts but two parsers could read differently.
void RequestParser::Impl::check_head() {
  const auto& h = head.headers;
  const auto lengths = h.count("content-length"), codings = h.count("transfer-encoding");
  if (lengths > 1) return fail(400, "Content-Length is given more than once");
  if (lengths == 1 &&
      h.get("content-length").find_first_not_of("0123456789") != std::string_view::npos)
    return fail(400, "Content-Length must be one decimal number");
  if (codings > 0) {
    if (lengths > 0) return fail(400, "Content-Length and Transfer-Encoding are given together");
    if (codings > 1 || !iequals(h.get("transfer-encoding"), "chunked"))
      return fail(501, "Transfer-Encoding must be 'chunked' alone");
    if (head.minor_version == 0) return fail(400, "Transfer-Encoding does not exist in HTTP/1.0");
  }
  if (h.count("host") > 1) return fail(400, "Host is given more than once");
  if (head.minor_version >= 1 && h.count("host") == 0) return fail(400, "Host is missing");
  // Clients of HTTP/1.0 know no 100, so theirs asks for nothing (RFC 9110 section 10.1.1).
  const auto expect = head.minor_version == 0 ? std::string_view() : h.get("expect");
  if (!expect.empty() && !iequals(expect, "100-continue"))
    return fail(417, "Expect can only be '100-continue'");
  wants_continue = !expect.empty();
  if (auto s = quire::parse_target(head.target, head); !s.ok()) return fail(400, s.message());
  head.keep_alive = keep_alive();
}

RequestParser::RequestParser(ParserLimits limits) : impl_(std::make_unique<Impl>(limits)) {
  impl_->eager(false);
}
RequestParser::~RequestParser() = default;

/// Detects folded header lines. The library joins a line that begins with white space to the
/// previous one; other parsers read it as a field of its own.
void RequestParser::Impl::look_for_folds(std::string_view taken) {
  const std::string seen = read_last + std::string(taken);
  folded = folded || seen.find("\r\n ") != std::string::npos ||
           seen.find("\r\n\t") != std::string::npos;
  read_last = seen.substr(seen.size() - std::min<std::size_t>(seen.size(), 2));
}

/// Feeds bytes of the request line and fields. The library must be given unconsumed bytes again.
std::size_t RequestParser::Impl::feed_head(std::string_view data) {
  // Old clients end a body with a line break that is not part of it, which then stands before the
  // next request line (RFC 9112 section 2.2).
  std::size_t skipped = 0;
  if (!begun && data == "\r") return 0;
  if (!begun && data.starts_with("\r\n")) {
    skipped = 2;
    data.remove_prefix(skipped);
  }
  begun = true;
  if (data.empty()) return skipped;
  return skipped + feed_lines(data);
}

std::size_t RequestParser::Impl::feed_lines(std::string_view data) {
  error_code ec;
  const std::size_t used = put(boost::asio::const_buffer(data.data(), data.size()), ec);
  look_for_folds(data.substr(0, used));
  if (ec == http::error::need_more) return used;
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    fail(431, "the request line and headers are larger than the limit");
  } else if (ec == http::error::bad_version) {
    const auto line = data.substr(0, std::min(data.find("\r\n"), data.size()));
    if (std::count(line.begin(), line.end(), ' ') == 2)
      fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    else
      fail(400, "the request line must be a method, a target without spaces, and a version");
  } else if (ec) {
    fail(400, "not a valid HTTP request: " + ec.message());
  }
  if (!error && folded) fail(400, "a header line must not begin with white space");
  if (error || !head_seen) return used;
  head_checked = true;
  check_head();
  left = chunked() || !content_length() ? 0 : *content_length();
  finished = !chunked() && left == 0;
  return used;
}

std::size_t RequestParser::Impl::feed_body(std::string_view data, std::string& body) {
  if (chunked()) {
    const std::size_t used = chunks.feed(data, body);
    if (chunks.failed()) fail(400, "the chunked body is not well formed");
    finished = chunks.done();
    return used;
  }
  const auto n = to_size(std::min<std::uint64_t>(left, data.size()));
  body.append(data.substr(0, n));
  left -= n;
  finished = left == 0;
  return n;
}

std::size_t RequestParser::feed(std::string_view data, std::string& body) {
  Impl& p = *impl_;
  if (p.error || p.finished || data.empty()) return 0;
  return p.head_checked ? p.feed_body(data, body) : p.feed_head(data);
}

const std::optional<ProtocolError>& RequestParser::error() const { return impl_->error; }
bool RequestParser::head_done() const { return impl_->head_checked && !impl_->error; }
bool RequestParser::done() const { return impl_->finished && !impl_->error; }
HttpRequest& RequestParser::head() { return impl_->head; }
bool RequestParser::has_body() const {
  return impl_->chunked() || (impl_->content_length() && *impl_->content_length() > 0);
}
bool RequestParser::expects_continue() const { return impl_->wants_continue; }
std::optional<std::uint64_t> RequestParser::content_length() const {
  const auto n = impl_->content_length();
  return n ? std::optional<std::uint64_t>(*n) : std::nullopt;
}

}  // namespace quire
