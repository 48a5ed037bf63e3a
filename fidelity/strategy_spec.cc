#include "fidelity/strategy_spec.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "engine/plan/strategy.h"

namespace quire {
namespace {

Status bad(std::string_view spec, const std::string& what) {
  return Status::invalid("strategies", "'" + std::string(spec) + "': " + what);
}

Status set_ratio(std::string_view spec, std::string_view key, std::string_view value,
                 std::optional<double>& out) {
  double v = 0;
  const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), v);
  if (ec != std::errc() || end != value.data() + value.size() || !(v >= 0 && v <= 1))
    return bad(spec, std::string(key) + " must be a number from 0 to 1");
  out = v;
  return {};
}

using Settings = std::map<std::string, std::string, std::less<>>;

/// Sets a key. Keys without a meaning here are options of the strategy's plugs, or of the prompt's
/// compression.
Status set(std::string_view spec, const std::string& key, const std::string& value,
           CacheOptions& cache, Settings& plug, Settings& prompt) {
  constexpr std::string_view kPrompt = "prompt_compression.";
  if (key == "positions") {
    if (value == "aligned" || value == "global")
      cache.positions = PositionMode::kGlobal;
    else if (value == "naive")
      cache.positions = PositionMode::kLocalNaive;
    else if (value == "parallel")
      cache.positions = PositionMode::kParallel;
    else if (value == "compact")
      cache.positions = PositionMode::kCompact;
    else
      return bad(spec, "positions is '" + value + "'; use aligned, naive, parallel or compact");
  } else if (key == "keep_ratio") {
    return set_ratio(spec, key, value, cache.keep_ratio);
  } else if (key == "recompute_ratio") {
    return set_ratio(spec, key, value, cache.recompute_ratio);
  } else if (key == "compress") {
    cache.compress = value;
  } else if (key == "decode") {
    cache.decode = value;
  } else if (key == "prompt_compression") {
    cache.prompt_compression = value;
  } else if (key.starts_with(kPrompt)) {
    prompt[key.substr(kPrompt.size())] = value;
  } else if (key == "dedupe") {
    if (value != "on" && value != "off")
      return bad(spec, "dedupe is '" + value + "'; use on or off");
    cache.dedupe = value == "on";
  } else {
    plug[key] = value;
  }
  return {};
}

}  // namespace

bool StrategySpec::auto_applies() const {
  return (cache.compress == "auto" || cache.compress == "none") && cache.decode == "dense" &&
         cache.prompt_compression == "none" && cache.dedupe;
}

Result<StrategySpec> parse_strategy_spec(std::string_view text) {
  StrategySpec out;
  const auto colon = text.find(':');
  out.strategy = std::string(text.substr(0, colon));
  QUIRE_ASSIGN_OR_RETURN(const Strategy strategy, find_strategy(out.strategy));
  out.cache.strategy = out.strategy;
  out.cache.write = false;
  // Measurements of a strategy hold for dense decoding, unless a retriever is named.
  out.cache.decode = "dense";
  Settings settings, plug, prompt;
  std::string_view rest = colon == std::string_view::npos ? std::string_view()
                                                          : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty())
    return bad(text, "no setting follows the colon");
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const auto eq = part.find('=');
    if (eq == std::string_view::npos || eq == 0 || eq + 1 == part.size())
      return bad(text, "'" + std::string(part) + "' is no setting; write key=value");
    const std::string key(part.substr(0, eq)), value(part.substr(eq + 1));
    if (!settings.try_emplace(key, value).second) return bad(text, key + " is given twice");
    QUIRE_RETURN_IF_ERROR(set(text, key, value, out.cache, plug, prompt));
  }
  out.cache.options = PlugOptions(std::move(plug));
  out.cache.prompt_options = PlugOptions(std::move(prompt));
  if (const auto s = validate(out.cache); !s.ok()) return bad(text, s.message());
  out.text = out.strategy;
  for (const auto& [key, value] : settings)
    out.text += (out.text == out.strategy ? ":" : ",") + key + "=" + value;
  const bool plain = (out.cache.compress == "auto" || out.cache.compress == "none") &&
                     (out.cache.decode == "auto" || out.cache.decode == "dense") &&
                     out.cache.prompt_compression == "none";
  out.approximate = !strategy.same_as_recompute || !plain;
  return out;
}

Result<std::vector<StrategySpec>> parse_strategy_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string part(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const bool goes_on = !parts.empty() && part.find('=') != std::string::npos &&
                         part.find(':') == std::string::npos;
    if (goes_on)
      parts.back() += "," + part;
    else
      parts.push_back(part);
  }
  std::vector<StrategySpec> out;
  for (const auto& part : parts) {
    QUIRE_ASSIGN_OR_RETURN(StrategySpec spec, parse_strategy_spec(part));
    if (std::any_of(out.begin(), out.end(), [&](const auto& s) { return s.text == spec.text; }))
      return bad(part, "named twice");
    out.push_back(std::move(spec));
  }
  if (out.empty())
    return Status::invalid("strategies", "no strategy is named; for example recompute,exact,reuse");
  return out;
}

}  // namespace quire
