#include "cachestore/remote/s3_tier.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "cachestore/remote/s3_client.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

/// Values are asked for in ranges of about so many bytes, so many at once.
constexpr std::uint64_t kRangeBytes = 8u << 20;
constexpr std::size_t kMaxRanges = 4;
constexpr std::size_t kMaxRecordBytes = 1u << 20, kMaxListBytes = 64u << 10;
/// An object takes at most 10,000 parts, and 5 GiB without parts.
constexpr std::uint64_t kMaxParts = 10'000;
constexpr std::size_t kPartsAtOnce = 4;
constexpr int kMostTries = 3;  // of one part
/// How long a failed upload may take to be given up; the bucket's rules do it otherwise.
constexpr auto kAbortTime = 2s;

/// Hands out the stored bytes of a segment's values, one after another.
class ValueStream {
 public:
  ValueStream(std::uint64_t num_values, const RemoteTier::ReadValue& value)
      : num_values_(num_values), value_(value) {}
  /// Copies the next bytes, at most `most`, and returns how many; 0: the end. None: failed().
  std::optional<std::size_t> read(char* to, std::size_t most) {
    while (sent_ == now_.size()) {
      if (next_ == num_values_) return 0;
      auto read = value_(next_++);
      if (!read.ok()) {
        failed_ = read.status();
        return std::nullopt;
      }
      now_ = std::move(*read);
      sent_ = 0;
    }
    const std::size_t n = now_.copy(to, most, sent_);
    sent_ += n;
    return n;
  }
  const Status& failed() const { return failed_; }

 private:
  const std::uint64_t num_values_;
  const RemoteTier::ReadValue& value_;
  std::string now_;
  std::size_t sent_ = 0;
  std::uint64_t next_ = 0;
  Status failed_;
};

/// Returns the text of the first element of this name in a reply of S3, whose texts have no
/// entities; empty: there is none.
std::string element(std::string_view xml, const std::string& name) {
  const std::string open = '<' + name + '>';
  const auto begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const auto end = xml.find("</" + name + '>', begin);
  if (end == std::string_view::npos) return {};
  return std::string(xml.substr(begin + open.size(), end - begin - open.size()));
}

/// Returns an etag as it stands in XML.
std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"')
      out += "&quot;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

class S3Tier final : public RemoteTier {
 public:
  S3Tier(std::shared_ptr<S3Client> client, std::uint64_t part_bytes)
      : client_(std::move(client)), part_bytes_(part_bytes) {}

  std::string_view kind() const override { return "s3"; }

  Result<std::string> get_record(const std::string& name, Deadline deadline) override {
    S3Request x;
    x.object = name + "/record";
    x.most_bytes = kMaxRecordBytes;
    QUIRE_RETURN_IF_ERROR(client_->perform(x, deadline));
    return std::move(x.body);
  }

