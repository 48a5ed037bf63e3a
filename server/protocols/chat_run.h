/// What the protocols of other vendors share: a conversation on its way to the engine.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/handlers/generation.h"
#include "server/json/query_request.h"
#include "server/service/call.h"

namespace quire {

/// Sets the defaults of a chat: the model's template, no citations, the policy of the service.
QueryBody chat_query(Call& call);

using MakeWriter = std::function<std::shared_ptr<ReplyWriter>(const Generation&)>;
/// Runs the conversation; `make` gets the prepared request.
void run_chat(std::shared_ptr<Call> call, QueryBody query, MakeWriter make);

/// Builds the prompt without running it and hands its length in tokens to `counted`.
void count_prompt(std::shared_ptr<Call> call, QueryBody query,
                  std::function<void(Call&, std::int64_t)> counted);

/// Returns the arguments of a call as JSON; {"arguments": text} where the model wrote no object.
boost::json::object arguments_object(const std::string& arguments);

}  // namespace quire
