#include "cachestore/remote/s3_tier.h"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"

namespace quire {
namespace {

/// Values are asked for in ranges of about so many bytes, so many at once.
constexpr std::uint64_t kRangeBytes = 8u << 20;
constexpr std::size_t kMaxRanges = 4;
constexpr std::size_t kMaxRecordBytes = 1u << 20, kMaxErrorBytes = 4096;
constexpr std::size_t kMaxIdle = 8;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
using Easy = std::unique_ptr<CURL, FreeCurl>;

/// One request and what came of it.
struct Exchange {
  std::string body;
  std::size_t most_bytes = 0;  ///< of a good reply
  bool too_long = false;
  std::uint64_t first = 0, last = 0;  ///< positions of the values of a range, half-open
  std::function<std::size_t(char*, std::size_t)> upload;
  const std::atomic<bool>* stopping = nullptr;
  char error[CURL_ERROR_SIZE] = {};
};

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& x = *static_cast<Exchange*>(user);
  const std::size_t n = size * count;
  if (x.body.size() + n > std::max(x.most_bytes, kMaxErrorBytes)) {
    x.too_long = true;
    return CURL_WRITEFUNC_ERROR;
  }
  x.body.append(data, n);
  return n;
}

std::size_t on_upload(char* to, std::size_t size, std::size_t count, void* user) {
  return static_cast<Exchange*>(user)->upload(to, size * count);
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const Exchange*>(user)->stopping ? 1 : 0;
}

class S3Tier final : public RemoteTier {
 public:
  S3Tier(S3Bucket bucket, std::string credentials, const std::string& session_token)
      : bucket_(std::move(bucket)),
        credentials_(std::move(credentials)),
        provider_("aws:amz:" + bucket_.region + ":s3") {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    // S3 wants this header, and libcurl 7.88 signs it, but does not send it by itself. Values have
    // checksums of their own, so they are not hashed once more.
    add_header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!session_token.empty()) add_header("x-amz-security-token: " + session_token);
  }

  std::string_view kind() const override { return "s3"; }

  Result<std::string> get_record(const std::string& name, Deadline deadline) override {
    Exchange x;
    x.most_bytes = kMaxRecordBytes;
    QUIRE_RETURN_IF_ERROR(perform("GET", name + "/record", x, deadline));
    return std::move(x.body);
  }

  Status get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                    const TakeValue& take) override;

  Status put(const std::string& name, std::uint64_t num_values, std::uint64_t stored_bytes,
             Deadline deadline, const ReadValue& value, const ReadRecord& record) override {
    // The old record goes first, so that it never names values of another writer.
    QUIRE_RETURN_IF_ERROR(delete_object(name + "/record", deadline));
    std::string now;
    std::size_t sent = 0;
    std::uint64_t next = 0;
    Status failed;
    Exchange values;
    values.upload = [&](char* to, std::size_t most) -> std::size_t {
      while (sent == now.size()) {
        if (next == num_values) return 0;
        auto read = value(next++);
        if (!read.ok()) {
          failed = read.status();
          return CURL_READFUNC_ABORT;
        }
        now = std::move(*read);
        sent = 0;
      }
      const std::size_t n = std::min(most, now.size() - sent);
      now.copy(to, n, sent);
      sent += n;
      return n;
    };
    const Status s = perform("PUT", name + "/values", values, deadline, stored_bytes);
    QUIRE_RETURN_IF_ERROR(failed);
    QUIRE_RETURN_IF_ERROR(s);
    const std::string bytes = record();
    std::size_t at = 0;
    Exchange head;
    head.upload = [&](char* to, std::size_t most) {
      const std::size_t n = std::min(most, bytes.size() - at);
      bytes.copy(to, n, at);
      at += n;
      return n;
    };
    return perform("PUT", name + "/record", head, deadline, bytes.size());
  }

  Status remove(const std::string& name, Deadline deadline) override {
    QUIRE_RETURN_IF_ERROR(delete_object(name + "/record", deadline));
    return delete_object(name + "/values", deadline);
  }

  void stop() override { stopping_ = true; }

 private:
  void add_header(const std::string& line) {
    headers_.reset(curl_slist_append(headers_.release(), line.c_str()));
  }
  std::string address(const std::string& object) const {
    return bucket_.endpoint + '/' + bucket_.bucket + '/' +
           (bucket_.prefix.empty() ? "" : bucket_.prefix + '/') + "quire/1/" + object;
  }

  Easy take_handle() {
    const std::lock_guard lock(mu_);
    if (idle_.empty()) return Easy(curl_easy_init());
    Easy out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }
  void keep_handle(Easy curl) {
    curl_easy_reset(curl.get());  // it keeps its connections
    const std::lock_guard lock(mu_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(curl));
  }

  /// Sets what all requests have.
  void prepare(CURL* curl, const std::string& object, Exchange& x, Deadline deadline) {
    x.stopping = &stopping_;
    curl_easy_setopt(curl, CURLOPT_URL, address(object).c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, provider_.c_str());
    curl_easy_setopt(curl, CURLOPT_USERPWD, credentials_.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, x.error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &x);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &x);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(1, left)));
  }

  /// Tells what a finished request means.
  Status outcome(CURL* curl, CURLcode code, const Exchange& x) const {
    const std::string& host = bucket_.endpoint;
    if (x.too_long) return Status::corruption(host + " sent more bytes than were asked for");
    if (code == CURLE_OPERATION_TIMEDOUT) return Status::deadline(host + " did not answer in time");
    if (code != CURLE_OK)
      return Status::unavailable("no answer from " + host + ": " +
                                 (x.error[0] != '\0' ? x.error : curl_easy_strerror(code)));
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) return {};
    const std::string said = "bucket '" + bucket_.bucket + "' of " + host +
                             " answers with status " + std::to_string(status);
    if (status == 404) return Status::not_found(said);
    if (status == 416)
      return Status::corruption("the values of a segment are shorter than written");
    if (status == 401 || status == 403)
      return Status(Code::kFailedPrecondition,
                    said + "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the region",
                    "remote.url");
    if (status == 429 || status >= 500) return Status::unavailable(said);
    return Status::io(said + ": " + x.body.substr(0, 200));
  }

  Status perform(const char* method, const std::string& object, Exchange& x, Deadline deadline,
                 std::uint64_t upload_bytes = 0) {
    if (stopping_) return Status::unavailable("the store is closing");
    Easy curl = take_handle();
    if (!curl) return Status::exhausted("libcurl has no memory");
    prepare(curl.get(), object, x, deadline);
    if (x.upload) {
      curl_easy_setopt(curl.get(), CURLOPT_UPLOAD, 1L);
      curl_easy_setopt(curl.get(), CURLOPT_READFUNCTION, on_upload);
      curl_easy_setopt(curl.get(), CURLOPT_READDATA, &x);
      curl_easy_setopt(curl.get(), CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(upload_bytes));
      curl_easy_setopt(curl.get(), CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    } else if (std::string_view(method) != "GET") {
      curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, method);
    }
    const CURLcode code = curl_easy_perform(curl.get());
    Status s = outcome(curl.get(), code, x);
    keep_handle(std::move(curl));
    return s;
  }

  Status delete_object(const std::string& object, Deadline deadline) {
    Exchange x;
    const Status s = perform("DELETE", object, x, deadline);
    return s.code() == Code::kNotFound ? Status() : s;
  }

  const S3Bucket bucket_;
  const std::string credentials_, provider_;
  std::unique_ptr<curl_slist, FreeCurl> headers_;
  std::atomic<bool> stopping_{false};
  std::mutex mu_;
  std::vector<Easy> idle_;  // guarded by mu_
};

