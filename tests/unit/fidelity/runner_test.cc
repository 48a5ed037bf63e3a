// A whole run over the real engine: the embedded model on a few of its questions, and a real tiny
// model without answers.
#include "fidelity/runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/cache/page_pool.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/engine_parts.h"
#include "fidelity/calibrate/head_examples.h"
#include "fidelity/certificate.h"
#include "fidelity/report.h"
#include "fidelity/suite_reader.h"
#include "ingest/search/related_search.h"
#include "ingest/search/retrieval.h"
#include "tests/support/engine_harness.h"
#include "tests/support/llama2c_files.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;

/// A store, an engine and a document service over one model folder.
class Service {
 public:
  enum class Heads { kNone, kCalibrated };
  explicit Service(const std::string& model, Heads heads = Heads::kNone) {
    StoreOptions so;
    so.path = (folder_.path() / "store").string();
    so.dram_bytes = 64 << 20;
    store = std::move(*open_store(so));
    EngineOptions eo;
    eo.model_path = model;
    eo.num_threads = 1;
    eo.weights = "f32";
    if (heads == Heads::kCalibrated) calibrate(eo);
    auto made = create_engine(eo, *store);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return;
    engine = std::move(*made);
    retrieval = create_retrieval({}, *store, nullptr);
    retrieval->start();
    IngestOptions io;
    io.find_chunks = find_chunks_in(*retrieval);
    ingest = std::move(*create_ingest_service(io, *store, *engine));
    EXPECT_TRUE(ingest->start().ok());
  }
  ~Service() {
    if (ingest) ingest->stop();
    if (retrieval) retrieval->stop();
    if (engine) engine->stop(std::chrono::milliseconds(0));
    ingest.reset();
    retrieval.reset();
    engine.reset();
  }
  std::unique_ptr<Store> store;
  std::unique_ptr<Retrieval> retrieval;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<IngestService> ingest;

 private:
  /// Chooses heads by sentences hidden in the bundled sample, as 'quire model calibrate' does.
  void calibrate(const EngineOptions& options) {
    auto parts = load_engine_parts(nullptr, options);
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
    PassResources core;
    core.facts = facts_of(*parts->model, *parts->tokenizer, parts->format, 0);
    PagePool pool(
        {core.facts.shape.num_kv_heads, core.facts.shape.head_dim, core.facts.shape.dtype}, 0);
    SpeedMeter meter;
    core.model = parts->model.get();
    core.pool = &pool;
    core.meter = &meter;
    const auto suite = read_suite(options.model_path + "/encyclopedia.jsonl");
    ASSERT_TRUE(suite.ok());
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < 40; ++i) {
      for (const SuiteDocument& d : *suite->records[i].documents) texts.push_back(d.text);
    }
    const auto examples = hidden_sentence_examples(texts, parts->format, 16, 2048);
    ASSERT_TRUE(examples.ok()) << examples.status().to_string();
    HeadCalibration calibration(core);
    for (const HeadExample& e : *examples) ASSERT_TRUE(calibration.add(e).ok());
    const auto found = calibration.result();
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_GT(found->chosen_recall, 1.5 * found->average_recall);
    ASSERT_TRUE(save_selection_heads(*store, core.facts.names.fingerprint(), found->heads).ok());
  }

  TempFolder folder_;
};

std::string demo() { return std::string(QUIRE_SOURCE_DIR) + "/models/demo"; }

Suite demo_suite(std::initializer_list<std::string_view> kinds) {
  auto read = read_suite(demo() + "/encyclopedia.jsonl");
  EXPECT_TRUE(read.ok()) << read.status().to_string();
  Suite out;
  out.name = "encyclopedia";
  if (!read.ok()) return out;
  for (auto& r : read->records)
    if (std::find(kinds.begin(), kinds.end(), r.kind) != kinds.end())
      out.records.push_back(std::move(r));
  return out;
}

RunOptions options_for(const char* strategies, std::int64_t per_kind) {
  RunOptions o;
  o.strategies = *parse_strategy_list(strategies);
  o.per_kind = per_kind;
  o.max_tokens = 16;
  return o;
}

