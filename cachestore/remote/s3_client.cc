#include "cachestore/remote/s3_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <string_view>

namespace quire {
namespace {

constexpr std::size_t kMaxErrorBytes = 4096;
constexpr std::size_t kMaxIdle = 8;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
using Easy = std::unique_ptr<CURL, FreeCurl>;

}  // namespace

/// Idle handles, which keep their connections, and the headers of all requests.
struct S3Client::Handles {
  std::unique_ptr<curl_slist, FreeCurl> headers{};
  std::mutex mu{};
  std::vector<Easy> idle{};  // guarded by mu

  void add_header(const std::string& line) {
    headers.reset(curl_slist_append(headers.release(), line.c_str()));
  }
  Easy take() {
    const std::lock_guard lock(mu);
    if (idle.empty()) return Easy(curl_easy_init());
    Easy out = std::move(idle.back());
    idle.pop_back();
    return out;
  }
  void keep(Easy curl) {
    curl_easy_reset(curl.get());
    const std::lock_guard lock(mu);
    if (idle.size() < kMaxIdle) idle.push_back(std::move(curl));
  }
};

/// A request that runs.
struct S3Client::Transfer {
  S3Request* request = nullptr;
  Easy curl{};
  std::string range{};
  const std::atomic<bool>* stopping = nullptr;
  bool too_long = false;
  char error[CURL_ERROR_SIZE] = {};

  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
    auto& t = *static_cast<Transfer*>(user);
    const std::size_t n = size * count;
    if (t.request->body.size() + n > std::max(t.request->most_bytes, kMaxErrorBytes)) {
      t.too_long = true;
      return CURL_WRITEFUNC_ERROR;
    }
    t.request->body.append(data, n);
    return n;
  }
  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
    constexpr std::string_view kEtag = "etag:";
    const std::string_view line(data, size * count);
    const bool is_etag = line.size() > kEtag.size() &&
                         std::ranges::equal(
                             line.substr(0, kEtag.size()), kEtag, [](char a, char b) {
                               return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b;
                             });
    if (is_etag) {
      const auto first = line.find_first_not_of(" \t\r\n", kEtag.size());
      const auto last = line.find_last_not_of(" \t\r\n");
      if (first != std::string_view::npos)
        static_cast<Transfer*>(user)->request->etag = line.substr(first, last - first + 1);
    }
    return line.size();
  }
  static std::size_t on_upload(char* to, std::size_t size, std::size_t count, void* user) {
    const auto n = static_cast<Transfer*>(user)->request->upload(to, size * count);
    return n ? *n : CURL_READFUNC_ABORT;
  }
  static int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return *static_cast<const Transfer*>(user)->stopping ? 1 : 0;
  }
};

void S3Request::send(std::string_view bytes) {
  upload_bytes = bytes.size();
  upload = [bytes, at = std::size_t{0}](char* to, std::size_t most) mutable {
    const std::size_t n = bytes.copy(to, most, at);
    at += n;
    return std::optional(n);
  };
}

S3Client::S3Client(S3Bucket bucket, std::string credentials, const std::string& session_token)
    : bucket_(std::move(bucket)),
      credentials_(std::move(credentials)),
      provider_("aws:amz:" + bucket_.region + ":s3"),
      handles_(std::make_unique<Handles>()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  // S3 wants this header, and libcurl 7.88 signs it, but does not send it by itself. Values have
  // checksums of their own, so they are not hashed once more.
  handles_->add_header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!session_token.empty()) handles_->add_header("x-amz-security-token: " + session_token);
}

S3Client::~S3Client() = default;

std::string S3Client::encode(std::string_view text) {
  const std::unique_ptr<char, decltype(&curl_free)> escaped(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), &curl_free);
  return escaped ? escaped.get() : "";
}

