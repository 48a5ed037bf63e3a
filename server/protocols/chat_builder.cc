#include "server/protocols/chat_builder.h"

#include <utility>

namespace quire {

void ChatBuilder::add(ChatMessage message, std::size_t index) {
  query.messages.push_back(std::move(message));
  query.message_index.push_back(index);
}

void ChatBuilder::add_system(std::string text, std::string param) {
  if (!query.system) query.system_param = std::move(param);
  query.system = query.system ? *query.system + "\n\n" + text : std::move(text);
}

}  // namespace quire
