/// A server of the Model Context Protocol: tools for agents over the documents of a service.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace quire {

/// McpServer answers JSON-RPC messages. Its tools are `search`, `ask` and `ingest`.
///
/// Threads: any, if `post` may be called from any.
class McpServer {
 public:
  using Reply = std::function<void(const Result<boost::json::value>& body)>;
  /// Posts a body to a path of the service and calls `done` once with the reply's body, at once or
  /// later, on any thread.
  using Post =
      std::function<void(const std::string& path, const boost::json::object& body, Reply done)>;

  McpServer(Post post, std::string version)
      : post_(std::move(post)), version_(std::move(version)) {}

  /// Takes one message, or a batch of them (2025-03-26). Calls `done` once with the reply as one
  /// line without its end; nothing: no message wants one.
  using Done = std::function<void(std::optional<std::string> reply)>;
  void handle(std::string_view message, Done done) const;

  /// Returns whether this is a version of the protocol whose messages it reads and writes.
  static bool speaks(std::string_view version);

 private:
  using Answered = std::function<void(std::optional<boost::json::object> reply)>;
  struct Batch;

  static boost::json::object refusal(int code, std::string_view message);
  static void answer_next(const std::shared_ptr<Batch>& batch);
  void answer(const boost::json::value& message, Answered done) const;
  boost::json::object initialize(const boost::json::object& params) const;

  const Post post_;
  const std::string version_;
};

/// The messages of a batch that wait, and the replies to those before them.
struct McpServer::Batch {
  McpServer server;  // the one that took the batch may be gone
  boost::json::array messages;
  std::size_t next = 0;
  boost::json::array replies;
  Done done;
};

}  // namespace quire
