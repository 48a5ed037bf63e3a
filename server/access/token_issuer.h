/// The issuer whose tokens are taken beside API keys. It keeps the issuer's public keys and reads
/// them again when they change.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/status.h"
#include "server/access/auth.h"
#include "server/access/web_token.h"

namespace quire {

/// Threads: any. check() never waits: a thread of its own reads the keys at the start, every 15
/// minutes, and when a token names an unknown key, but then at most every 30 seconds.
class TokenIssuer {
 public:
  using Clock = std::chrono::steady_clock;
  /// Reads the text of the JWKS. It may wait until `stop` is requested.
  using ReadKeys = std::function<Result<std::string>(std::stop_token stop)>;
  struct Options {
    TokenRules rules;
    ReadKeys read_keys;
    std::function<Clock::time_point()> now = Clock::now;
    std::function<std::int64_t()> unix_seconds;  ///< empty: the system clock
  };
  static constexpr std::chrono::seconds kLeastInterval{30};
  static constexpr std::chrono::minutes kRefresh{15};

  explicit TokenIssuer(Options options);
  ~TokenIssuer();
  TokenIssuer(const TokenIssuer&) = delete;
  TokenIssuer& operator=(const TokenIssuer&) = delete;

  /// Returns what the token's caller may do. Errors: kInvalidArgument (in words for the caller),
  /// kUnavailable (the keys are being read; try again).
  Result<std::shared_ptr<const ApiKey>> check(std::string_view token);
  /// Has the keys read again soon, whatever their age.
  void reload();

 private:
  enum class Need : unsigned char { kNone, kUnknownKey, kReload };
  void run(const std::stop_token& stop);
  void read(const std::stop_token& stop);

  const Options options_;
  std::mutex mu_;
  std::condition_variable_any changed_;
  std::shared_ptr<const WebKeys> keys_;    // guarded by mu_; null: not read yet
  std::string failure_;                    // guarded by mu_; of the last reading; empty: none
  std::optional<Clock::time_point> read_;  // guarded by mu_; when the last reading ended
  Need need_ = Need::kReload;              // guarded by mu_
  bool reading_ = false;                   // guarded by mu_
  std::jthread thread_;
};

/// Returns how the keys of an issuer are read: from `keys`, a file or an http or https address; or,
/// where that is empty, from the address that the issuer's /.well-known/openid-configuration names.
/// Replies have at most 1 MiB and take at most 10 seconds.
TokenIssuer::ReadKeys read_keys_from(std::string issuer, std::string keys);

}  // namespace quire
