#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/store.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/calibrate/stable_layers.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"
#include "engine/model/config.h"
#include "fidelity/card/model_card.h"
#include "fidelity/certificate.h"
#include "fidelity/report.h"
#include "fidelity/report/html_report.h"
#include "fidelity/ruler.h"
#include "fidelity/runner.h"
#include "fidelity/suite_reader.h"
#include "ingest/document/related_chunks.h"
#include "ingest/ingest_service.h"
#include "ingest/search/related_search.h"
#include "ingest/search/retrieval.h"
#include "server/commands/commands.h"
#include "server/commands/fidelity_identity.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/service_options.h"
#include "server/commands/settings_flags.h"
#include "server/commands/temporary_folder.h"
#include "server/config/config.h"
#include "server/json/text.h"
#include "server/support/second_signal.h"
#include "server/support/version.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

struct FidelityFlags {
  std::string model, config_file, suite = "encyclopedia", strategies = "recompute,exact,reuse",
                                  source, json, html, svg, work, store;
  std::string instruction = "auto";
  std::int64_t limit = 40, max_tokens = 32, chunk_tokens = 512, context_tokens = 4096,
               related_tokens = 0, per_task = 20, span_tokens = 0;
  double temperature = 0;
  std::uint64_t seed = 1;
  bool lead_in = false, certify = false, fresh = false, any_build = false, quiet = false;
  std::vector<std::string> settings;
};

constexpr const char* kNamespace = "fidelity";
constexpr const char* kSuiteFile = "encyclopedia.jsonl";

std::atomic<bool> interrupted{false};
SecondSignal signals;

