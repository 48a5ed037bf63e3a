#include <CLI/CLI.hpp>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/store.h"
#include "engine/calibrate/stable_layers.h"
#include "engine/engine.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"
#include "server/config/config.h"
#include "server/json/parse.h"

namespace quire {
namespace {

/// Short documents are joined to contexts of at least this many tokens, because the 3-sigma test
/// needs blocks.
constexpr std::size_t kContextTokens = 512, kLongestContext = 4096;
constexpr std::size_t kMostContexts = 64;

struct CalibrateFlags {
  std::string model, store = "./data", documents, weights = "auto", kv_dtype = "f16";
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

/// Adds the "text" of each line.
Status add_file(const std::string& file, const Tokenizer& tokenizer, std::size_t longest,
                Contexts& contexts) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(file, std::size_t{1} << 30));
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
    if (!add_document(tokenizer.encode(std::string(body->as_string()), Special::kNone), longest,
                      contexts))
      break;
  }
  return {};
}

Status add_stored(Store& store, std::size_t longest, Contexts& contexts) {
  for (const auto& ns : store.namespaces()) {
    ListOptions page;
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(const DocumentList list, store.list_documents(ns.name, page));
      for (const auto& head : list.documents) {
        const auto document = store.get_document(ns.name, head.id);
        if (!document.ok()) continue;  // deleted in the meantime, or damaged; the others suffice
        for (const auto& chunk : document->chunks) {
          if (!add_document(chunk.token_ids, longest, contexts)) return {};
        }
      }
      if (!list.has_more || list.documents.empty()) break;
      page.after = list.documents.back().id;
    }
  }
  return {};
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

Result<int> calibrate_with(const CalibrateFlags& f, const std::string& model_path, Engine& engine,
                           Store& store) {
  const EngineInfo& info = engine.info();
  const auto longest = std::min(kLongestContext, to_size(info.max_model_len) - 1);
  Contexts contexts;
  std::string source = f.documents;
  if (source.empty()) {
    QUIRE_RETURN_IF_ERROR(add_stored(store, longest, contexts));
    source = "the store's documents";
  }
  if (contexts.empty()) {
    if (f.documents.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const std::string embedded, find_model_path(""));
      source = embedded + "/sample/corpus.jsonl";
    }
    QUIRE_RETURN_IF_ERROR(add_file(source, engine.tokenizer(), longest, contexts));
  }
  StableLayerCalibration calibration(info.config.num_layers);
  QUIRE_RETURN_IF_ERROR(run_contexts(engine, store, std::move(contexts), calibration));
  std::printf("model        %s (%s)\n", model_path.c_str(), info.fingerprint.c_str());
  std::printf("documents    %lld contexts from %s\n",
              static_cast<long long>(calibration.documents()), source.c_str());
  std::printf("scores      ");
  for (const std::int64_t s : calibration.scores()) std::printf(" %lld", static_cast<long long>(s));
  std::printf("\n");
  const auto layers = calibration.result();
  if (!layers.ok()) {
    const StableLayers kept = info.stable_layers;
    std::printf("layers       %d to %d, as before\n", kept.first, kept.last);
    return layers.status();
  }
  Digest fingerprint;
  std::transform(info.fingerprint_digest.begin(), info.fingerprint_digest.end(),
                 fingerprint.bytes.begin(), [](std::uint8_t b) { return std::byte{b}; });
  QUIRE_RETURN_IF_ERROR(save_stable_layers(store, fingerprint, *layers, calibration.documents()));
  std::printf("layers       %d to %d of 0 to %d, kept in %s\n", layers->first, layers->last,
              info.config.num_layers - 1, f.store.c_str());
  return 0;
}

int calibrate(const CalibrateFlags& f) {
  set_log_sink(nullptr, LogLevel::kWarning);
  const auto path = find_model_path(f.model);
  if (!path.ok()) return complain(path.status());
  StoreOptions store_options;
  store_options.path = f.store;
  store_options.dram_bytes = 64u << 20;
  auto store = open_store(store_options);
  if (!store.ok()) return complain(store.status());
  EngineOptions options;
  options.model_path = *path;
  options.weights = f.weights;
  options.kv_dtype = f.kv_dtype;
  auto engine = create_engine(options, **store);
  if (!engine.ok()) return complain(engine.status());
  const auto rc = calibrate_with(f, *path, **engine, **store);
  (*engine)->stop(std::chrono::milliseconds(0));
  return rc.ok() ? *rc : complain(rc.status());
}

}  // namespace

void add_calibrate_command(CLI::App& model, CommandRun& run) {
  auto f = std::make_shared<CalibrateFlags>();
  auto* c = model.add_subcommand("calibrate",
                                 "Find the layers from which selection reads how much of a "
                                 "document to keep, and keep the result in the store.\n"
                                 "The service must be stopped; it reads the result when it starts "
                                 "with the same model, weights and KV type");
  c->add_option(
      "-m,--model", f->model,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  c->add_option("-p,--path", f->store, "Folder of the store (disk.path)")
      ->envname("QUIRE_DISK__PATH")
      ->capture_default_str();
  c->add_option("-d,--documents", f->documents,
                "JSON lines with a \"text\" each (default: the store's documents, else the bundled "
                "sample corpus)")
      ->type_name("FILE");
  c->add_option("--weights", f->weights, "As model.weights of the service")->capture_default_str();
  c->add_option("--kv-dtype", f->kv_dtype, "As model.kv_dtype of the service")
      ->capture_default_str();
  c->callback([f, &run] { run = [f] { return calibrate(*f); }; });
}

}  // namespace quire