Status S3Tier::get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                          const TakeValue& take) {
  struct Range {
    std::unique_ptr<Exchange> exchange;
    std::string bytes;  ///< of the header Range
    Easy curl;
  };
  const std::unique_ptr<CURLM, FreeMulti> multi(curl_multi_init());
  if (!multi) return Status::exhausted("libcurl has no memory");
  std::vector<Range> running;
  std::uint64_t next = 0, offset = 0;  // the first value that no range has, and its place
  const std::uint64_t num = record.num_stored();
  const auto size_of = [&](std::uint64_t position) {
    return record.bytes_beside() + record.sizes.find(position)->payload_bytes;
  };
  const auto begin_range = [&]() -> Status {
    Range range{std::make_unique<Exchange>(), {}, take_handle()};
    if (!range.curl) return Status::exhausted("libcurl has no memory");
    Exchange& x = *range.exchange;
    x.first = next;
    do {
      x.most_bytes += size_of(next++);
    } while (next < num && x.most_bytes + size_of(next) <= kRangeBytes);
    x.last = next;
    range.bytes = std::to_string(offset) + '-' + std::to_string(offset + x.most_bytes - 1);
    offset += x.most_bytes;
    prepare(range.curl.get(), name + "/values", x, deadline);
    curl_easy_setopt(range.curl.get(), CURLOPT_RANGE, range.bytes.c_str());
    curl_multi_add_handle(multi.get(), range.curl.get());
    running.push_back(std::move(range));
    return {};
  };
  const auto pass_on = [&](const Exchange& x) -> Status {
    std::string_view rest = x.body;
    for (std::uint64_t i = x.first; i < x.last; ++i) {
      const std::size_t n = size_of(i);
      if (rest.size() < n)
        return Status::corruption("value " + std::to_string(i) + " is cut short in the bucket");
      QUIRE_RETURN_IF_ERROR(take(i, rest.substr(0, n)));
      rest.remove_prefix(n);
    }
    return {};
  };
  Status status;
  while (status.ok() && (next < num || !running.empty())) {
    if (stopping_) status = Status::unavailable("the store is closing");
    while (status.ok() && next < num && running.size() < kMaxRanges) status = begin_range();
    int active = 0;
    if (curl_multi_perform(multi.get(), &active) != CURLM_OK)
      status = Status::unavailable("libcurl failed");
    for (int left = 0; const CURLMsg* message = curl_multi_info_read(multi.get(), &left);) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      CURL* const done = message->easy_handle;
      const auto it = std::ranges::find_if(running,
                                           [&](const Range& r) { return r.curl.get() == done; });
      Status one = outcome(done, code, *it->exchange);
      if (one.ok()) one = pass_on(*it->exchange);
      if (status.ok()) status = one;
      curl_multi_remove_handle(multi.get(), done);
      keep_handle(std::move(it->curl));
      running.erase(it);
    }
    if (status.ok() && !running.empty()) curl_multi_poll(multi.get(), nullptr, 0, 50, nullptr);
  }
  for (Range& r : running) curl_multi_remove_handle(multi.get(), r.curl.get());
  return status;
}

}  // namespace

Result<std::unique_ptr<RemoteTier>> make_s3_tier(S3Bucket bucket) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string id = variable("AWS_ACCESS_KEY_ID"), secret = variable("AWS_SECRET_ACCESS_KEY");
  if (id.empty() || secret.empty())
    return Status::invalid("remote.url",
                           "remote.url names a bucket, but the environment has no credentials; set "
                           "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  return std::unique_ptr<RemoteTier>(std::make_unique<S3Tier>(std::move(bucket), id + ':' + secret,
                                                              variable("AWS_SESSION_TOKEN")));
}

}  // namespace quire