void on_interrupt(int signal) {
  interrupted = true;
  if (signals.take()) {  // the second signal ends the process at once
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

/// Shows a progress bar on a terminal, and occasional lines elsewhere.
class ProgressLine {
 public:
  ProgressLine(bool quiet) : terminal_(::isatty(2) != 0), quiet_(quiet) {}
  void show(const RunProgress& p) {
    using std::chrono::steady_clock;
    const auto now = steady_clock::now();
    if (first_done_ < 0) {
      first_done_ = p.done;
      started_ = now;
    }
    const bool last = p.done == p.total;
    if (quiet_ || (!last && now - shown_ < (terminal_ ? std::chrono::milliseconds(100)
                                                      : std::chrono::milliseconds(10000))))
      return;
    shown_ = now;
    const double ratio = p.total > 0 ? static_cast<double>(p.done) / static_cast<double>(p.total)
                                     : 1;
    const double seconds = std::chrono::duration<double>(now - started_).count();
    const auto did = static_cast<double>(p.done - first_done_);
    std::string left;  // nothing is known before the first row
    if (did > 0)
      left = ", " +
             std::to_string(std::llround(seconds / did * static_cast<double>(p.total - p.done))) +
             " s left";
    if (terminal_) {
      constexpr int kWidth = 32;
      std::string bar(to_size(std::clamp(static_cast<int>(ratio * kWidth), 0, kWidth)), '#');
      bar.resize(kWidth, '.');
      std::fprintf(stderr, "\r[%s] %3.0f%%  %lld/%lld%s  %.40s under %.40s\033[K", bar.c_str(),
                   ratio * 100, static_cast<long long>(p.done), static_cast<long long>(p.total),
                   left.c_str(), p.task.c_str(), p.strategy.c_str());
      if (last) std::fputc('\n', stderr);
    } else {
      std::fprintf(stderr, "%lld of %lld rows%s\n", static_cast<long long>(p.done),
                   static_cast<long long>(p.total), left.c_str());
    }
    std::fflush(stderr);
  }
  void end() {
    if (terminal_ && !quiet_ && first_done_ >= 0) std::fputc('\n', stderr);
  }

 private:
  const bool terminal_, quiet_;
  std::int64_t first_done_ = -1;
  std::chrono::steady_clock::time_point started_, shown_;
};

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void describe_machine(ReportContext& c) {
  c.cpu = cpu_name();
  c.cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  c.memory_bytes = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  utsname name{};
  if (::uname(&name) == 0) c.kernel = std::string(name.sysname) + " " + name.release;
  c.commit = build_commit();
  c.date = rfc3339(std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count());
}

/// Returns the questions that came with the loaded model, else those of the embedded one.
Result<std::string> encyclopedia_path(const std::string& model_path) {
  std::error_code ec;
  if (const auto own = fs::path(model_path) / kSuiteFile; fs::is_regular_file(own, ec))
    return own.string();
  const auto embedded = find_model_path("");
  if (embedded.ok()) {
    if (const auto file = fs::path(*embedded) / kSuiteFile; fs::is_regular_file(file, ec))
      return file.string();
  }
  return Status::not_found("the suite 'encyclopedia' is not here: neither " + model_path +
                           " nor the embedded model has a file " + kSuiteFile +
                           "; name a file with --suite")
      .with_field("--suite");
}

Result<Suite> make_suite(const FidelityFlags& f, const Engine& engine,
                         const std::string& model_path) {
  Suite suite;
  const auto read_named = [&](const std::string& name) -> Result<Suite> {
    std::string path = name;
    if (name == "encyclopedia") {
      QUIRE_ASSIGN_OR_RETURN(path, encyclopedia_path(model_path));
    }
    QUIRE_ASSIGN_OR_RETURN(Suite read, read_suite(path));
    read.name = name == "encyclopedia" ? name : fs::path(path).filename().string();
    return read;
  };
  if (f.suite.starts_with("ruler@")) {
    RulerOptions o;
    const std::string digits = f.suite.substr(6);
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(),
                                           o.length_tokens);
    if (ec != std::errc() || end != digits.data() + digits.size())
      return Status::invalid(
          "--suite",
          "'" + f.suite + "': write ruler@ and a number of tokens, for example ruler@4096");
    o.window_tokens = engine.info().max_model_len;
    o.per_task = f.per_task;
    o.seed = f.seed;
    QUIRE_ASSIGN_OR_RETURN(const Suite source,
                           read_named(f.source.empty() ? "encyclopedia" : f.source));
    const auto chunk = static_cast<std::int32_t>(f.chunk_tokens);
    QUIRE_ASSIGN_OR_RETURN(suite, make_ruler(source, o, [&engine, chunk](const SuiteRecord& r) {
                             return prompt_tokens(engine, r, chunk);
                           }));
  } else {
    QUIRE_ASSIGN_OR_RETURN(suite, read_named(f.suite));
  }
  if (f.instruction != "auto")
    suite.instruction = f.instruction;
  else if (engine.prompt_format().family() == PromptFamily::kQuire)
    suite.instruction.clear();  // the model was trained without instructions
  return suite;
}

Status write_text(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  {
    std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
    out << text;
    if (!out.flush())
      return Status::io("cannot write " + fresh + ": check the folder and its permissions");
  }
  std::error_code ec;
  fs::rename(fresh, path, ec);
  if (ec) return Status::io("cannot write " + path + ": " + ec.message());
  return {};
}

/// Returns an error if write_text() could not put a file there. The call comes before the long run,
/// so that a wrong folder is found at once.
Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  std::error_code ec;
  if (fs::is_directory(path, ec)) return Status::io(path + " is a folder, not a file");
  const std::string fresh = path + ".new";
  const bool opens = std::ofstream(fresh, std::ios::binary | std::ios::app).is_open();
  fs::remove(fresh, ec);
  return opens ? Status()
               : Status::io("cannot write " + fresh + ": check the folder and its permissions");
}

