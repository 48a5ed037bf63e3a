#include "server/service/route_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace quire {
namespace {

RouteMatch match(const std::string& method, std::vector<std::string> path) {
  static const RouteTable table(all_routes());
  return table.match(method, path);
}

TEST(RouteTable, FindsRoutesAndParameters) {
  const auto m = match("GET", {"v1", "documents", "a:b", "content"});
  ASSERT_NE(m.route, nullptr);
  EXPECT_EQ(m.route->endpoint, "document_content");
  EXPECT_EQ(m.params, (PathParams{{"id", "a:b"}}));
}

TEST(RouteTable, AliasesAreTheSameRoutes) {
  EXPECT_EQ(match("POST", {"documents"}).route, match("POST", {"v1", "documents"}).route);
  EXPECT_EQ(match("POST", {"query"}).route, match("POST", {"v1", "query"}).route);
  EXPECT_EQ(match("GET", {"documents", "x"}).route, match("GET", {"v1", "documents", "x"}).route);
  EXPECT_EQ(match("GET", {"jobs"}).route, nullptr);
}

TEST(RouteTable, FixedSegmentsBeatParameters) {
  EXPECT_EQ(match("POST", {"v1", "documents", "delete"}).route->endpoint, "documents_delete");
  const auto m = match("GET", {"v1", "documents", "delete"});
  EXPECT_EQ(m.route, nullptr);
  EXPECT_EQ(m.allowed.front(), "POST");
}

TEST(RouteTable, HeadIsGetAndAllowIsComplete) {
  EXPECT_EQ(match("HEAD", {"livez"}).route, match("GET", {"livez"}).route);
  const auto m = match("TRACE", {"v1", "documents", "x"});
  EXPECT_EQ(m.route, nullptr);
  const std::set<std::string_view> allowed(m.allowed.begin(), m.allowed.end());
  EXPECT_EQ(allowed,
            (std::set<std::string_view>{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}));
  EXPECT_TRUE(match("GET", {"nothing"}).allowed.empty());
  EXPECT_TRUE(match("GET", {""}).allowed.empty());
  ASSERT_TRUE(match("GET", {}).route);
  EXPECT_EQ(match("GET", {}).route->pattern, "/");
}

TEST(RouteTable, EveryRouteIsComplete) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const auto& r : all_routes()) {
    EXPECT_NE(r.handler, nullptr) << r.pattern;
    EXPECT_FALSE(r.endpoint.empty() || r.summary.empty()) << r.pattern;
    EXPECT_TRUE(r.public_path || r.scope != Scope::kNone) << r.pattern << " needs a scope";
    EXPECT_TRUE(seen.emplace(r.method, r.pattern).second) << r.pattern << " stands twice";
  }
}

}  // namespace
}  // namespace quire
