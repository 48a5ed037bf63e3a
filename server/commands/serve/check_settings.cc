#include "server/commands/serve/check_settings.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/remote/remote_tiers.h"
#include "engine/chat/chat_template.h"
#include "engine/engine.h"
#include "engine/engine_checks.h"
#include "engine/model/config.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "engine/tokenizer/tokenizer.h"
#include "readers/reader_process.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/serve/configured.h"
#include "server/commands/service_options.h"
#include "server/config/config.h"
#include "server/config/further_models.h"
#include "server/http/tls_certificate.h"

namespace quire {
namespace {

/// Checks what the settings ask of the draft, of which only the configuration is read.
Status check_draft(const EngineOptions& options) {
  if (options.draft_path.empty()) {
    return options.draft_document_kv
               ? Status::invalid("model.draft_document_kv",
                                 "needs a draft: set model.draft_path, or switch it off")
               : Status();
  }
  const auto draft = load_model_config(options.draft_path);
  if (!draft.ok())
    return Status::invalid(
        "model.draft_path",
        "the draft in " + options.draft_path + " cannot be used: " + draft.status().to_string());
  if (options.draft_layers <= draft->num_layers) return {};
  return Status::invalid("model.draft_layers", "is " + std::to_string(options.draft_layers) +
                                                   ", and the draft in " + options.draft_path +
                                                   " has " + std::to_string(draft->num_layers) +
                                                   " layers; use at most so many, or 0 for all");
}

/// Checks that there is a retrieval head where the settings say so; its weights are not read.
Status check_head(const EngineOptions& options) {
  if (options.retrieval_head_path.empty()) return {};
  const auto text = read_file(options.retrieval_head_path + "/config.json", 1 << 20);
  const Status s = text.ok() ? parse_retrieval_head_config(*text).status() : text.status();
  if (s.ok()) return {};
  return Status::invalid(
      "model.retrieval_head_path",
      "the retrieval head in " + options.retrieval_head_path + " cannot be used: " + s.message());
}

/// Checks what the settings ask of files that are read in a moment: tokenizer, prompt format,
/// draft, retrieval head and encoders. A model that is still to be fetched is left out. `model` is
/// its path.
Status check_small_files(const Config& c, const std::string& model) {
  std::error_code ec;
  if (std::filesystem::exists(model, ec)) {
    const EngineOptions options = engine_options(c, model);
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, load_tokenizer(model));
    QUIRE_RETURN_IF_ERROR(
        PromptFormat::load(model, std::shared_ptr<const Tokenizer>(std::move(tokenizer)),
                           {.format = options.prompt_format, .wording = options.prompt_wording})
            .status());
    QUIRE_RETURN_IF_ERROR(check_draft(options));
    QUIRE_RETURN_IF_ERROR(check_head(options));
    QUIRE_ASSIGN_OR_RETURN(const ModelConfig its, load_model_config(model));
    QUIRE_RETURN_IF_ERROR(check_device_kv(options, its.head_dim, c.model.backend == "cuda"));
  }
  QUIRE_RETURN_IF_ERROR(load_encoder(c).status());
  return load_reranker(c).status();
}

}  // namespace

Status check_settings(const Config& config) {
  QUIRE_RETURN_IF_ERROR(configured_keys(config).status());
  QUIRE_RETURN_IF_ERROR(configured_issuer(config).status());
  if (!config.server.tls_key.empty()) {
    QUIRE_RETURN_IF_ERROR(
        TlsCertificate::load(config.server.tls_certificate, config.server.tls_key).status());
  }
  if (!config.trace.endpoint.empty()) QUIRE_RETURN_IF_ERROR(configured_trace_headers().status());
  if (!config.log.audit.empty()) QUIRE_RETURN_IF_ERROR(AuditLog::check(config.log.audit));
  // A service without a reader takes texts.
  if (const auto reader = ReaderProcess::find(); reader.code() == Code::kInvalidArgument)
    return reader.status();
  QUIRE_ASSIGN_OR_RETURN(const StoreOptions store, store_options(config));
  QUIRE_RETURN_IF_ERROR(check_store_options(store));
  QUIRE_RETURN_IF_ERROR(open_remote_tiers(store.remote).status());
  QUIRE_ASSIGN_OR_RETURN(const NamespaceWordings words,
                         load_namespace_wordings(config.prompt.namespaces_file));
  QUIRE_RETURN_IF_ERROR(configured_citations(config, words).status());
  QUIRE_ASSIGN_OR_RETURN(const std::string model,
                         find_model_path(config.model.path, FromHub::kName));
  QUIRE_RETURN_IF_ERROR(check_small_files(config, model));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<FurtherSettings> further, read_further_models(config));
  for (const FurtherSettings& settings : further) {
    const auto path = find_model_path(settings.config.model.path, FromHub::kName);
    const Status s = path.ok() ? check_small_files(settings.config, *path) : path.status();
    if (!s.ok()) return s.with_context("model.further, " + settings.source);
  }
  return {};
}

}  // namespace quire
