#include "server/hub/transfer.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace quire::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr std::size_t kMaxErrorBytes = 4096, kMaxBodyBytes = std::size_t{64} << 20;

struct CurlDelete {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

std::string lower(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

/// Returns scheme://host:port of a URL; empty: it is not a URL.
std::string origin_of(const std::string& url, std::string* scheme = nullptr) {
  const std::unique_ptr<CURLU, CurlDelete> parsed(curl_url());
  if (parsed == nullptr || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK)
    return {};
  std::string out;
  for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
    if (part == CURLUPART_SCHEME && scheme != nullptr) *scheme = lower(text);
    out += lower(text) + "|";
    curl_free(text);
  }
  return out;
}

std::string joined_url(const std::string& base, const std::string& location) {
  const std::unique_ptr<CURLU, CurlDelete> parsed(curl_url());
  if (parsed == nullptr ||
      curl_url_set(parsed.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(parsed.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK) {
    return {};
  }
  char* text = nullptr;
  if (curl_url_get(parsed.get(), CURLUPART_URL, &text, 0) != CURLUE_OK) return {};
  std::string out = text;
  curl_free(text);
  return out;
}

/// One request without redirects.
struct Exchange {
  const TransferRequest& request;
  CURL* curl;
  TransferReply reply;
  Status stopped;
  bool begun = false;

  bool good() {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    reply.status = static_cast<int>(code);
    return code >= 200 && code < 300;
  }
  Status begin() {
    begun = true;
    return good() && request.on_headers ? request.on_headers(reply) : Status();
  }
  Status take(std::string_view piece) {
    if (!begun) {
      if (Status s = begin(); !s.ok()) return s;
    }
    if (good() && request.on_body) return request.on_body(piece);
    const std::size_t most = good() ? kMaxBodyBytes : kMaxErrorBytes;
    if (good() && reply.body.size() + piece.size() > most)
      return Status::io("the reply is too long");
    reply.body += piece.substr(0, most - std::min(most, reply.body.size()));
    return {};
  }
};

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  std::string_view line(data, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/"))
    exchange.reply.headers.clear();  // another head follows "100 Continue"
  const std::size_t colon = line.find(':');
  if (colon != std::string_view::npos && exchange.reply.headers.size() < 200) {
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    exchange.reply.headers[lower(line.substr(0, colon))] = value;
  }
  return size * count;
}

std::size_t on_data(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  exchange.stopped = exchange.take({data, size * count});
  return exchange.stopped.ok() ? size * count : CURL_WRITEFUNC_ERROR;
}

/// Opens the socket of a connection only if its address is allowed.
curl_socket_t open_checked_socket(void* user, curlsocktype, curl_sockaddr* address) {
  auto& exchange = *static_cast<Exchange*>(user);
  if (!exchange.request.allow_address(&address->addr)) {
    exchange.stopped = Status::precondition("its address is not one of the public internet");
    return CURL_SOCKET_BAD;
  }
  exchange.stopped = {};
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/// Ends a transfer whose request was stopped.
int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const Exchange*>(user)->request.stop.stop_requested() ? 1 : 0;
}

Status failure(CURLcode code, const char* detail, const std::string& url) {
  std::string host = url;
  if (const std::size_t scheme = host.find("://"); scheme != std::string::npos)
    host = host.substr(scheme + 3);
  host = host.substr(0, host.find_first_of("/?"));
  const std::string why = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return Status::unavailable("cannot reach " + host + ": " + why +
                                 "; is there a network, or should https_proxy be set?")
          .with_field("network");
    case CURLE_ABORTED_BY_CALLBACK:
      return Status::unavailable("the service is stopping");
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return Status::unavailable("the connection to " + host + " broke: " + why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return Status::io("the certificate of " + host + " is not trusted: " + why +
                        "; SSL_CERT_FILE may name other authorities");
    default:
      return Status::io("talking to " + host + " failed: " + why);
  }
}

Result<TransferReply> one(const TransferRequest& request, const std::string& url, bool with_token) {
  const std::unique_ptr<CURL, CurlDelete> curl(curl_easy_init());
  if (curl == nullptr) return Status::internal("libcurl cannot start");
  Exchange exchange{request, curl.get(), {}, {}, false};
  exchange.reply.url = url;
  curl_slist* list = nullptr;
  const auto add = [&](const std::string& line) { list = curl_slist_append(list, line.c_str()); };
  for (const std::string& line : request.headers) add(line);
  if (with_token) add("Authorization: Bearer " + request.token);
  const std::unique_ptr<curl_slist, CurlDelete> headers(list);
  char detail[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) {
    curl_easy_setopt(curl.get(), option, value);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_USERAGENT, "quire");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, 20L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // silence for this long counts as a broken connection
  set(CURLOPT_LOW_SPEED_TIME, 60L);
  set(CURLOPT_ERRORBUFFER, detail);
  set(CURLOPT_HEADERFUNCTION, on_header);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, on_data);
  set(CURLOPT_WRITEDATA, &exchange);
  if (request.allow_address) {
    set(CURLOPT_PROXY, "");
    set(CURLOPT_OPENSOCKETFUNCTION, open_checked_socket);
    set(CURLOPT_OPENSOCKETDATA, &exchange);
  }
  if (request.post) {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.post->size()));
    set(CURLOPT_POSTFIELDS, request.post->data());
  }
  if (request.limit.count() > 0) set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.limit.count()));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, on_progress);
  set(CURLOPT_XFERINFODATA, &exchange);
  if (const char* file = std::getenv("SSL_CERT_FILE"); file != nullptr && *file != '\0')
    set(CURLOPT_CAINFO, file);
  const CURLcode code = curl_easy_perform(curl.get());
  if (!exchange.stopped.ok()) return exchange.stopped;
  if (code != CURLE_OK) return failure(code, detail, url);
  (void)exchange.good();  // reads the status of a reply without a body
  if (!exchange.begun) QUIRE_RETURN_IF_ERROR(exchange.begin());
  return std::move(exchange.reply);
}

}  // namespace

