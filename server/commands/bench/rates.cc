// Measures the rates of a running service for `quire plan-capacity`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/array.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "server/capacity/rates.h"
#include "server/commands/bench/ask.h"
#include "server/commands/bench/rate_fit.h"
#include "server/commands/bench/workload.h"
#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/files/interrupt.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Contexts of the questions that tell what each further context costs, where so many fit into this
/// share of the model's window.
constexpr std::size_t kManyContexts = 4;
constexpr double kWindowShare = 0.8;
constexpr int kLongQuestionWords = 60;
/// How much longer answers are beside which several prompts are computed.
constexpr std::int64_t kBesideTokens = 4;
/// How long a context may take to be written.
constexpr auto kWriteWait = std::chrono::seconds(30);

struct RateFlags {
  ClientFlags client;
  std::vector<std::int64_t> words{150, 600, 1500}, answers{1, 2, 4, 8};
  std::vector<std::string> beside;
  std::int64_t repeats = 5, answer_tokens = 48, host_seconds = 3;
  std::vector<double> pauses{0.1, 0.3, 1, 3};
  std::uint64_t seed = 7;
  std::string strategy = "reuse", out;
};

double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

Result<json::value> call(const ClientFlags& flags, const char* method, const std::string& target,
                         const json::value* body = nullptr) {
  ClientRequest request;
  request.method = method;
  request.target = target;
  if (body != nullptr) {
    request.content_type = "application/json";
    request.body = to_text(*body);
  }
  return client_json(flags, std::move(request));
}

/// Measures one service. Its documents are deleted at the end.
class RateRun {
 public:
  RateRun(const RateFlags& flags, const Interrupt& interrupt)
      : flags_(flags), interrupt_(interrupt) {}

  Result<capacity::Rates> run();

 private:
  struct Document {
    std::string id;
    double tokens = 0;
  };
  Status describe(capacity::Rates& rates);
  Result<std::vector<Document>> post(std::int64_t words, std::int64_t number);
  Status measure_length(std::int64_t words);
  Result<double> measure(RateTier tier, const std::vector<const Document*>& documents,
                         int question_words);
  Status evict(const char* tier, const Document& document);
  /// Waits until all blocks of a document are in the store, or in the shared tier.
  Status wait_written(const Document& document, bool shared);
  Status measure_idle(capacity::Rates& rates);
  /// Returns false where it was interrupted.
  bool pause(double seconds) const;
  /// Asks for so many answers about a document at once and waits for them.
  Result<std::vector<BenchSample>> decode(const Document& document, std::int64_t answers,
                                          std::int64_t tokens);
  Status measure_answers(capacity::Rates& rates);
  Status measure_beside(capacity::Rates& rates);
  Status measure_host(capacity::Rates& rates);
  Result<double> full_prefills(int services);
  std::string made_up_text(std::int64_t words) const;
  static json::object fresh_prompt(const std::string& beginning, const std::string& text);
  json::object body(const std::vector<std::string>& ids, const std::string& question) const;
  std::string question(int words);
  void remember(RateTier tier, const std::vector<const Document*>& documents, double question,
                double ttft_ms);
  Status interrupted() const { return Status::cancelled("stopped"); }
  void forget();

  const RateFlags& flags_;
  const Interrupt& interrupt_;
  bool shared_ = false;
  double window_ = 0;  ///< tokens of the longest prompt with its answer
  std::int64_t asked_ = 0, posted_ = 0;
  double question_tokens_ = 0;  ///< of the last question
  std::vector<RateSample> samples_;
  std::vector<StoredSample> stored_;
  std::vector<Document> all_;
};

json::object RateRun::body(const std::vector<std::string>& ids, const std::string& question) const {
  return {{"query", question},
          {"document_ids", json::array(ids.begin(), ids.end())},
          {"stream", true},
          {"max_tokens", 1},
          {"temperature", 0},
          {"citations", false},
          {"cache", {{"strategy", flags_.strategy}}}};
}

