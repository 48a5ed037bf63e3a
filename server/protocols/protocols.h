/// Handlers of other vendors' protocols. Each replies to its call exactly once, at once or later.
#pragma once

#include <memory>

#include "server/service/call.h"

namespace quire::handlers {

void anthropic_messages(std::shared_ptr<Call> call);
void anthropic_count_tokens(std::shared_ptr<Call> call);

void ollama_chat(std::shared_ptr<Call> call);
void ollama_generate(std::shared_ptr<Call> call);
void ollama_embed(std::shared_ptr<Call> call);
void ollama_embeddings(std::shared_ptr<Call> call);
void ollama_tags(std::shared_ptr<Call> call);
void ollama_ps(std::shared_ptr<Call> call);
void ollama_pull(std::shared_ptr<Call> call);
void ollama_show(std::shared_ptr<Call> call);
void ollama_version(std::shared_ptr<Call> call);

void mcp(std::shared_ptr<Call> call);

void openai_responses(std::shared_ptr<Call> call);

}  // namespace quire::handlers