TEST(FidelityRun, DocumentsMayBeReadBehindOtherTexts) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  const Suite suite = demo_suite({"single"});
  double kl[3] = {};
  for (const int how : {0, 1, 2}) {
    RunOptions o = options_for("recompute,reuse", 3);
    o.lead_in = how == 1;
    o.related_tokens = how == 2 ? 200 : 0;
    StateFile state;
    const auto run = run_suite(*s.engine, *s.ingest, "fidelity", suite, o, state);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Report r = make_report(suite, *run, {});
    EXPECT_EQ(r.find("recompute", "all")->kl.value, 0);
    EXPECT_EQ(r.find("reuse", "all")->recompute_ratio.value, 0) << "their KV is used";
    kl[how] = r.find("reuse", "all")->kl.value;
    EXPECT_EQ(s.ingest->documents().counts("fidelity")->total, 0u) << "all are removed";
  }
  EXPECT_NE(kl[1], kl[0]);
  EXPECT_NE(kl[2], kl[0]);
  EXPECT_NE(kl[2], kl[1]);
}

TEST(FidelityRun, TheEmbeddedModelTellsStrategiesApart) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  const Suite suite = demo_suite({"single", "continuation"});
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "fidelity", suite,
                             options_for("recompute,exact,reuse,reuse:positions=naive", 8), state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  const Report r = make_report(suite, *run, {});
  const ReportRow *full = r.find("recompute", "all"), *exact = r.find("exact", "all"),
                  *reuse = r.find("reuse", "all");
  ASSERT_TRUE(full && exact && reuse);
  EXPECT_EQ(full->n, 16);
  EXPECT_GE(full->em.value, 0.5);
  EXPECT_EQ(full->agreement.value, 1);
  EXPECT_EQ(full->kl.value, 0);
  EXPECT_EQ(full->recompute_ratio.value, 1);
  // The strategy `exact` computes the same result in a different way.
  EXPECT_EQ(exact->agreement.value, 1);
  EXPECT_EQ(exact->kl.value, 0);
  EXPECT_EQ(exact->em.value, full->em.value);
  EXPECT_EQ(exact->nll_difference.value, 0);
  EXPECT_EQ(full->contains_difference.value, 0);
  EXPECT_GE(full->contains.value, full->em.value);
  EXPECT_LT(full->nll.value, reuse->nll.value) << "the answer is less likely without its context";
  EXPECT_GT(reuse->nll_difference.low, 0);
  EXPECT_LT(exact->recompute_ratio.value, 1);
  EXPECT_GT(exact->bytes_loaded.value, 0);
  // The strategy `reuse` does not, and its loss shows where the subject is in an earlier chunk.
  EXPECT_LT(reuse->agreement.value, 1);
  EXPECT_GT(reuse->kl.value, 0.01);
  EXPECT_EQ(reuse->recompute_ratio.value, 0);
  EXPECT_EQ(reuse->sequence_ratio.value, 1);
  EXPECT_LT(r.find("reuse", "continuation")->em.value,
            r.find("recompute", "continuation")->em.value);
  EXPECT_GT(r.find("reuse:positions=naive", "all")->kl.value, 0.01);
  // The run leaves nothing in the document service.
  EXPECT_EQ(s.ingest->documents().counts("fidelity")->total, 0u);
}

