// Who may use which route: every route of the service, with every kind of key and namespace.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_parse.h"
#include "server/app/app.h"
#include "server/service/call.h"
#include "server/service/services.h"
#include "tests/support/loopback_client.h"

namespace quire {
namespace {

/// What a route is for.
enum class Reach : std::uint8_t {
  kPublic,     ///< no key
  kNamespace,  ///< one namespace, with a key that may use it
  kService,    ///< all namespaces, with a key for "*"
};

struct Expectation {
  Scope scope = Scope::kNone;
  Reach reach = Reach::kNamespace;
};

/// By method and pattern. A route that is not here fails the test: decide who may use it.
const std::map<std::string, Expectation>& expectations() {
  using enum Scope;
  using enum Reach;
  static const std::map<std::string, Expectation> all = {
      {"POST /v1/documents", {kWrite}},
      {"GET /v1/documents", {kRead}},
      {"POST /v1/documents/delete", {kWrite}},
      {"GET /v1/documents/{id}", {kRead}},
      {"PUT /v1/documents/{id}", {kWrite}},
      {"PATCH /v1/documents/{id}", {kWrite}},
      {"DELETE /v1/documents/{id}", {kWrite}},
      {"GET /v1/documents/{id}/content", {kRead}},
      {"GET /v1/documents/{id}/chunks", {kRead}},
      {"GET /v1/documents/{id}/blocks", {kRead}},
      {"POST /v1/documents/{id}/warm", {kWrite}},
      {"GET /v1/jobs", {kRead}},
      {"GET /v1/jobs/{id}", {kRead}},
      {"POST /v1/jobs/{id}/cancel", {kWrite}},
      {"GET /v1/jobs/{id}/events", {kRead}},
      {"POST /v1/query", {kQuery}},
      {"POST /v1/query/plan", {kQuery}},
      {"GET /v1/queries", {kQuery}},
      {"GET /v1/queries/{id}", {kQuery}},
      {"GET /v1/queries/{id}/explain", {kQuery}},
      {"POST /v1/retrieve", {kQuery}},
      {"POST /v1/rerank", {kQuery}},
      {"GET /v1/models", {kRead}},
      {"GET /v1/models/{id}", {kRead}},
      {"POST /v1/chat/completions", {kQuery}},
      {"POST /v1/completions", {kQuery}},
      {"POST /v1/embeddings", {kQuery}},
      {"POST /tokenize", {kQuery}},
      {"POST /detokenize", {kQuery}},
      // Those of other protocols are as their like above.
      {"POST /v1/responses", {kQuery}},
      {"POST /v1/files", {kWrite}},
      {"GET /v1/files", {kRead}},
      {"GET /v1/files/{id}", {kRead}},
      {"DELETE /v1/files/{id}", {kWrite}},
      {"GET /v1/files/{id}/content", {kRead}},
      {"POST /v1/vector_stores", {kWrite}},
      {"GET /v1/vector_stores", {kRead}},
      {"GET /v1/vector_stores/{id}", {kRead}},
      {"POST /v1/vector_stores/{id}", {kWrite}},
      {"DELETE /v1/vector_stores/{id}", {kWrite}},
      {"POST /v1/vector_stores/{id}/files", {kWrite}},
      {"GET /v1/vector_stores/{id}/files", {kRead}},
      {"GET /v1/vector_stores/{id}/files/{file}", {kRead}},
      {"GET /v1/vector_stores/{id}/files/{file}/content", {kRead}},
      {"POST /v1/vector_stores/{id}/files/{file}", {kWrite}},
      {"DELETE /v1/vector_stores/{id}/files/{file}", {kWrite}},
      {"POST /v1/vector_stores/{id}/search", {kQuery}},
      {"POST /v1/vector_stores/{id}/file_batches", {kWrite}},
      {"GET /v1/vector_stores/{id}/file_batches/{batch}", {kRead}},
      {"POST /v1/vector_stores/{id}/file_batches/{batch}/cancel", {kWrite}},
      {"GET /v1/vector_stores/{id}/file_batches/{batch}/files", {kRead}},
      {"POST /mcp", {kQuery}},
      {"POST /v1/messages", {kQuery}},
      {"POST /v1/messages/count_tokens", {kQuery}},
      {"POST /api/chat", {kQuery}},
      {"POST /api/generate", {kQuery}},
      {"POST /api/embed", {kQuery}},
      {"POST /api/embeddings", {kQuery}},
      {"GET /api/tags", {kRead}},
      {"GET /api/ps", {kRead}},
      {"POST /api/pull", {kRead}},
      {"POST /api/show", {kRead}},
      {"GET /api/version", {kRead}},
      {"GET /v1/info", {kRead}},
      {"GET /livez", {kNone, kPublic}},
      {"GET /readyz", {kNone, kPublic}},
      {"GET /healthz", {kNone, kPublic}},
      {"GET /health", {kNone, kPublic}},
      {"GET /", {kNone, kPublic}},
      {"GET /docs", {kNone, kPublic}},
      {"GET /ui/{version}/{file}", {kNone, kPublic}},
      // Those of the cache take what lies in the request's namespace.
      {"GET /v1/admin/cache/stats", {kAdmin}},
      {"POST /v1/admin/cache/evict", {kAdmin}},
      {"POST /v1/admin/cache/pin", {kAdmin}},
      {"POST /v1/admin/cache/unpin", {kAdmin}},
      {"POST /v1/admin/cache/export", {kAdmin}},
      {"POST /v1/admin/cache/import", {kAdmin}},
      {"GET /v1/admin/requests", {kAdmin}},
      {"POST /v1/admin/requests/{id}/cancel", {kAdmin}},
      {"GET /v1/admin/events", {kAdmin}},
      {"POST /v1/admin/cache/flush", {kAdmin, kService}},
      {"POST /v1/admin/backup", {kAdmin, kService}},
      {"POST /v1/admin/cache/verify", {kAdmin, kService}},
      {"GET /v1/admin/config", {kAdmin, kService}},
      {"POST /v1/admin/reload", {kAdmin, kService}},
      {"POST /v1/admin/drain", {kAdmin, kService}},
      {"GET /version", {kRead}},
      {"GET /openapi.json", {kRead}},
      {"GET /metrics", {kRead}},
  };
  return all;
}

std::string name_of(const Route& r) { return std::string(r.method) + " " + std::string(r.pattern); }

/// Every route of the service, each with a handler that only says that it was reached, and in
/// which namespace.
std::vector<Route> routes_that_answer() {
  std::vector<Route> routes = all_routes();
  for (Route& r : routes) {
    r.handler = [](std::shared_ptr<Call> call) {
      HttpResponse reply;
      reply.content_type = "text/plain";
      reply.body = call->ns;
      call->reply(std::move(reply));
    };
    r.body = BodyUse::kNone;
  }
  return routes;
}

struct Key {
  std::string name;
  std::optional<Scope> scope;  ///< none: no key is sent
  std::vector<std::string> namespaces;
};

class RouteAccessTest : public ::testing::Test {
 protected:
  RouteAccessTest() : services_(Config()), table_(routes_that_answer()) {
    services_.ready = true;
    keys_.push_back({"none", std::nullopt, {}});
    std::string toml;
    for (const Scope scope : {Scope::kRead, Scope::kWrite, Scope::kQuery, Scope::kAdmin}) {
      const std::string s(scope_name(scope));
      keys_.push_back({s + "-a", scope, {"a"}});
      keys_.push_back({s + "-all", scope, {"*"}});
    }
    for (const Key& key : keys_) {
      if (!key.scope) continue;
      toml += "[[keys]]\nname = \"" + key.name + "\"\nsha256 = \"" +
              sha256("secret-" + key.name).hex() + "\"\nscopes = [\"" +
              std::string(scope_name(*key.scope)) + "\"]\nnamespaces = [\"" +
              key.namespaces.front() + "\"]\n";
    }
    auto ring = KeyRing::parse(toml, "keys");
    QUIRE_CHECK(ring.ok(), ring.status().to_string());
    services_.set_keys(*ring);
    app_ = make_app(services_, table_);
    auto started = start_http_server(HttpServerOptions(), *app_);
    QUIRE_CHECK(started.ok(), started.status().to_string());
    server_ = std::move(*started);
  }
  ~RouteAccessTest() override {
    (void)server_->stop(std::chrono::milliseconds(0));
    services_.timers->stop();
    services_.workers->stop();
    services_.maintenance->stop();
    services_.file_readers->stop();
    services_.encoding->stop();
  }