/// A folder that is deleted with the object, unless the user named it.
class WorkFolder {
 public:
  static Result<std::unique_ptr<WorkFolder>> make(const std::string& named) {
    auto out = std::make_unique<WorkFolder>();
    if (!named.empty()) {
      out->path_ = named;
      return out;
    }
    auto path = make_temporary_folder("quire-fidelity");
    if (!path.ok()) return Status::io(path.status().message() + "; name one with --work");
    out->path_ = std::move(*path);
    out->temporary_ = true;
    return out;
  }
  ~WorkFolder() {
    std::error_code ec;
    if (temporary_) fs::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool temporary_ = false;
};

/// Store, engine and document service, destroyed in reverse order.
struct Bench {
  std::unique_ptr<WorkFolder> folder;
  std::unique_ptr<Store> store;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Retrieval> retrieval;
  std::unique_ptr<IngestService> ingest;
  ~Bench() {
    if (ingest) ingest->stop();
    if (retrieval) retrieval->stop();
    if (engine) engine->stop(std::chrono::milliseconds(0));
    ingest.reset();
    retrieval.reset();
    engine.reset();
    store.reset();
  }
};

/// Copies what 'quire model calibrate' found for this model from the service's store, as answers
/// depend on it. A store that is not there, or not readable now, is as good as none.
Status take_calibration(const std::string& from, const EngineFacts& facts, Store& to) {
  std::error_code ec;
  if (!fs::exists(from, ec)) return {};
  StoreOptions options;
  options.path = from;
  options.read_only = true;
  options.dram_bytes = 0;
  const auto store = open_store(options);
  if (!store.ok()) {
    std::fprintf(stderr, "the calibration in %s is not used: %s\n", from.c_str(),
                 store.status().message().c_str());
    return {};
  }
  const Digest& fingerprint = facts.names.fingerprint();
  if (const auto heads = load_selection_heads(**store, fingerprint, facts.shape.num_layers,
                                              facts.num_heads);
      heads.ok())
    QUIRE_RETURN_IF_ERROR(save_selection_heads(to, fingerprint, *heads));
  if (const auto layers = load_stable_layers(**store, fingerprint, facts.shape.num_layers);
      layers.ok())
    QUIRE_RETURN_IF_ERROR(save_stable_layers(to, fingerprint, *layers, 1));
  return {};
}

Status open_bench(const FidelityFlags& f, const Config& config, const cuda::BackendChoice& backend,
                  const std::string& model_path, Bench& b) {
  QUIRE_ASSIGN_OR_RETURN(b.folder, WorkFolder::make(f.work));
  QUIRE_ASSIGN_OR_RETURN(StoreOptions store, store_options(config));
  store.path = b.folder->path();
  store.max_bytes = 0;
  store.quotas = {};
  QUIRE_ASSIGN_OR_RETURN(b.store, open_store(store));
  EngineOptions engine = engine_options(config, model_path);
  // Else a strategy would find the prompt that another one has just computed.
  engine.prefix_cache_bytes = 0;
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(model_path));
  fit_window(model, engine);
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<Compute> compute, open_compute(backend));
  QUIRE_ASSIGN_OR_RETURN(EngineParts parts, load_engine_parts(std::move(compute), engine));
  // A folder of --work may be calibrated itself; a store that is named outweighs it.
  if (f.work.empty() || !f.store.empty())
    QUIRE_RETURN_IF_ERROR(take_calibration(
        config.disk.path, facts_of(*parts.model, *parts.tokenizer, parts.format, 0), *b.store));
  if (config.policy.model_card)
    QUIRE_RETURN_IF_ERROR(adopt_model_card(*b.store, model_path).status());
  QUIRE_ASSIGN_OR_RETURN(b.engine, create_engine_from_parts(std::move(parts), engine, *b.store));
  IngestOptions ingest = ingest_options(config);
  ingest.max_document_tokens = std::max<std::int64_t>(ingest.max_document_tokens, 1 << 22);
  ingest.namespace_bytes = 0;
  if (f.related_tokens > 0) {
    b.retrieval = create_retrieval({}, *b.store, nullptr);
    b.retrieval->start();
    ingest.find_chunks = find_chunks_in(*b.retrieval);
  }
  QUIRE_ASSIGN_OR_RETURN(b.ingest, create_ingest_service(ingest, *b.store, *b.engine));
  return b.ingest->start();
}

/// Opens the store that receives certificates. The call comes before the long run, so that a wrong
/// folder or a running service is found at once.
Result<std::unique_ptr<Store>> open_certificate_store(const Config& config) {
  QUIRE_ASSIGN_OR_RETURN(StoreOptions options, store_options(config));
  options.dram_bytes = 0;
  auto store = open_store(options);
  if (!store.ok())
    return store.status().with_context("certificates are to go into the store at " + options.path);
  return store;
}