Result<UrlParts> split_url(const std::string& url) {
  const auto wrong = [&url] {
    return Status::invalid("url", "'" + url + "' is no http or https address");
  };
  const std::unique_ptr<CURLU, CurlDelete> parsed(curl_url());
  if (parsed == nullptr || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK)
    return wrong();
  const auto part = [&](CURLUPart which) {
    char* text = nullptr;
    std::string out;
    if (curl_url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) == CURLUE_OK) out = text;
    curl_free(text);
    return out;
  };
  UrlParts out;
  out.scheme = lower(part(CURLUPART_SCHEME));
  out.host = lower(part(CURLUPART_HOST));
  out.port = part(CURLUPART_PORT);
  out.path = part(CURLUPART_PATH);
  out.query = part(CURLUPART_QUERY);
  out.has_user = !part(CURLUPART_USER).empty() || !part(CURLUPART_PASSWORD).empty();
  if ((out.scheme != "http" && out.scheme != "https") || out.host.empty()) return wrong();
  return out;
}

std::string TransferReply::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string() : it->second;
}

Result<TransferReply> transfer(const TransferRequest& request) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  std::string url = request.url, first_scheme;
  const std::string home = origin_of(url, &first_scheme);
  if (home.empty() || (first_scheme != "https" && first_scheme != "http")) {
    return Status::invalid("HF_ENDPOINT", "'" + url + "' is no http or https address");
  }
  std::map<std::string, std::string> first_headers;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const bool own_host = origin_of(url) == home;
    if (request.allow_url) {
      QUIRE_ASSIGN_OR_RETURN(const UrlParts parts, split_url(url));
      QUIRE_RETURN_IF_ERROR(request.allow_url(parts));
    }
    QUIRE_ASSIGN_OR_RETURN(TransferReply reply,
                           one(request, url, own_host && !request.token.empty()));
    if (hop == 0) first_headers = reply.headers;
    const std::string location = reply.header("location");
    if (request.post || reply.status < 300 || reply.status >= 400 || location.empty()) {
      reply.first_headers = std::move(first_headers);
      return reply;
    }
    std::string scheme;
    const std::string next = joined_url(url, location);
    if (next.empty() || origin_of(next, &scheme).empty())
      return Status::io("the host redirects to no address");
    if (scheme != "https" && (scheme != "http" || first_scheme == "https"))
      return Status::io("the host redirects from https to " + scheme);
    url = next;
  }
  return Status::io("the host redirects more than " + std::to_string(kMaxRedirects) + " times");
}

std::string url_path(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto b = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || c == '/';
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[b >> 4];
      out += kHex[b & 15];
    }
  }
  return out;
}

}  // namespace quire::hub
