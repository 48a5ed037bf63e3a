#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/json_parse.h"
#include "base/log.h"
#include "base/stems.h"
#include "cachestore/store.h"
#include "engine/cache/page_pool.h"
#include "engine/calibrate/citation_calibration.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/calibrate/stable_layers.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"
#include "fidelity/calibrate/citation_examples.h"
#include "fidelity/calibrate/head_examples.h"
#include "fidelity/suite_reader.h"
#include "server/commands/commands.h"
#include "server/commands/environment_option.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/service_options.h"
#include "server/config/config.h"

namespace quire {
namespace {

/// Short documents are joined to contexts of at least this many tokens, because the 3-sigma test
/// needs blocks.
constexpr std::size_t kContextTokens = 512, kLongestContext = 4096;
constexpr std::size_t kMostContexts = 64, kMostTexts = 1000;

/// Questions that heads are chosen by and citations fitted to, and memory for one of them.
constexpr std::size_t kLabelled = 100, kHidden = 32;
constexpr std::int64_t kQuestionTokens = 4096, kPoolBytes = std::int64_t{2} << 30;

struct CalibrateFlags {
  std::string model, store = "./data", documents, questions, weights = "auto", kv_dtype = "f16";
  std::string language = "english";
};

using Contexts = std::vector<std::vector<std::int32_t>>;

/// Appends a document to the contexts. Returns false if there are enough.
bool add_document(std::span<const std::int32_t> ids, std::size_t longest, Contexts& contexts) {
  while (!ids.empty()) {
    if (contexts.empty() || contexts.back().size() >= std::min(kContextTokens, longest)) {
      if (contexts.size() == kMostContexts) return false;
      contexts.emplace_back();
    }
    const std::size_t n = std::min(ids.size(), longest - contexts.back().size());
    contexts.back().insert(contexts.back().end(), ids.begin(),
                           ids.begin() + static_cast<std::ptrdiff_t>(n));
    ids = ids.subspan(n);
  }
  return true;
}

/// Reads the "text" of each line.
Result<std::vector<std::string>> read_texts(const std::string& file) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(file, std::size_t{1} << 30));
  std::vector<std::string> out;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = file + ", line " + std::to_string(number);
    const auto value = parse_json(line);
    if (!value.ok()) return Status::invalid("--documents", where + ": " + value.status().message());
    const auto* object = value->if_object();
    const auto* body = object ? object->if_contains("text") : nullptr;
    if (!body || !body->is_string())
      return Status::invalid("--documents", where + ": needs a member \"text\" that is a string");
    out.emplace_back(body->as_string());
  }
  return out;
}

/// Texts that are calibrated with, and where they come from.
struct Texts {
  std::vector<std::string> texts;
  std::string source;
};

/// Returns the texts of --documents, else those of the store, else the bundled sample.
Result<Texts> find_texts(const CalibrateFlags& f, Store& store) {
  Texts out;
  out.source = f.documents;
  if (f.documents.empty()) {
    out.source = "the store's documents";
    for (const auto& ns : store.namespaces()) {
      ListOptions page;
      for (bool more = true; more && out.texts.size() < kMostTexts;) {
        QUIRE_ASSIGN_OR_RETURN(const DocumentList list, store.list_documents(ns.name, page));
        for (const auto& head : list.documents) {
          // Deleted in the meantime, or damaged: the others suffice.
          if (auto text = store.get_text(ns.name, head.id); text.ok())
            out.texts.push_back(std::move(*text));
        }
        more = list.has_more && !list.documents.empty();
        if (more) page.after = list.documents.back().id;
      }
    }
    if (!out.texts.empty()) return out;
    QUIRE_ASSIGN_OR_RETURN(const std::string embedded, find_model_path(""));
    out.source = embedded + "/sample/corpus.jsonl";
  }
  QUIRE_ASSIGN_OR_RETURN(out.texts, read_texts(out.source));
  return out;
}