ReportContext describe(const FidelityFlags& f, const Config& config, const Engine& engine,
                       const Suite& suite) {
  ReportContext c;
  describe_machine(c);
  const EngineInfo& info = engine.info();
  c.isa = info.isa;
  c.model_name = config.model.name == "default" ? fs::path(info.model_path).filename().string()
                                                : config.model.name;
  c.model_path = info.model_path;
  c.fingerprint = info.fingerprint;
  c.fingerprint_hex = fingerprint_hex(info);
  c.choice = choice_settings(info);
  c.weights = info.weights_format;
  c.kv_dtype = info.kv_dtype;
  c.draft_fingerprint = info.draft_fingerprint;
  c.retrieval_head_fingerprint = info.retrieval_head_fingerprint;
  c.parameters = info.num_parameters;
  c.max_model_len = info.max_model_len;
  c.suite = suite.name;
  c.suite_hash = suite.hash().hex();
  c.per_kind = f.limit;
  c.max_tokens = f.max_tokens;
  c.chunk_tokens = f.chunk_tokens;
  c.context_tokens = f.context_tokens;
  c.related_tokens = f.related_tokens;
  c.lead_in = f.lead_in;
  c.span_tokens = f.span_tokens;
  c.temperature = f.temperature;
  c.block_tokens = config.cache.block_tokens;
  c.seed = f.seed;
  c.instruction = suite.instruction;
  return c;
}

/// Returns behind what the documents of the suite are read.
Result<ReadBehind> read_behind_of(const FidelityFlags& f, const Engine& engine) {
  if (f.related_tokens > 0) return ReadBehind{ReadBehind::Kind::kRelated, {}};
  if (f.lead_in) return read_behind_lead_in(engine.prompt_format_of(kNamespace));
  return ReadBehind();
}