/// Returns a question that nobody asked before, so that nothing of it is known.
std::string RateRun::question(int words) {
  std::string text = "Number " + std::to_string(++asked_) + ": in which year was it founded?";
  for (int i = 0; i < words; ++i) text += " and then what";
  return text;
}

Status RateRun::describe(capacity::Rates& rates) {
  QUIRE_ASSIGN_OR_RETURN(const json::value models, call(flags_.client, "GET", "/v1/models"));
  const json::object& model = models.at("data").at(0).as_object();
  rates.model = std::string(model.at("id").as_string()) + " " +
                std::string(model.at("meta").at("fingerprint").as_string());
  rates.strategy = flags_.strategy;
  rates.bytes_per_token = model.at("meta").at("kv_bytes_per_token").to_number<double>();
  window_ = model.at("max_model_len").to_number<double>();
  QUIRE_ASSIGN_OR_RETURN(const json::value health, call(flags_.client, "GET", "/health"));
  const json::object& checks = health.at("checks").as_object();
  shared_ = checks.contains("remote");
  return {};
}

Result<std::vector<RateRun::Document>> RateRun::post(std::int64_t words, std::int64_t number) {
  BenchShape shape;
  shape.documents = number;
  shape.words = words;
  shape.requests = 1;
  shape.seed = flags_.seed + static_cast<std::uint64_t>(++posted_) * 1000;
  std::vector<Document> out;
  for (const BenchDocument& d : make_workload(shape).documents) {
    const json::value document = json::object{{"id", d.id},
                                              {"title", d.title},
                                              {"text", d.text},
                                              {"kv", "lazy"},
                                              {"chunking", {{"strategy", "none"}}}};
    all_.push_back({d.id, 0});
    QUIRE_RETURN_IF_ERROR(
        call(flags_.client, "POST", "/v1/documents?wait=true", &document).status());
    QUIRE_ASSIGN_OR_RETURN(const json::value stored,
                           call(flags_.client, "GET", "/v1/documents/" + d.id));
    out.push_back({d.id, stored.at("tokens").to_number<double>()});
  }
  return out;
}

Status RateRun::evict(const char* tier, const Document& document) {
  const json::value body = json::object{{"tier", tier}, {"document_ids", json::array{document.id}}};
  return call(flags_.client, "POST", "/v1/admin/cache/evict", &body).status();
}

