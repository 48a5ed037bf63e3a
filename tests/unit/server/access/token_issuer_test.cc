#include "server/access/token_issuer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"
#include "tests/unit/server/access/token_maker.h"

namespace quire {
namespace {

using test::IssuerKey;

/// An issuer whose keys a test sets. A reading waits until the test lets it go on.
class FakeIssuer {
 public:
  explicit FakeIssuer(std::string jwks) : jwks_(std::move(jwks)) {}

  TokenIssuer::Options options() {
    TokenIssuer::Options o;
    o.rules.issuer = "https://id.example";
    o.rules.audience = "quire";
    o.read_keys = [this](std::stop_token stop) -> Result<std::string> {
      std::unique_lock lock(mu_);
      (void)changed_.wait(lock, stop, [this] { return allowed_ > 0; });
      --allowed_;
      ++reads_;
      changed_.notify_all();
      if (jwks_.empty()) return Status::unavailable("the issuer is away");
      return jwks_;
    };
    o.now = [this] { return TokenIssuer::Clock::time_point() + std::chrono::seconds(seconds_); };
    o.unix_seconds = [] { return 1'740'000'000; };
    return o;
  }
  void set(const std::string& jwks) {
    std::lock_guard lock(mu_);
    jwks_ = jwks;
  }
  /// Lets one reading go on, and waits until it has begun.
  void let_read() {
    std::unique_lock lock(mu_);
    ++allowed_;
    const int before = reads_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return reads_ > before; });
  }
  int reads() {
    std::lock_guard lock(mu_);
    return reads_;
  }
  void pass(int seconds) { seconds_ += seconds; }

 private:
  std::mutex mu_;
  std::condition_variable_any changed_;
  std::string jwks_;  // guarded by mu_
  int allowed_ = 0;   // guarded by mu_
  int reads_ = 0;     // guarded by mu_
  std::atomic<int> seconds_{1000};
};

std::string claims(const std::string& scope = "read") {
  return R"({"iss":"https://id.example","aud":"quire","sub":"alice","exp":1740000600,)"
         R"("namespaces":["a"],"scope":")" +
         scope + "\"}";
}

/// Asks until the issuer no longer says that it reads its keys.
Result<std::shared_ptr<const ApiKey>> settled(TokenIssuer& issuer, const std::string& token) {
  for (;;) {
    auto granted = issuer.check(token);
    if (granted.code() != Code::kUnavailable) return granted;
    std::this_thread::yield();
  }
}

TEST(TokenIssuer, TokensWaitForTheKeys) {
  const IssuerKey key("ES256", "k1");
  FakeIssuer fake(key.jwks());
  TokenIssuer issuer(fake.options());
  const auto early = issuer.check(key.token(claims()));
  EXPECT_EQ(early.code(), Code::kUnavailable);
  EXPECT_NE(early.status().message().find("are being read"), std::string::npos);
  // What no key could make good is refused at once.
  EXPECT_EQ(issuer.check("eyJ.a.b").code(), Code::kInvalidArgument);
  fake.let_read();
  const auto granted = settled(issuer, key.token(claims()));
  ASSERT_TRUE(granted.ok()) << granted.status().message();
  EXPECT_EQ((*granted)->name, "token:alice");
}