  Status get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                    const TakeValue& take) override;

  Status put(const std::string& name, std::uint64_t num_values, std::uint64_t stored_bytes,
             Deadline deadline, const ReadValue& value, const ReadRecord& record) override {
    // The old record goes first, so that it never names values of another writer.
    QUIRE_RETURN_IF_ERROR(delete_object(name + "/record", deadline));
    ValueStream values(num_values, value);
    const std::string object = name + "/values";
    QUIRE_RETURN_IF_ERROR(stored_bytes > 2 * part_bytes_
                              ? put_parts(object, values, stored_bytes, deadline)
                              : put_whole(object, values, stored_bytes, deadline));
    const std::string bytes = record();
    S3Request head;
    head.method = "PUT";
    head.object = name + "/record";
    head.send(bytes);
    return client_->perform(head, deadline);
  }

  Status remove(const std::string& name, Deadline deadline) override {
    QUIRE_RETURN_IF_ERROR(delete_object(name + "/record", deadline));
    return delete_object(name + "/values", deadline);
  }

  /// A request that is slow is often quick the second time, on another connection.
  std::unique_ptr<RemoteTier> second_way() override {
    return std::make_unique<S3Tier>(client_, part_bytes_);
  }
  void stop() override { client_->stop(); }

 private:
  Status put_whole(const std::string& object, ValueStream& values, std::uint64_t stored_bytes,
                   Deadline deadline) {
    S3Request x;
    x.method = "PUT";
    x.object = object;
    x.upload_bytes = stored_bytes;
    x.upload = [&](char* to, std::size_t most) { return values.read(to, most); };
    const Status s = client_->perform(x, deadline);
    QUIRE_RETURN_IF_ERROR(values.failed());
    return s;
  }
  /// Uploads in parts, several at once. A part that finds the bucket busy is sent again.
  Status put_parts(const std::string& object, ValueStream& values, std::uint64_t stored_bytes,
                   Deadline deadline);
  Status send_parts(const std::string& object, const std::string& upload, ValueStream& values,
                    std::uint64_t stored_bytes, Deadline deadline);

  Status delete_object(const std::string& object, Deadline deadline) {
    S3Request x;
    x.method = "DELETE";
    x.object = object;
    const Status s = client_->perform(x, deadline);
    return s.code() == Code::kNotFound ? Status() : s;
  }

  const std::shared_ptr<S3Client> client_;
  const std::uint64_t part_bytes_;
};

Status S3Tier::get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                          const TakeValue& take) {
  struct Range final : S3Request {
    std::uint64_t first = 0, last = 0;  ///< positions of the values in it, half-open
  };
  std::uint64_t next = 0, offset = 0;  // the first value that no range has, and its place
  const std::uint64_t num = record.num_stored();
  const auto size_of = [&](std::uint64_t position) {
    return record.bytes_beside() + record.sizes.find(position)->payload_bytes;
  };
  const auto next_range = [&]() -> Result<std::unique_ptr<S3Request>> {
    if (next == num) return std::unique_ptr<S3Request>();
    auto x = std::make_unique<Range>();
    x->object = name + "/values";
    x->first = next;
    do {
      x->most_bytes += size_of(next++);
    } while (next < num && x->most_bytes + size_of(next) <= kRangeBytes);
    x->last = next;
    x->range = {offset, offset + x->most_bytes - 1};
    offset += x->most_bytes;
    return std::unique_ptr<S3Request>(std::move(x));
  };
  return client_->perform_all(
      kMaxRanges, deadline, next_range, [&](S3Request& done, const Status& status) -> Status {
        QUIRE_RETURN_IF_ERROR(status);
        const auto& x = static_cast<const Range&>(done);
        std::string_view rest = x.body;
        for (std::uint64_t i = x.first; i < x.last; ++i) {
          const std::size_t n = size_of(i);
          if (rest.size() < n)
            return Status::corruption("value " + std::to_string(i) + " is cut short in the bucket");
          QUIRE_RETURN_IF_ERROR(take(i, rest.substr(0, n)));
          rest.remove_prefix(n);
        }
        return {};
      });
}

Status S3Tier::put_parts(const std::string& object, ValueStream& values, std::uint64_t stored_bytes,
                         Deadline deadline) {
  S3Request begin;
  begin.method = "POST";
  begin.object = object;
  begin.query = "uploads=";
  begin.most_bytes = kMaxListBytes;
  begin.send("");
  QUIRE_RETURN_IF_ERROR(client_->perform(begin, deadline));
  const std::string upload = element(begin.body, "UploadId");
  if (upload.empty()) return Status::io("the bucket began an upload, but did not name it");
  const Status sent = send_parts(object, upload, values, stored_bytes, deadline);
  if (sent.ok()) return {};
  // Parts of an upload without an end would be paid for until somebody looks.
  S3Request abort;
  abort.method = "DELETE";
  abort.object = object;
  abort.query = "uploadId=" + S3Client::encode(upload);
  (void)client_->perform(abort, Clock::now() + kAbortTime);
  return sent;
}

