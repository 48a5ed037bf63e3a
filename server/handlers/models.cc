#include <boost/json/array.hpp>

#include "cachestore/store.h"
#include "engine/compress/compressor.h"
#include "engine/encoder/text_encoder.h"
#include "engine/engine.h"
#include "engine/plan/strategy.h"
#include "engine/prompt/prompt_compressor.h"
#include "engine/retrieve/retriever.h"
#include "ingest/search/retrieval.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/openai_codec.h"
#include "server/json/retrieve_codec.h"
#include "server/json/text.h"
#include "server/support/version.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Windows of the model that POST /tokenize takes at once.
constexpr std::int64_t kMostWindows = 16;

/// `id` is the name that it is asked for by; empty: its own.
json::object model_json(const Services& services, const EngineInfo& info,
                        const std::string& id = {}) {
  json::object o;
  o["id"] = id.empty() ? info.model_name : id;
  o["object"] = "model";
  o["created"] = services.started_ms / 1000;
  o["owned_by"] = "quire";
  o["max_model_len"] = info.max_model_len;
  json::object meta;
  meta["fingerprint"] = info.fingerprint;
  meta["type"] = info.model_type;
  meta["parameters"] = info.num_parameters;
  meta["weights"] = info.weights_format;
  meta["kv_dtype"] = info.kv_dtype;
  meta["kv_bytes_per_token"] = info.kv_bytes_per_token;
  meta["memory_bytes"] = info.memory_bytes;
  meta["layers"] = info.config.num_layers;
  meta["hidden_size"] = info.config.hidden_size;
  meta["heads"] = info.config.num_heads;
  meta["kv_heads"] = info.config.num_kv_heads;
  meta["vocab_size"] = info.config.vocab_size;
  meta["draft"] = !info.draft_path.empty();
  meta["draft_kv_bytes_per_token"] = info.draft_kv_bytes_per_token;
  meta["retrieval_head"] = !info.retrieval_head_path.empty();
  json::array heads;
  for (const SelectionHeads::Head& h : info.selection_heads.heads)
    heads.emplace_back(std::to_string(h.layer) + "." + std::to_string(h.head));
  meta["selection_heads"] = std::move(heads);
  meta["citations_calibrated"] = info.citation_confidence.has_value();
  o["meta"] = std::move(meta);
  return o;
}

bool speaks_anthropic(const Call& call) {
  return !call.request().headers.get("anthropic-version").empty();
}

/// Returns a model as model_json() does, for a client of Anthropic's API with what it reads
/// besides.
json::object model_for(const Call& call, const EngineInfo& info, const std::string& id = {}) {
  json::object o = model_json(call.services, info, id);
  if (!speaks_anthropic(call)) return o;
  o["type"] = "model";
  o["display_name"] = o["id"];
  o["created_at"] = rfc3339(call.services.started_ms);
  o["lifecycle"] = "active";
  return o;
}

/// A further model, and what of the service's information it has of its own.
json::object further_json(const Services& services, const ServedModel& model) {
  const EngineLoad load = model.engine->load();
  json::object o;
  o["model"] = model_json(services, model.engine->info());
  o["prompt_format"] = prompt_family_name(model.engine->prompt_format().family());
  o["tokenizer"] = model.engine->tokenizer().description();
  o["fidelity"] = model.fidelity->info(services.config()->policy.shadow_ratio);
  o["measured"] = json::object{
      {"prefill_tokens_per_second", rounded(load.prefill_tokens_per_second, 1)},
      {"decode_tokens_per_second", rounded(load.decode_tokens_per_second, 1)}};
  return o;
}

json::object encoder_json(const EncoderInfo& info) {
  return {
      {"name", info.name},           {"fingerprint", "e-" + info.fingerprint.hex().substr(0, 8)},
      {"dimension", info.dimension}, {"max_tokens", info.max_tokens},
      {"weights", info.weights},     {"memory_bytes", info.bytes}};
}

