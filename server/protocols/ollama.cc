#include <bit>
#include <boost/json.hpp>
#include <mutex>
#include <utility>

#include "base/index.h"
#include "base/json_parse.h"
#include "base/sha256.h"
#include "engine/encoder/text_encoder.h"
#include "engine/gguf/gguf.h"
#include "server/handlers/common.h"
#include "server/json/text.h"
#include "server/protocols/chat_run.h"
#include "server/protocols/ollama_request.h"
#include "server/protocols/protocols.h"
#include "server/reply/cache_reply.h"
#include "server/support/version.h"

namespace quire {
namespace json = boost::json;
namespace {

std::int64_t nanoseconds(double ms) { return static_cast<std::int64_t>(ms * 1e6); }

enum class OllamaKind : unsigned char { kChat, kGenerate };

/// What one object of an answer says; `text` is the part of the answer that it adds.
json::object answer_object(OllamaKind kind, const std::string& model, std::string_view text,
                           json::array calls, bool done) {
  json::object o{{"model", model}, {"created_at", rfc3339(unix_ms_now())}};
  if (kind == OllamaKind::kGenerate) {
    o["response"] = text;
  } else {
    json::object message{{"role", "assistant"}, {"content", text}};
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    o["message"] = std::move(message);
  }
  o["done"] = done;
  return o;
}

EmbeddingBody embedding_body(OllamaEmbed& wanted) {
  EmbeddingBody body;
  body.model = wanted.model;
  for (std::string& text : wanted.inputs) body.inputs.emplace_back(std::move(text));
  return body;
}

/// Writes one object, or one a line. Calls of tools come whole.
class OllamaReply final : public ReplyWriter {
 public:
  OllamaReply(const Generation& g, OllamaKind kind)
      : call_(g.call), record_(g.records.front()), stream_(g.body.stream), kind_(kind) {}

  void planned(std::size_t) override {
    std::lock_guard lock(mu_);
    if (!stream_ || failed_) return;
    HttpResponse r;
    r.content_type = "application/x-ndjson";
    r.headers.set("X-Cache", std::string(cache_header(record_->plan)));
    call_->add_standard_headers(r.headers);
    call_->exchange->start_stream(std::move(r));
    started_ = true;
  }

  bool text(std::size_t, std::string_view text, std::vector<TokenLogprobs>) override {
    std::lock_guard lock(mu_);
    if (!stream_) return true;
    if (failed_) return false;
    return line(object(text, {}, false));
  }

  bool tool_call(std::size_t, const ToolDelta&, std::vector<TokenLogprobs>) override {
    return true;
  }

  void finished(std::size_t, const Status& status) override {
    std::lock_guard lock(mu_);
    if (!status.ok()) return fail(answer_problem(status, *record_, *call_->model().engine));
    const QueryRecord& r = *record_;
    json::object last = object(stream_ ? std::string_view() : r.answer, calls(), true);
    last["done_reason"] = r.finish_reason == "length" ? "length" : "stop";
    last["total_duration"] = nanoseconds(r.total_ms);
    last["load_duration"] = 0;
    last["prompt_eval_count"] = r.plan.prompt_tokens;
    last["prompt_eval_duration"] = nanoseconds(r.stats.ttft_ms);
    last["eval_count"] = r.stats.completion_tokens;
    last["eval_duration"] = nanoseconds(r.stats.decode_ms);
    if (!stream_) return call_->reply_json(200, last);
    (void)line(last);
    call_->exchange->finish();
  }

 private:
  json::array calls() const {
    json::array out;
    for (const ToolCall& call : record_->tool_calls)
      out.push_back(json::object{
          {"function", {{"name", call.name}, {"arguments", arguments_object(call.arguments)}}}});
    return out;
  }

  json::object object(std::string_view text, json::array calls, bool done) const {
    return answer_object(kind_, record_->model, text, std::move(calls), done);
  }

  bool line(const json::object& o) { return call_->exchange->write(to_text(o) + "\n"); }

