#include "server/protocols/chat_run.h"

#include <boost/json.hpp>
#include <utility>

#include "base/index.h"
#include "base/json_parse.h"
#include "engine/engine.h"
#include "server/handlers/common.h"

namespace quire {
namespace json = boost::json;
namespace {

std::shared_ptr<Generation> generation_of(std::shared_ptr<Call> call, QueryBody query) {
  auto g = std::make_shared<Generation>();
  g->body = std::move(query);
  g->ready_by = g->deadline = call->start + kAnswerTime;
  g->call = std::move(call);
  return g;
}

}  // namespace

QueryBody chat_query(Call& call) {
  const QueryDefaults defaults = query_defaults(call);
  QueryBody q;
  q.cache.strategy = defaults.strategy;
  q.cache.compress = defaults.compress;
  q.cache.decode = defaults.decode;
  q.chat_template = true;
  q.citations = false;
  q.sampling.temperature = 1;
  q.sampling.max_tokens = static_cast<std::int32_t>(call.model().engine->info().max_model_len);
  q.sampling.max_tokens_asked = false;
  return q;
}

void run_chat(std::shared_ptr<Call> call, QueryBody query, MakeWriter make) {
  auto g = generation_of(std::move(call), std::move(query));
  g->on_prepared = [make = std::move(make)](std::shared_ptr<Generation> prepared) {
    run_choices(*prepared, make(*prepared));
  };
  prepare(std::move(g));
}

void count_prompt(std::shared_ptr<Call> call, QueryBody query,
                  std::function<void(Call&, std::int64_t)> counted) {
  auto g = generation_of(std::move(call), std::move(query));
  g->touches_documents = false;
  g->on_prepared = [counted = std::move(counted)](std::shared_ptr<Generation> prepared) {
    const QueryRequest& q = prepared->requests.front();
    std::int64_t tokens = count_of(q.prefix_ids) + count_of(q.suffix_ids);
    for (const QueryContext& c : q.contexts) tokens += count_of(c.token_ids);
    counted(*prepared->call, tokens);
  };
  prepare(std::move(g));
}

json::object arguments_object(const std::string& arguments) {
  json::value parsed;
  if (!parse_json(arguments, parsed, {.repeated_keys = true}) && parsed.is_object())
    return std::move(parsed.get_object());
  return {{"arguments", arguments}};
}

}  // namespace quire
