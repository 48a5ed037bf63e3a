#include <CLI/CLI.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <mutex>

#include "base/log.h"
#include "cachestore/store.h"
#include "engine/engine.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/temporary_folder.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

struct GenerateFlags {
  std::string model, prompt, weights = "auto";
  bool as_ids = false, as_json = false, special = false, no_bos = false, ignore_eos = false,
       chat = false;
  SamplingOptions sampling;
  std::int64_t seed = -1;
};

/// Prints the answer as it arrives, or collects it.
class PrintSink final : public QuerySink {
 public:
  explicit PrintSink(bool print) : print_(print) {}
  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t id, std::string_view text) override {
    ids.push_back(id);
    answer.append(text);
    if (print_) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return true;
  }
  void on_done(const Status& s, const Plan& p, const QueryStats& st, FinishReason r) override {
    std::lock_guard lock(mu_);
    status = s;
    prompt_tokens = p.prompt_tokens;
    stats = st;
    reason = r;
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return done_; });
  }

  std::vector<std::int32_t> ids;
  std::string answer;
  Status status;
  std::int64_t prompt_tokens = 0;
  QueryStats stats;
  FinishReason reason = FinishReason::kError;

 private:
  const bool print_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool done_ = false;
};

Result<std::vector<std::int32_t>> prompt_ids(const GenerateFlags& f, const Engine& engine) {
  const Tokenizer& t = engine.tokenizer();
  if (f.chat) {
    const ChatMessage message{"user", f.prompt};
    return engine.prompt_format().chat(std::span<const ChatMessage>(&message, 1));
  }
  std::vector<std::int32_t> ids;
  if (!f.no_bos && t.add_bos() && t.bos_id()) ids.push_back(*t.bos_id());
  const auto text = t.encode(f.prompt, f.special ? Special::kParse : Special::kNone);
  ids.insert(ids.end(), text.begin(), text.end());
  if (ids.empty())
    return Status::invalid("--prompt",
                           "the prompt is empty; give --prompt or text on standard input");
  return ids;
}

json::array id_array(const std::vector<std::int32_t>& ids) {
  return json::array(ids.begin(), ids.end());
}

int print_result(const GenerateFlags& f, const PrintSink& sink,
                 const std::vector<std::int32_t>& prompt) {
  if (f.as_json) {
    json::object o;
    o["text"] = sink.answer;
    o["prompt_ids"] = id_array(prompt);
    o["ids"] = id_array(sink.ids);
    o["finish_reason"] = finish_reason_name(sink.reason);
    o["prefill_ms"] = rounded(sink.stats.prefill_ms);
    o["decode_ms"] = rounded(sink.stats.decode_ms);
    o["ttft_ms"] = rounded(sink.stats.ttft_ms);
    std::printf("%s\n", to_text(o).c_str());
  } else if (f.as_ids) {
    std::printf("%s\n", to_text(id_array(sink.ids)).c_str());
  } else {
    std::printf("\n");
  }
  return 0;
}

int generate_with(const GenerateFlags& f, Engine& engine) {
  auto ids = prompt_ids(f, engine);
  if (!ids.ok()) return complain(ids.status());
  QueryRequest request;
  request.id = "generate";
  request.suffix_ids = *ids;
  request.cache.strategy = "recompute";
  request.cache.write = false;
  request.sampling = f.sampling;
  if (!f.ignore_eos) {
    request.sampling.stop_token_ids = engine.prompt_format().stop_ids();
    for (const auto& s : engine.prompt_format().stop_strings()) request.sampling.stop.push_back(s);
  }
  auto sink = std::make_shared<PrintSink>(!f.as_ids && !f.as_json);
  const auto handle = engine.query(std::move(request), sink);
  if (!handle.ok()) return complain(handle.status());
  sink->wait();
  if (!sink->status.ok()) return complain(sink->status);
  return print_result(f, *sink, *ids);
}

int generate(GenerateFlags f) {
  set_log_sink(nullptr, LogLevel::kWarning);
  if (f.seed >= 0) f.sampling.seed = static_cast<std::uint64_t>(f.seed);
  f.sampling.ignore_eos = f.ignore_eos;
  if (const auto s = validate(f.sampling, std::numeric_limits<std::int32_t>::max(), {}); !s.ok())
    return complain(s);
  const auto path = find_model_path(f.model);
  if (!path.ok()) return complain(path.status());
  if (f.prompt.empty())
    f.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  // The engine needs a store. It stays empty and is deleted with the process.
  const auto folder = make_temporary_folder("quire-generate");
  if (!folder.ok()) return complain(folder.status());
  struct Remove {
    std::string folder;
    ~Remove() {
      std::error_code ec;
      std::filesystem::remove_all(folder, ec);
    }
  } remove{*folder};
  StoreOptions store_options;
  store_options.path = *folder;
  store_options.dram_bytes = 0;
  store_options.direct_io = false;
  auto store = open_store(store_options);
  if (!store.ok()) return complain(store.status());
  EngineOptions options;
  options.model_path = *path;
  options.weights = f.weights;
  auto engine = create_engine(options, **store);
  if (!engine.ok()) return complain(engine.status());
  const int rc = generate_with(f, **engine);
  (*engine)->stop(std::chrono::milliseconds(0));
  return rc;
}

}  // namespace

void add_generate_command(CLI::App& app, CommandRun& run) {
  auto f = std::make_shared<GenerateFlags>();
  auto* c = app.add_subcommand("generate",
                               "A prompt straight through the engine, without a server or a cache");
  c->add_option(
      "-m,--model", f->model,
      "A Hugging Face folder, a .gguf file, or hf:org/repo (default: the embedded model)");
  c->add_option("-p,--prompt", f->prompt, "The prompt; default: standard input");
  c->add_flag("--chat", f->chat, "Put the prompt into the model's chat format as the user's turn");
  c->add_flag("--special", f->special, "Spellings of control tokens in the prompt mean the tokens");
  c->add_flag("--no-bos", f->no_bos, "No BOS in front");
  c->add_option("-n,--max-tokens", f->sampling.max_tokens, "Longest answer")->capture_default_str();
  c->add_option("--temperature", f->sampling.temperature, "0: the likeliest token")
      ->capture_default_str();
  c->add_option("--top-p", f->sampling.top_p, "Nucleus")->capture_default_str();
  c->add_option("--top-k", f->sampling.top_k, "0: off")->capture_default_str();
  c->add_option("--min-p", f->sampling.min_p, "0: off")->capture_default_str();
  c->add_option("--seed", f->seed, "For repeatable sampling");
  c->add_option("--stop", f->sampling.stop, "Texts that end the answer");
  c->add_flag("--ignore-eos", f->ignore_eos, "Go on past the end of text");
  c->add_option("--weights", f->weights, "auto, f32, bf16, int8, w8a8 or w4")
      ->capture_default_str();
  c->add_flag("--ids", f->as_ids, "Print token ids instead of text");
  c->add_flag("--json", f->as_json, "Print text, ids and times as one JSON object");
  c->callback([f, &run] { run = [f] { return generate(*f); }; });
}

}  // namespace quire