// The heads are chosen by made-up sentences; the questions are those of the model's own family.
TEST(FidelityRun, SelectionByHeadsBeatsAnchorsAndChance) {
  Service s(demo(), Service::Heads::kCalibrated);
  ASSERT_TRUE(s.ingest);
  Suite suite = demo_suite({"single", "needle"});
  for (SuiteRecord& r : suite.records) {
    for (std::size_t d = 0; d < r.documents->size() && r.support.empty(); ++d) {
      const std::string& text = (*r.documents)[d].text;
      if (const auto place = text.find(r.answers.front()); place != std::string::npos)
        r.support.push_back({d, place, place + r.answers.front().size()});
    }
  }
  std::erase_if(suite.records, [](const SuiteRecord& r) { return r.support.empty(); });
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "fidelity", suite,
                             options_for("recompute,samkv,random:keep_ratio=0.2,anchors", 12),
                             state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  const Report r = make_report(suite, *run, {});
  const ReportRow *heads = r.find("samkv", "all"), *random = r.find("random:keep_ratio=0.2", "all"),
                  *anchors = r.find("anchors", "all"), *full = r.find("recompute", "all");
  ASSERT_TRUE(heads && random && anchors && full);
  EXPECT_EQ(full->support_kept.value, 1);
  EXPECT_EQ(full->answer_kept.value, 1);
  EXPECT_NEAR(heads->sequence_ratio.value, 0.2, 0.02);
  EXPECT_NEAR(random->sequence_ratio.value, 0.2, 0.02);
  EXPECT_GT(heads->support_kept.value, random->support_kept.value + 0.3);
  EXPECT_GT(heads->support_kept.value, anchors->support_kept.value + 0.3);
  EXPECT_LT(heads->nll.value, random->nll.value);
  EXPECT_LT(heads->nll.value, anchors->nll.value);
}

// SamKV, Eqs. 1 and 2: a weight w_j and a share P_i lie between 0 and 1, and on a trained model
// they say something of their documents.
TEST(FidelityRun, BiasWeightsAndSharesOfATrainedModelAreInTheirRanges) {
  Service s(demo());
  ASSERT_TRUE(s.engine);
  const Suite suite = demo_suite({"single", "continuation"});
  std::map<std::string, std::vector<float>> weights;
  double shares = 0, largest = 0;
  for (std::size_t record = 0; record < 4; ++record) {
    const SuiteRecord& r = suite.records.at(record * 7);
    std::vector<testing::Doc> docs;
    for (const SuiteDocument& d : *r.documents) {
      testing::Doc doc{std::to_string(record) + "-" + d.id, s.engine->tokenizer().encode(d.text),
                       std::nullopt};
      doc.key = testing::ingest(*s.engine, *s.store, doc.id, doc.ids);
      docs.push_back(std::move(doc));
    }
    for (const char* frame : {"raw", "rotated"}) {
      QueryRequest q = testing::make_request(*s.engine, docs,
                                             s.engine->tokenizer().encode(r.question), "samkv");
      q.cache.options = testing::published("samkv", {{"bias_frame", frame}});
      const testing::Outcome o = testing::run_query(*s.engine, std::move(q));
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      for (const PlannedContext& c : o.plan.contexts) {
        ASSERT_TRUE(c.bias_weight && c.keep_share);
        EXPECT_GE(*c.keep_share, 0);
        EXPECT_LE(*c.keep_share, 1);
        weights[frame].push_back(*c.bias_weight);
        shares += *c.keep_share;
        largest = std::max<double>(largest, *c.keep_share);
      }
    }
  }
  const auto [least_raw, most_raw] = std::ranges::minmax(weights["raw"]);
  const auto [least_rotated, most_rotated] = std::ranges::minmax(weights["rotated"]);
  // Queries before RoPE are alike; behind it, where they stand sets them apart.
  EXPECT_GT(least_raw, 0.4);
  EXPECT_LT(most_raw, 1);
  EXPECT_GT(least_rotated, 0);
  EXPECT_LT(most_rotated, least_raw);
  EXPECT_GT(most_raw - least_raw, 0.01);
  EXPECT_GT(largest, 0.1) << "some document has candidates";
  EXPECT_LT(shares / static_cast<double>(weights["raw"].size() + weights["rotated"].size()), 0.5);
}

/// Judges `exact`, which has recompute's answers, as if it were an approximation.
Certificate judged(Service& s, const Suite& suite) {
  StateFile state;
  auto options = options_for("recompute,exact", 0);
  const auto run = run_suite(*s.engine, *s.ingest, "fidelity", suite, options, state);
  EXPECT_TRUE(run.ok()) << run.status().to_string();
  Report r = make_report(suite, *run, {});
  for (ReportRow& row : r.rows) row.approximate = row.strategy == "exact";
  const auto certificates = make_certificates(r, 0.08);  // 3/40 is the least that 40 can show
  return certificates.empty() ? Certificate{} : certificates.front();
}