json::array names(const std::vector<std::string>& list) {
  json::array out;
  for (const auto& n : list) out.emplace_back(n);
  return out;
}

json::object option_json(const PlugOption& option) {
  json::object o;
  o["default"] = option.default_value;
  if (option.values.empty()) {
    o["min"] = option.least;
    o["max"] = option.most;
  } else {
    json::array values;
    for (const auto v : option.values) values.emplace_back(v);
    o["values"] = std::move(values);
  }
  o["summary"] = option.summary;
  return o;
}

json::object options_json(std::span<const std::span<const PlugOption>> tables) {
  json::object out;
  for (const auto table : tables) {
    for (const PlugOption& option : table) out[option.name] = option_json(option);
  }
  return out;
}

/// Every strategy with what cache.options may name under it.
json::array strategies_json() {
  json::array out;
  for (const Strategy& s : strategies()) {
    json::object o;
    o["name"] = s.name;
    o["summary"] = s.summary;
    o["selector"] = s.selector;
    o["recomputer"] = s.recomputer;
    o["same_as_recompute"] = s.same_as_recompute;
    o["takes_keep_ratio"] = s.takes_keep_ratio;
    o["takes_recompute_ratio"] = s.takes_recompute_ratio;
    const auto tables = option_tables(s, {});
    o["options"] = options_json(tables);
    out.push_back(std::move(o));
  }
  return out;
}

/// Every compressor with what cache.options may name under it.
json::array compressors_json() {
  json::array out;
  for (const std::string& name : compressors().names()) {
    const std::span<const PlugOption> table = compressors().options(name);
    out.push_back(json::object{{"name", name}, {"options", options_json(std::span(&table, 1))}});
  }
  return out;
}

/// Every method that shortens prompts with what cache.prompt_compression may name beside it.
json::array prompt_compressors_json() {
  json::array out;
  for (const std::string& name : prompt_compressors().names()) {
    const std::span<const PlugOption> table = prompt_compressors().options(name);
    out.push_back(json::object{{"name", name}, {"options", options_json(std::span(&table, 1))}});
  }
  return out;
}

/// Chooses the model that a body names. A service with one model knows its tokens by any name, as
/// clients of other servers send theirs. Returns false if the call was failed.
bool choose_named(Call& call, const json::value& body) {
  const std::string name = named_model(body);
  if (!call.services.further.empty()) return choose_model(call, name);
  peek_model(call, name);
  return true;
}

}  // namespace