TEST(TokenIssuer, AnUnknownKeyHasTheKeysReadAgainButNotOften) {
  const IssuerKey old_key("ES256", "k1"), new_key("ES256", "k2"), strange("ES256", "k3");
  FakeIssuer fake(old_key.jwks());
  TokenIssuer issuer(fake.options());
  fake.let_read();
  ASSERT_TRUE(settled(issuer, old_key.token(claims())).ok());
  fake.set(new_key.jwks());
  // They were read just now.
  const auto soon = settled(issuer, new_key.token(claims()));
  EXPECT_EQ(soon.code(), Code::kInvalidArgument);
  EXPECT_NE(soon.status().message().find("has no key 'k2'"), std::string::npos);
  EXPECT_EQ(fake.reads(), 1);
  fake.pass(30);
  EXPECT_EQ(issuer.check(new_key.token(claims())).code(), Code::kUnavailable);
  EXPECT_EQ(issuer.check(strange.token(claims())).code(), Code::kUnavailable);
  fake.let_read();
  EXPECT_TRUE(settled(issuer, new_key.token(claims())).ok());
  EXPECT_EQ(settled(issuer, old_key.token(claims())).code(), Code::kInvalidArgument);
  EXPECT_EQ(settled(issuer, strange.token(claims())).code(), Code::kInvalidArgument);
  EXPECT_EQ(fake.reads(), 2);
}

TEST(TokenIssuer, KeysStayWhenTheIssuerIsAwayAndReloadReadsThem) {
  const IssuerKey key("ES256", "k1"), next("ES256", "k2");
  FakeIssuer fake(key.jwks());
  TokenIssuer issuer(fake.options());
  fake.let_read();
  ASSERT_TRUE(settled(issuer, key.token(claims())).ok());
  fake.set("");
  issuer.reload();
  fake.let_read();
  EXPECT_TRUE(issuer.check(key.token(claims())).ok());
  fake.set(next.jwks());
  issuer.reload();
  fake.let_read();
  while (issuer.check(next.token(claims())).code() != Code::kOk) {
    // The reading ends right after let_read(); meanwhile the token names an unknown key.
    std::this_thread::yield();
  }
}

class TokenAppTest : public test::StubAppTest {
 protected:
  TokenAppTest() : fake_(key_.jwks()) {
    services.set_keys(std::make_shared<const KeyRing>());
    services.tokens = std::make_shared<TokenIssuer>(fake_.options());
    fake_.let_read();
    (void)settled(*services.tokens, key_.token(claims()));
  }
  ~TokenAppTest() override { services.tokens.reset(); }  // it reads keys from fake_
  testing::RawResponse with(const std::string& token, const std::string& method = "GET",
                            const std::string& path = "/v1/documents",
                            const std::string& ns = "a") {
    return call(method, path, {}, {"Authorization: Bearer " + token, "X-Namespace: " + ns});
  }
  static std::string code_of(const testing::RawResponse& r) {
    const auto v = parse_json(r.body);
    return std::string(v->as_object().at("error").as_object().at("code").as_string());
  }
  const IssuerKey key_{"ES256", "k1"};
  FakeIssuer fake_;
};

TEST_F(TokenAppTest, ATokenOpensWhatItsClaimsSay) {
  const std::string token = key_.token(claims());
  EXPECT_EQ(with(token).status, 200);
  EXPECT_EQ(code_of(with(token, "GET", "/v1/documents", "b")), "namespace_denied");
  EXPECT_EQ(code_of(with(token, "DELETE", "/v1/documents/x")), "insufficient_scope");
  EXPECT_EQ(with(key_.token(claims("read write")), "DELETE", "/v1/documents/x").status, 200);
  EXPECT_EQ(code_of(call("GET", "/v1/documents")), "missing_api_key");
  EXPECT_EQ(code_of(with("qk_something")), "invalid_api_key");
}

TEST_F(TokenAppTest, ABadTokenIs401WithAReason) {
  const IssuerKey other("ES256", "k1");
  const auto r = with(other.token(claims()));
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(code_of(r), "invalid_token");
  EXPECT_NE(r.body.find("signature does not hold"), std::string::npos);
  EXPECT_EQ(r.header("www-authenticate"), "Bearer");
  const auto long_one = with("eyJ" + std::string(9000, 'a') + ".a.b");
  EXPECT_EQ(long_one.status, 401);
  EXPECT_NE(long_one.body.find("at most 8192"), std::string::npos) << long_one.body;
}

}  // namespace
}  // namespace quire
