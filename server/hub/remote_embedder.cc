#include "server/hub/remote_embedder.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "base/json_object.h"
#include "base/json_reader.h"
#include "server/hub/transfer.h"

namespace quire::hub {
namespace json = boost::json;
namespace {

constexpr std::size_t kBatchTexts = 64;
constexpr std::chrono::milliseconds kLongestCall = std::chrono::seconds(60);
constexpr std::size_t kMostValues = 1 << 16;  // of a vector
constexpr std::size_t kShownBytes = 300;      // of a refusal's body

Status malformed(const std::string& what) {
  return Status::io("the reply of retrieve.embeddings_url is no list of embeddings: " + what);
}

/// Returns the values scaled to length 1.
std::optional<std::vector<float>> vector_of(const json::value* value) {
  const json::array* list = value ? value->if_array() : nullptr;
  if (!list || list->empty() || list->size() > kMostValues) return std::nullopt;
  std::vector<double> values;
  double largest = 0, squares = 0;
  for (const json::value& x : *list) {
    if (!x.is_number()) return std::nullopt;
    values.push_back(x.to_number<double>());
    largest = std::max(largest, std::abs(values.back()));
  }
  if (!std::isfinite(largest) || largest <= 0) return std::nullopt;
  // Scaled by the largest first, no square overflows or vanishes.
  for (double& x : values) {
    x /= largest;
    squares += x * x;
  }
  std::vector<float> out;
  for (const double x : values) out.push_back(static_cast<float>(x / std::sqrt(squares)));
  return out;
}

class RemoteEmbedder final : public Embedder {
 public:
  explicit RemoteEmbedder(RemoteEmbedderOptions options)
      : options_(std::move(options)),
        fingerprint_(Sha256()
                         .update_field("quire-remote-embedder")
                         .update_field(options_.url)
                         .update_field(options_.model)
                         .finish()) {}

  Digest fingerprint() const override { return fingerprint_; }
  Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts, EmbedRole role,
                                                const EmbedLimits& limits) override {
    const auto begun = Clock::now();
    if (role == EmbedRole::kQuestion && begun < limits.deadline && is_silent(begun))
      return Status::unavailable(
          "retrieve.embeddings_url has not answered lately; ask again later");
    auto out = embed_all(texts, limits);
    if (!limits.stop.stop_requested()) take_note(out.status(), begun);
    return out;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Returns whether the service is left alone. When that time is over, one question finds out how
  /// it is.
  bool is_silent(Clock::time_point now) {
    const std::lock_guard lock(mu_);
    if (now < ask_again_) return true;
    if (ask_again_ != Clock::time_point()) ask_again_ = now + options_.quiet;
    return false;
  }

  void take_note(const Status& status, Clock::time_point begun) {
    const auto now = Clock::now();
    const std::lock_guard lock(mu_);
    if (status.ok())
      ask_again_ = {};
    else if (status.code() == Code::kUnavailable && now - begun >= options_.silence)
      ask_again_ = now + options_.quiet;
  }

  Result<std::vector<std::vector<float>>> embed_all(std::span<const std::string> texts,
                                                    const EmbedLimits& limits) const {
    std::vector<std::vector<float>> out(texts.size());
    std::vector<std::size_t> batch;  // indexes of texts
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i].empty()) batch.push_back(i);
      if (batch.empty() || (batch.size() < kBatchTexts && i + 1 < texts.size())) continue;
      json::array input;
      for (const std::size_t text : batch) input.emplace_back(texts[text]);
      QUIRE_ASSIGN_OR_RETURN(auto vectors, call(std::move(input), limits));
      for (std::size_t j = 0; j < batch.size(); ++j) out[batch[j]] = std::move(vectors[j]);
      batch.clear();
    }
    return out;
  }

  Result<std::vector<std::vector<float>>> call(json::array input, const EmbedLimits& limits) const {
    using std::chrono::milliseconds;
    const std::size_t count = input.size();
    TransferRequest request;
    request.url = options_.url;
    request.token = options_.key;
    request.headers = {"Content-Type: application/json"};
    request.stop = limits.stop;
    request.limit = kLongestCall;
    if (limits.deadline != std::chrono::steady_clock::time_point::max()) {
      const auto left = std::chrono::duration_cast<milliseconds>(limits.deadline -
                                                                 std::chrono::steady_clock::now());
      if (left.count() <= 0) return Status::deadline("there is no time left to embed the question");
      request.limit = std::min(left, kLongestCall);
    }
    json::object body{{"input", std::move(input)}, {"encoding_format", "float"}};
    if (!options_.model.empty()) body["model"] = options_.model;
    request.post = json::serialize(body);
    QUIRE_ASSIGN_OR_RETURN(const TransferReply reply, transfer(request));
    if (reply.status >= 200 && reply.status < 300) return parse_embeddings_reply(reply.body, count);
    const std::string what = "retrieve.embeddings_url answered " + std::to_string(reply.status) +
                             ": " + reply.body.substr(0, kShownBytes);
    return reply.status == 429 || reply.status >= 500 ? Status::exhausted(what) : Status::io(what);
  }

  const RemoteEmbedderOptions options_;
  const Digest fingerprint_;
  std::mutex mu_;
  Clock::time_point ask_again_;  // guarded by mu_; its default: the service answers
};

}  // namespace

Result<std::vector<std::vector<float>>> parse_embeddings_reply(std::string_view body,
                                                               std::size_t count) {
  const auto object = parse_json_object("reply", body);
  if (!object.ok()) return malformed(object.status().message());
  const json::array* data = array_at(*object, "data");
  if (!data || data->size() != count) return malformed("data has another length than the input");
  std::vector<std::vector<float>> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const json::object* one = (*data)[i].if_object();
    if (!one) return malformed("an element of data is no object");
    const json::value* index = one->if_contains("index");
    const std::int64_t place = index ? whole_number(*index).value_or(-1)
                                     : static_cast<std::int64_t>(i);
    if (place < 0 || static_cast<std::size_t>(place) >= count ||
        !out[static_cast<std::size_t>(place)].empty())
      return malformed("an index is missing, repeated or out of range");
    auto vector = vector_of(one->if_contains("embedding"));
    if (!vector) return malformed("an embedding is no list of numbers with a length");
    out[static_cast<std::size_t>(place)] = std::move(*vector);
  }
  for (const auto& vector : out) {
    if (vector.size() != out.front().size()) return malformed("the vectors differ in size");
  }
  return out;
}

std::shared_ptr<Embedder> make_remote_embedder(RemoteEmbedderOptions options) {
  return std::make_shared<RemoteEmbedder>(std::move(options));
}

}  // namespace quire::hub
