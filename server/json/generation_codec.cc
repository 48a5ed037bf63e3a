#include "server/json/generation_codec.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <memory>

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxBiases = 1024;
constexpr std::size_t kMaxStopTokens = 64, kMaxAllowedTokens = 65'536;

/// Reads token ids.
std::vector<std::int32_t> read_ids(JsonReader& r, std::string_view name, std::size_t least,
                                   std::size_t most) {
  std::vector<std::int32_t> out;
  const auto* ids = r.array(name, least, most);
  for (std::size_t i = 0; ids && r.ok() && i < ids->size(); ++i) {
    const auto& v = (*ids)[i];
    const std::int64_t id = v.is_int64() ? v.get_int64() : -1;
    const std::string member = std::string(name) + "[" + std::to_string(i) + "]";
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
      r.fail(member, member + " is no token id");
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

void read_stop(JsonReader& r, SamplingOptions& out) {
  if (const auto* stop = r.raw("stop")) {
    if (stop->is_string())
      out.stop = {std::string(stop->as_string())};
    else
      out.stop = r.strings("stop", 4);
    for (const auto& s : out.stop)
      if (s.empty() || s.size() > 256) r.fail("stop", "stop strings have 1 to 256 bytes");
  }
  out.stop_token_ids = read_ids(r, "stop_token_ids", 0, kMaxStopTokens);
}

/// Reads {"token id": bias}. The engine checks that the model has the tokens.
void read_logit_bias(JsonReader& r, SamplingOptions& out) {
  const auto* given = r.object("logit_bias");
  if (!given || !r.ok()) return;
  if (given->size() > kMaxBiases)
    return r.fail("logit_bias", "logit_bias has " + std::to_string(given->size()) +
                                    " members; at most " + std::to_string(kMaxBiases) +
                                    " are taken");
  for (const auto& [name, value] : *given) {
    const std::string member = "logit_bias." + std::string(name.substr(0, 32));
    std::int32_t id = -1;
    const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (ec != std::errc() || end != name.data() + name.size() || id < 0)
      return r.fail(member,
                    member + ": the names in logit_bias are token ids (POST /tokenize gives them)");
    const double bias = value.is_number() ? value.to_number<double>()
                                          : std::numeric_limits<double>::quiet_NaN();
    if (!(bias >= -100 && bias <= 100))
      return r.fail(member, member + " must be a number between -100 and 100");
    if (std::any_of(out.logit_bias.begin(), out.logit_bias.end(),
                    [&](const auto& b) { return b.first == id; }))
      return r.fail(member, "logit_bias names the token " + std::to_string(id) + " twice");
    out.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
}

/// Reads the words, numbers and booleans in `member`, except the one named `besides`. The engine
/// checks the names and values that a plug takes.
PlugOptions read_plug_options(JsonReader& cache, const std::string& member,
                              const json::object& given, std::string_view besides = "") {
  std::map<std::string, std::string, std::less<>> options;
  if (given.size() > 32)
    cache.fail(member, "cache." + member + " has " + std::to_string(given.size()) +
                           " members; at most 32 are taken");
  for (const auto& [name, value] : given) {
    if (!cache.ok()) break;
    if (!besides.empty() && std::string_view(name) == besides) continue;
    const std::string option = member + "." + std::string(name.substr(0, 64));
    if (value.is_string() && value.as_string().size() <= 64)
      options[std::string(name)] = std::string(value.as_string());
    else if (value.is_bool())
      options[std::string(name)] = value.as_bool() ? "on" : "off";
    else if (value.is_number())
      options[std::string(name)] = json::serialize(value);
    else
      cache.fail(option, "cache." + option + " must be a word, a number or a boolean");
  }
  return PlugOptions(std::move(options));
}

void read_options(JsonReader& cache, CacheOptions& out) {
  const auto* given = cache.object("options");
  if (given && cache.ok()) out.options = read_plug_options(cache, "options", *given);
}

/// Reads a name, or an object with "method" and that method's settings.
void read_prompt_compression(JsonReader& cache, CacheOptions& out) {
  const std::string member = "prompt_compression";
  const auto* value = cache.raw(member);
  if (!value || !cache.ok()) return;
  if (!value->is_object()) {
    if (!value->is_string())
      return cache.fail(member,
                        "cache.prompt_compression must be the name of a method, or an object with "
                        "\"method\" and its settings");
    return cache.string(member, out.prompt_compression, 64);
  }
  const json::object& given = value->get_object();
  const auto* method = given.if_contains("method");
  if (!method || !method->is_string() || method->as_string().size() > 64) {
    return cache.fail(
        member + ".method",
        "cache.prompt_compression.method is missing or no name; GET /v1/info lists the methods");
  }
  out.prompt_compression = std::string(method->as_string());
  out.prompt_options = read_plug_options(cache, member, given, "method");
}

void read_cache(JsonReader& parent, CacheOptions& out) {
  const auto* value = parent.raw("cache");
  if (!value || !parent.ok()) return;
  JsonReader r(*value, "cache");
  r.string("strategy", out.strategy, 64);
  double ratio = 0;
  if (r.has("keep_ratio")) {
    r.number("keep_ratio", ratio, 0, 1);
    out.keep_ratio = ratio;
  }
  if (r.has("recompute_ratio")) {
    r.number("recompute_ratio", ratio, 0, 1);
    out.recompute_ratio = ratio;
  }
  r.string("compress", out.compress, 64);
  r.string("decode", out.decode, 64);
  std::string positions;
  read_prompt_compression(r, out);
  read_options(r, out);
  r.boolean("write", out.write);
  r.boolean("dedupe", out.dedupe);
  if (r.has("positions")) {
    r.one_of("positions", positions, {"global", "aligned", "compact", "naive", "parallel"});
    if (positions == "global" || positions == "aligned") out.positions = PositionMode::kGlobal;
    if (positions == "compact") out.positions = PositionMode::kCompact;
    if (positions == "naive") out.positions = PositionMode::kLocalNaive;
    if (positions == "parallel") out.positions = PositionMode::kParallel;
  }
  r.finish();
  parent.adopt(r.error());
}

}  // namespace

void read_sampling(JsonReader& r, SamplingOptions& out) {
  std::int64_t top_k = out.top_k, seed = 0;
  double temperature = out.temperature, top_p = out.top_p, min_p = out.min_p, frequency = 0,
         presence = 0;
  r.number("temperature", temperature, 0, 2);
  r.number("top_p", top_p, 0, 1);
  if (r.ok() && top_p == 0)
    r.fail("top_p", "top_p is 0; it must be above 0 (use temperature 0 for the likeliest token)");
  r.integer("top_k", top_k, -1, 1 << 20);  // -1 is vLLM's word for all
  top_k = std::max<std::int64_t>(top_k, 0);
  r.number("min_p", min_p, 0, 1);
  r.number("frequency_penalty", frequency, -2, 2);
  r.number("presence_penalty", presence, -2, 2);
  if (r.has("seed")) {
    r.integer("seed", seed, std::numeric_limits<std::int64_t>::min(),
              std::numeric_limits<std::int64_t>::max());
    out.seed = static_cast<std::uint64_t>(seed);
  }
  double repetition = 1;
  r.number("repetition_penalty", repetition, 0, 10);
  if (r.ok() && repetition == 0)
    r.fail("repetition_penalty", "repetition_penalty is 0; it must be above 0 (1 switches it off)");
  std::int64_t min_tokens = 0;
  r.integer("min_tokens", min_tokens, 0, 1 << 20);
  r.boolean("ignore_eos", out.ignore_eos);
  out.repetition_penalty = static_cast<float>(repetition);
  out.min_tokens = static_cast<std::int32_t>(min_tokens);
  out.allowed_tokens = read_ids(r, "allowed_token_ids", 1, kMaxAllowedTokens);
  read_stop(r, out);
  read_logit_bias(r, out);
  out.top_k = static_cast<std::int32_t>(top_k);
  out.temperature = static_cast<float>(temperature);
  out.top_p = static_cast<float>(top_p);
  out.min_p = static_cast<float>(min_p);
  out.frequency_penalty = static_cast<float>(frequency);
  out.presence_penalty = static_cast<float>(presence);
}

void read_logprobs(JsonReader& r, SamplingOptions& out) {
  bool wanted = false;
  std::int64_t top = 0;
  r.boolean("logprobs", wanted);
  r.integer("top_logprobs", top, 0, kMaxTopLogprobs);
  if (r.ok() && top > 0 && !wanted) r.fail("top_logprobs", "top_logprobs needs \"logprobs\": true");
  if (wanted) out.top_logprobs = static_cast<std::int32_t>(top);
}

void read_cache_and_policies(JsonReader& r, QueryBody& out) {
  read_cache(r, out.cache);
  r.string("cache_salt", out.cache_salt, 512);
  if (r.ok() && r.has("cache_salt") && (out.cache_salt.size() < 8 || out.cache_salt.size() > 128))
    r.fail("cache_salt", "cache_salt has " + std::to_string(out.cache_salt.size()) +
                             " characters; it must have 8 to 128");
  std::string on_missing = "error", on_not_ready = "wait", explain = "summary";
  r.one_of("on_missing", on_missing, {"error", "skip"});
  r.one_of("on_not_ready", on_not_ready, {"wait", "error", "compute"});
  r.one_of("explain", explain, {"none", "summary", "blocks"});
  r.boolean("citations", out.citations);
  out.skip_missing = on_missing == "skip";
  out.on_not_ready = on_not_ready == "wait"    ? OnNotReady::kWait
                     : on_not_ready == "error" ? OnNotReady::kError
                                               : OnNotReady::kCompute;
  out.explain = explain == "none"     ? ExplainLevel::kNone
                : explain == "blocks" ? ExplainLevel::kBlocks
                                      : ExplainLevel::kSummary;
}

}  // namespace quire
