#include "server/chat/openai_fields.h"

#include <algorithm>
#include <boost/json.hpp>
#include <vector>

#include "base/json_parse.h"

namespace quire {
namespace json = boost::json;
namespace {

using enum FieldUse;

constexpr std::uint8_t kC = 1, kT = 2, kBoth = 3;  // chat, text completion
constexpr std::string_view kO = "OpenAI", kV = "vLLM", kL = "llama.cpp", kQ = "Quire",
                           kVL = "vLLM, llama.cpp";

constexpr OpenAiField kFields[] = {
    {"messages", kC, kO, kDone},
    {"prompt", kT, kO, kDone, "", "a text, token ids, or up to 8 of them"},
    {"model", kBoth, kO, kDone, "", "`default` or the model's name"},
    {"max_tokens", kBoth, kO, kDone},
    {"max_completion_tokens", kC, kO, kDone, "", "before `max_tokens`"},
    {"temperature", kBoth, kO, kDone},
    {"top_p", kBoth, kO, kDone},
    {"n", kBoth, kO, kDone, "", "up to 8"},
    {"stop", kBoth, kO, kDone, "", "up to 4 texts"},
    {"seed", kBoth, kO, kDone},
    {"stream", kBoth, kO, kDone},
    {"stream_options", kBoth, kO, kDone, "", "`include_usage`"},
    {"frequency_penalty", kBoth, kO, kDone},
    {"presence_penalty", kBoth, kO, kDone},
    {"logit_bias", kBoth, kO, kDone},
    {"logprobs", kBoth, kO, kDone, "", "completions: a number up to 20"},
    {"top_logprobs", kC, kO, kDone, "", "up to 20"},
    {"response_format", kBoth, kO, kDone},
    {"tools", kC, kO, kDone, "", "functions"},
    {"tool_choice", kC, kO, kDone},
    {"parallel_tool_calls", kC, kO, kDone},
    {"user", kBoth, kO, kLabel},
    {"safety_identifier", kC, kO, kLabel},
    {"metadata", kC, kO, kLabel},
    {"prompt_cache_key", kC, kO, kLabel, "", "equal beginnings are found without it"},
    {"prompt_cache_retention", kC, kO, kLabel},
    {"prompt_cache_options", kC, kO, kRefused},
    {"functions", kC, kO, kRefused, "", "`tools` are their successor"},
    {"function_call", kC, kO, kRefused, "\"none\"|\"auto\""},
    {"store", kC, kO, kRefused, "false"},
    {"service_tier", kBoth, kO, kRefused, "\"auto\"|\"default\""},
    {"audio", kC, kO, kRefused},
    {"modalities", kC, kO, kRefused, "[\"text\"]"},
    {"prediction", kC, kO, kRefused},
    {"reasoning_effort", kC, kO, kRefused, "\"none\""},
    {"verbosity", kC, kO, kRefused, "\"medium\""},
    {"web_search_options", kC, kO, kRefused},
    {"moderation", kC, kO, kRefused},
    {"best_of", kT, kO, kDone, "", "the value of `n` only"},
    {"best_of", kC, kV, kRefused, "1", "`n` gives several answers"},
    {"echo", kBoth, kO, kRefused, "false"},
    {"suffix", kT, kO, kRefused, "\"\""},

    {"top_k", kBoth, kVL, kDone, "", "0 or -1: off"},
    {"min_p", kBoth, kVL, kDone},
    {"repetition_penalty", kBoth, kV, kDone, "", "over prompt and answer"},
    {"repeat_penalty", kBoth, kL, kDone, "", "the same"},
    {"ignore_eos", kBoth, kVL, kDone},
    {"min_tokens", kBoth, kV, kDone},
    {"stop_token_ids", kBoth, kV, kDone, "", "up to 64"},
    {"allowed_token_ids", kBoth, kV, kDone, "", "at least one"},
    {"continue_final_message", kC, kV, kDone, "", "the last message is the assistant's"},
    {"add_generation_prompt", kC, kV, kDone, "", "false: without documents only"},
    {"structured_outputs", kBoth, kV, kDone, "", "`json`, `regex`, `choice`, `grammar`"},
    {"guided_json", kBoth, kV, kDone},
    {"guided_regex", kBoth, kV, kDone},
    {"guided_choice", kBoth, kV, kDone},
    {"guided_grammar", kBoth, kV, kDone, "", "GBNF"},
    {"json_schema", kBoth, kL, kDone},
    {"grammar", kBoth, kL, kDone, "", "GBNF"},
    {"documents", kBoth, "vLLM, Quire", kDone, "", "texts or ids of cached documents"},
    {"cache_salt", kBoth, "vLLM, Quire", kDone},
    {"n_predict", kBoth, kL, kDone, "", "`max_tokens`; -1: up to the window"},

    {"guided_decoding_backend", kBoth, kV, kRefused, "\"auto\""},
    {"guided_whitespace_pattern", kBoth, kV, kRefused},
    {"structural_tag", kBoth, kV, kRefused},
    {"length_penalty", kBoth, kV, kRefused, "1|1.0"},
    {"use_beam_search", kBoth, kV, kRefused, "false"},
    {"include_stop_str_in_output", kBoth, kV, kRefused, "false"},
    {"skip_special_tokens", kBoth, kV, kRefused, "true"},
    {"spaces_between_special_tokens", kBoth, kV, kRefused, "true"},
    {"truncate_prompt_tokens", kBoth, kV, kRefused},
    {"prompt_logprobs", kBoth, kV, kRefused},
    {"logprob_token_ids", kBoth, kV, kRefused},
    {"bad_words", kBoth, kV, kRefused},
    {"add_special_tokens", kC, kV, kRefused, "false"},
    {"add_special_tokens", kT, kV, kRefused, "true"},
    {"chat_template", kC, kV, kRefused, "", "the model's own renders"},
    {"chat_template_kwargs", kC, kVL, kRefused},
    {"mm_processor_kwargs", kC, kV, kRefused},
    {"media_io_kwargs", kC, kV, kRefused},
    {"include_reasoning", kC, kV, kRefused, "true"},
    {"thinking_token_budget", kC, kV, kRefused},
    {"prompt_embeds", kT, kV, kRefused},
    {"priority", kBoth, kV, kRefused, "0"},
    {"request_id", kBoth, kV, kRefused, "", "the header X-Request-Id names a request"},
    {"return_tokens_as_token_ids", kBoth, kV, kRefused, "false"},
    {"return_token_ids", kBoth, kV, kRefused, "false"},
    {"kv_transfer_params", kBoth, kV, kRefused},
    {"vllm_xargs", kBoth, kV, kRefused},
    {"logits_processors", kBoth, kV, kRefused},
    {"repetition_detection", kBoth, kV, kRefused},
    {"detokenize", kBoth, kV, kRefused, "true"},

    {"repeat_last_n", kBoth, kL, kRefused, "-1", "the penalty looks at all tokens"},
    {"typical_p", kBoth, kL, kRefused, "1|1.0"},
    {"top_n_sigma", kBoth, kL, kRefused, "-1|-1.0"},
    {"mirostat", kBoth, kL, kRefused, "0"},
    {"mirostat_tau", kBoth, kL, kRefused, "5|5.0"},
    {"mirostat_eta", kBoth, kL, kRefused, "0.1"},
    {"dynatemp_range", kBoth, kL, kRefused, "0|0.0"},
    {"dynatemp_exponent", kBoth, kL, kRefused, "1|1.0"},
    {"xtc_probability", kBoth, kL, kRefused, "0|0.0"},
    {"xtc_threshold", kBoth, kL, kRefused, "0.1"},
    {"dry_multiplier", kBoth, kL, kRefused, "0|0.0"},
    {"dry_base", kBoth, kL, kRefused, "1.75"},
    {"dry_allowed_length", kBoth, kL, kRefused, "2"},
    {"dry_penalty_last_n", kBoth, kL, kRefused, "-1"},
    {"dry_sequence_breakers", kBoth, kL, kRefused},
    {"adaptive_target", kBoth, kL, kRefused, "-1|-1.0"},
    {"adaptive_decay", kBoth, kL, kRefused},
    {"samplers", kBoth, kL, kRefused},
    {"backend_sampling", kBoth, kL, kRefused, "false"},
    {"min_keep", kBoth, kL, kRefused, "0"},
    {"n_keep", kBoth, kL, kRefused, "0"},
    {"n_discard", kBoth, kL, kRefused, "0"},
    {"n_indent", kBoth, kL, kRefused, "0"},
    {"n_probs", kBoth, kL, kRefused, "0", "`top_logprobs` has them"},
    {"n_cache_reuse", kBoth, kL, kRefused, "0"},
    {"n_cmpl", kBoth, kL, kRefused, "1", "`n`"},
    {"id_slot", kBoth, kL, kRefused, "-1"},
    {"cache_prompt", kBoth, kL, kRefused, "true"},
    {"return_tokens", kBoth, kL, kRefused, "false"},
    {"return_progress", kBoth, kL, kRefused, "false"},
    {"timings_per_token", kBoth, kL, kRefused, "false"},
    {"post_sampling_probs", kBoth, kL, kRefused, "false"},
    {"response_fields", kBoth, kL, kRefused},
    {"t_max_predict_ms", kBoth, kL, kRefused, "0|-1"},
    {"lora", kBoth, kL, kRefused},
    {"reasoning_format", kC, kL, kRefused, "\"none\"|\"auto\""},
    {"reasoning_in_content", kC, kL, kRefused, "false"},
    {"reasoning_budget_tokens", kC, kL, kRefused, "-1"},
    {"thinking_forced_open", kC, kL, kRefused, "false"},
    {"parse_tool_calls", kC, kL, kRefused, "true"},
    {"parallel_tool_calls", kT, kO, kRefused, "true|false"},
    {"grammar_lazy", kBoth, kL, kRefused, "false"},
    {"grammar_triggers", kBoth, kL, kRefused},
    {"preserved_tokens", kBoth, kL, kRefused},
    {"speculative.n_max", kBoth, kL, kRefused},
    {"speculative.n_min", kBoth, kL, kRefused},
    {"speculative.p_min", kBoth, kL, kRefused},
    {"verbose", kBoth, kL, kRefused, "false"},

    {"document_ids", kBoth, kQ, kDone},
    {"cache", kBoth, kQ, kDone},
    {"citations", kBoth, kQ, kDone},
    {"explain", kBoth, kQ, kDone},
    {"on_missing", kBoth, kQ, kDone},
    {"on_not_ready", kBoth, kQ, kDone},
};

bool serves(const OpenAiField& field, OpenAiPath path) {
  return (field.paths & static_cast<std::uint8_t>(path)) != 0;
}

/// Calls `each` for every harmless value.
template <class Each>
void for_each_harmless(std::string_view values, Each each) {
  while (!values.empty()) {
    const std::size_t end = std::min(values.find('|'), values.size());
    each(values.substr(0, end));
    values.remove_prefix(std::min(end + 1, values.size()));
  }
}

bool is_harmless(const OpenAiField& field, const json::value& value) {
  // An empty object asks for a search as it is by default.
  const bool asks = field.name == "web_search_options";
  if (value.is_null() || (value.is_array() && value.get_array().empty()) ||
      (value.is_object() && value.get_object().empty() && !asks))
    return true;
  bool found = false;
  for_each_harmless(field.harmless, [&](std::string_view text) {
    json::value wanted;
    found = found || (!parse_json(text, wanted) && wanted == value);
  });
  return found;
}

}  // namespace

std::span<const OpenAiField> openai_fields() { return kFields; }

void check_openai_fields(JsonReader& r, const json::value& body, OpenAiPath path) {
  if (!r.ok() || !body.is_object()) return;
  for (const OpenAiField& field : kFields) {
    const auto* value = body.get_object().if_contains(field.name);
    if (!value || !serves(field, path) || field.use != kRefused || is_harmless(field, *value))
      continue;
    return r.fail(
        field.name,
        std::string(field.name) + " is not supported" +
            (field.about.empty() ? std::string() : " (" + std::string(field.about) + ")") +
            "; leave it out",
        "unsupported_parameter");
  }
  // finish() refuses what the table does not have.
  JsonReader known(body, "");
  for (const OpenAiField& field : kFields)
    if (serves(field, path)) (void)known.raw(field.name);
  known.finish();
  r.adopt(known.error());
}

std::string openai_fields_markdown() {
  std::string out = "| field | of | paths | here |\n|---|---|---|---|\n";
  for (const OpenAiField& f : kFields) {
    std::string here = f.use == kDone ? "yes" : f.use == kLabel ? "taken, a label" : "refused";
    if (f.use == kRefused && !f.harmless.empty()) {
      here += " unless ";
      bool first = true;
      for_each_harmless(f.harmless, [&](std::string_view value) {
        here += (first ? "`" : " or `") + std::string(value) + "`";
        first = false;
      });
    }
    if (!f.about.empty()) here += (f.use == kRefused ? "; " : ": ") + std::string(f.about);
    out += "| `" + std::string(f.name) + "` | " + std::string(f.from) + " | " +
           (f.paths == kBoth ? "both"
            : f.paths == kC  ? "chat"
                             : "completions") +
           " | " + here + " |\n";
  }
  return out;
}

}  // namespace quire
