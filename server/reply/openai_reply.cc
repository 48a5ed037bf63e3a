#include "server/reply/openai_reply.h"

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "server/json/logprobs_json.h"
#include "server/reply/query_reply.h"

namespace quire {
namespace json = boost::json;

std::size_t TextOffsets::next(std::int32_t token_id) {
  const std::size_t begin = characters_;
  const std::string text = decoder_.push(token_id);
  characters_ += to_size(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80;
  }));
  return begin;
}

OpenAiFormat::OpenAiFormat(OpenAiKind kind, const QueryRecord& first, std::string fingerprint,
                           const Tokenizer& tokenizer)
    : kind_(kind),
      id_((kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-") + first.id),
      model_(first.model),
      fingerprint_(std::move(fingerprint)),
      created_(first.created_ms / 1000),
      tokenizer_(tokenizer) {}

json::object OpenAiFormat::completion_logprobs(std::span<const TokenLogprobs> logprobs,
                                               TextOffsets& text_offsets) const {
  json::array tokens, values, top, offsets;
  for (const TokenLogprobs& l : logprobs) {
    tokens.emplace_back(token_text(tokenizer_, l.chosen.token_id));
    values.emplace_back(static_cast<double>(l.chosen.logprob));
    json::object alternatives;
    for (const TokenLogprob& t : l.top)
      alternatives[token_text(tokenizer_, t.token_id)] = static_cast<double>(t.logprob);
    top.push_back(std::move(alternatives));
    offsets.emplace_back(text_offsets.next(l.chosen.token_id));
  }
  return json::object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(values)},
                      {"top_logprobs", std::move(top)},
                      {"text_offset", std::move(offsets)}};
}

json::value OpenAiFormat::logprobs_value(const std::vector<TokenLogprobs>* logprobs) const {
  if (!logprobs) return nullptr;
  if (kind_ == OpenAiKind::kCompletion) {
    TextOffsets offsets = text_offsets();
    return completion_logprobs(*logprobs, offsets);
  }
  return json::object{{"content", logprobs_json(tokenizer_, *logprobs)}, {"refusal", nullptr}};
}

json::object OpenAiFormat::opening_choice(std::size_t index) const {
  json::object c;
  c["index"] = index;
  if (kind_ == OpenAiKind::kChat)
    c["delta"] = json::object{{"role", "assistant"}, {"content", ""}};
  else
    c["text"] = "";
  c["logprobs"] = nullptr;
  c["finish_reason"] = nullptr;
  return c;
}

json::object OpenAiFormat::delta_choice(std::size_t index, std::string_view text,
                                        std::span<const TokenLogprobs> logprobs,
                                        TextOffsets* offsets) const {
  json::object c;
  c["index"] = index;
  if (kind_ == OpenAiKind::kChat)
    c["delta"] = json::object{{"content", text}};
  else
    c["text"] = text;
  if (logprobs.empty())
    c["logprobs"] = nullptr;
  else if (kind_ == OpenAiKind::kCompletion)
    c["logprobs"] = completion_logprobs(logprobs, *offsets);
  else
    c["logprobs"] = json::object{{"content", logprobs_json(tokenizer_, logprobs)},
                                 {"refusal", nullptr}};
  c["finish_reason"] = nullptr;
  return c;
}

json::object OpenAiFormat::call_choice(std::size_t index, std::size_t call_index,
                                       const ToolCall& call, bool begins,
                                       std::string_view arguments,
                                       std::span<const TokenLogprobs> logprobs) const {
  json::object function, o{{"index", call_index}};
  if (begins) {
    o["id"] = call.id;
    o["type"] = "function";
    function["name"] = call.name;
  }
  function["arguments"] = arguments;
  o["function"] = std::move(function);
  json::object c = delta_choice(index, "", logprobs, nullptr);
  c["delta"] = json::object{{"tool_calls", json::array{std::move(o)}}};
  return c;
}

json::array tool_calls_json(std::span<const ToolCall> calls) {
  json::array out;
  for (const ToolCall& call : calls)
    out.push_back(json::object{{"id", call.id},
                               {"type", "function"},
                               {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return out;
}

json::object OpenAiFormat::closing_choice(std::size_t index, const QueryRecord& record) const {
  json::object c;
  c["index"] = index;
  if (kind_ == OpenAiKind::kChat) {
    c["delta"] = json::object{{"citations", citations_json(record)}};
  } else {
    c["text"] = "";
    c["citations"] = citations_json(record);
  }
  c["logprobs"] = nullptr;
  c["finish_reason"] = record.finish_reason;
  return c;
}

json::object OpenAiFormat::whole_choice(std::size_t index, const QueryRecord& record,
                                        const std::vector<TokenLogprobs>* logprobs) const {
  json::object c;
  c["index"] = index;
  if (kind_ == OpenAiKind::kChat) {
    json::object message{{"role", "assistant"},
                         {"content", record.answer},
                         {"refusal", nullptr},
                         {"citations", citations_json(record)}};
    if (!record.tool_calls.empty()) {
      message["tool_calls"] = tool_calls_json(record.tool_calls);
      if (record.answer.empty()) message["content"] = nullptr;
    }
    c["message"] = std::move(message);
  } else {
    c["text"] = record.answer;
    c["citations"] = citations_json(record);
  }
  c["logprobs"] = logprobs_value(logprobs);
  c["finish_reason"] = record.finish_reason;
  return c;
}

json::object OpenAiFormat::envelope(std::string_view object, json::array choices) const {
  json::object o;
  o["id"] = id_;
  o["object"] = object;
  o["created"] = created_;
  o["model"] = model_;
  o["system_fingerprint"] = fingerprint_;
  o["choices"] = std::move(choices);
  return o;
}

json::object OpenAiFormat::chunk(json::array choices) const {
  json::object o = envelope(
      kind_ == OpenAiKind::kChat ? "chat.completion.chunk" : "text_completion", std::move(choices));
  o["usage"] = nullptr;
  return o;
}

json::object OpenAiFormat::whole(json::array choices) const {
  return envelope(kind_ == OpenAiKind::kChat ? "chat.completion" : "text_completion",
                  std::move(choices));
}

json::object openai_usage_json(std::span<const std::shared_ptr<QueryRecord>> records,
                               std::size_t samples) {
  QueryRecord sum;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const QueryRecord& r = *records[i];
    sum.stats.completion_tokens += r.stats.completion_tokens;
    sum.stats.written_tokens += r.stats.written_tokens;
    if (i % samples != 0) continue;
    sum.plan.prompt_tokens += r.plan.prompt_tokens;
    sum.plan.fates.reused += r.plan.fates.reused;
    sum.plan.fates.recomputed += r.plan.fates.recomputed;
    sum.plan.fates.computed += r.plan.fates.computed;
    sum.plan.fates.dropped += r.plan.fates.dropped;
  }
  return usage_json(sum);
}

}  // namespace quire