Suite first_of(Suite suite, std::size_t n) {
  suite.records.resize(std::min(n, suite.records.size()));
  return suite;
}

TEST(FidelityRun, OnlyASuiteThatTheModelCanAnswerCertifies) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  const Suite suite = first_of(demo_suite({"single", "needle"}), 40);
  ASSERT_EQ(suite.records.size(), 40u);
  const Certificate good = judged(s, suite);
  EXPECT_TRUE(good.passed) << good.reason;
  EXPECT_GT(good.worth_nll.low, 0.5);

  // Answers of other questions: what is asked for cannot be told from what is not.
  Suite shuffled = suite;
  for (std::size_t i = 0; i < shuffled.records.size(); ++i)
    shuffled.records[i].answers = suite.records[(i + 17) % suite.records.size()].answers;
  const Certificate wrong = judged(s, shuffled);
  EXPECT_FALSE(wrong.passed);
  EXPECT_NE(wrong.reason.find("certifies nothing"), std::string::npos) << wrong.reason;

  // Questions about documents that are not there.
  Suite unanswerable = suite;
  for (std::size_t i = 0; i < unanswerable.records.size(); ++i)
    unanswerable.records[i].documents = suite.records[(i + 17) % suite.records.size()].documents;
  const Certificate nothing = judged(s, unanswerable);
  EXPECT_FALSE(nothing.passed);
  EXPECT_NE(nothing.reason.find("certifies nothing"), std::string::npos) << nothing.reason;
}

// A model that always says the same, and finds any answer as likely with documents as without.
TEST(FidelityRun, AConstantModelCertifiesNothing) {
  const Suite suite = first_of(demo_suite({"single", "needle"}), 100);
  RunResult run;
  run.strategies = *parse_strategy_list("recompute,reuse");
  for (std::size_t q = 0; q < suite.records.size(); ++q) {
    run.questions.push_back(q);
    Measurement m;
    m.has_answers = true;
    m.em = m.f1 = m.contains = q % 2 == 0 ? 1 : 0;  // half of the answers happen to be it
    m.nll = 2.5;
    run.rows.push_back({m, m});
    run.rows.back()[0].nll_without = 2.5;
    run.rows.back()[0].contains_without = m.contains;
  }
  const auto certificates = make_certificates(make_report(suite, run, {}), 0.05);
  ASSERT_EQ(certificates.size(), 1u);
  EXPECT_FALSE(certificates[0].passed);
  EXPECT_NE(certificates[0].reason.find("certifies nothing"), std::string::npos);
}