  testing::RawResponse send(const Route& route, const Key& key, const std::string& ns) {
    std::string path(route.pattern);
    for (const char* segment : {"{id}", "{version}", "{file}"})
      if (const auto at = path.find(segment); at != std::string::npos)
        path.replace(at, std::string(segment).size(), "x");
    std::vector<std::string> headers;
    if (key.scope) headers.push_back("Authorization: Bearer secret-" + key.name);
    if (!ns.empty()) headers.push_back("X-Namespace: " + ns);
    return testing::call(server_->port(), std::string(route.method), path, "", headers);
  }

  /// The code of the refusal that is due; empty: the handler is reached.
  static std::string expected(const Expectation& e, const Key& key, const std::string& ns) {
    const bool any = key.scope && key.namespaces.front() == "*";
    // A key that is sent is bound to its namespaces on public paths, too.
    const bool denied = key.scope && !any && !ns.empty() && ns != "a";
    if (e.reach == Reach::kPublic) return denied ? "namespace_denied" : "";
    if (!key.scope) return "missing_api_key";
    if (*key.scope != e.scope && *key.scope != Scope::kAdmin) return "insufficient_scope";
    if (denied || (e.reach == Reach::kService && !any)) return "namespace_denied";
    return "";
  }

  Services services_;
  RouteTable table_;
  std::vector<Key> keys_;
  std::unique_ptr<HttpService> app_;
  std::unique_ptr<HttpServer> server_;
};

std::string code_of(const testing::RawResponse& r) {
  const auto body = parse_json(r.body);
  if (!body.ok() || !body->is_object()) return "no problem: " + r.body;
  // Ollama's errors are a text, with the code beside it.
  const auto& object = body->as_object();
  const auto& error = object.at("error");
  return std::string((error.is_object() ? error.as_object() : object).at("code").as_string());
}

TEST_F(RouteAccessTest, EveryRouteHasAnExpectationAndNothingElseHasOne) {
  std::map<std::string, Expectation> left = expectations();
  for (const Route& r : all_routes()) {
    const auto it = left.find(name_of(r));
    if (it == left.end()) {
      ADD_FAILURE() << name_of(r) << " has no expectation: who may use it?";
      continue;
    }
    EXPECT_EQ(r.scope, it->second.scope) << name_of(r);
    EXPECT_EQ(r.public_path, it->second.reach == Reach::kPublic) << name_of(r);
    EXPECT_EQ(r.whole_service, it->second.reach == Reach::kService) << name_of(r);
    left.erase(it);
  }
  for (const auto& [name, e] : left) ADD_FAILURE() << "there is no route " << name;
}

TEST_F(RouteAccessTest, EveryKeyReachesWhatItMayAndNothingElse) {
  int tried = 0;
  for (const Route& route : all_routes()) {
    const auto e = expectations().find(name_of(route));
    if (e == expectations().end()) continue;  // the test above says so
    for (const Key& key : keys_) {
      for (const std::string ns : {"", "a", "b"}) {
        const std::string what = name_of(route) + ", key " + key.name + ", namespace '" + ns + "'";
        const testing::RawResponse r = send(route, key, ns);
        const std::string refusal = expected(e->second, key, ns);
        ++tried;
        if (!refusal.empty()) {
          EXPECT_EQ(code_of(r), refusal) << what;
          EXPECT_EQ(r.status, refusal == "missing_api_key" ? 401 : 403) << what;
          continue;
        }
        EXPECT_EQ(r.status, 200) << what << ": " << r.body;
        const bool own = key.scope && key.namespaces.front() == "a";
        EXPECT_EQ(r.body, !ns.empty() ? ns : own ? "a" : "default") << what;
      }
    }
  }
  EXPECT_EQ(tried, static_cast<int>(all_routes().size() * keys_.size() * 3));
}

}  // namespace
}  // namespace quire