Status RateRun::wait_written(const Document& document, bool shared) {
  const auto until = Clock::now() + kWriteWait;
  while (Clock::now() < until && !interrupt_.requested()) {
    QUIRE_ASSIGN_OR_RETURN(const json::value d,
                           call(flags_.client, "GET", "/v1/documents/" + document.id));
    const json::object& cache = d.at("cache").as_object();
    const bool resident = cache.at("state").as_string() == "resident";
    if (resident && !shared)
      stored_.push_back({document.tokens, cache.at("bytes").to_number<double>()});
    if (resident && (!shared || bench_int(cache.at("tiers").as_object(), "remote") ==
                                    bench_int(cache, "blocks")))
      return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (interrupt_.requested()) return interrupted();
  return Status::precondition(
      std::string(shared ? "the shared tier" : "the store") +
      " does not get what this service computes; its log and /health say how it is");
}

/// Asks once and checks that the KV was where it should be.
Result<double> RateRun::measure(RateTier tier, const std::vector<const Document*>& documents,
                                int question_words) {
  static constexpr const char* kNames[] = {"dram", "disk", "remote", ""};
  std::vector<std::string> ids;
  double tokens = 0;
  for (const Document* d : documents) {
    ids.push_back(d->id);
    tokens += d->tokens;
  }
  std::string text;
  json::object reply;
  QUIRE_ASSIGN_OR_RETURN(
      const std::optional<BenchSample> sample,
      ask_bench(flags_.client, body(ids, question(question_words)), interrupt_, text, &reply));
  if (!sample) return interrupted();
  question_tokens_ = static_cast<double>(sample->prompt_tokens) - tokens;
  const json::object& tiers = reply.at("cache").at("tiers").as_object();
  double found = 0;
  for (const auto& [name, use] : tiers)
    if (name == kNames[static_cast<int>(tier)] || tier == RateTier::kComputed)
      found += use.at("tokens").to_number<double>();
  const bool right = tier == RateTier::kComputed ? found == 0 : found >= 0.99 * tokens;
  if (!right)
    return Status::precondition(
        "the KV of a measured question was not where it was put (" +
        std::string(tier == RateTier::kComputed ? "nowhere" : kNames[static_cast<int>(tier)]) +
        "): " + to_text(tiers).substr(0, 300) +
        "; give the service more cache.dram_bytes and no other work");
  return sample->ttft_ms;
}

void RateRun::remember(RateTier tier, const std::vector<const Document*>& documents,
                       double question, double ttft_ms) {
  double tokens = 0;
  for (const Document* d : documents) tokens += d->tokens;
  samples_.push_back({tier, static_cast<double>(documents.size()), tokens, question, ttft_ms});
}

Status RateRun::measure_length(std::int64_t words) {
  const std::int64_t number = std::max<std::int64_t>(flags_.repeats, kManyContexts);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Document> documents, post(words, number));
  std::vector<double> times[4], long_question, many;
  double tokens_short = 0, tokens_long = 0, tokens_many = 0;
  const auto each = [&](const std::function<Status(const Document&)>& step) -> Status {
    for (const Document& d : documents) QUIRE_RETURN_IF_ERROR(step(d));
    return {};
  };
  const auto ask_each = [&](RateTier tier) {
    return each([&](const Document& d) -> Status {
      QUIRE_ASSIGN_OR_RETURN(const double ms, measure(tier, {&d}, 0));
      times[static_cast<int>(tier)].push_back(ms);
      return {};
    });
  };
  // Nothing is written while one is computed. A question over known KV ends the pause before.
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (i > 0) QUIRE_RETURN_IF_ERROR(measure(RateTier::kDram, {&documents[i - 1]}, 0).status());
    QUIRE_ASSIGN_OR_RETURN(const double ms, measure(RateTier::kComputed, {&documents[i]}, 0));
    times[static_cast<int>(RateTier::kComputed)].push_back(ms);
    QUIRE_RETURN_IF_ERROR(wait_written(documents[i], shared_));
  }
  QUIRE_RETURN_IF_ERROR(each([&](const Document& d) { return wait_written(d, false); }));
  QUIRE_RETURN_IF_ERROR(ask_each(RateTier::kDram));
  tokens_short = question_tokens_;
  QUIRE_RETURN_IF_ERROR(each([&](const Document& d) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const double ms, measure(RateTier::kDram, {&d}, kLongQuestionWords));
    long_question.push_back(ms);
    return {};
  }));
  tokens_long = question_tokens_;
  QUIRE_RETURN_IF_ERROR(each([&](const Document& d) { return evict("dram", d); }));
  QUIRE_RETURN_IF_ERROR(ask_each(RateTier::kDisk));
  if (shared_) {
    QUIRE_RETURN_IF_ERROR(each([&](const Document& d) { return wait_written(d, true); }));
    QUIRE_RETURN_IF_ERROR(each([&](const Document& d) { return evict("disk", d); }));
    QUIRE_RETURN_IF_ERROR(ask_each(RateTier::kRemote));
  }
  std::vector<const Document*> several;
  double prompt = 0;
  for (std::size_t i = 0; i < kManyContexts; ++i) {
    prompt += documents[i].tokens;
    if (prompt <= kWindowShare * window_) several.push_back(&documents[i]);
  }
  for (std::int64_t i = 0; several.size() > 1 && i < flags_.repeats; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const double ms, measure(RateTier::kDram, several, 0));
    many.push_back(ms);
    tokens_many = question_tokens_;
  }
  const std::vector<const Document*> one{&documents.front()};
  for (const RateTier tier :
       {RateTier::kComputed, RateTier::kDram, RateTier::kDisk, RateTier::kRemote})
    if (!times[static_cast<int>(tier)].empty())
      remember(tier, one, tokens_short, median(times[static_cast<int>(tier)]));
  remember(RateTier::kDram, one, tokens_long, median(long_question));
  if (!many.empty()) remember(RateTier::kDram, several, tokens_many, median(many));
  return {};
}

