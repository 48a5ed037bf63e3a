#include "server/commands/fidelity_identity.h"

#include "cachestore/format/key.h"
#include "engine/calibrate/head_calibration.h"

namespace quire {
namespace {

/// Returns the digest of settings that answers, or their cost, may depend on and that are not the
/// defaults, or "defaults". A setting that a later build adds changes it only where it is set;
/// other builds are told apart by fidelity_build(). It covers whole sections, so that later
/// settings are included. Paths and the model's name are left out: fingerprints cover the files'
/// contents. Of [retrieve] only the language counts, by which strategies match words: a run
/// searches nothing with the service's other settings.
std::string settings_digest(const Config& config) {
  Config c;
  c.model = config.model;
  c.cache = config.cache;
  c.policy = config.policy;
  c.prompt = config.prompt;
  c.prompt.namespaces_file.clear();  // a run's namespace has no words of its own
  c.retrieve.language = config.retrieve.language;
  for (std::string* path :
       {&c.model.path, &c.model.name, &c.model.draft_path, &c.model.retrieval_head_path})
    path->clear();
  const std::string text = changed_to_toml(c, Config());
  return text.empty() ? "defaults" : sha256(text).hex().substr(0, 16);
}

}  // namespace

std::string fidelity_identity(const ReportContext& c, const EngineInfo& info,
                              const Config& config) {
  const auto or_none = [](const std::string& fingerprint) {
    return fingerprint.empty() ? "none" : fingerprint;
  };
  std::string more = " draft=" + or_none(c.draft_fingerprint) +
                     " head=" + or_none(c.retrieval_head_fingerprint) +
                     " settings=" + settings_digest(config) +
                     " stable_layers=" + std::to_string(info.stable_layers.first) + "-" +
                     std::to_string(info.stable_layers.last);
  if (!info.selection_heads.empty())
    more += " selection_heads=" + encode_selection_heads(info.selection_heads);
  if (c.span_tokens > 0)
    more += " span_tokens=" + std::to_string(c.span_tokens) +
            " temperature=" + std::to_string(c.temperature) + " seed=" + std::to_string(c.seed);
  return c.fingerprint_hex + " " + c.suite_hash + more +
         " max_tokens=" + std::to_string(c.max_tokens) +
         " chunk_tokens=" + std::to_string(c.chunk_tokens) +
         " context_tokens=" + std::to_string(c.context_tokens) +
         (c.related_tokens > 0 ? " related_tokens=" + std::to_string(c.related_tokens) : "") +
         (c.lead_in ? " lead_in" : "") + " block_tokens=" + std::to_string(c.block_tokens) +
         " window=" + std::to_string(c.max_model_len);
}

std::string fidelity_build(const ReportContext& c) { return c.commit + ", " + c.isa; }

}  // namespace quire
