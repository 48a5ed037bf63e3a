/// A server of the Model Context Protocol: tools for agents over the documents of a service.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// McpServer answers JSON-RPC messages, one a line, as the stdio transport has them. Its tools are
/// `search`, `ask` and `ingest`.
///
/// Threads: one at a time.
class McpServer {
 public:
  /// Posts a body to a path of the service and returns the reply's body.
  using Post = std::function<Result<boost::json::value>(const std::string& path,
                                                        const boost::json::object& body)>;

  McpServer(Post post, std::string version)
      : post_(std::move(post)), version_(std::move(version)) {}

  /// Takes one message. Returns the reply as one line without its end; nothing: a notification.
  std::optional<std::string> handle(std::string_view line);

 private:
  boost::json::value result_of(std::string_view method, const boost::json::object& params);
  boost::json::object call_tool(const boost::json::object& params);
  Result<std::string> search(const boost::json::object& arguments);
  Result<std::string> ask(const boost::json::object& arguments);
  Result<std::string> ingest(const boost::json::object& arguments);

  const Post post_;
  const std::string version_;
};

}  // namespace quire