TEST(FidelityRun, AnInterruptedRunGoesOnAndEndsWithTheSameNumbers) {
  const Suite suite = demo_suite({"single", "needle"});
  TempFolder folder;
  const std::string path = (folder.path() / "state").string();
  const auto o = options_for("recompute,reuse", 3);
  std::vector<std::vector<Measurement>> whole;
  {
    Service s(demo());
    ASSERT_TRUE(s.ingest);
    StateFile state;
    const auto run = run_suite(*s.engine, *s.ingest, "f", suite, o, state);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    whole = run->rows;
  }
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  std::atomic<bool> stop{false};
  auto interrupted = o;
  interrupted.stop = &stop;
  std::size_t kept = 0;
  {
    auto state = StateFile::open(path, "id");
    ASSERT_TRUE(state.ok());
    const auto run = run_suite(*s.engine, *s.ingest, "f", suite, interrupted, **state,
                               [&](const RunProgress& p) { stop = p.done >= 5; });
    EXPECT_EQ(run.code(), Code::kCancelled);
    kept = (*state)->size();
    EXPECT_GT(kept, 2u);
    EXPECT_LT(kept, 12u);
  }
  auto state = StateFile::open(path, "id");
  ASSERT_TRUE(state.ok());
  EXPECT_EQ((*state)->size(), kept);
  const auto run = run_suite(*s.engine, *s.ingest, "f", suite, o, **state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  ASSERT_EQ(run->rows.size(), whole.size());
  for (std::size_t q = 0; q < whole.size(); ++q) {
    for (std::size_t i = 0; i < whole[q].size(); ++i) {
      Measurement a = whole[q][i], b = run->rows[q][i];
      for (Measurement* m : {&a, &b}) m->ttft_ms = m->decode_ms = 0;
      EXPECT_EQ(a, b) << q << " " << i << ": " << a.answer << " / " << b.answer;
    }
  }
  // Every row is known now, so the engine is not used again.
  s.engine->stop(std::chrono::milliseconds(0));
  EXPECT_TRUE(run_suite(*s.engine, *s.ingest, "f", suite, o, **state).ok());
}

TEST(FidelityRun, LongAnswersGoOnPastTheirEndAndAreComparedStretchByStretch) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  Suite suite = demo_suite({"single"});
  suite.records.resize(1);
  auto o = options_for(
      "recompute,exact,recompute:decode=quest,decode_budget=4096,recompute:decode=quest,decode_"
      "budget=32,decode_dense_layers=0",
      0);
  o.max_tokens = 60;
  std::string greedy, drawn;
  for (const double temperature : {0.0, 1.0}) {
    o.span_tokens = 16;
    o.temperature = temperature;
    StateFile state, again;
    const auto run = run_suite(*s.engine, *s.ingest, "f", suite, o, state);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    for (std::size_t i = 0; i < run->rows[0].size(); ++i) {
      const Measurement& m = run->rows[0][i];
      EXPECT_EQ(m.answer_tokens, 60) << "the model would have stopped after a few";
      EXPECT_FALSE(m.has_answers);
      ASSERT_EQ(m.spans.size(), 4u);
      double agreement = 0, kl = 0;
      for (std::size_t j = 0; j < 4; ++j) {
        agreement += m.spans[j].agreement * (j < 3 ? 16 : 12) / 60;
        kl += m.spans[j].kl * (j < 3 ? 16 : 12) / 60;
        // A budget that covers all rows equals dense decoding; a few rows do not.
        EXPECT_TRUE(i == 3 || m.spans[j] == AnswerSpan()) << i << " " << j;
      }
      EXPECT_NEAR(m.agreement, agreement, 1e-12);
      EXPECT_NEAR(m.kl, kl, 1e-12);
      EXPECT_TRUE(i < 3 || m.kl > 0.001) << m.kl;
      EXPECT_EQ(m.answer, run->rows[0][0].answer) << "all are held to the same tokens";
    }
    (temperature > 0 ? drawn : greedy) = run->rows[0][0].answer;
    const auto repeated = run_suite(*s.engine, *s.ingest, "f", suite, o, again);
    ASSERT_TRUE(repeated.ok());
    EXPECT_EQ(repeated->rows[0][3].spans, run->rows[0][3].spans);
    EXPECT_EQ(repeated->rows[0][3].answer, run->rows[0][3].answer);
  }
  EXPECT_NE(greedy, drawn);
  o.span_tokens = 0;
  StateFile state;
  EXPECT_EQ(run_suite(*s.engine, *s.ingest, "f", suite, o, state).code(), Code::kInvalidArgument)
      << "a temperature is of long answers";
}

TEST(FidelityRun, APromptBeyondTheWindowIsSkippedWithItsLength) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  Suite suite = demo_suite({"single"});
  suite.records.resize(1);
  auto documents = *suite.records[0].documents;
  const auto enough = static_cast<std::size_t>(s.engine->info().max_model_len / 60);
  while (documents.size() < enough) {
    documents.push_back(documents[documents.size() % 5]);
    documents.back().text += " Number " + std::to_string(documents.size()) + ".";
  }
  suite.records[0].documents = std::make_shared<const std::vector<SuiteDocument>>(documents);
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "f", suite, options_for("recompute,reuse", 0),
                             state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  EXPECT_NE(run->rows[0][0].skipped.find(std::to_string(s.engine->info().max_model_len)),
            std::string::npos)
      << run->rows[0][0].skipped;
  EXPECT_FALSE(run->rows[0][1].skipped.empty());
  const Report r = make_report(suite, *run, {});
  EXPECT_EQ(r.skipped.size(), 1u);
  EXPECT_NE(report_table(r).find("skipped"), std::string::npos);
}

