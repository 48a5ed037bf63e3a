#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "base/json_parse.h"
#include "server/commands/bench/ask.h"
#include "server/commands/bench/report.h"
#include "server/commands/bench/workload.h"
#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/files/interrupt.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kBatch = 16;          // documents of one POST
constexpr std::int64_t kMostFailures = 10;  // beyond the answers that came; then the run ends

struct BenchFlags {
  ClientFlags client;
  BenchShape shape;
  std::int64_t concurrency = 1, max_tokens = 16;
  std::string strategy = "auto";
  bool compare = false, keep = false, as_json = false;
};

/// Runs the sessions of a workload with one strategy.
class Runner {
 public:
  Runner(const BenchFlags& flags, const Workload& workload, const Interrupt& interrupt,
         std::string strategy)
      : flags_(flags), workload_(workload), interrupt_(interrupt) {
    run_.strategy = std::move(strategy);
  }

  /// Errors: the first one, if too many requests fail or none is answered.
  Result<BenchRun> run() {
    const auto begin = Clock::now();
    {
      std::vector<std::jthread> threads;
      const auto n = std::min(to_size(flags_.concurrency), workload_.sessions.size());
      for (std::size_t i = 0; i < n; ++i) threads.emplace_back([this] { take_sessions(); });
    }
    run_.seconds = ms_between(begin, Clock::now()) / 1000;
    if (!first_.ok() && (given_up_ || run_.samples.empty())) return first_;
    if (!first_.ok())
      std::fprintf(stderr, "quire bench: %ld requests failed, the first with: %s\n",
                   static_cast<long>(run_.failed), first_.message().c_str());
    return std::move(run_);
  }

 private:
  void take_sessions() {
    for (;;) {
      const std::size_t i = next_.fetch_add(1);
      if (i >= workload_.sessions.size() || !take_session(workload_.sessions[i])) return;
    }
  }

  /// Returns false if the run is over.
  bool take_session(const std::vector<BenchTurn>& session) {
    json::array messages;
    for (const BenchTurn& turn : session) {
      json::object body{{"stream", true},
                        {"max_tokens", flags_.max_tokens},
                        {"temperature", 0},
                        {"cache", {{"strategy", run_.strategy}}},
                        {"citations", false}};
      if (turn.document_ids.empty()) {
        // Not every model has system messages.
        const std::string before = messages.empty() ? workload_.opening + "\n\n" : std::string();
        messages.push_back(json::object{{"role", "user"}, {"content", before + turn.question}});
        body["messages"] = messages;
        body["document_ids"] = json::array();  // else those of the service that fit are read
      } else {
        body["query"] = turn.question;
        body["document_ids"] = json::array(turn.document_ids.begin(), turn.document_ids.end());
      }
      std::string text;
      const auto sample = ask_bench(flags_.client, body, interrupt_, text);
      if (!keep(sample)) return false;
      if (!sample.ok()) return true;  // the conversation cannot go on
      if (turn.document_ids.empty())
        messages.push_back(json::object{{"role", "assistant"}, {"content", text}});
    }
    return true;
  }

  bool keep(const Result<std::optional<BenchSample>>& sample) {
    std::lock_guard lock(mu_);
    if (sample.ok() && !*sample) return false;
    if (sample.ok()) {
      run_.samples.push_back(**sample);
    } else {
      if (first_.ok()) first_ = sample.status();
      ++run_.failed;
      given_up_ = given_up_ ||
                  run_.failed > kMostFailures + static_cast<std::int64_t>(run_.samples.size());
    }
    return !given_up_;
  }

  const BenchFlags& flags_;
  const Workload& workload_;
  const Interrupt& interrupt_;
  std::atomic<std::size_t> next_{0};
  std::mutex mu_;
  BenchRun run_;           // guarded by mu_
  Status first_;           // guarded by mu_; the first failure
  bool given_up_ = false;  // guarded by mu_
};

Status post_documents(const BenchFlags& f, const Workload& w, const Interrupt& interrupt) {
  for (std::size_t i = 0; i < w.documents.size() && !interrupt.requested(); i += kBatch) {
    json::array list;
    for (std::size_t j = i; j < std::min(i + kBatch, w.documents.size()); ++j) {
      const BenchDocument& d = w.documents[j];
      list.push_back(json::object{{"id", d.id}, {"title", d.title}, {"text", d.text}});
    }
    ClientRequest request;
    request.method = "POST";
    request.target = "/v1/documents?wait=true";
    request.content_type = "application/json";
    request.body = to_text(json::object{{"documents", std::move(list)}});
    QUIRE_ASSIGN_OR_RETURN(const json::value reply, client_json(f.client, std::move(request)));
    const json::object& counts = reply.at("counts").as_object();
    if (bench_int(counts, "failed") > 0)
      return Status::precondition("the service could not cache the documents: " +
                                  to_text(reply).substr(0, 300));
  }
  return {};
}

Status delete_documents(const BenchFlags& f, const Workload& w) {
  json::array ids;
  for (const BenchDocument& d : w.documents) ids.emplace_back(d.id);
  if (ids.empty()) return {};
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/documents/delete";
  request.content_type = "application/json";
  request.body = to_text(json::object{{"ids", std::move(ids)}});
  return client_json(f.client, std::move(request)).status();
}