bool RateRun::pause(double seconds) const {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until && !interrupt_.requested())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !interrupt_.requested();
}

/// Asks in turn after a pause and at once, and takes what each pause costs.
Status RateRun::measure_idle(capacity::Rates& rates) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Document> documents, post(flags_.words.front(), 1));
  const std::vector<const Document*> one{&documents.front()};
  QUIRE_RETURN_IF_ERROR(measure(RateTier::kComputed, one, 0).status());
  QUIRE_RETURN_IF_ERROR(wait_written(documents.front(), shared_));
  QUIRE_RETURN_IF_ERROR(measure(RateTier::kDram, one, 0).status());
  double most = 0;
  for (const double seconds : flags_.pauses) {
    std::vector<double> after_pause, at_once;
    for (std::int64_t i = 0; i < flags_.repeats; ++i) {
      if (!pause(seconds)) return interrupted();
      for (auto* times : {&after_pause, &at_once}) {
        QUIRE_ASSIGN_OR_RETURN(const double ms, measure(RateTier::kDram, one, 0));
        times->push_back(ms);
      }
    }
    most = std::max(most, median(after_pause) - median(at_once));
    rates.idle.push_back({seconds, most});
  }
  return {};
}

/// Returns what each token of an answer took after the first.
double step_of(const BenchSample& answer) {
  return (answer.total_ms - answer.ttft_ms) / static_cast<double>(answer.answer_tokens - 1);
}

Result<std::vector<BenchSample>> RateRun::decode(const Document& document, std::int64_t answers,
                                                 std::int64_t tokens) {
  std::vector<Result<std::optional<BenchSample>>> got(to_size(answers),
                                                      std::optional<BenchSample>());
  {
    std::vector<std::jthread> threads;
    for (std::int64_t i = 0; i < answers; ++i) {
      json::object b = body({document.id}, question(0));
      b["max_tokens"] = tokens;
      b["ignore_eos"] = true;
      threads.emplace_back([this, b = std::move(b), &out = got[to_size(i)]] {
        std::string text;
        out = ask_bench(flags_.client, b, interrupt_, text);
      });
    }
  }
  std::vector<BenchSample> out;
  for (const auto& sample : got) {
    QUIRE_RETURN_IF_ERROR(sample.status());
    if (!*sample) return interrupted();
    if ((*sample)->answer_tokens > 1) out.push_back(**sample);
  }
  return out;
}

/// Decodes several answers at once, and takes what each further token took.
Status RateRun::measure_answers(capacity::Rates& rates) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Document> documents, post(flags_.words.front(), 1));
  for (const std::int64_t answers : flags_.answers) {
    std::vector<double> step;
    for (std::int64_t round = 0; round < std::max<std::int64_t>(1, flags_.repeats / 2); ++round) {
      QUIRE_ASSIGN_OR_RETURN(const auto got,
                             decode(documents.front(), answers, flags_.answer_tokens));
      for (const BenchSample& sample : got) step.push_back(step_of(sample));
    }
    rates.decode.push_back({static_cast<double>(answers), median(step)});
  }
  return measure_beside(rates);
}

