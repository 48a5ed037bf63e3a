#include "server/support/problem.h"

#include <gtest/gtest.h>

#include <set>

#include "base/json_parse.h"
#include "server/support/http_status.h"

namespace quire {
namespace {

TEST(Problem, BodyHasBothForms) {
  Problem p = make_problem("document_not_ready", "handbook-7 is at 40%", "document_ids[0]");
  p.extra["job_id"] = "job_1";
  p.retry_after_ms = 1500;
  const auto r = problem_response(p, ErrorStyle::kNative, "/v1/query", "req_1");
  EXPECT_EQ(r.status, 409);
  EXPECT_EQ(r.content_type, "application/problem+json");
  EXPECT_EQ(r.headers.get("Retry-After"), "2");
  EXPECT_EQ(r.headers.get("retry-after-ms"), "1500");
  const auto body = parse_json(r.body);
  ASSERT_TRUE(body.ok());
  const auto& o = body->as_object();
  EXPECT_EQ(o.at("type").as_string(), "urn:quire:error:document_not_ready");
  EXPECT_EQ(o.at("status").as_int64(), 409);
  EXPECT_EQ(o.at("detail").as_string(), "handbook-7 is at 40%");
  EXPECT_EQ(o.at("instance").as_string(), "/v1/query");
  EXPECT_EQ(o.at("request_id").as_string(), "req_1");
  EXPECT_EQ(o.at("job_id").as_string(), "job_1");
  const auto& e = o.at("error").as_object();
  EXPECT_EQ(e.at("code").as_string(), "document_not_ready");
  EXPECT_EQ(e.at("type").as_string(), "conflict_error");
  EXPECT_EQ(e.at("param").as_string(), "document_ids[0]");
}

TEST(Problem, HeadersFollowTheCode) {
  const auto response = [](const char* code) {
    return problem_response(make_problem(code, "x"), ErrorStyle::kOpenAi, "/", "r");
  };
  EXPECT_EQ(response("missing_api_key").headers.get("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(response("document_exists").headers.get("x-should-retry"), "false");
  EXPECT_EQ(response("request_cancelled").status, 409);
  EXPECT_EQ(response("request_cancelled").headers.get("x-should-retry"), "false");
  EXPECT_EQ(response("cache_full").status, 507);
  EXPECT_EQ(response("overloaded").headers.count("Retry-After"), 1u);
  EXPECT_EQ(response("invalid_json").headers.count("Retry-After"), 0u);
  EXPECT_EQ(response("invalid_json").content_type, "application/json");
}

TEST(Problem, EveryCodeOfTheStatusTableExists) {
  for (int i = 1; i <= static_cast<int>(Code::kInternal); ++i) {
    const HttpError e = http_error_of(static_cast<Code>(i));
    EXPECT_EQ(problem_kind(e.code).code, e.code) << i;
    EXPECT_EQ(problem_kind(e.code).status, e.status) << e.code;
  }
  std::set<std::string_view> seen;
  for (const auto& k : problem_kinds()) EXPECT_TRUE(seen.insert(k.code).second) << k.code;
}

TEST(Problem, ANameThatWasCutInsideACharacterIsStillText) {
  const std::string name = "caf\xC3\xA9";
  const std::string cut = name.substr(0, 4);
  const std::string wrong = "there is no '" + cut + "' here, \xE2\x82";
  for (const Problem& p :
       {make_problem("job_not_found", wrong, cut), problem_of(Status(Code::kNotFound, wrong, cut)),
        problem_of(JsonError{"invalid_value", wrong, cut})}) {
    EXPECT_EQ(p.detail, "there is no 'caf' here, ");
    EXPECT_EQ(p.param, "caf");
  }
  EXPECT_EQ(make_problem("job_not_found", name).detail, name);
}

TEST(Problem, DetailsHaveTheirSubject) {
  const auto detail = [](const char* field, const char* message) {
    return problem_of(Status::invalid(field, message)).detail;
  };
  EXPECT_EQ(detail("chunking.max_tokens", "must be at least 16, not 4"),
            "chunking.max_tokens must be at least 16, not 4");
  EXPECT_EQ(detail("cache_salt", "is not valid UTF-8"), "cache_salt is not valid UTF-8");
  EXPECT_EQ(detail("chunking.overlap_tokens", "only strategy tokens overlaps; use 0"),
            "chunking.overlap_tokens: only strategy tokens overlaps; use 0");
  EXPECT_EQ(detail("k", "k must be 1 to 100"), "k must be 1 to 100");
  EXPECT_EQ(detail("", "must be small"), "must be small");
}

TEST(Problem, InternalErrorsShowNothingInner) {
  const auto p = problem_of(Status::internal("secret path /etc/x"));
  EXPECT_EQ(p.detail.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace quire