/// Prints the rows as columns, because they have many members and there are one or two of them.
void print_table(const json::array& rows) {
  for (const auto& [name, first] : rows.front().as_object()) {
    std::string line(name);
    line.resize(std::max<std::size_t>(line.size(), 26), ' ');
    for (const auto& row : rows) {
      const json::value& v = row.at(name);
      std::string cell = v.is_string() ? std::string(v.as_string()) : to_text(v);
      if (v.is_double()) {
        char text[32];
        std::snprintf(text, sizeof text, "%.10g", v.as_double());
        cell = text;
      }
      if (cell.size() < 14) cell.insert(0, 14 - cell.size(), ' ');
      line += cell;
    }
    std::printf("%s\n", line.c_str());
  }
}

int bench(const BenchFlags& f) {
  static constexpr const char* kNames[] = {"long-doc", "permutations", "chat"};
  const Workload workload = make_workload(f.shape);
  Interrupt interrupt;
  const auto begin = Clock::now();
  Status failure = post_documents(f, workload, interrupt);
  const double ingest_seconds = ms_between(begin, Clock::now()) / 1000;
  std::vector<std::string> strategies = {f.strategy};
  if (f.compare) strategies.emplace_back("recompute");
  json::array rows;
  for (const std::string& strategy : strategies) {
    if (!failure.ok() || interrupt.requested()) break;
    auto run = Runner(f, workload, interrupt, strategy).run();
    if (!run.ok())
      failure = run.status();
    else
      rows.push_back(bench_row(*run));
  }
  if (!f.keep) {
    const Status deleted = delete_documents(f, workload);
    // A service that does not answer is told of once.
    if (!deleted.ok() && deleted.message() != failure.message())
      std::fprintf(stderr, "quire bench: its documents could not be deleted: %s\n",
                   deleted.message().c_str());
  }
  if (!failure.ok()) return complain(failure);
  const bool stopped = interrupt.requested();
  if (f.as_json) {
    std::printf("%s\n", to_text(json::object{{"workload", kNames[static_cast<int>(f.shape.kind)]},
                                             {"documents", workload.documents.size()},
                                             {"words", f.shape.words},
                                             {"concurrency", f.concurrency},
                                             {"max_tokens", f.max_tokens},
                                             {"seed", f.shape.seed},
                                             {"asked", workload.num_turns()},
                                             {"stopped", stopped},
                                             {"ingest_seconds", rounded(ingest_seconds, 2)},
                                             {"runs", rows}})
                            .c_str());
  } else if (!rows.empty()) {
    if (!workload.documents.empty())
      std::printf("%zu documents of about %ld words, cached in %.1f s\n", workload.documents.size(),
                  static_cast<long>(f.shape.words), ingest_seconds);
    print_table(rows);
  }
  if (stopped)
    std::fprintf(stderr, "quire bench: stopped; what was answered until then is shown\n");
  return stopped ? 130 : 0;
}

void add_workload(CLI::App& bench_app, CommandRun& run, BenchKind kind, const char* name,
                  const char* about) {
  auto flags = std::make_shared<BenchFlags>();
  BenchFlags& f = *flags;
  f.shape.kind = kind;
  if (kind == BenchKind::kPermutations) f.shape.documents = 4;
  auto* c = bench_app.add_subcommand(name, about);
  add_client_flags(*c, f.client);
  if (kind == BenchKind::kChat) {
    c->add_option("--users", f.shape.users, "Conversations")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    c->add_option("--rounds", f.shape.rounds, "Questions of a conversation")
        ->check(CLI::Range(1, 100))
        ->capture_default_str();
  } else {
    c->add_option("--documents", f.shape.documents,
                  kind == BenchKind::kPermutations ? "Documents of every prompt" : "Documents")
        ->check(CLI::Range(1, kind == BenchKind::kPermutations ? 64 : 10'000))
        ->capture_default_str();
    c->add_option("--requests", f.shape.requests, "Questions")
        ->check(CLI::Range(1, 100'000))
        ->capture_default_str();
  }
  c->add_option(
       "--words", f.shape.words,
       kind == BenchKind::kChat ? "Words that conversations begin with" : "Words of a document")
      ->check(CLI::Range(10, 100'000))
      ->capture_default_str();
  c->add_option("-c,--concurrency", f.concurrency, "Requests at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--max-tokens", f.max_tokens, "Longest answer")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  c->add_option("-s,--strategy", f.strategy, "Strategy of the cache")->capture_default_str();
  c->add_option("--seed", f.shape.seed, "The same seed gives the same texts and orders")
      ->capture_default_str();
  c->add_flag("--compare", f.compare, "Ask everything again with strategy recompute");
  c->add_flag("--keep", f.keep, "Leave the documents (bench-SEED-N) in the service");
  c->add_flag("--json", f.as_json, "Print one JSON object");
  c->callback([flags, &run] { run = [flags] { return bench(*flags); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, CommandRun& run) {
  auto* c = app.add_subcommand("bench",
                               "Measure a running service: time to first token, throughput, "
                               "hits.\nThe documents are made up "
                               "and deleted afterwards. Ctrl-C shows what was measured so far");
  c->require_subcommand(1);
  add_workload(*c, run, BenchKind::kLongDocuments, "long-doc",
               "Questions over one of several long documents each");
  add_workload(*c, run, BenchKind::kPermutations, "permutations",
               "The same documents in another order for every question");
  add_workload(*c, run, BenchKind::kChat, "chat",
               "Conversations of several rounds that begin with one text");
  add_bench_rates_command(*c, run);
}

}  // namespace quire
