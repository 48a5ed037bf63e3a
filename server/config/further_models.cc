#include "server/config/further_models.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace quire {
namespace {

constexpr std::string_view kFurther = "model.further";

/// Settings of other sections that a model may have of its own.
constexpr std::array<std::string_view, 9> kOwn = {
    "cache.block_tokens", "cache.layers_per_value", "policy.strategy",
    "policy.compress",    "policy.decode",          "policy.small_ctx",
    "prompt.intro",       "prompt.document",        "prompt.question"};
/// Those of [model] that it may not.
constexpr std::array<std::string_view, 6> kOfService = {"model.further",         "model.name",
                                                        "model.backend",         "model.device",
                                                        "model.tensor_parallel", "model.split_kv"};

std::string refused(const Setting& s) {
  const std::string name = s.name();
  if (name == "model.name") return "is the name that model.further gives; leave it out";
  const bool of_model = s.section == "model" &&
                        std::ranges::find(kOfService, name) == kOfService.end();
  if (of_model || std::ranges::find(kOwn, name) != kOwn.end()) return {};
  return "belongs to the whole service, not to one of its models; set it where the service's "
         "settings are";
}

Status bad(const std::string& what) { return Status::invalid(std::string(kFurther), what); }

/// Returns whether the name may stand in a request, a path and a log.
bool is_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-:/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, allowed);
}

Result<FurtherSettings> read_entry(const Config& service, const std::string& entry) {
  const auto eq = entry.find('=');
  const std::string name = entry.substr(0, eq == std::string::npos ? 0 : eq),
                    source = eq == std::string::npos ? std::string() : entry.substr(eq + 1);
  if (!is_name(name) || source.empty())
    return bad("model.further has '" + entry.substr(0, 256) +
               "'; write NAME=MODEL or NAME=FILE.toml, the name of letters, digits and . _ - : /");
  FurtherSettings out{entry, service};
  const Config::Model none;
  Config::Model& model = out.config.model;
  model.name = name;
  model.further.clear();
  model.aliases.clear();
  // These suit the service's own model alone.
  model.path = none.path;
  model.prompt_format = none.prompt_format;
  model.draft_path = none.draft_path;
  model.retrieval_head_path = none.retrieval_head_path;
  if (!source.ends_with(".toml")) {
    model.path = source;
    return out;
  }
  auto text = read_file(source, 1 << 20);
  if (!text.ok())
    return text.status()
        .with_context("model.further, '" + name + "'")
        .with_field(std::string(kFurther));
  QUIRE_RETURN_IF_ERROR(apply_toml(*text, source, out.config, refused));
  if (model.path.empty())
    return Status::invalid("model.path", "model.path is missing in " + source +
                                             ", which model.further names for '" + name +
                                             "'; name the model's folder or file");
  if (const Status s = check_config(out.config); !s.ok()) return s.with_context(source);
  return out;
}

}  // namespace

Result<std::vector<FurtherSettings>> read_further_models(const Config& config) {
  std::vector<FurtherSettings> out;
  if (config.model.further.empty()) return out;
  std::map<std::string, std::string, std::less<>> whose;  // a name to its model's
  const auto take = [&](const std::string& name, const std::string& model) -> Status {
    const auto [it, fresh] = whose.emplace(name, model);
    if (fresh) return {};
    return bad("'" + name + "' is a name of two models, '" + it->second + "' and '" + model +
               "'; requests choose by it, so give one of them another name or alias");
  };
  // The service's own model is always called so.
  QUIRE_RETURN_IF_ERROR(take("default", config.model.name));
  if (config.model.name != "default")
    QUIRE_RETURN_IF_ERROR(take(config.model.name, config.model.name));
  for (const std::string& alias : config.model.aliases)
    if (alias != config.model.name && alias != "default") whose.emplace(alias, config.model.name);
  for (const std::string& entry : config.model.further) {
    QUIRE_ASSIGN_OR_RETURN(FurtherSettings further, read_entry(config, entry));
    const Config::Model& model = further.config.model;
    QUIRE_RETURN_IF_ERROR(take(model.name, model.name));
    for (const std::string& alias : model.aliases)
      if (alias != model.name) QUIRE_RETURN_IF_ERROR(take(alias, model.name));
    out.push_back(std::move(further));
  }
  return out;
}

}  // namespace quire
