/// Collects the turns of a conversation in another vendor's protocol.
#pragma once

#include <cstddef>
#include <string>

#include "server/json/query_request.h"

namespace quire {

/// A body of one of these protocols on the way to its QueryBody, which must outlive this.
struct ChatBuilder {
  QueryBody& query;

  /// Adds a message that stands at `index` of the client's list.
  void add(ChatMessage message, std::size_t index);
  /// Adds a system message; several are joined by an empty line.
  void add_system(std::string text, std::string param);
};

}  // namespace quire
