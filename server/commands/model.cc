#include <CLI/CLI.hpp>
#include <cstdio>

#include "engine/model/config.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"

namespace quire {
namespace {

int info(const std::string& asked) {
  const auto path = find_model_path(asked);
  if (!path.ok()) return complain(path.status());
  const auto config = load_model_config(*path);
  if (!config.ok()) return complain(config.status());
  std::printf("folder          %s\n", path->c_str());
  std::printf("type            %s\n", config->model_type.c_str());
  std::printf("parameters      %.1f million\n", static_cast<double>(config->num_parameters()) / 1e6);
  std::printf("layers          %d\n", config->num_layers);
  std::printf("hidden size     %d, intermediate %d\n", config->hidden_size, config->intermediate_size);
  std::printf("heads           %d queries, %d keys and values, of %d\n", config->num_heads, config->num_kv_heads, config->head_dim);
  std::printf("vocabulary      %d\n", config->vocab_size);
  std::printf("window          %lld tokens\n", static_cast<long long>(config->max_position_embeddings));
  std::printf("cache           %lld bytes a token (f16)\n", static_cast<long long>(config->kv_bytes_per_token_layer(DType::kF16) * config->num_layers));
  auto tokenizer = load_tokenizer(*path);
  if (!tokenizer.ok()) return complain(tokenizer.status());
  std::shared_ptr<const Tokenizer> shared = std::move(*tokenizer);
  std::printf("tokenizer       %s\n", std::string(shared->description()).c_str());
  const auto format = PromptFormat::load(*path, shared);
  if (!format.ok()) return complain(format.status());
  std::printf("prompt format   %s%s\n", std::string(prompt_family_name(format->family())).c_str(), format->supports_system() ? "" : " (no system message)");
  return 0;
}

}  // namespace

void add_model_command(CLI::App& app, CommandRun& run) {
  auto path = std::make_shared<std::string>();
  auto* c = app.add_subcommand("model", "Look at model folders, calibrate a model");
  c->require_subcommand(1);
  auto* i = c->add_subcommand("info", "Shapes, tokenizer and prompt format of a model");
  i->add_option("-m,--model", *path, "Hugging Face model folder (default: the embedded model)");
  i->callback([path, &run] { run = [path] { return info(*path); }; });
  add_calibrate_command(*c, run);
}

}  // namespace quire