Status S3Tier::send_parts(const std::string& object, const std::string& upload, ValueStream& values,
                          std::uint64_t stored_bytes, Deadline deadline) {
  struct Part final : S3Request {
    std::size_t number = 0;  ///< from 1 on
    std::string bytes;
    int tries = 0;
  };
  const std::uint64_t part_bytes = std::max(part_bytes_,
                                            (stored_bytes + kMaxParts - 1) / kMaxParts);
  const std::string named = "uploadId=" + S3Client::encode(upload);
  std::vector<std::string> etags((stored_bytes + part_bytes - 1) / part_bytes);
  std::vector<std::unique_ptr<Part>> again;
  std::size_t begun = 0;
  const auto prepare = [&](std::unique_ptr<Part> part) {
    part->send(part->bytes);
    ++part->tries;
    return std::unique_ptr<S3Request>(std::move(part));
  };
  const auto next_part = [&]() -> Result<std::unique_ptr<S3Request>> {
    if (!again.empty()) {
      auto part = std::move(again.back());
      again.pop_back();
      return prepare(std::move(part));
    }
    if (begun == etags.size()) return std::unique_ptr<S3Request>();
    auto part = std::make_unique<Part>();
    part->method = "PUT";
    part->object = object;
    part->number = ++begun;
    part->query = "partNumber=" + std::to_string(part->number) + '&' + named;
    part->bytes.resize(std::min(part_bytes, stored_bytes - (part->number - 1) * part_bytes));
    for (std::size_t at = 0; at < part->bytes.size();) {
      const auto n = values.read(part->bytes.data() + at, part->bytes.size() - at);
      if (!n) return values.failed();
      if (*n == 0) return Status::internal("a segment's values are shorter than its sizes say");
      at += *n;
    }
    return prepare(std::move(part));
  };
  const auto end_part = [&](S3Request& done, const Status& status) -> Status {
    auto& part = static_cast<Part&>(done);
    if (status.code() == Code::kUnavailable && part.tries < kMostTries) {
      auto copy = std::make_unique<Part>();
      copy->method = part.method;
      copy->object = part.object;
      copy->query = part.query;
      copy->number = part.number;
      copy->bytes = std::move(part.bytes);
      copy->tries = part.tries;
      again.push_back(std::move(copy));
      return {};
    }
    QUIRE_RETURN_IF_ERROR(status);
    if (part.etag.empty()) return Status::io("the bucket took a part, but gave it no ETag");
    etags[part.number - 1] = std::move(part.etag);
    return {};
  };
  QUIRE_RETURN_IF_ERROR(client_->perform_all(kPartsAtOnce, deadline, next_part, end_part));
  std::string list = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < etags.size(); ++i)
    list += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" +
            xml_text(etags[i]) + "</ETag></Part>";
  list += "</CompleteMultipartUpload>";
  S3Request end;
  end.method = "POST";
  end.object = object;
  end.query = named;
  end.most_bytes = kMaxListBytes;
  end.send(list);
  QUIRE_RETURN_IF_ERROR(client_->perform(end, deadline));
  // This one request may fail with status 200: S3 sends the status before it is done.
  if (const std::string code = element(end.body, "Code"); !code.empty())
    return Status::unavailable("the bucket could not put the parts together: " + code);
  return {};
}

}  // namespace

Result<std::unique_ptr<RemoteTier>> make_s3_tier(S3Bucket bucket, std::uint64_t part_bytes) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string id = variable("AWS_ACCESS_KEY_ID"), secret = variable("AWS_SECRET_ACCESS_KEY");
  if (id.empty() || secret.empty())
    return Status::invalid("remote.url",
                           "remote.url names a bucket, but the environment has no credentials; set "
                           "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  return std::unique_ptr<RemoteTier>(
      std::make_unique<S3Tier>(std::make_shared<S3Client>(std::move(bucket), id + ':' + secret,
                                                          variable("AWS_SESSION_TOKEN")),
                               part_bytes));
}

}  // namespace quire
