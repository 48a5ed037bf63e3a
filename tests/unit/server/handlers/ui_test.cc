// The web page over a real socket: what it is served with, and to whom.
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "server/http/gzip_reader.h"
#include "server/ui/pages.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

using testing::RawResponse;

class UiTest : public test::StubAppTest {
 protected:
  static std::string file(const std::string& name) {
    return "/ui/" + std::string(ui_version()) + "/" + name;
  }
  static std::string header(const RawResponse& r, const std::string& name) {
    return r.header(name).value_or("");
  }
};

TEST_F(UiTest, ThePageAndItsFilesComeWithTheirTypesAndAStrictPolicy) {
  for (const auto& [target, type] : std::vector<std::pair<std::string, std::string>>{
           {"/", "text/html; charset=utf-8"},
           {"/docs", "text/html; charset=utf-8"},
           {"/?utm_source=x", "text/html; charset=utf-8"},
           {file("app.js"), "text/javascript; charset=utf-8"},
           {file("base.css"), "text/css; charset=utf-8"},
           {file("icon.svg"), "image/svg+xml"}}) {
    const auto r = call("GET", target);
    EXPECT_EQ(r.status, 200) << target;
    EXPECT_EQ(header(r, "content-type"), type);
    EXPECT_EQ(header(r, "x-content-type-options"), "nosniff");
    EXPECT_EQ(header(r, "referrer-policy"), "no-referrer");
    EXPECT_EQ(header(r, "vary"), "Accept-Encoding");
    const std::string policy = header(r, "content-security-policy");
    for (const char* part :
         {"default-src 'self'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
          "object-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"})
      EXPECT_NE(policy.find(part), std::string::npos) << part;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
    EXPECT_FALSE(r.body.empty());
  }
  EXPECT_EQ(call("GET", "/").body, find_page("index.html")->text);
}

TEST_F(UiTest, FilesOfThisVersionAreKeptAndThePageIsAskedForAgain) {
  EXPECT_EQ(header(call("GET", "/"), "cache-control"), "no-cache");
  EXPECT_EQ(header(call("GET", file("dom.js")), "cache-control"),
            "public, max-age=31536000, immutable");
  const auto other = call("GET", "/ui/0123456789abcdef/dom.js");
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(header(other, "cache-control"), "no-cache");
  EXPECT_EQ(other.body, find_page("dom.js")->text);
}

TEST_F(UiTest, ATagThatTheBrowserHasIsAnswered304) {
  const auto first = call("GET", "/");
  const std::string tag = header(first, "etag");
  ASSERT_FALSE(tag.empty());
  for (const std::string& given : {tag, "W/" + tag, "\"x\", " + tag, std::string("*")}) {
    const auto r = call("GET", "/", {}, {"If-None-Match: " + given});
    EXPECT_EQ(r.status, 304) << given;
    EXPECT_TRUE(r.body.empty());
    EXPECT_EQ(header(r, "etag"), tag);
  }
  EXPECT_EQ(call("GET", "/", {}, {"If-None-Match: \"other\""}).status, 200);
  // The tag of the compressed page names no other bytes.
  EXPECT_EQ(call("GET", "/", {}, {"If-None-Match: " + tag, "Accept-Encoding: gzip"}).status, 200);
}

TEST_F(UiTest, ComesAsGzipToThoseWhoTakeIt) {
  const std::string text = find_page("app.js")->text;
  for (const char* accepts :
       {"gzip", "deflate, gzip;q=0.5, br", "*", "x-gzip", "identity;q=0, *;q=0.1"}) {
    const auto r = call("GET", file("app.js"), {}, {"Accept-Encoding: " + std::string(accepts)});
    ASSERT_EQ(header(r, "content-encoding"), "gzip") << accepts;
    std::string body;
    GzipReader reader;
    ASSERT_TRUE(reader
                    .feed(r.body,
                          [&](std::string_view piece) {
                            body.append(piece);
                            return true;
                          })
                    .ok());
    EXPECT_EQ(body, text);
    EXPECT_LT(r.body.size(), text.size());
  }
  for (const char* refuses : {"", "br", "gzip;q=0", "*;q=0", "gzip;q=0.000, *"}) {
    const auto r = call("GET", file("app.js"), {}, {"Accept-Encoding: " + std::string(refuses)});
    EXPECT_FALSE(r.header("content-encoding")) << refuses;
    EXPECT_EQ(r.body, text) << refuses;
  }
}

TEST_F(UiTest, CachesKeepWhatOriginsAndEncodingsGetApart) {
  Config config = *services.config();
  config.server.cors_origins = {"https://a.example"};
  services.set_config(config);
  const auto r = call("GET", "/", {}, {"Origin: https://a.example"});
  EXPECT_EQ(header(r, "vary"), "Accept-Encoding, Origin");
  EXPECT_EQ(header(call("GET", "/livez", {}, {"Origin: https://a.example"}), "vary"), "Origin");
}

TEST_F(UiTest, HeadHasTheHeadersAlone) {
  const auto get = call("GET", "/");
  const auto head = call("HEAD", "/");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.body.empty());
  for (const char* name : {"content-type", "content-length", "etag", "content-security-policy"})
    EXPECT_EQ(header(head, name), header(get, name)) << name;
  EXPECT_EQ(call("POST", "/", "{}").status, 405);
}

TEST_F(UiTest, IsServedWithoutAKeyWhileLoadingAndWhileDraining) {
  const auto ring = KeyRing::parse("[[keys]]\nname = \"k\"\nsha256 = \"" + sha256("secret").hex() +
                                       "\"\nscopes = [\"read\"]\n"
                                       "namespaces = [\"a\"]\n",
                                   "keys");
  ASSERT_TRUE(ring.ok()) << ring.status().message();
  services.set_keys(*ring);
  services.ready = false;
  services.draining = true;
  EXPECT_EQ(call("GET", "/v1/documents").status, 401);
  EXPECT_EQ(call("GET", "/").status, 200);
  EXPECT_EQ(call("GET", file("app.js")).status, 200);
}

TEST_F(UiTest, OffMeansThereIsNoPage) {
  Config config = *services.config();
  config.server.ui = false;
  services.set_config(config);
  for (const std::string& target : {std::string("/"), std::string("/docs"), file("app.js")}) {
    const auto r = call("GET", target);
    EXPECT_EQ(r.status, 404) << target;
    EXPECT_NE(r.body.find("server.ui is false"), std::string::npos);
    EXPECT_FALSE(r.header("content-security-policy"));
  }
}

TEST_F(UiTest, NothingButTheFilesOfThePageIsServed) {
  const std::string at = "/ui/" + std::string(ui_version());
  for (const std::string& target :
       {at + "/pages.cc", at + "/pages.h", at + "/", at, std::string("/ui"), std::string("/ui/"),
        at + "/../app.js", at + "/%2e%2e%2f%2e%2e%2fetc%2fpasswd", at + "/..%2Fapp.js",
        std::string("/ui/../../etc/passwd"), at + "/App.js", at + "/app.js/x"})
    EXPECT_EQ(call("GET", target).status, 404) << target;
}

}  // namespace
}  // namespace quire
