/// A service around a stub engine, for tests of the protocols of other vendors.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "base/json_parse.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"

namespace quire::test {

namespace json = boost::json;
using testing::RawResponse;

class ProtocolsTest : public StubAppTest {
 protected:
  RawResponse post(const std::string& path, const std::string& body) {
    return call("POST", path, body);
  }
  static json::object object(const std::string& text) {
    auto v = parse_json(text);
    EXPECT_TRUE(v.ok() && v->is_object()) << text;
    return v.ok() && v->is_object() ? v->as_object() : json::object();
  }
  /// Returns the events of a stream, and checks that each is named like its type.
  static std::vector<json::object> events(const std::string& body) {
    std::vector<json::object> out;
    for (std::size_t at = 0; at < body.size();) {
      const auto end = body.find("\n\n", at), line = body.find('\n', at);
      EXPECT_TRUE(body.compare(at, 7, "event: ") == 0 && end != std::string::npos);
      if (end == std::string::npos) break;
      out.push_back(object(body.substr(line + 7, end - line - 7)));
      EXPECT_EQ(out.back().at("type").as_string(), body.substr(at + 7, line - at - 7));
      at = end + 2;
    }
    return out;
  }
  static std::string types(const std::vector<json::object>& all) {
    std::string out;
    for (const auto& e : all) out += std::string(e.at("type").as_string()) + " ";
    return out;
  }
  void answer_with_a_call() {
    engine.pieces = {"Wait.", " <tool_call>{\"name\": \"add\", ", "\"arguments\": {\"a\"",
                     ": 1}}</tool_call>"};
  }
};

inline const char* const kAnthropicTool =
    R"(,"tools":[{"name":"add","input_schema":{"type":"object","properties":{"a":{"type":)"
    R"("integer"}},"required":["a"]}}])";

/// Returns a body of POST /v1/messages with `more` members.
inline std::string anthropic(const std::string& more) {
  return R"({"model":"default","max_tokens":9,"messages":[{"role":"user","content":"Hi"}])" + more +
         "}";
}

}  // namespace quire::test