int fidelity(FidelityFlags f) {
  set_log_sink(nullptr, LogLevel::kWarning);
  auto config = load_config(f.config_file, f.settings);
  if (!config.ok()) return complain(config.status());
  const auto backend = backend_choice(*config);
  if (!backend.ok()) return complain(backend.status());
  if (!f.store.empty()) config->disk.path = f.store;
  if (!f.model.empty()) config->model.path = f.model;
  if (f.limit < 0 || f.per_task < 1 || f.max_tokens < 1 || f.chunk_tokens < 16 ||
      f.context_tokens < 0)
    return complain(
        "--limit must not be negative, --context-tokens neither, --per-task and "
        "--max-tokens at least 1, --chunk-tokens at least 16");
  if (f.related_tokens < 0 || f.related_tokens > kMaxRelatedTokens)
    return complain("--related-tokens must be from 0 to " + std::to_string(kMaxRelatedTokens));
  if (f.span_tokens < 0 || f.temperature < 0)
    return complain("--span-tokens and --temperature must not be negative");
  if (f.span_tokens == 0 && f.temperature > 0)
    return complain("--temperature is of long answers: give --span-tokens, too");
  if (f.span_tokens > 0 && f.certify)
    return complain("--certify needs answers that end by themselves: leave --span-tokens out");
  if (f.certify && f.related_tokens > 0)
    return complain(
        "--certify needs documents that were all read behind the same text or behind none, and "
        "with --related-tokens each sees other chunks: leave it out, or --certify");
  const auto strategies = parse_strategy_list(f.strategies);
  if (!strategies.ok()) return complain(strategies.status());
  const auto model_path = find_model_path(config->model.path);
  if (!model_path.ok()) return complain(model_path.status());
  if (!f.store.empty() && !holds_store(f.store)) {
    if (!f.certify)
      return complain("--store: there is no store in '" + f.store + "', so no calibration either");
    std::fprintf(stderr, "there is no store in %s yet, so one is made\n", f.store.c_str());
  }
  if (f.certify) {
    if (const auto store = open_certificate_store(*config); !store.ok())
      return complain(store.status());
  }
  for (const std::string* path : {&f.json, &f.html, &f.svg})
    if (const auto s = check_writable(*path); !s.ok()) return complain(s);
  Bench bench;
  if (const auto s = open_bench(f, *config, *backend, *model_path, bench); !s.ok())
    return complain(s);
  const auto suite = make_suite(f, *bench.engine, *model_path);
  if (!suite.ok()) return complain(suite.status());
  ReportContext context = describe(f, *config, *bench.engine, *suite);
  const auto behind = read_behind_of(f, *bench.engine);
  if (!behind.ok()) return complain(behind.status());
  context.read_behind = *behind;

  std::unique_ptr<StateFile> state = std::make_unique<StateFile>();
  if (!f.json.empty()) {
    const std::string path = f.json + ".state";
    std::error_code ec;
    if (f.fresh) fs::remove(path, ec);
    auto opened = StateFile::open(path, fidelity_identity(context, bench.engine->info(), *config),
                                  fidelity_build(context), f.any_build);
    if (!opened.ok()) return complain(opened.status());
    state = std::move(*opened);
    if (state->restarted())
      std::fprintf(
          stderr,
          "%s is of another model, draft, retrieval head, suite, setting or build: starting anew "
          "(--any-build takes rows of other builds)\n",
          path.c_str());
    else if (state->size() > 0 && !f.quiet)
      std::fprintf(stderr, "%zu rows are measured already (%s; --fresh measures them again)\n",
                   state->size(), path.c_str());
  }
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  RunOptions options;
  options.strategies = *strategies;
  options.per_kind = f.suite.starts_with("ruler@") ? 0 : f.limit;
  options.seed = f.seed;
  options.max_tokens = static_cast<std::int32_t>(f.max_tokens);
  options.chunk_tokens = static_cast<std::int32_t>(f.chunk_tokens);
  options.context_tokens = static_cast<std::int32_t>(f.context_tokens);
  options.related_tokens = static_cast<std::int32_t>(f.related_tokens);
  options.lead_in = f.lead_in;
  options.span_tokens = static_cast<std::int32_t>(f.span_tokens);
  options.temperature = f.temperature;
  options.stop = &interrupted;
  ProgressLine line(f.quiet);
  // If no task fits the model, the report says so and has no rows.
  const bool nothing_fits = suite->records.empty() && !suite->skipped.empty();
  const auto run = nothing_fits
                       ? Result<RunResult>(RunResult())
                       : run_suite(*bench.engine, *bench.ingest, kNamespace, *suite, options,
                                   *state, [&line](const RunProgress& p) { line.show(p); });
  if (!run.ok()) {
    line.end();
    if (run.code() != Code::kCancelled) return complain(run.status());
    std::fprintf(stderr, f.json.empty()
                             ? "interrupted\n"
                             : "interrupted: run the same command again to go on from here\n");
    return 130;
  }
  if (auto builds = state->builds(); builds.size() > 1) context.builds = std::move(builds);
  const Report report = make_report(*suite, *run, std::move(context), {.seed = f.seed});
  const auto certificates = make_certificates(report, config->policy.fidelity_max_drop);
  std::printf("%s", report_table(report).c_str());
  for (const auto& [path, text] : {std::pair{f.json, report_json(report)},
                                   {f.html, report_html(report, certificates)},
                                   {f.svg, report_svg(report)}}) {
    if (path.empty()) continue;
    if (const auto s = write_text(path, text); !s.ok()) return complain(s);
  }
  if (!f.certify) return 0;
  if (certificates.empty())
    return complain(
        "no certificate: it needs a suite with answers, and a strategy that is an approximation");
  for (const auto& c : certificates) {
    const auto spec = parse_strategy_spec(c.spec);
    const bool applies = !c.passed || (spec.ok() && spec->auto_applies());
    std::printf("certificate for %s: %s (%s)%s\n", c.spec.c_str(),
                c.passed ? "passed" : "not passed", c.reason.c_str(),
                applies ? ""
                        : "; auto does not use it, because it leaves compress, decode, dedupe and "
                          "prompt_compression to the request");
  }
  auto store = open_certificate_store(*config);
  if (!store.ok()) return complain(store.status());
  // The retrieval heads of a card are part of the certificates' fingerprint, so they go along.
  if (config->policy.model_card) {
    if (const auto taken = adopt_model_card(**store, *model_path); !taken.ok())
      return complain(taken.status());
  }
  if (const auto s = save_certificates(**store, certificates); !s.ok()) return complain(s);
  std::printf("written to %s%s\n", config->disk.path.c_str(),
              config->catalog.url.empty() ? "" : " and the shared catalog");
  return 0;
}

}  // namespace