/// Decodes answers while prompts are computed without a break. A turn of the engine is then a chunk
/// and what the step adds, and the prompts get the chunk's share of the time.
Status RateRun::measure_beside(capacity::Rates& rates) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Document> documents, post(flags_.words.front(), 1));
  const std::string text = made_up_text(flags_.words.front());
  int asked = 0;
  const auto prompt_ms = [&]() -> Result<double> {
    std::string answer;
    QUIRE_ASSIGN_OR_RETURN(
        const auto sample,
        ask_bench(flags_.client, fresh_prompt("beside " + std::to_string(asked++), text),
                  interrupt_, answer));
    if (!sample) return interrupted();
    return sample->ttft_ms;
  };
  const std::int64_t answers = flags_.answers[flags_.answers.size() / 2];
  const std::int64_t rounds = std::max<std::int64_t>(1, flags_.repeats / 2);
  // The KV of the document is there before answers about it are measured.
  QUIRE_RETURN_IF_ERROR(decode(documents.front(), 1, 2).status());
  std::vector<double> alone, beside, turn;
  for (std::int64_t i = 0; i < rounds; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const double ms, prompt_ms());
    alone.push_back(ms);
    Status failure;
    std::jthread prompts([&](const std::stop_token& stop) {
      for (bool first = true; !stop.stop_requested(); first = false) {
        const auto beside_ms = prompt_ms();
        if (!beside_ms.ok()) {
          failure = beside_ms.status();
          return;
        }
        // Answers were decoded all the while. The first prompt shared the time with theirs.
        if (!first && !stop.stop_requested()) beside.push_back(*beside_ms);
      }
    });
    const auto got = decode(documents.front(), answers, kBesideTokens * flags_.answer_tokens);
    prompts.request_stop();
    prompts.join();
    QUIRE_RETURN_IF_ERROR(got.status());
    QUIRE_RETURN_IF_ERROR(failure);
    for (const BenchSample& sample : *got) turn.push_back(step_of(sample));
  }
  // Answers that are shorter than one prompt tell nothing.
  if (beside.empty() || turn.empty()) return {};
  const double share = std::min(1.0, median(alone) / median(beside));
  const double step = rates.decode_ms(static_cast<double>(answers));
  if (step > 0) rates.step_beside = std::clamp(median(turn) * (1 - share) / step, 0.0, 10.0);
  return {};
}

/// Returns the text of prompts that are computed and not kept.
std::string RateRun::made_up_text(std::int64_t words) const {
  BenchShape shape;
  shape.documents = shape.requests = 1;
  shape.words = words;
  shape.seed = flags_.seed + 1;
  return make_workload(shape).documents.front().text;
}

/// The beginning must differ between prompts, so that nothing of one is known.
json::object RateRun::fresh_prompt(const std::string& beginning, const std::string& text) {
  return {{"query", "What is said?"},
          {"documents", json::array{json::object{{"text", beginning + " " + text}}}},
          {"stream", true},
          {"max_tokens", 1},
          {"citations", false},
          {"cache", {{"strategy", "recompute"}, {"write", false}}}};
}

/// Lets the first of these services compute prompts without a break, all at once. Returns prompts a
/// second of each.
Result<double> RateRun::full_prefills(int services) {
  const std::string text = made_up_text(flags_.words.back());
  const auto until = Clock::now() + std::chrono::seconds(flags_.host_seconds);
  std::vector<double> each(to_size(services), 0);
  std::vector<Status> failures(to_size(services));
  {
    std::vector<std::jthread> threads;
    for (int s = 0; s < services; ++s) {
      threads.emplace_back([&, s] {
        ClientFlags client = flags_.client;
        if (s > 0) client.server = flags_.beside[to_size(s - 1)];
        const auto begin = Clock::now();
        double done = 0;
        while (Clock::now() < until && !interrupt_.requested()) {
          const std::string beginning = std::to_string(s) + " " + std::to_string(done);
          std::string answer;
          const auto sample = ask_bench(client, fresh_prompt(beginning, text), interrupt_, answer);
          if (!sample.ok()) {
            failures[to_size(s)] = sample.status();
            return;
          }
          ++done;
        }
        each[to_size(s)] = done / (ms_between(begin, Clock::now()) / 1000);
      });
    }
  }
  for (const Status& s : failures) QUIRE_RETURN_IF_ERROR(s);
  if (interrupt_.requested()) return interrupted();
  double sum = 0;
  for (const double rate : each) sum += rate;
  return sum / services;
}