namespace handlers {

void list_models(std::shared_ptr<Call> call) {
  json::object o;
  o["object"] = "list";
  json::array data;
  for (const ServedModel& m : served_models(call->services)) {
    data.push_back(model_for(*call, m.engine->info()));
    for (const std::string& alias : m.config->model.aliases)
      data.push_back(model_for(*call, m.engine->info(), alias));
  }
  if (speaks_anthropic(*call)) {
    o["first_id"] = data.front().at("id");
    o["last_id"] = data.back().at("id");
    o["has_more"] = false;
  }
  o["data"] = std::move(data);
  call->reply_json(200, o);
}

void get_model(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  if (!choose_model(*call, id)) return;
  const ServedModel model = call->model();
  call->reply_json(200,
                   model_for(*call, model.engine->info(), id == "default" ? std::string() : id));
}

/// Returns the part about fidelity of the service's own model, which is the one that documents are
/// taken in for.
json::object own_fidelity(Services& s, const std::string& ns) {
  json::object o = s.fidelity->info(s.config()->policy.shadow_ratio);
  o["lead_in_by_default"] = lead_in_by_default(s, ns);
  return o;
}

void info(std::shared_ptr<Call> call) {
  Services& s = call->services;
  const auto config = s.config();
  json::object o;
  o["object"] = "info";
  o["version"] = version();
  o["build"] = build_description();
  o["started_at"] = rfc3339(s.started_ms);
  o["namespace"] = call->ns;
  o["model"] = model_json(s, s.engine->info());
  json::array further;
  for (const ServedModel& m : served_models(s))
    if (m.engine != s.engine) further.push_back(further_json(s, m));
  o["further_models"] = std::move(further);
  o["prompt_format"] = prompt_family_name(s.engine->prompt_format().family());
  o["tokenizer"] = s.engine->tokenizer().description();
  o["isa"] = s.engine->info().isa;
  o["backend"] = json::object{
      {"name", s.backend.name},
      {"device", s.backend.library == nullptr ? s.engine->info().isa : s.backend.cuda},
      {"gpus", s.backend.devices.size()},
      {"split_kv", s.backend.split_kv},
      {"cuda", s.backend.cuda}};
  if (const auto& memory = s.engine->info().device_memory) {
    o["backend"].as_object()["memory"] = json::object{
        {"left_bytes", memory->left_bytes},
        {"cache_bytes", memory->cache_bytes},
        {"compute_bytes", memory->compute_bytes},
        {"means_bytes", memory->means_bytes},
        {"retrieved_bytes", memory->retrieved_bytes},
        {"chunk_tokens", memory->chunk_tokens},
        {"decode_rows", memory->decode_rows},
        {"kv_dtype", s.engine->info().cached_kv_dtype}};
  }
  json::array strategy_names{"auto"};
  for (const auto& known : strategies()) strategy_names.emplace_back(known.name);
  o["strategies"] = std::move(strategy_names);
  o["strategy_details"] = strategies_json();
  o["compressors"] = names(compressors().names());
  o["compressor_details"] = compressors_json();
  o["prompt_compressors"] = names(prompt_compressors().names());
  o["prompt_compressor_details"] = prompt_compressors_json();
  o["retrievers"] = names(retrievers().names());
  json::object limits;
  limits["body_bytes"] = config->server.max_body_bytes;
  limits["documents_per_call"] = config->limits.documents_per_call;
  limits["document_tokens"] = config->limits.document_tokens;
  limits["metadata_bytes"] = 16 << 10;
  limits["id_bytes"] = kMaxIdBytes;
  limits["documents_per_query"] = config->limits.documents_per_query;
  limits["queue_depth"] = config->server.max_queue;
  limits["header_bytes"] = 16 << 10;
  limits["requests_per_minute"] = config->limits.requests_per_minute;
  limits["tokens_per_minute"] = config->limits.tokens_per_minute;
  limits["max_model_len"] = s.engine->info().max_model_len;
  o["limits"] = std::move(limits);
  o["fidelity"] = own_fidelity(s, call->ns);
  if (s.retrieval) {
    const RetrievalStats index = s.retrieval->stats();
    json::object r{{"ready", index.ready},
                   {"scorer", scorer_name(s.retrieval->default_scorer())},
                   {"documents", index.documents},
                   {"chunks", index.chunks},
                   {"left_out", index.left_out},
                   {"index_bytes", index.memory_bytes},
                   {"index_disk_bytes", index.disk_bytes}};
    if (const auto& e = index.embeddings) {
      r["embeddings"] = json::object{{"documents", e->documents},   {"chunks", e->chunks},
                                     {"pending", e->pending},       {"failed", e->failed},
                                     {"left_out", e->left_out},     {"bytes", e->memory_bytes},
                                     {"disk_bytes", e->disk_bytes}, {"exact", e->exact}};
    } else {
      r["embeddings"] = nullptr;
    }
    r["encoder"] = s.encoder ? encoder_json(s.encoder->info()) : json::value(nullptr);
    r["reranker"] = s.reranker ? encoder_json(s.reranker->info()) : json::value(nullptr);
    o["retrieval"] = std::move(r);
  }
  const EngineLoad load = s.engine->load();
  json::object speed;
  speed["prefill_tokens_per_second"] = rounded(load.prefill_tokens_per_second, 1);
  speed["decode_tokens_per_second"] = rounded(load.decode_tokens_per_second, 1);
  o["measured"] = std::move(speed);
  call->reply_json(200, o);
}

void version_info(std::shared_ptr<Call> call) {
  call->reply_json(
      200, json::object{{"version", version()}, {"name", "quire"}, {"build", build_description()}});
}

/// {"prompt"} | {"content"} | {"messages"}, as vLLM and llama.cpp name them.
void tokenize(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  if (!choose_named(*call, *body)) return;
  const auto& engine = *call->model().engine;
  JsonReader r(*body, "");
  std::string prompt, content, model;
  bool add_special = true;
  std::vector<ChatMessage> messages;
  if (r.ok()) {
    r.string("prompt", prompt);
    r.string("content", content);
    r.string("model", model);  // choose_named() has read it
    r.boolean("add_special_tokens", add_special);
    r.boolean("add_special", add_special);
    if (const auto* list = r.array("messages", 1, 1024)) {
      for (std::size_t i = 0; i < list->size() && r.ok(); ++i) {
        JsonReader m((*list)[i], "messages[" + std::to_string(i) + "]");
        ChatMessage message;
        if (m.ok()) read_openai_message(m, message);
        r.adopt(m.error());
        messages.push_back(std::move(message));
      }
    }
    const int given = static_cast<int>(r.has("prompt")) + static_cast<int>(r.has("content")) +
                      static_cast<int>(r.has("messages"));
    if (r.ok() && given != 1) r.fail("prompt", "give exactly one of prompt, content and messages");
    r.finish();
  }
  if (failed(*call, r.error())) return;
  // A little more than a window is counted, so that clients learn by how much a text is too long.
  TextBound bound(engine.tokenizer(), kMostWindows * engine.info().max_model_len);
  std::vector<std::string_view> texts = {prompt, content};
  for (const ChatMessage& message : messages) texts.push_back(message.content);
  for (const std::string_view text : texts) {
    if (const auto excess = bound.add(text))
      return call->fail(too_long_problem(*excess, "the text", "send it in parts",
                                         !messages.empty() ? "messages"
                                         : prompt.empty()  ? "content"
                                                           : "prompt"));
  }
  std::vector<std::int32_t> ids;
  if (!messages.empty()) {
    auto chat = engine.prompt_format().chat(messages);
    if (!chat.ok()) return call->fail(problem_of(chat.status()));
    ids = std::move(*chat);
  } else {
    const Tokenizer& t = engine.tokenizer();
    if (add_special && t.add_bos() && t.bos_id()) ids.push_back(*t.bos_id());
    const auto text = t.encode(prompt.empty() ? content : prompt);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  json::object o;
  o["count"] = ids.size();
  o["max_model_len"] = engine.info().max_model_len;
  o["tokens"] = json::array(ids.begin(), ids.end());
  call->reply_json(200, o);
}

void detokenize(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  if (!choose_named(*call, *body)) return;
  const Tokenizer& t = call->model().engine->tokenizer();
  JsonReader r(*body, "");
  std::string model;
  r.string("model", model);
  std::vector<std::int32_t> ids;
  const auto* list = r.ok() ? r.array("tokens", 0, 1 << 20) : nullptr;
  if (r.ok() && !list) r.fail("tokens", "tokens is missing; give an array of token ids");
  for (std::size_t i = 0; r.ok() && i < list->size(); ++i) {
    const auto& v = (*list)[i];
    const std::int64_t id = v.is_int64() ? v.get_int64() : -1;
    if (id < 0 || id >= t.vocab_size()) {
      r.fail("tokens[" + std::to_string(i) + "]",
             "tokens[" + std::to_string(i) + "] is no token id; they are integers from 0 to " +
                 std::to_string(t.vocab_size() - 1));
      break;
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  r.finish();
  if (failed(*call, r.error())) return;
  call->reply_json(200, json::object{{"prompt", t.decode(ids)}});
}

}  // namespace handlers
}  // namespace quire