/// Chooses the model's retrieval heads; prints what it finds.
Result<std::optional<SelectionHeads>> find_heads(const CalibrateFlags& f, const Texts& texts,
                                                 EngineParts& parts) {
  PassResources core;
  core.facts = facts_of(*parts.model, *parts.tokenizer, parts.format, 0);
  const ModelConfig& config = parts.model->config();
  PagePool pool({config.num_kv_heads, config.head_dim, core.facts.shape.dtype}, kPoolBytes);
  SpeedMeter meter;
  core.model = parts.model.get();
  core.pool = &pool;
  core.meter = &meter;
  const std::int64_t longest = std::min(kQuestionTokens, core.facts.window);
  std::vector<HeadExample> examples;
  if (f.questions.empty()) {
    auto hidden = hidden_sentence_examples(texts.texts, parts.format, kHidden, longest);
    if (!hidden.ok()) {
      std::printf("heads        none: %s\n", hidden.status().message().c_str());
      return std::optional<SelectionHeads>();
    }
    examples = std::move(*hidden);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const Suite suite, read_suite(f.questions));
    QUIRE_ASSIGN_OR_RETURN(examples, labelled_examples(suite, parts.format, kLabelled, longest));
  }
  HeadCalibration calibration(core);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(calibration.add(examples[i]).status());
    if (terminal) std::fprintf(stderr, "\r%zu of %zu questions", i + 1, examples.size());
  }
  if (terminal) std::fprintf(stderr, "\r\033[K");
  const auto found = calibration.result();
  if (!found.ok()) {
    std::printf("heads        none: %s\n", found.status().message().c_str());
    return std::optional<SelectionHeads>();
  }
  std::printf("heads       ");
  for (const auto& h : found->heads.heads) std::printf(" %d.%d", h.layer, h.head);
  std::printf(" (layer.head), asked by %s, from %lld questions %s\n",
              found->heads.asks == SelectionHeads::Asks::kWords ? "the question's words"
                                                                : "the prompt's last token",
              static_cast<long long>(found->examples),
              f.questions.empty() ? "for hidden sentences" : ("of " + f.questions).c_str());
  std::printf(
      "recall       %.2f together, %.2f for the average head (questions that did "
      "not choose them, %.0f %% of the text kept)\n",
      found->chosen_recall, found->average_recall, 100 * HeadCalibration::kRecallShare);
  return std::optional(found->heads);
}

/// Prefills every context. Each segment is released with its handle.
Status run_contexts(Engine& engine, Store& store, Contexts contexts,
                    StableLayerCalibration& calibration) {
  for (auto& ids : contexts) {
    std::promise<Result<PrefillResult>> done;
    PrefillRequest request;
    request.token_ids = std::move(ids);
    engine.prefill(std::move(request),
                   [&done](Result<PrefillResult> r) { done.set_value(std::move(r)); });
    const auto result = done.get_future().get();
    QUIRE_RETURN_IF_ERROR(result.status());
    QUIRE_ASSIGN_OR_RETURN(const PinnedBytes bytes, store.read_sketch(result->segment, 0));
    const auto view = SketchView::parse(bytes.bytes());
    if (view.ok()) (void)calibration.add(*view);  // a short last context does not count
  }
  return {};
}

/// Returns whether layers were found; prints them.
Result<bool> calibrate_layers(const CalibrateFlags& f, const Texts& texts, Engine& engine,
                              Store& store, const Digest& fingerprint) {
  const EngineInfo& info = engine.info();
  const auto longest = std::min(kLongestContext, to_size(info.max_model_len) - 1);
  Contexts contexts;
  for (const std::string& text : texts.texts) {
    if (!add_document(engine.tokenizer().encode(text, Special::kNone), longest, contexts)) break;
  }
  StableLayerCalibration calibration(info.config.num_layers);
  QUIRE_RETURN_IF_ERROR(run_contexts(engine, store, std::move(contexts), calibration));
  std::printf("scores      ");
  for (const std::int64_t s : calibration.scores()) std::printf(" %lld", static_cast<long long>(s));
  std::printf(" (layers, %lld contexts)\n", static_cast<long long>(calibration.documents()));
  const auto layers = calibration.result();
  if (!layers.ok()) {
    const StableLayers kept = info.stable_layers;
    std::printf("layers       %d to %d, as before: %s\n", kept.first, kept.last,
                layers.status().message().c_str());
    return false;
  }
  QUIRE_RETURN_IF_ERROR(save_stable_layers(store, fingerprint, *layers, calibration.documents()));
  std::printf("layers       %d to %d of 0 to %d, kept in %s\n", layers->first, layers->last,
              info.config.num_layers - 1, f.store.c_str());
  return true;
}

std::string quality_text(const CitationQuality& q) {
  return std::to_string(q.right) + " of " + std::to_string(q.named) + " documents named right";
}

/// Fits the confidence of citations to the model's answers; prints what it finds. Returns whether
/// it was kept.
Result<bool> fit_citations(const CalibrateFlags& f, Engine& engine, Store& store,
                           const Digest& fingerprint) {
  if (f.questions.empty()) {
    std::printf("citations    as before: --questions with known supporting documents fits them\n");
    return false;
  }
  QUIRE_ASSIGN_OR_RETURN(const Suite suite, read_suite(f.questions));
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [terminal](std::size_t done, std::size_t all) {
    if (terminal) std::fprintf(stderr, "\r%zu of %zu answers", done, all);
  };
  const auto examples = citation_examples(suite, engine, kLabelled, f.language, progress);
  if (terminal) std::fprintf(stderr, "\r\033[K");
  auto found = examples.ok() ? calibrate_citations(*examples)
                             : Result<CitationCalibration>(examples.status());
  if (!found.ok() && found.code() != Code::kFailedPrecondition &&
      found.code() != Code::kInvalidArgument)
    return found.status();
  if (!found.ok()) {
    QUIRE_RETURN_IF_ERROR(drop_citation_confidence(store, fingerprint));
    std::printf("citations    confidence as built in: %s\n", found.status().message().c_str());
    return false;
  }
  QUIRE_RETURN_IF_ERROR(save_citation_confidence(store, fingerprint, found->confidence));
  std::printf(
      "citations    confidence fitted to %zu questions, kept in %s: %s on questions left out; by "
      "the built-in constants %s\n",
      found->questions, f.store.c_str(), quality_text(found->fitted).c_str(),
      quality_text(found->before).c_str());
  return true;
}