  void fail(const Problem& problem) {
    failed_ = true;
    if (!started_) return call_->fail(problem);
    call_->add_log("error_code", problem.code);
    (void)line({{"error", problem.detail}});
    call_->exchange->finish();
  }

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const bool stream_;
  const OllamaKind kind_;
  std::mutex mu_;
  bool started_ = false, failed_ = false;  // guarded by mu_
};

/// Parses the body. The protocol's own examples name no media type.
std::optional<json::value> body_of(Call& call) {
  return body_json(call, MediaTypes::kAnyOutsideBrowsers);
}

bool is_served(Call& call, const std::string& model) {
  if (call.choose_model(model)) return true;
  call.fail(make_problem("model_not_found",
                         "there is no model '" + model + "'; this service has " +
                             model_names(call.services) +
                             ", and 'quire serve -m hf:ORG/REPO' fetches and serves another",
                         "model"));
  return false;
}

/// Returns whether there is something of this name that embeds texts. False: the call was failed.
bool embeds(Call& call, const std::string& model) {
  const auto& encoder = call.services.encoder;
  return (encoder && model == encoder->info().name) || is_served(call, model);
}

/// Ollama's clients have a model loaded by asking nothing of it. This one always is.
void reply_loaded(Call& call, const std::string& model, OllamaKind kind) {
  if (!is_served(call, model)) return;
  json::object o = answer_object(kind, call.model().name(), "", {}, true);
  o["done_reason"] = "load";
  call.reply_json(200, o);
}

void generate(std::shared_ptr<Call> call, OllamaKind kind) {
  const auto parsed = body_of(*call);
  if (!parsed) return;
  peek_model(*call, untagged(named_model(*parsed)));
  QueryBody query = chat_query(*call);
  query.sampling.temperature = 0.8f;  // the protocol's default
  const auto error = kind == OllamaKind::kChat ? read_ollama_chat(*parsed, query)
                                               : read_ollama_generate(*parsed, query);
  if (failed(*call, error)) return;
  if (query.messages.empty() && query.prompts.empty())
    return reply_loaded(*call, query.model, kind);
  run_chat(std::move(call), std::move(query),
           [kind](const Generation& g) { return std::make_shared<OllamaReply>(g, kind); });
}

bool is_gguf(const std::string& model_path) {
  const auto file = find_gguf(model_path);
  return file.ok() && file->has_value();
}

/// What the protocol says of a model in lists.
json::object details(const EngineInfo& info) {
  return {{"parent_model", ""},
          {"format", is_gguf(info.model_path) ? "gguf" : "safetensors"},
          {"family", info.model_type},
          {"families", json::array{json::value(info.model_type)}},
          {"parameter_size", std::to_string(info.num_parameters / 1'000'000) + "M"},
          {"quantization_level", info.weights_format}};
}

json::object listed(const Services& s, const EngineInfo& info) {
  return {{"name", info.model_name},
          {"model", info.model_name},
          {"modified_at", rfc3339(s.started_ms)},
          {"size", info.memory_bytes},
          {"digest", std::bit_cast<Digest>(info.fingerprint_digest).hex()},
          {"details", details(info)}};
}

}  // namespace

namespace handlers {

void ollama_chat(std::shared_ptr<Call> call) { generate(std::move(call), OllamaKind::kChat); }
void ollama_generate(std::shared_ptr<Call> call) {
  generate(std::move(call), OllamaKind::kGenerate);
}

void ollama_tags(std::shared_ptr<Call> call) {
  json::array models;
  for (const ServedModel& m : served_models(call->services))
    models.push_back(listed(call->services, m.engine->info()));
  call->reply_json(200, json::object{{"models", std::move(models)}});
}

void ollama_ps(std::shared_ptr<Call> call) {
  json::array models;
  for (const ServedModel& m : served_models(call->services)) {
    const EngineInfo& info = m.engine->info();
    json::object model = listed(call->services, info);
    model.erase("modified_at");
    model["size_vram"] = 0;
    model["expires_at"] = "9999-12-31T00:00:00.000Z";  // it is never unloaded
    model["context_length"] = info.max_model_len;
    models.push_back(std::move(model));
  }
  call->reply_json(200, json::object{{"models", std::move(models)}});
}

void ollama_show(std::shared_ptr<Call> call) {
  const auto parsed = body_of(*call);
  if (!parsed) return;
  std::string model;
  if (failed(*call, read_ollama_show(*parsed, model)) || !is_served(*call, model)) return;
  const ServedModel served = call->model();
  const EngineInfo& info = served.engine->info();
  const std::string& type = info.model_type;
  json::object facts{{"general.architecture", type},
                     {"general.parameter_count", info.num_parameters},
                     {type + ".context_length", info.max_model_len},
                     {type + ".embedding_length", info.config.hidden_size},
                     {type + ".block_count", info.config.num_layers},
                     {type + ".attention.head_count", info.config.num_heads},
                     {type + ".attention.head_count_kv", info.config.num_kv_heads}};
  json::array capabilities{"completion", "tools"};
  call->reply_json(200, json::object{{"modelfile", ""},
                                     {"parameters", ""},
                                     {"template", ""},
                                     {"details", details(info)},
                                     {"model_info", std::move(facts)},
                                     {"capabilities", std::move(capabilities)},
                                     {"modified_at", rfc3339(call->services.started_ms)}});
}

/// A model that is served is there already; another one takes another service.
void ollama_pull(std::shared_ptr<Call> call) {
  const auto parsed = body_of(*call);
  if (!parsed) return;
  OllamaPull wanted;
  if (failed(*call, read_ollama_pull(*parsed, wanted)) || !is_served(*call, wanted.model)) return;
  const json::object success{{"status", "success"}};
  if (!wanted.stream) return call->reply_json(200, success);
  HttpResponse r;
  r.content_type = "application/x-ndjson";
  r.body = to_text(json::object{{"status", "pulling manifest"}}) + "\n" + to_text(success) + "\n";
  call->add_standard_headers(r.headers);
  call->exchange->respond(std::move(r));
}

void ollama_embed(std::shared_ptr<Call> call) {
  const auto parsed = body_of(*call);
  if (!parsed) return;
  OllamaEmbed wanted;
  if (failed(*call, read_ollama_embed(*parsed, wanted))) return;
  if (wanted.inputs.empty()) {
    if (!embeds(*call, wanted.model)) return;
    return call->reply_json(200,
                            json::object{{"model", wanted.model}, {"embeddings", json::array()}});
  }
  const auto started = call->start;
  embed_inputs(
      std::move(call), embedding_body(wanted),
      wanted.truncate ? LongTexts::kCut : LongTexts::kRefuse,
      [started](const std::vector<std::vector<float>>& vectors, const std::string& model,
                std::int64_t tokens) {
        json::array all;
        for (const auto& v : vectors) all.push_back(json::array(v.begin(), v.end()));
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() -
                                                               started;
        return json::object{{"model", model},
                            {"embeddings", std::move(all)},
                            {"total_duration", nanoseconds(took.count())},
                            {"load_duration", 0},
                            {"prompt_eval_count", tokens}};
      });
}

void ollama_embeddings(std::shared_ptr<Call> call) {
  const auto parsed = body_of(*call);
  if (!parsed) return;
  OllamaEmbed wanted;
  if (failed(*call, read_ollama_embeddings(*parsed, wanted))) return;
  if (wanted.inputs.empty()) {
    if (!embeds(*call, wanted.model)) return;
    return call->reply_json(200, json::object{{"embedding", json::array()}});
  }
  embed_inputs(
      std::move(call), embedding_body(wanted), LongTexts::kCut,
      [](const std::vector<std::vector<float>>& vectors, const std::string&, std::int64_t) {
        const std::vector<float>& v = vectors.front();
        return json::object{{"embedding", json::array(v.begin(), v.end())}};
      });
}

void ollama_version(std::shared_ptr<Call> call) {
  call->reply_json(200, json::object{{"version", version()}});
}

}  // namespace handlers
}  // namespace quire
