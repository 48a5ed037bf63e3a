#include "server/access/token_issuer.h"

#include <boost/json/object.hpp>
#include <utility>

#include "base/json_object.h"
#include "base/log.h"
#include "server/config/config.h"
#include "server/hub/transfer.h"

namespace quire {
namespace {

constexpr std::size_t kMostReplyBytes = 1 << 20;
constexpr std::chrono::seconds kReplyTime{10};

bool is_address(const std::string& text) {
  return text.starts_with("https://") || text.starts_with("http://");
}

Result<std::string> get(const std::string& url, std::stop_token stop) {
  std::string body;
  hub::TransferRequest request;
  request.url = url;
  request.limit = kReplyTime;
  request.stop = std::move(stop);
  request.headers = {"Accept: application/json"};
  request.on_body = [&body](std::string_view piece) {
    if (body.size() + piece.size() > kMostReplyBytes)
      return Status::io("the reply has more than 1 MiB");
    body.append(piece);
    return Status();
  };
  const auto reply = hub::transfer(request);
  if (!reply.ok()) return reply.status().with_context(url);
  if (reply->status < 200 || reply->status >= 300)
    return Status::io(url + " answered " + std::to_string(reply->status));
  return body;
}

Result<std::string> discover(const std::string& issuer, const std::stop_token& stop) {
  const std::string base = issuer.ends_with('/') ? issuer.substr(0, issuer.size() - 1) : issuer;
  const std::string url = base + "/.well-known/openid-configuration";
  QUIRE_ASSIGN_OR_RETURN(const std::string text, get(url, stop));
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object about, parse_json_object(url, text));
  if (string_at(about, "issuer") != issuer)
    return Status::invalid("issuer", url + " is of another issuer than auth.jwt_issuer");
  const std::string keys = string_at(about, "jwks_uri").value_or("");
  if (!is_address(keys) || (issuer.starts_with("https://") && !keys.starts_with("https://")))
    return Status::invalid("jwks_uri", url + " names no https address of keys (jwks_uri)");
  return get(keys, stop);
}

}  // namespace

TokenIssuer::TokenIssuer(Options options) : options_(std::move(options)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

TokenIssuer::~TokenIssuer() = default;

Result<std::shared_ptr<const ApiKey>> TokenIssuer::check(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const WebToken token, parse_web_token(text));
  std::shared_ptr<const WebKeys> keys;
  {
    std::lock_guard lock(mu_);
    if (!keys_)
      return Status::unavailable(
          "the keys of the issuer " + options_.rules.issuer +
          (failure_.empty() ? " are being read; try again" : " cannot be read now; try again"));
    keys = keys_;
  }
  const Status holds = keys->verify(token);
  if (holds.code() == Code::kNotFound) {
    std::lock_guard lock(mu_);
    const bool fresh = read_ && options_.now() - *read_ < kLeastInterval;
    // They may have changed while this thread had the former ones.
    if (keys == keys_ && !reading_ && need_ == Need::kNone && fresh)
      return Status::invalid("token", holds.message());
    if (need_ == Need::kNone && !reading_ && keys == keys_) need_ = Need::kUnknownKey;
    changed_.notify_all();
    return Status::unavailable(holds.message() + "; its keys are being read again: try again");
  }
  QUIRE_RETURN_IF_ERROR(holds);
  const std::int64_t now = options_.unix_seconds
                               ? options_.unix_seconds()
                               : std::chrono::duration_cast<std::chrono::seconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count();
  QUIRE_ASSIGN_OR_RETURN(ApiKey granted, granted_by(token, options_.rules, now));
  return std::make_shared<const ApiKey>(std::move(granted));
}

void TokenIssuer::reload() {
  std::lock_guard lock(mu_);
  need_ = Need::kReload;
  changed_.notify_all();
}

void TokenIssuer::run(const std::stop_token& stop) {
  std::unique_lock lock(mu_);
  while (!stop.stop_requested()) {
    const auto wait = failure_.empty() ? std::chrono::seconds(kRefresh) : kLeastInterval;
    (void)changed_.wait_for(lock, stop, wait, [this] { return need_ != Need::kNone; });
    if (stop.stop_requested()) return;
    need_ = Need::kNone;
    reading_ = true;
    lock.unlock();
    read(stop);
    lock.lock();
    reading_ = false;
  }
}

void TokenIssuer::read(const std::stop_token& stop) {
  const auto text = options_.read_keys(stop);
  const auto keys = text.ok() ? WebKeys::parse(*text) : text.status();
  if (stop.stop_requested()) return;
  bool said = false;
  std::size_t count = 0;
  {
    std::lock_guard lock(mu_);
    read_ = options_.now();
    if (keys.ok()) {
      said = keys_ && failure_.empty();  // a mere refresh is no news
      keys_ = *keys;
      failure_.clear();
      count = keys_->size();
    } else {
      said = failure_ == keys.status().to_string();
      failure_ = keys.status().to_string();
    }
  }
  if (said) return;
  if (keys.ok())
    log_info("the issuer's keys are read",
             {{"issuer", options_.rules.issuer}, {"keys", std::to_string(count)}});
  else
    log_error("the issuer's keys cannot be read",
              {{"issuer", options_.rules.issuer}, {"reason", keys.status().to_string()}});
}

TokenIssuer::ReadKeys read_keys_from(std::string issuer, std::string keys) {
  return [issuer = std::move(issuer),
          keys = std::move(keys)](const std::stop_token& stop) -> Result<std::string> {
    if (keys.empty()) return discover(issuer, stop);
    if (is_address(keys)) return get(keys, stop);
    return read_file(keys, kMostReplyBytes);
  };
}

}  // namespace quire
