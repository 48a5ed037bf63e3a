#include "server/http/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

namespace quire {
namespace {

struct CurlDelete {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

/// One call: what its callbacks share.
struct Call {
  const ClientRequest& request;
  const std::function<bool(std::string_view)>& on_piece;
  HttpResponse response;
  std::string piece;  ///< of the body's source; the bytes from `sent` on are left
  std::size_t sent = 0;
  bool source_failed = false, stopped = false;
};

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  std::string_view line(data, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // another head follows "100 Continue"
    call.response.headers = Headers();
    const auto space = line.find(' ');
    call.response.status = space == std::string_view::npos
                               ? 0
                               : std::atoi(std::string(line.substr(space)).c_str());
    return size * count;
  }
  const std::size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string_view value = line.substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    call.response.headers.add(std::string(line.substr(0, colon)), std::string(value));
  }
  return size * count;
}

std::size_t on_data(char* data, std::size_t size, std::size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  const std::string_view piece(data, size * count);
  if (!call.on_piece || call.response.status >= 300) {
    call.response.body.append(piece);
    return piece.size();
  }
  call.stopped = !call.on_piece(piece);
  return call.stopped ? CURL_WRITEFUNC_ERROR : piece.size();
}

std::size_t on_read(char* out, std::size_t size, std::size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  if (call.sent == call.piece.size()) {
    call.piece.clear();
    call.sent = 0;
    if (!call.request.body_source(call.piece)) {
      call.source_failed = true;
      return CURL_READFUNC_ABORT;
    }
  }
  const std::size_t n = std::min(size * count, call.piece.size() - call.sent);
  std::memcpy(out, call.piece.data() + call.sent, n);
  call.sent += n;
  return n;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& call = *static_cast<Call*>(user);
  call.stopped = call.stopped || call.request.stopped();
  return call.stopped ? 1 : 0;  // anything but 0 ends the transfer
}

bool on_this_machine(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Status failure(CURLcode code, const char* detail, const ServerAddress& server) {
  const std::string where = server.host + ":" + server.port;
  const std::string why = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return Status::unavailable("cannot find the server '" + server.host + "': " + why);
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return Status::unavailable("no server answers at " + where + " (" + why +
                                 "); start one with 'quire serve', or name another with --server");
    case CURLE_OPERATION_TIMEDOUT:
      return Status::deadline("the server is silent for too long");
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
      return Status::io("the server closed the connection before the reply was complete (" + why +
                        ")");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return Status::io("the certificate of " + where + " is not trusted: " + why +
                        "; --ca-file names another authority");
    case CURLE_SSL_CONNECT_ERROR:
      return Status::io("no TLS with " + where + ": " + why + "; does it speak http://?");
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      return Status::io("what answers at " + where + " is no HTTP server");
    default:
      return Status::io("talking to " + where + " failed: " + why);
  }
}

}  // namespace

Result<ServerAddress> parse_server_url(const std::string& url) {
  ServerAddress out;
  std::string rest = url;
  for (const auto& [scheme, port] : {std::pair("http", "80"), std::pair("https", "443")}) {
    const std::string begin = std::string(scheme) + "://";
    if (!url.starts_with(begin)) continue;
    rest = url.substr(begin.size());
    out.scheme = scheme;
    out.port = port;
  }
  if (const auto slash = rest.find('/'); slash != std::string::npos) {
    out.prefix = rest.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    rest.resize(slash);
  }
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string::npos)
      return Status::invalid("--server", "'" + url + "' is no address; write http://host:port");
    out.host = rest.substr(1, close - 1);
    rest = rest.substr(close + 1);
    if (rest.starts_with(':')) out.port = rest.substr(1);
  } else if (const auto colon = rest.rfind(':'); colon != std::string::npos) {
    out.host = rest.substr(0, colon);
    out.port = rest.substr(colon + 1);
  } else {
    out.host = rest;
  }
  if (out.host.empty() || out.port.empty() ||
      out.port.find_first_not_of("0123456789") != std::string::npos)
    return Status::invalid("--server", "'" + url + "' is no address; write http://host:port");
  return out;
}

Result<HttpResponse> http_call(const ServerAddress& server, const ClientRequest& request,
                               const std::function<bool(std::string_view)>& on_piece) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, CurlDelete> curl(curl_easy_init());
  if (curl == nullptr) return Status::internal("libcurl cannot start");
  Call call{request, on_piece, {}, {}, 0, false, false};
  call.response.status = 0;  // until the head has come
  curl_slist* list = nullptr;
  const auto add = [&](const std::string& line) { list = curl_slist_append(list, line.c_str()); };
  add("Expect:");  // a server that refuses the body replies at once anyway
  if (!request.content_type.empty()) add("Content-Type: " + request.content_type);
  if (request.body_source) add("Transfer-Encoding: chunked");
  for (const auto& [name, value] : request.headers) add(name + ": " + value);
  const std::unique_ptr<curl_slist, CurlDelete> headers(list);
  char detail[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) {
    curl_easy_setopt(curl.get(), option, value);
  };
  const std::string host = server.host.find(':') == std::string::npos ? server.host
                                                                      : "[" + server.host + "]";
  const std::string url = server.scheme + "://" + host + ":" + server.port + server.prefix +
                          request.target;
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_USERAGENT, "quire");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_CONNECTTIMEOUT, 20L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME,
      std::max<long>(1, static_cast<long>((request.timeout.count() + 999) / 1000)));
  set(CURLOPT_ERRORBUFFER, detail);
  set(CURLOPT_HEADERFUNCTION, on_header);
  set(CURLOPT_HEADERDATA, &call);
  set(CURLOPT_WRITEFUNCTION, on_data);
  set(CURLOPT_WRITEDATA, &call);
  if (request.stopped) {
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, on_progress);
    set(CURLOPT_XFERINFODATA, &call);
  }
  if (on_this_machine(server.host)) set(CURLOPT_PROXY, "");
  if (request.body_source) {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_READFUNCTION, on_read);
    set(CURLOPT_READDATA, &call);
  } else if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.data());
  }
  if (request.method == "HEAD")
    set(CURLOPT_NOBODY, 1L);
  else
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  const char* trusted = server.ca_file.empty() ? std::getenv("SSL_CERT_FILE")
                                               : server.ca_file.c_str();
  if (trusted != nullptr && *trusted != '\0') set(CURLOPT_CAINFO, trusted);
  const CURLcode code = curl_easy_perform(curl.get());
  if (call.source_failed) return Status::io("the body could not be read");
  if (code != CURLE_OK && !call.stopped) return failure(code, detail, server);
  call.response.content_type = std::string(call.response.headers.get("content-type"));
  return std::move(call.response);
}

bool SseReader::feed(std::string_view piece,
                     const std::function<bool(const std::string&, const std::string&)>& on_event) {
  for (const char c : piece) {
    if (c == '\r') continue;
    if (c != '\n') {
      line_.push_back(c);
      continue;
    }
    if (line_.empty()) {
      const bool more = data_.empty() || on_event(name_, data_);
      name_.clear();
      data_.clear();
      if (!more) return false;
    } else if (line_.starts_with("event:")) {
      name_ = line_.substr(line_.size() > 6 && line_[6] == ' ' ? 7 : 6);
    } else if (line_.starts_with("data:")) {
      if (!data_.empty()) data_.push_back('\n');
      data_ += line_.substr(line_.size() > 5 && line_[5] == ' ' ? 6 : 5);
    }
    line_.clear();
  }
  return true;
}

}  // namespace quire