Status RateRun::measure_host(capacity::Rates& rates) {
  if (flags_.beside.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const double alone, full_prefills(1));
  rates.host_speed = {1};
  for (int n = 2; std::cmp_less_equal(n, flags_.beside.size() + 1); ++n) {
    QUIRE_ASSIGN_OR_RETURN(const double each, full_prefills(n));
    rates.host_speed.push_back(std::clamp(each / alone, 1e-6, 1.0));
  }
  return {};
}

void RateRun::forget() {
  json::array ids;
  for (const Document& d : all_) ids.emplace_back(d.id);
  if (ids.empty()) return;
  const json::value body = json::object{{"ids", std::move(ids)}};
  if (const auto s = call(flags_.client, "POST", "/v1/documents/delete", &body); !s.ok())
    std::fprintf(stderr, "quire bench: its documents could not be deleted: %s\n",
                 s.status().message().c_str());
}

Result<capacity::Rates> RateRun::run() {
  capacity::Rates rates;
  const auto measured = [&]() -> Status {
    QUIRE_RETURN_IF_ERROR(describe(rates));
    for (const std::int64_t words : flags_.words) QUIRE_RETURN_IF_ERROR(measure_length(words));
    fit_stored(stored_, rates);
    QUIRE_RETURN_IF_ERROR(measure_idle(rates));
    QUIRE_RETURN_IF_ERROR(measure_answers(rates));
    QUIRE_RETURN_IF_ERROR(measure_host(rates));
    return fit_rates(samples_, rates);
  };
  const Status s = measured();
  forget();
  if (!s.ok()) return s;
  return rates;
}

int bench_rates(const RateFlags& f) {
  Interrupt interrupt;
  const auto rates = RateRun(f, interrupt).run();
  if (!rates.ok()) return complain(rates.status());
  const std::string text = capacity::rates_json(*rates);
  if (f.out.empty()) {
    std::printf("%s\n", text.c_str());
    return 0;
  }
  std::ofstream out(f.out, std::ios::binary);
  out << text << '\n';
  out.close();
  return out ? 0 : complain("cannot write " + f.out);
}

}  // namespace

void add_bench_rates_command(CLI::App& bench, CommandRun& run) {
  auto flags = std::make_shared<RateFlags>();
  RateFlags& f = *flags;
  auto* c = bench.add_subcommand(
      "rates",
      "Measure what 'quire plan-capacity' computes with: prefill, placing KV from each tier, "
      "decoding.\nThe service should do nothing else; the key needs the scope admin");
  add_client_flags(*c, f.client);
  c->add_option("--words", f.words, "Words of the documents, with commas between, ascending")
      ->delimiter(',')
      ->check(CLI::Range(10, 100'000))
      ->capture_default_str();
  c->add_option("--answers", f.answers, "Answers decoded at once, with commas between, ascending")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--answer-tokens", f.answer_tokens, "Tokens of those answers")
      ->check(CLI::Range(2, 100'000))
      ->capture_default_str();
  c->add_option("--repeats", f.repeats, "Questions of each kind; their median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c->add_option(
       "--pauses", f.pauses,
       "Seconds without work, with commas between, ascending: what does the first question "
       "after each cost?")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 600.0))
      ->capture_default_str();
  c->add_option("--beside", f.beside,
                "Further services on the same host, with commas between: measures how much "
                "slower each is while others work")
      ->delimiter(',');
  c->add_option("--host-seconds", f.host_seconds, "Seconds of each such measurement")
      ->check(CLI::Range(1, 600))
      ->capture_default_str();
  c->add_option("-s,--strategy", f.strategy, "Strategy of the questions")->capture_default_str();
  c->add_option("--seed", f.seed, "The same seed gives the same texts")->capture_default_str();
  c->add_option("-o,--out", f.out, "File to write; else standard output");
  c->callback([flags, &run] {
    std::ranges::sort(flags->words);
    std::ranges::sort(flags->answers);
    std::ranges::sort(flags->pauses);
    flags->pauses.erase(std::unique(flags->pauses.begin(), flags->pauses.end()),
                        flags->pauses.end());
    run = [flags] { return bench_rates(*flags); };
  });
}

}  // namespace quire
