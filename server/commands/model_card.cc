#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "cachestore/store.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/engine_parts.h"
#include "fidelity/card/model_card.h"
#include "server/commands/commands.h"
#include "server/commands/environment_option.h"
#include "server/commands/model_files/model_path.h"
#include "server/config/config.h"

namespace quire {
namespace {

constexpr std::size_t kMaxCardBytes = 64u << 20;

struct CardFlags {
  std::string model, store = "./data", weights = "auto", kv_dtype = "f16", out;
};

Result<ModelCardEntry> collect(const CardFlags& f, const std::string& model_path) {
  StoreOptions store_options;
  store_options.path = f.store;
  store_options.read_only = true;
  store_options.dram_bytes = 0;
  QUIRE_ASSIGN_OR_RETURN(const auto store, open_store(store_options));
  EngineOptions options;
  options.model_path = model_path;
  options.weights = f.weights;
  options.kv_dtype = f.kv_dtype;
  QUIRE_ASSIGN_OR_RETURN(EngineParts parts, load_engine_parts(nullptr, options));
  const EngineFacts facts = facts_of(*parts.model, *parts.tokenizer, parts.format, 0);
  const Digest& fingerprint = facts.names.fingerprint();
  const auto heads = load_selection_heads(*store, fingerprint, facts.shape.num_layers,
                                          facts.num_heads);
  if (!heads.ok() && heads.status().code() != Code::kNotFound) return heads.status();
  return collect_model_card(*store, fingerprint,
                            fingerprint_hex(fingerprint, heads.ok() ? *heads : SelectionHeads()));
}

/// Returns what a card that is there says of other weights or kinds of KV.
Result<std::vector<ModelCardEntry>> others_in(const std::string& path, const Digest& fingerprint) {
  if (std::error_code ec; !std::filesystem::exists(path, ec)) return std::vector<ModelCardEntry>();
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxCardBytes));
  auto entries = parse_model_card(text);
  if (!entries.ok())
    return entries.status().with_context(path +
                                         " is no model card and stays; name another file with -o");
  std::erase_if(*entries, [&](const ModelCardEntry& e) { return e.fingerprint == fingerprint; });
  return entries;
}

/// Puts the whole text in the file's place, or leaves the file as it was.
Status replace_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code ec;
  if (file) std::filesystem::rename(fresh, path, ec);
  if (file && !ec) return {};
  std::error_code ignored;
  std::filesystem::remove(fresh, ignored);
  return Status::io("cannot write " + path + (ec ? ": " + ec.message() : std::string()));
}

int card(const CardFlags& f) {
  set_log_sink(nullptr, LogLevel::kWarning);
  const auto path = find_model_path(f.model);
  if (!path.ok()) return complain(path.status());
  const auto entry = collect(f, *path);
  if (!entry.ok()) return complain(entry.status());
  if (entry->selection_heads.empty() && entry->stable_layers.empty() &&
      entry->citation_confidence.empty() && entry->certificates.empty())
    return complain(f.store +
                    " holds nothing of this model with these weights: run 'quire model "
                    "calibrate' or 'quire fidelity --certify' first");
  if (f.out == "-") {
    std::printf("%s\n", model_card_json({*entry}).c_str());
    return 0;
  }
  const std::string out = f.out.empty() ? model_card_path(*path).string() : f.out;
  auto entries = others_in(out, entry->fingerprint);
  if (!entries.ok()) return complain(entries.status());
  entries->push_back(*entry);
  if (const Status s = replace_file(out, model_card_json(*entries) + "\n"); !s.ok())
    return complain(s);
  std::printf(
      "%s: %s, %s, %zu certificates\n", out.c_str(),
      entry->selection_heads.empty() ? "no retrieval heads" : "retrieval heads",
      entry->citation_confidence.empty() ? "citations not calibrated" : "calibrated citations",
      entry->certificates.size());
  return 0;
}

}  // namespace

void add_model_card_command(CLI::App& model, CommandRun& run) {
  auto f = std::make_shared<CardFlags>();
  auto* c = model.add_subcommand(
      "card",
      "Write what a store holds of this model (retrieval heads, stable layers, confidence of "
      "citations, certificates) to quire-card.json beside the model.\n"
      "A service that starts with the model takes the file into its store, where the store has "
      "nothing of its own");
  c->add_option(
      "-m,--model", f->model,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  default_from_environment(c->add_option("-p,--path", f->store, "Folder of the store (disk.path)"),
                           f->store, "QUIRE_DISK__PATH")
      ->capture_default_str();
  c->add_option("--weights", f->weights, "As model.weights of the service")->capture_default_str();
  c->add_option("--kv-dtype", f->kv_dtype, "As model.kv_dtype of the service")
      ->capture_default_str();
  c->add_option("-o,--output", f->out, "Another file; - for standard output")->type_name("FILE");
  c->callback([f, &run] { run = [f] { return card(*f); }; });
}

}  // namespace quire