Result<std::unique_ptr<S3Client::Transfer>> S3Client::begin(S3Request& request, Deadline deadline) {
  if (stopping_) return Status::unavailable("the store is closing");
  auto t = std::make_unique<Transfer>();
  t->curl = handles_->take();
  if (!t->curl) return Status::exhausted("libcurl has no memory");
  t->request = &request;
  t->stopping = &stopping_;
  std::string address = bucket_.endpoint + '/' + bucket_.bucket + '/' +
                        (bucket_.prefix.empty() ? "" : bucket_.prefix + '/') + "quire/1/" +
                        request.object;
  if (!request.query.empty()) address += '?' + request.query;
  CURL* const curl = t->curl.get();
  curl_easy_setopt(curl, CURLOPT_URL, address.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, provider_.c_str());
  curl_easy_setopt(curl, CURLOPT_USERPWD, credentials_.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, handles_->headers.get());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->error);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Transfer::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, t.get());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, Transfer::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, t.get());
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Transfer::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t.get());
  curl_easy_setopt(curl, CURLOPT_PRIVATE, t.get());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(1, left)));
  if (request.range) {
    t->range = std::to_string(request.range->first) + '-' + std::to_string(request.range->second);
    curl_easy_setopt(curl, CURLOPT_RANGE, t->range.c_str());
  }
  if (request.upload) {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, Transfer::on_upload);
    curl_easy_setopt(curl, CURLOPT_READDATA, t.get());
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.upload_bytes));
    curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  }
  const bool usual = request.method == (request.upload ? "PUT" : "GET");
  if (!usual) curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  return t;
}

Status S3Client::finish(Transfer& t, int code) {
  long status = 0;
  curl_easy_getinfo(t.curl.get(), CURLINFO_RESPONSE_CODE, &status);
  handles_->keep(std::move(t.curl));
  const std::string& host = bucket_.endpoint;
  if (t.too_long) return Status::corruption(host + " sent more bytes than were asked for");
  if (code == CURLE_OPERATION_TIMEDOUT) return Status::deadline(host + " did not answer in time");
  if (code != CURLE_OK)
    return Status::unavailable(
        "no answer from " + host + ": " +
        (t.error[0] != '\0' ? t.error : curl_easy_strerror(static_cast<CURLcode>(code))));
  if (status >= 200 && status < 300) return {};
  const std::string said = "bucket '" + bucket_.bucket + "' of " + host + " answers with status " +
                           std::to_string(status);
  if (status == 404) return Status::not_found(said);
  if (status == 416) return Status::corruption("the values of a segment are shorter than written");
  if (status == 401 || status == 403)
    return Status(Code::kFailedPrecondition,
                  said + "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the region",
                  "remote.url");
  if (status == 429 || status >= 500) return Status::unavailable(said);
  return Status::io(said + ": " + t.request->body.substr(0, 200));
}

Status S3Client::perform(S3Request& request, Deadline deadline) {
  QUIRE_ASSIGN_OR_RETURN(const auto transfer, begin(request, deadline));
  return finish(*transfer, curl_easy_perform(transfer->curl.get()));
}

Status S3Client::perform_all(std::size_t at_once, Deadline deadline,
                             const std::function<Result<std::unique_ptr<S3Request>>()>& next,
                             const std::function<Status(S3Request&, Status)>& done) {
  struct Running {
    std::unique_ptr<S3Request> request;
    std::unique_ptr<Transfer> transfer;
  };
  const std::unique_ptr<CURLM, FreeMulti> multi(curl_multi_init());
  if (!multi) return Status::exhausted("libcurl has no memory");
  std::vector<Running> running;
  bool more = false;  // the last call of next() gave a request
  const auto start = [&]() -> Status {
    QUIRE_ASSIGN_OR_RETURN(auto request, next());
    more = request != nullptr;
    if (!more) return {};
    QUIRE_ASSIGN_OR_RETURN(auto transfer, begin(*request, deadline));
    curl_multi_add_handle(multi.get(), transfer->curl.get());
    running.push_back({std::move(request), std::move(transfer)});
    return {};
  };
  Status status;
  while (status.ok()) {
    more = true;
    while (status.ok() && more && running.size() < at_once) status = start();
    if (status.ok() && running.empty()) break;
    if (stopping_) status = Status::unavailable("the store is closing");
    int active = 0;
    if (curl_multi_perform(multi.get(), &active) != CURLM_OK && status.ok())
      status = Status::unavailable("libcurl failed");
    for (int left = 0; const CURLMsg* message = curl_multi_info_read(multi.get(), &left);) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      curl_multi_remove_handle(multi.get(), transfer->curl.get());
      const Status one = done(*transfer->request, finish(*transfer, code));
      if (status.ok()) status = one;
      std::erase_if(running, [&](const Running& r) { return r.transfer.get() == transfer; });
    }
    if (status.ok() && !running.empty()) curl_multi_poll(multi.get(), nullptr, 0, 50, nullptr);
  }
  for (const Running& r : running) curl_multi_remove_handle(multi.get(), r.transfer->curl.get());
  return status;
}

}  // namespace quire