Status calibrate_with(const CalibrateFlags& f, const EngineOptions& options, Store& store) {
  QUIRE_ASSIGN_OR_RETURN(EngineParts parts, load_engine_parts(nullptr, options));
  const Digest fingerprint = facts_of(*parts.model, *parts.tokenizer, parts.format, 0)
                                 .names.fingerprint();
  QUIRE_ASSIGN_OR_RETURN(const Texts texts, find_texts(f, store));
  std::printf("model        %s (m-%s)\n", options.model_path.c_str(),
              fingerprint.hex().substr(0, 8).c_str());
  std::printf("documents    %s\n", texts.source.c_str());
  QUIRE_ASSIGN_OR_RETURN(const auto heads, find_heads(f, texts, parts));
  if (heads) {
    QUIRE_RETURN_IF_ERROR(save_selection_heads(store, fingerprint, *heads));
    std::printf("kept         in %s; strategy samkv ranks blocks by these heads\n",
                f.store.c_str());
  } else {
    const bool found_before = store.get_meta(selection_heads_record(fingerprint)).ok();
    QUIRE_RETURN_IF_ERROR(drop_selection_heads(store, fingerprint));
    if (found_before)
      std::printf("removed      from %s: the heads that were found before\n", f.store.c_str());
  }
  QUIRE_ASSIGN_OR_RETURN(const auto engine,
                         create_engine_from_parts(std::move(parts), options, store));
  const Result<bool> layers = calibrate_layers(f, texts, *engine, store, fingerprint);
  const Result<bool> citations = layers.ok() ? fit_citations(f, *engine, store, fingerprint)
                                             : layers;
  engine->stop(std::chrono::milliseconds(0));
  QUIRE_RETURN_IF_ERROR(citations.status());
  if (heads || *layers || *citations) return {};
  return Status::precondition(
      "nothing was found, and strategy samkv ranks blocks without heads: give more or longer texts "
      "with --documents, or questions with --questions");
}

int calibrate(const CalibrateFlags& f) {
  set_log_sink(nullptr, LogLevel::kWarning);
  const auto path = find_model_path(f.model);
  if (!path.ok()) return complain(path.status());
  StoreOptions store_options;
  store_options.path = f.store;
  store_options.dram_bytes = 64u << 20;
  if (!holds_store(f.store))
    std::printf("store        there is none in %s yet, so one is made\n", f.store.c_str());
  auto store = open_store(store_options);
  if (!store.ok()) return complain(store.status());
  EngineOptions options;
  options.model_path = *path;
  options.weights = f.weights;
  options.kv_dtype = f.kv_dtype;
  const Status done = calibrate_with(f, options, **store);
  return done.ok() ? 0 : complain(done);
}

}  // namespace

void add_calibrate_command(CLI::App& model, CommandRun& run) {
  auto f = std::make_shared<CalibrateFlags>();
  auto* c = model.add_subcommand("calibrate",
                                 "Find the attention heads by which this model's questions find "
                                 "their passages, the layers that tell how much of a document to "
                                 "keep, and with --questions how far its citations can be trusted; "
                                 "keep all three in the store.\n"
                                 "Strategy samkv then ranks blocks by these heads. Documents that "
                                 "were stored before are computed anew when a query first needs "
                                 "them.\n"
                                 "The service must be stopped; it reads the result when it starts "
                                 "with the same model, weights and KV type");
  c->add_option(
      "-m,--model", f->model,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  default_from_environment(c->add_option("-p,--path", f->store, "Folder of the store (disk.path)"),
                           f->store, "QUIRE_DISK__PATH")
      ->capture_default_str();
  c->add_option("-d,--documents", f->documents,
                "JSON lines with a \"text\" each (default: the store's documents, else the bundled "
                "sample corpus)")
      ->type_name("FILE");
  c->add_option(
       "--questions", f->questions,
       "Questions that name the text which answers them: HotpotQA, 2WikiMultihopQA, MuSiQue, "
       "or lines of \"documents\", \"question\", \"support\" (docs/fidelity.md). Without "
       "them made-up sentences are hidden in the documents and asked for")
      ->type_name("FILE");
  const auto languages = stem_languages();
  c->add_option("--language", f->language,
                "Whose words are stemmed for citations, as retrieve.language of the service")
      ->check(CLI::IsMember(std::vector<std::string>(languages.begin(), languages.end())))
      ->capture_default_str();
  c->add_option("--weights", f->weights, "As model.weights of the service")->capture_default_str();
  c->add_option("--kv-dtype", f->kv_dtype, "As model.kv_dtype of the service")
      ->capture_default_str();
  c->callback([f, &run] { run = [f] { return calibrate(*f); }; });
}

}  // namespace quire
