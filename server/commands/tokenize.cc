#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "engine/tokenizer/tokenizer.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"

namespace quire {
namespace {

int tokenize(const std::string& asked, bool no_special) {
  const auto path = find_model_path(asked);
  if (!path.ok()) return complain(path.status());
  const auto tokenizer = load_tokenizer(*path);
  if (!tokenizer.ok()) return complain(tokenizer.status());
  const Tokenizer& t = **tokenizer;
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  std::vector<std::int32_t> ids;
  if (!no_special && t.add_bos() && t.bos_id()) ids.push_back(*t.bos_id());
  const auto body = t.encode(text);
  ids.insert(ids.end(), body.begin(), body.end());
  std::string out = "[";
  for (std::size_t i = 0; i < ids.size(); ++i)
    out.append(i ? ", " : "").append(std::to_string(ids[i]));
  std::printf("%s]\n", out.c_str());
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, CommandRun& run) {
  auto path = std::make_shared<std::string>();
  auto no_special = std::make_shared<bool>(false);
  auto* c = app.add_subcommand("tokenize",
                               "Token ids of standard input, as a JSON array.\nStarts with the BOS "
                               "where the model wants one");
  c->add_option(
      "-m,--model", *path,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  c->add_flag("--no-special", *no_special, "The ids of the text alone");
  c->callback([path, no_special, &run] {
    run = [path, no_special] { return tokenize(*path, *no_special); };
  });
}

}  // namespace quire
