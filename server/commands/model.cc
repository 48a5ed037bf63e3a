#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "engine/chat/chat_template.h"
#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_fetch.h"
#include "server/commands/model_files/model_path.h"
#include "server/hub/model_cache.h"

namespace quire {
namespace {

int info(const std::string& asked) {
  const auto path = find_model_path(asked);
  if (!path.ok()) return complain(path.status());
  const auto config = load_model_config(*path);
  if (!config.ok()) return complain(config.status());
  std::printf("folder          %s\n", path->c_str());
  std::printf("type            %s\n", config->model_type.c_str());
  std::printf("parameters      %.1f million\n",
              static_cast<double>(config->num_parameters()) / 1e6);
  std::printf("layers          %d\n", config->num_layers);
  std::printf("hidden size     %d, intermediate %d\n", config->hidden_size,
              config->intermediate_size);
  std::printf("heads           %d queries, %d keys and values, of %d\n", config->num_heads,
              config->num_kv_heads, config->head_dim);
  std::printf("vocabulary      %d\n", config->vocab_size);
  std::printf("window          %lld tokens\n",
              static_cast<long long>(config->max_position_embeddings));
  std::printf(
      "cache           %lld bytes a token (f16)\n",
      static_cast<long long>(config->kv_bytes_per_token_layer(DType::kF16) * config->num_layers));
  auto tokenizer = load_tokenizer(*path);
  if (!tokenizer.ok()) return complain(tokenizer.status());
  std::shared_ptr<const Tokenizer> shared = std::move(*tokenizer);
  std::printf("tokenizer       %s\n", std::string(shared->description()).c_str());
  const auto format = PromptFormat::load(*path, shared);
  if (!format.ok()) return complain(format.status());
  std::printf("prompt format   %s%s\n", std::string(prompt_family_name(format->family())).c_str(),
              format->supports_system() ? "" : " (no system message)");
  return 0;
}

int get(const std::string& name) {
  const bool bare = !hub::is_reference(name) && hub::looks_like_repo(name);
  // A bare org/repo can only name a model on the hub here.
  const auto path = fetch_model(bare ? "hf:" + name : name, /*update=*/true);
  if (!path.ok()) return complain(path.status());
  std::printf("%s\n", path->c_str());
  return 0;
}

int list() {
  const auto models = hub::list_models(hub::HubOptions::from_environment().root);
  std::size_t width = 5;
  for (const auto& m : models) width = std::max(width, m.name.size());
  for (const auto& m : models) {
    std::printf("%-*s  %9.1f MiB  %s%s\n", static_cast<int>(width), m.name.c_str(),
                static_cast<double>(m.bytes) / (1 << 20), m.path.c_str(),
                m.whole ? "" : "  (not whole)");
  }
  if (models.empty())
    std::fprintf(stderr, "no models in %s\n", hub::HubOptions::from_environment().root.c_str());
  return 0;
}

int remove(const std::string& name) {
  const auto reference = hub::parse_reference(
      !hub::is_reference(name) && hub::looks_like_repo(name) ? "hf:" + name : name);
  if (!reference.ok()) return complain(reference.status());
  const auto bytes = hub::remove_model(*reference, hub::HubOptions::from_environment().root);
  if (!bytes.ok()) return complain(bytes.status());
  std::printf("removed %s, %.1f MiB\n", reference->text().c_str(),
              static_cast<double>(*bytes) / (1 << 20));
  return 0;
}

}  // namespace

void add_model_command(CLI::App& app, CommandRun& run) {
  auto path = std::make_shared<std::string>();
  auto* c = app.add_subcommand("model",
                               "Fetch models, look at them, calibrate one, write its card");
  c->require_subcommand(1);
  auto* i = c->add_subcommand("info", "Shapes, tokenizer and prompt format of a model");
  i->add_option(
      "-m,--model", *path,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  i->callback([path, &run] { run = [path] { return info(*path); }; });
  auto name = std::make_shared<std::string>();
  auto* g = c->add_subcommand(
      "get",
      "Fetch a model from a hub, or what changed of it, and print its path. Goes on where an "
      "earlier fetch ended; every file is checked.\n"
      "  quire model get hf:org/repo               the files of a model folder, or the usual GGUF "
      "file (Q4_K_M first)\n"
      "  quire model get hf:org/repo:Q8_0          that quantisation; also a file's path\n"
      "  quire model get hf:org/repo@revision      a branch, tag or commit\n"
      "The same names work wherever a model is asked for, as in --model hf:org/repo.\n"
      "HF_TOKEN: for gated models. HF_ENDPOINT: another hub. QUIRE_CACHE: where models are kept "
      "(default ~/.cache/quire/models)");
  g->add_option("MODEL", *name, "hf:org/repo[@revision][:file]")->required();
  g->callback([name, &run] { run = [name] { return get(*name); }; });
  auto* l = c->add_subcommand("list", "Models fetched, their sizes and paths");
  l->callback([&run] { run = list; });
  auto* r = c->add_subcommand("rm", "Delete a fetched model");
  r->add_option("MODEL", *name, "As quire model list names it")->required();
  r->callback([name, &run] { run = [name] { return remove(*name); }; });
  add_calibrate_command(*c, run);
  add_model_card_command(*c, run);
}

}  // namespace quire