TEST(FidelityRun, NothingToAskIsAnError) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  StateFile state;
  EXPECT_EQ(
      run_suite(*s.engine, *s.ingest, "f", Suite(), options_for("recompute", 0), state).code(),
      Code::kInvalidArgument);
}

TEST(FidelityRun, EstimatedPromptLengthIsNearTheRealOne) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  const Suite suite = demo_suite({"single"});
  auto o = options_for("recompute", 1);
  o.chunk_tokens = 64;
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "f", suite, o, state);
  ASSERT_TRUE(run.ok());
  const auto estimate = prompt_tokens(*s.engine, suite.records[run->questions[0]], 64);
  ASSERT_TRUE(estimate.ok());
  const auto real = static_cast<double>(run->rows[0][0].prompt_tokens);
  EXPECT_NEAR(static_cast<double>(*estimate), real, real * 0.05);
}

TEST(FidelityRun, EarlierTurnsStandBetweenTheDocumentsAndTheQuestion) {
  Service s(demo());
  ASSERT_TRUE(s.ingest);
  Suite suite = demo_suite({"single"});
  suite.records.resize(1);
  suite.records.push_back(suite.records[0]);
  suite.records[1].turns = {{"Who was first?", "Ada"}, {"And then?", "Grace"}};
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "f", suite, options_for("recompute", 0), state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  const PromptFormat& format = s.engine->prompt_format();
  const std::string& question = suite.records[0].question;
  const ChatMessage talk[] = {{"user", "Who was first?"},
                              {"assistant", "Ada"},
                              {"user", "And then?"},
                              {"assistant", "Grace"},
                              {"user", question}};
  const auto longer = static_cast<std::int64_t>(format.suffix(talk)->size() -
                                                format.suffix(question)->size());
  EXPECT_GT(longer, 6);
  EXPECT_EQ(run->rows[1][0].prompt_tokens, run->rows[0][0].prompt_tokens + longer);
}

TEST(FidelityRun, ARealModelWithoutAnswersGivesAgreementAndDivergence) {
  const auto source = std::filesystem::path(QUIRE_SHARED_DATA_DIR) / "weights/stories260K";
  if (!std::filesystem::exists(source / "stories260K.bin"))
    GTEST_SKIP() << source << " is not here";
  TempFolder model;
  testing::convert_llama2c(source / "stories260K.bin", model.path());
  testing::convert_llama2c_tokenizer(source / "tok512.bin", 512, model.path());
  std::filesystem::copy_file(source / "config.json", model.path() / "config.json");
  Service s(model.path().string());
  ASSERT_TRUE(s.engine);
  Suite suite;
  suite.name = "stories";
  for (const char* name : {"Lily", "Tom", "Ben"}) {
    SuiteRecord r;
    const std::string n = name;
    r.documents = std::make_shared<const std::vector<SuiteDocument>>(std::vector<SuiteDocument>{
        {"a", "",
         "Once upon a time, there was a little girl named " + n +
             ". She loved to play outside in the park with her red ball."},
        {"b", "",
         "One day, " + n +
             " saw a big dog. The dog wanted to play with the ball. They ran and ran all day."}});
    r.question = "What did they do then?";
    r.kind = "story";
    suite.records.push_back(r);
  }
  StateFile state;
  const auto run = run_suite(*s.engine, *s.ingest, "f", suite,
                             options_for("recompute,exact,reuse,reuse:positions=naive", 0), state);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  const Report r = make_report(suite, *run, {});
  EXPECT_EQ(r.find("exact", "all")->agreement.value, 1);
  EXPECT_EQ(r.find("exact", "all")->kl.value, 0);
  EXPECT_GT(r.find("reuse", "all")->kl.value, 0);
  EXPECT_TRUE(std::isnan(r.find("reuse", "all")->em.value));
  EXPECT_NE(report_table(r).find("agreement by task"), std::string::npos);
}

}  // namespace
}  // namespace quire
