#include "server/protocols/ollama_request.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sample/json_schema_grammar.h"
#include "server/chat/answer_form.h"
#include "server/chat/tool_codec.h"
#include "server/json/text.h"
#include "server/protocols/chat_builder.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostInputs = 2048;

/// Many clients write 1.0 as 1.
bool is_same(const json::value& a, const json::value& b) {
  return a == b ||
         (a.is_number() && b.is_number() && a.to_number<double>() == b.to_number<double>());
}

void refuse(JsonReader& r, std::string_view member, const json::value& harmless = nullptr) {
  const auto* v = r.raw(member);
  if (!v || is_same(*v, harmless) || (v->is_array() && v->get_array().empty()) ||
      (v->is_object() && v->get_object().empty()) || (v->is_string() && v->get_string().empty()))
    return;
  r.fail(member, r.path_of(member) + " is not supported; leave it out", "unsupported_parameter");
}

void read_options(JsonReader& r, SamplingOptions& out) {
  const auto* given = r.object("options");
  if (!given || !r.ok()) return;
  JsonReader o(*given, "options");
  double temperature = out.temperature, top_p = 1, min_p = 0, repeat = 1, presence = 0,
         frequency = 0;
  std::int64_t top_k = 0, seed = 0, length = out.max_tokens, unused = 0;
  o.number("temperature", temperature, 0, 2);
  o.number("top_p", top_p, 0.0001, 1);
  o.number("min_p", min_p, 0, 1);
  o.number("repeat_penalty", repeat, 0.01, 10);
  o.number("presence_penalty", presence, -2, 2);
  o.number("frequency_penalty", frequency, -2, 2);
  o.integer("top_k", top_k, -1, 1 << 20);
  if (o.has("seed")) {
    o.integer("seed", seed, std::numeric_limits<std::int64_t>::min(),
              std::numeric_limits<std::int64_t>::max());
    // -1 is the protocol's default, and lets chance decide.
    if (seed != -1) out.seed = static_cast<std::uint64_t>(seed);
  }
  o.integer("num_predict", length, -2, std::numeric_limits<std::int32_t>::max());
  if (o.ok() && length == 0) o.fail("num_predict", "options.num_predict is 0; it must be above 0");
  if (const auto* stop = o.raw("stop"); stop && stop->is_string())
    out.stop = {std::string(stop->get_string())};
  else
    out.stop = o.strings("stop", 16);
  for (const std::string& stop : out.stop)
    if (stop.empty() || stop.size() > 256)
      o.fail("stop", "options.stop must have 1 to 256 bytes each");
  // How the model is loaded is the service's configuration, and a prompt is never shifted out of
  // its window; these never change an answer.
  for (const char* member :
       {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep"})
    o.integer(member, unused, -1, 1 << 30);
  for (const char* member : {"numa", "use_mmap", "use_mlock", "low_vram", "vocab_only"})
    (void)o.raw(member);
  // Penalties look at all tokens, those of line breaks included. Without one, it does not matter.
  const bool penalized = repeat != 1 || presence != 0 || frequency != 0;
  for (const auto& [member, harmless] :
       {std::pair<const char*, json::value>("repeat_last_n", -1), {"penalize_newline", true}}) {
    if (penalized)
      refuse(o, member, harmless);
    else
      (void)o.raw(member);
  }
  refuse(o, "typical_p", 1);
  refuse(o, "tfs_z", 1);
  refuse(o, "mirostat", 0);
  for (const char* member : {"mirostat_tau", "mirostat_eta"}) (void)o.raw(member);  // of mirostat
  refuse(o, "draft_num_predict");
  o.finish();
  r.adopt(o.error());
  out.temperature = static_cast<float>(temperature);
  out.top_p = static_cast<float>(top_p);
  out.min_p = static_cast<float>(min_p);
  out.repetition_penalty = static_cast<float>(repeat);
  out.presence_penalty = static_cast<float>(presence);
  out.frequency_penalty = static_cast<float>(frequency);
  out.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  // -1 and -2 leave the length to the model.
  out.max_tokens_asked = o.has("num_predict") && length > 0;
  if (length > 0) out.max_tokens = static_cast<std::int32_t>(length);
}

/// Reads format: "json" or a schema.
void read_format(JsonReader& r, SamplingOptions& out) {
  const auto* format = r.raw("format");
  if (!format || !r.ok() || (format->is_string() && format->get_string().empty())) return;
  if (format->is_string()) {
    if (format->get_string() != "json")
      return r.fail("format", "format must be \"json\" or a JSON Schema");
    out.grammar = json_object_grammar();
  } else {
    out.grammar = read_json_schema(r, "format");
  }
  if (!out.stop.empty())
    r.fail("options.stop", "options.stop cannot be combined with format", "unsupported_parameter");
}

/// Reads the members that chat and generate share.
void read_common(JsonReader& r, QueryBody& out) {
  r.string("model", out.model, 256, JsonNeed::kRequired);
  out.model = untagged(out.model);
  out.stream = true;
  r.boolean("stream", out.stream);
  (void)r.raw("keep_alive");  // the model always stays
  refuse(r, "think", false);
  refuse(r, "images");
  refuse(r, "logprobs", false);
  refuse(r, "top_logprobs", 0);
  refuse(r, "truncate", true);
  refuse(r, "shift", true);
  read_options(r, out.sampling);
  read_format(r, out.sampling);
}

/// A call of an assistant's message: the id that the client gave it, if it did, and the one that
/// the model's template gets.
struct MadeCall {
  std::string given_id, id, name;
};

/// Results answer the last calls: by the id of a call where both have one, else by its name, else
/// in order.
class Calls {
 public:
  void made(std::vector<MadeCall> calls) { open_ = std::move(calls); }
  /// Returns the call that is answered; none: none that is open can be.
  std::optional<MadeCall> answered(const std::string& call_id, const std::string& name) {
    auto at = std::ranges::find_if(
        open_, [&](const MadeCall& c) { return !call_id.empty() && c.given_id == call_id; });
    if (at == open_.end())
      at = std::ranges::find_if(open_,
                                [&](const MadeCall& c) { return name.empty() || c.name == name; });
    if (at == open_.end()) return std::nullopt;
    MadeCall call = std::move(*at);
    open_.erase(at);
    return call;
  }

 private:
  std::vector<MadeCall> open_;
};

json::array read_calls(JsonReader& m, std::size_t message, std::vector<MadeCall>& made) {
  json::array out;
  const auto* calls = m.array("tool_calls", 0, 128);
  for (std::size_t i = 0; calls && m.ok() && i < calls->size(); ++i) {
    JsonReader c((*calls)[i], m.path_of("tool_calls") + "[" + std::to_string(i) + "]");
    if (const auto* function = c.ok() ? c.object("function", JsonNeed::kRequired) : nullptr) {
      JsonReader f(*function, c.path_of("function"));
      std::string name;
      f.string("name", name, 64);
      check_tool_name(f, name);
      const auto* arguments = f.object("arguments");
      std::string given_id;
      c.string("id", given_id, 256);
      // Nine letters and digits, as Mistral's templates demand.
      std::string id = std::to_string(100'000'000 + message % 800'000 * 1000 + i);
      out.push_back(json::object{
          {"id", id},
          {"type", "function"},
          {"function",
           {{"name", name}, {"arguments", arguments ? to_text(*arguments) : std::string("{}")}}}});
      made.push_back({std::move(given_id), std::move(id), std::move(name)});
      c.adopt(f.error());
    }
    m.adopt(c.error());
  }
  return out;
}

void read_message(JsonReader& m, std::size_t index, Calls& calls, ChatBuilder& chat) {
  ChatMessage out;
  std::string name, call_id;
  m.one_of("role", out.role, {"system", "user", "assistant", "tool"});
  if (m.ok() && out.role.empty()) m.fail("role", m.path_of("role") + " is missing");
  m.string("content", out.content);
  m.string("tool_name", name, 64);
  m.string("name", name, 64);
  m.string("tool_call_id", call_id, 256);
  m.string("thinking", out.reasoning_content);
  refuse(m, "images");
  std::vector<MadeCall> made;
  const json::array called = read_calls(m, index, made);
  if (out.role == "assistant") m.pass_nulls();
  m.finish();
  if (!m.ok()) return;
  if (out.role == "system") {
    if (!chat.query.messages.empty())
      return m.fail("role", m.path_of("role") + ": system messages must stand first");
    return chat.add_system(std::move(out.content), m.path_of("role"));
  }
  if (out.role == "tool") {
    auto call = calls.answered(call_id, name);
    if (!call)
      return m.fail("role", m.path_of("role") +
                                " is tool, but no call of the assistant before it is open" +
                                (name.empty() ? "" : " for '" + name + "'"));
    out.tool_call_id = std::move(call->id);
    out.name = name.empty() ? std::move(call->name) : std::move(name);
  }
  if (out.role == "assistant" && !called.empty()) {
    out.tool_calls = json::serialize(called);
    calls.made(std::move(made));
  }
  chat.add(std::move(out), index);
}

}  // namespace

std::string untagged(std::string model) {
  constexpr std::string_view kLatest = ":latest";
  if (model.ends_with(kLatest)) model.resize(model.size() - kLatest.size());
  return model;
}

std::optional<JsonError> read_ollama_chat(const json::value& body, QueryBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_common(r, out);
  ChatBuilder chat{out};
  Calls calls;
  const auto* list = r.array("messages", 0, 1024);
  for (std::size_t i = 0; list && r.ok() && i < list->size(); ++i) {
    JsonReader m((*list)[i], "messages[" + std::to_string(i) + "]");
    if (m.ok()) read_message(m, i, calls, chat);
    r.adopt(m.error());
  }
  if (r.ok() && list && !list->empty() && out.messages.empty())
    r.fail("messages", "messages has no turn of the user");
  if (r.ok() && !out.messages.empty() && out.messages.back().role == "assistant") {
    out.continue_last = true;
    out.generation_prompt = false;
  }
  // Ollama has no tool_choice, so functions are always offered.
  read_tools(r, out.tools);
  if (r.ok() && out.tools && out.continue_last)
    r.fail("tools", "tools cannot be combined with a last message of the assistant",
           "unsupported_parameter");
  r.finish();
  return r.error();
}

std::optional<JsonError> read_ollama_generate(const json::value& body, QueryBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_common(r, out);
  std::string prompt, system;
  bool raw = false;
  r.string("prompt", prompt);
  r.string("system", system);
  r.boolean("raw", raw);
  if (r.ok() && raw && !system.empty())
    r.fail("system", "system has no place in a raw prompt; write it into the prompt");
  refuse(r, "suffix");
  refuse(r, "template");
  refuse(r, "context");
  r.finish();
  if (!r.ok() || prompt.empty()) return r.error();
  if (raw) {
    out.prompts.push_back({prompt, {}, "prompt"});
    return std::nullopt;
  }
  ChatBuilder chat{out};
  out.messages_param = "prompt";
  out.lists_messages = false;
  if (!system.empty()) chat.add_system(system, "system");
  chat.add({"user", prompt}, 0);
  return std::nullopt;
}

namespace {

/// Reads what both forms of a request for vectors have.
std::optional<JsonError> finish_embed(JsonReader& r) {
  // Clients send the same options with everything; of an answer's, none changes a vector.
  SamplingOptions unused;
  read_options(r, unused);
  (void)r.raw("keep_alive");
  r.finish();
  return r.error();
}

}  // namespace

std::optional<JsonError> read_ollama_embed(const json::value& body, OllamaEmbed& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  r.string("model", out.model, 256, JsonNeed::kRequired);
  out.model = untagged(out.model);
  r.boolean("truncate", out.truncate);
  const auto* input = r.raw("input");
  if (r.ok() && !input) r.fail("input", "input is missing; give a text or a list of texts");
  if (r.ok() && input->is_string())
    out.inputs = {std::string(input->get_string())};
  else if (r.ok())
    out.inputs = r.strings("input", kMostInputs);
  for (std::size_t i = 0; r.ok() && i < out.inputs.size(); ++i)
    if (out.inputs[i].empty()) r.fail("input", "input[" + std::to_string(i) + "] is empty");
  refuse(r, "dimensions");
  return finish_embed(r);
}

std::optional<JsonError> read_ollama_embeddings(const json::value& body, OllamaEmbed& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  r.string("model", out.model, 256, JsonNeed::kRequired);
  out.model = untagged(out.model);
  std::string prompt;
  r.string("prompt", prompt);
  if (!prompt.empty()) out.inputs.push_back(std::move(prompt));
  return finish_embed(r);
}

namespace {

/// Reads the name of a model, which must be given.
void read_model(JsonReader& r, std::string& model) {
  std::string older;
  r.string("model", model, 256);
  r.string("name", older, 256);  // its older word, which Ollama's own program sends empty
  if (model.empty()) model = std::move(older);
  if (r.ok() && model.empty()) r.fail("model", "model is missing");
  model = untagged(model);
}

}  // namespace

std::optional<JsonError> read_ollama_pull(const json::value& body, OllamaPull& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  bool insecure = false;  // of the registry, which is not asked
  read_model(r, out.model);
  r.boolean("stream", out.stream);
  r.boolean("insecure", insecure);
  refuse(r, "username");
  refuse(r, "password");
  r.finish();
  return r.error();
}

std::optional<JsonError> read_ollama_show(const json::value& body, std::string& model) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  bool verbose = false;
  read_model(r, model);
  r.boolean("verbose", verbose);
  refuse(r, "system");
  refuse(r, "template");
  refuse(r, "options");
  r.finish();
  return r.error();
}

}  // namespace quire