void add_fidelity_command(CLI::App& app, CommandRun& run) {
  auto f = std::make_shared<FidelityFlags>();
  auto* c = app.add_subcommand(
      "fidelity",
      "Measure strategies against full recompute on questions with known answers.\n\n"
      "  quire fidelity                                     the embedded model on its own held-out "
      "questions\n"
      "  quire fidelity -m DIR --suite my.jsonl --html r.html   your model on your questions\n"
      "  quire fidelity --suite ruler@4096 --strategies recompute,reuse,reuse:positions=naive\n"
      "  quire fidelity --limit 0 --certify --store ./data  let 'auto' use what passes\n\n"
      "A question file has one JSON object a line: {\"documents\": [{\"id\", \"title\", "
      "\"text\"}], \"question\", \"answers\": [...],\n"
      "\"kind\"}. HotpotQA, 2WikiMultihopQA, MuSiQue, SQuAD, LongBench and RULER files are read as "
      "they are, also .gz.\n"
      "Runs under the settings of the service: --config FILE, QUIRE_<SECTION>__<KEY>, "
      "--section.key=value.\n"
      "docs/fidelity.md explains every number and when a strategy is certified");
  c->add_option("-m,--model", f->model,
                "A Hugging Face folder, a .gguf file, or hf:org/repo (default: model.path, else "
                "the embedded model)");
  c->add_option("-s,--suite", f->suite,
                "encyclopedia, ruler@TOKENS (13 tasks of that length), or a file")
      ->capture_default_str();
  c->add_option("--strategies", f->strategies,
                "NAME or NAME:key=value,... separated by commas; keys: positions (aligned, naive, "
                "parallel), keep_ratio, recompute_ratio, compress, decode, prompt_compression, "
                "prompt_compression.SETTING, or an option of the strategy")
      ->capture_default_str();
  c->add_option("-n,--limit", f->limit, "Questions of each kind, at most; 0: all")
      ->capture_default_str();
  c->add_option("--seed", f->seed,
                "Which questions are picked; of RULER's texts and the intervals too")
      ->capture_default_str();
  c->add_option("--json", f->json,
                "Write the measurements; FILE.state beside it lets an interrupted run go on")
      ->type_name("FILE");
  c->add_option("--html", f->html, "Write a page with tables and plots, nothing from outside")
      ->type_name("FILE");
  c->add_option("--svg", f->svg, "Write the two plots alone")->type_name("FILE");
  c->add_flag("--certify", f->certify,
              "Write certificates into the store (needs the service stopped)");
  c->add_option("--store", f->store,
                "The service's store: its calibration is used, and it receives the "
                "certificates (default: disk.path)")
      ->type_name("DIR");
  c->add_option("--work", f->work,
                "Where documents are cached while measuring (default: a temporary folder)")
      ->type_name("DIR");
  c->add_option("--max-tokens", f->max_tokens, "Longest answer where the suite sets none")
      ->capture_default_str();
  c->add_option(
       "--span-tokens", f->span_tokens,
       "Long answers: they go on to --max-tokens whatever would end them, each strategy is held to "
       "recompute's tokens, and agreement and KL are given for every so many of them")
      ->capture_default_str();
  c->add_option("--temperature", f->temperature,
                "Of recompute's tokens in long answers, drawn by --seed; 0: the likeliest")
      ->capture_default_str();
  c->add_option("--chunk-tokens", f->chunk_tokens, "Longest chunk of a document, as at ingest")
      ->capture_default_str();
  c->add_option("--context-tokens", f->context_tokens,
                "Chunks are read behind those before them in windows of this size, as at ingest")
      ->capture_default_str();
  c->add_option("--related-tokens", f->related_tokens,
                "Documents are read behind so many tokens of chunks of the suite's other documents "
                "that their words find, as at ingest")
      ->capture_default_str();
  c->add_flag("--lead-in", f->lead_in,
              "Documents are read behind a short fixed text, as at ingest");
  c->add_option("--instruction", f->instruction,
                "Put before each question; auto: by the file's layout, none for the embedded model")
      ->capture_default_str();
  c->add_option("--source", f->source,
                "RULER: file its running text and questions come from (default: encyclopedia)")
      ->type_name("FILE");
  c->add_option("--per-task", f->per_task, "RULER: questions of each task")->capture_default_str();
  c->add_flag("--fresh", f->fresh, "Measure everything again");
  c->add_flag("--any-build", f->any_build,
              "Take the state's rows of other builds and CPUs, too, whose last bits may differ; "
              "the report counts rows by build");
  c->add_flag("-q,--quiet", f->quiet, "No progress");
  c->add_option("-c,--config", f->config_file, "TOML file of the service")->type_name("FILE");
  c->allow_extras();
  c->callback([c, f, &run] {
    f->settings = settings_from_flags(c->remaining());
    for (const auto& setting : f->settings) {
      if (setting.find('.') >= setting.find('=')) throw CLI::ExtrasError({"--" + setting});
    }
    run = [f] { return fidelity(*f); };
  });
}

}  // namespace quire
