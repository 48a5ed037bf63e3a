// Certificates follow the rule, survive storage, and unreadable records count as none.
#include "fidelity/certificate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/log.h"
#include "engine/engine.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;

Report report_of(std::int64_t n, Interval all, Interval task,
                 const std::string& strategy = "reuse") {
  Report r;
  r.context.fingerprint_hex = std::string(64, 'a');
  r.context.fingerprint = "m-aaaaaaaa";
  r.context.suite = "encyclopedia";
  r.strategies = {"recompute", strategy};
  r.tasks = {"t"};
  for (const char* name : {"recompute", strategy.c_str()}) {
    for (const char* t : {"all", "t"}) {
      ReportRow row;
      row.strategy = name;
      row.task = t;
      row.approximate = row.strategy != "recompute";
      row.default_settings = row.strategy.find(':') == std::string::npos;
      row.n = row.n_answers = n;
      row.em = row.f1 = {0.9, 0.88, 0.92};
      row.agreement = {0.8, 0.75, 0.85};
      row.nll_difference = {0.01, -0.05, 0.07};
      if (!row.approximate) {
        row.worth_nll = {1.2, 1.0, 1.4};
        row.above_chance = {0.3, 0.2, 0.4};
      }
      if (row.approximate) row.em_difference = row.f1_difference = row.task == "all" ? all : task;
      row.ttft_ms = {12.5, 12, 13};
      r.rows.push_back(row);
    }
  }
  return r;
}

TEST(CertificateRule, LowerEndOfTheDifferenceDecides) {
  const Interval same = {0, 0, 0};
  auto c = make_certificates(report_of(600, {-0.005, -0.015, 0.004}, same), 0.02);
  ASSERT_EQ(c.size(), 1u);  // recompute has no certificate
  EXPECT_TRUE(c[0].passed) << c[0].reason;
  c = make_certificates(report_of(600, {-0.012, -0.025, 0.0}, same), 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("2.5 points"), std::string::npos) << c[0].reason;
  EXPECT_TRUE(make_certificates(report_of(600, {-0.012, -0.025, 0.0}, same), 0.03)[0].passed);
}

TEST(CertificateRule, FewQuestionsProveNothing) {
  const Interval same = {0, 0, 0};
  EXPECT_FALSE(make_certificates(report_of(100, same, same), 0.02)[0].passed);  // 3/100 > 0.02
  EXPECT_TRUE(make_certificates(report_of(150, same, same), 0.02)[0].passed);
  EXPECT_NE(make_certificates(report_of(100, same, same), 0.02)[0].reason.find("too few"),
            std::string::npos);
  const std::string one = make_certificates(report_of(1, same, same), 0.02)[0].reason;
  EXPECT_NE(one.find("may be 100.0 points below"), std::string::npos) << one;
}

TEST(CertificateRule, SaysHowManyQuestionsWouldTell) {
  const Interval same = {0, 0, 0};
  const auto reason = [&](const Interval& loss) {
    return make_certificates(report_of(160, loss, same), 0.02)[0].reason;
  };
  // Half the interval, 2.3 points, must shrink to the 1.4 that are left: 160 * (2.3 / 1.4)^2.
  EXPECT_NE(reason({-0.006, -0.029, 0.017}).find("about 440 questions like these 160 would tell"),
            std::string::npos)
      << reason({-0.006, -0.029, 0.017});
  EXPECT_EQ(reason({-0.03, -0.05, -0.01}).find("would tell"), std::string::npos);
  EXPECT_EQ(reason({-0.02, -0.03, -0.01}).find("would tell"), std::string::npos);
}

TEST(CertificateRule, ALossInOneTaskDoesNotHideInTheMean) {
  const Interval all = {-0.004, -0.01, 0.0};
  EXPECT_FALSE(make_certificates(report_of(600, all, {-0.4, -0.5, -0.3}), 0.02)[0].passed);
  EXPECT_TRUE(make_certificates(report_of(600, all, {-0.04, -0.09, 0.0}), 0.02)[0].passed);
}

// Rows: recompute over all and over t, then the strategy over all and over t.
TEST(CertificateRule, ASuiteThatCannotTellCertifiesNothing) {
  const Interval same = {0, 0, 0}, none = {NAN, NAN, NAN};
  for (const auto member : {&ReportRow::worth_nll, &ReportRow::above_chance}) {
    for (const Interval worth : {Interval{0.2, -0.01, 0.4}, Interval{0, 0, 0}, none}) {
      Report r = report_of(600, same, same);
      r.rows[0].*member = worth;
      const auto c = make_certificates(r, 0.02);
      EXPECT_FALSE(c[0].passed);
      EXPECT_NE(c[0].reason.find("certifies nothing"), std::string::npos) << c[0].reason;
    }
  }
}

TEST(CertificateRule, LikelihoodAndAgreementCountToo) {
  const Interval same = {0, 0, 0};
  Report r = report_of(600, same, same);
  ASSERT_TRUE(make_certificates(r, 0.02)[0].passed);
  r.rows[2].nll_difference = {0.05, -0.02, 0.13};  // a tenth of 1.2 is 0.12
  EXPECT_FALSE(make_certificates(r, 0.02)[0].passed);
  r.rows[2].nll_difference = {NAN, NAN, NAN};
  EXPECT_FALSE(make_certificates(r, 0.02)[0].passed) << "no likelihood is no proof";
  r.rows[2].nll_difference = {-0.3, -0.5, -0.1};
  EXPECT_TRUE(make_certificates(r, 0.02)[0].passed) << "better than recompute";
  r.rows[3].nll_difference = {0.5, 0.2, 0.8};
  auto c = make_certificates(r, 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("task t"), std::string::npos) << c[0].reason;
  r.rows[3].nll_difference = {0.3, 0.1, 0.5};
  EXPECT_TRUE(make_certificates(r, 0.02)[0].passed) << "a loss in a task has to be certain";
  r.rows[2].agreement = {0.52, 0.49, 0.55};
  c = make_certificates(r, 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("tokens"), std::string::npos) << c[0].reason;
}

TEST(CertificateRule, WhatAStrategyCouldNotAnswerCountsAgainstIt) {
  const Interval same = {0, 0, 0};
  Report r = report_of(600, same, same);
  r.rows[2].n_answers = 599;
  auto c = make_certificates(r, 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("1 of 600 questions"), std::string::npos) << c[0].reason;
  r = report_of(600, same, same);
  r.rows[2].n_failed = 300;
  c = make_certificates(r, 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("300 of 600 questions"), std::string::npos) << c[0].reason;
  r = report_of(600, same, same);
  r.rows[0].n_failed = 1;
  c = make_certificates(r, 0.02);
  EXPECT_FALSE(c[0].passed);
  EXPECT_NE(c[0].reason.find("certifies nothing"), std::string::npos) << c[0].reason;
}

TEST(CertificateRule, NoAnswersNoCertificate) {
  EXPECT_TRUE(make_certificates(report_of(0, {}, {}), 0.02).empty());
}

class CertificateStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions o;
    o.path = (folder_.path() / "store").string();
    o.dram_bytes = 0;
    auto opened = open_store(o);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::move(*opened);
  }
  TempFolder folder_;
  std::unique_ptr<Store> store_;
  const std::string model_ = std::string(64, 'a');
};

TEST_F(CertificateStoreTest, RoundTripAndReplacement) {
  EXPECT_TRUE(load_certificates(*store_, model_).empty());
  const auto first = make_certificates(report_of(600, {-0.001, -0.002, 0}, {0, 0, 0}));
  ASSERT_TRUE(save_certificates(*store_, first).ok());
  ASSERT_TRUE(
      save_certificates(*store_, make_certificates(report_of(600, {-0.3, -0.4, -0.2}, {0, 0, 0},
                                                             "reuse:positions=naive")))
          .ok());
  auto loaded = load_certificates(*store_, model_);
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_EQ(certificates_json({loaded[0]}), certificates_json(first));
  ASSERT_EQ(passing_certificates(loaded, model_).size(), 1u);
  EXPECT_EQ(passing_certificates(loaded, model_)[0]->spec, "reuse");
  EXPECT_TRUE(passing_certificates(loaded, std::string(64, 'b')).empty());
  // These certificates were judged with a wider limit.
  EXPECT_TRUE(passing_certificates(loaded, model_, 0.001).empty());
  EXPECT_TRUE(load_certificates(*store_, std::string(64, 'b')).empty());
  // A later run of the same strategy replaces the first.
  ASSERT_TRUE(
      save_certificates(*store_, make_certificates(report_of(600, {-0.3, -0.4, -0.2}, {0, 0, 0})))
          .ok());
  loaded = load_certificates(*store_, model_);
  EXPECT_EQ(loaded.size(), 2u);
  EXPECT_TRUE(passing_certificates(loaded, model_).empty());
}

/// Documents of a suite that stood behind a lead-in whose tokens have this digest.
ReadBehind lead_in_of(std::string_view text) { return {ReadBehind::Kind::kLeadIn, sha256(text)}; }

Report good_report(const ReadBehind& behind) {
  Report r = report_of(600, {-0.001, -0.002, 0}, {0, 0, 0});
  r.context.read_behind = behind;
  return r;
}

TEST_F(CertificateStoreTest, WhatDocumentsWereReadBehindIsPartOfTheSubject) {
  for (const ReadBehind& behind : {ReadBehind(), lead_in_of("one"), lead_in_of("two")})
    ASSERT_TRUE(save_certificates(*store_, make_certificates(good_report(behind))).ok());
  auto loaded = load_certificates(*store_, model_);
  ASSERT_EQ(loaded.size(), 3u) << "none takes the place of another";
  EXPECT_EQ(loaded[0].read_behind, ReadBehind());
  EXPECT_EQ(loaded[1].read_behind, lead_in_of("one"));
  EXPECT_EQ(loaded[2].read_behind, lead_in_of("two"));
  Report worse = report_of(600, {-0.3, -0.4, -0.2}, {0, 0, 0});
  worse.context.read_behind = lead_in_of("one");
  ASSERT_TRUE(save_certificates(*store_, make_certificates(worse)).ok());
  loaded = load_certificates(*store_, model_);
  ASSERT_EQ(loaded.size(), 3u);
  for (const Certificate& c : loaded) EXPECT_EQ(c.passed, c.read_behind != lead_in_of("one"));
}

TEST(CertificateJson, OldRecordsAreOfDocumentsThatWereReadAlone) {
  std::string old = certificates_json(make_certificates(good_report({})));
  const std::string member = "\"read_behind\":\"nothing\",";
  ASSERT_NE(old.find(member), std::string::npos) << old;
  old.erase(old.find(member), member.size());
  const auto parsed = parse_certificates(old);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->at(0).read_behind, ReadBehind());
}

TEST(CertificateJson, OlderBuildsRefuseCertificatesOfOtherReadings) {
  // They would take them for certificates of documents that were read alone.
  const auto format_of = [](const ReadBehind& behind) {
    const std::string text = certificates_json(make_certificates(good_report(behind)));
    return text.substr(0, text.find(','));
  };
  EXPECT_NE(format_of({}).find("quire-certificates-2"), std::string::npos);
  EXPECT_NE(format_of(lead_in_of("one")).find("quire-certificates-3"), std::string::npos);
}

EngineInfo engine_info() {
  EngineInfo info;
  info.config.model_type = "llama";
  info.config.num_layers = 32;
  info.stable_layers = default_stable_layers("llama", 32);
  return info;
}

TEST(CertificateChoice, NamesWhatIsNotAsByDefault) {
  EXPECT_EQ(choice_settings(engine_info()), "");
  const auto with = [](auto&& edit) {
    EngineInfo info = engine_info();
    edit(info);
    return choice_settings(info);
  };
  EXPECT_EQ(with([](EngineInfo& i) { i.block_tokens = 64; }), "block_tokens=64");
  EXPECT_EQ(with([](EngineInfo& i) { i.language = "german"; }), "language=german");
  EXPECT_EQ(with([](EngineInfo& i) { i.stable_layers = {3, 9}; }), "stable_layers=3-9");
  EXPECT_EQ(with([](EngineInfo& i) { i.draft_fingerprint = "ab"; }), "draft=ab");
  EXPECT_EQ(with([](EngineInfo& i) {
              i.block_tokens = 16;
              i.draft_fingerprint = "ab";
            }),
            "block_tokens=16 draft=ab");
}

TEST(CertificateModel, KvOfEightBitsHasCertificatesOfItsOwn) {
  EngineInfo wide;
  wide.fingerprint_digest.fill(7);
  wide.cached_kv_dtype = "f16";
  EngineInfo bf16 = wide, narrow = wide;
  bf16.cached_kv_dtype = "bf16";
  narrow.cached_kv_dtype = "f8";
  EXPECT_EQ(fingerprint_hex(bf16), fingerprint_hex(wide)) << "a CPU's choice for speed";
  EXPECT_NE(fingerprint_hex(narrow), fingerprint_hex(wide));
  EXPECT_EQ(fingerprint_hex(narrow).size(), 64u);
}

TEST_F(CertificateStoreTest, AChoiceOfBlocksHoldsForItsSettings) {
  const auto certificate = [](const std::string& strategy, const std::string& choice) {
    Report r = report_of(600, {-0.001, -0.002, 0}, {0, 0, 0}, strategy);
    r.context.choice = choice;
    return make_certificates(r).at(0);
  };
  const Certificate whole = certificate("reuse", "block_tokens=64"),
                    usual = certificate("samkv:keep_ratio=0.5", ""),
                    large = certificate("samkv:keep_ratio=0.5", "block_tokens=64");
  EXPECT_EQ(whole.choice, "") << "nothing is chosen";
  EXPECT_TRUE(holds_under(whole, ""));
  EXPECT_TRUE(holds_under(whole, "block_tokens=64"));
  EXPECT_TRUE(holds_under(usual, ""));
  EXPECT_FALSE(holds_under(usual, "block_tokens=64"));
  EXPECT_TRUE(holds_under(large, "block_tokens=64"));
  EXPECT_FALSE(holds_under(large, ""));
  // Neither takes the place of the other, and both are read back.
  for (const Certificate& c : {whole, usual, large, large})
    ASSERT_TRUE(save_certificates(*store_, {c}).ok());
  const auto loaded = load_certificates(*store_, model_);
  ASSERT_EQ(loaded.size(), 3u);
  EXPECT_EQ(loaded[1].choice, "");
  EXPECT_EQ(loaded[2].choice, "block_tokens=64");
  // Builds that do not know the member would take it for the defaults, so they refuse the record.
  EXPECT_NE(certificates_json({large}).find("quire-certificates-4"), std::string::npos);
  EXPECT_NE(certificates_json({usual}).find("quire-certificates-2"), std::string::npos);
}

TEST(CertificateJson, AReadingThatIsNoneIsDamage) {
  const std::string good = certificates_json(make_certificates(good_report(lead_in_of("one"))));
  ASSERT_TRUE(parse_certificates(good).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return parse_certificates(text).status().message();
  };
  EXPECT_NE(with("\"lead_in\"", "\"lead_out\"").find("read_behind"), std::string::npos);
  EXPECT_NE(with("\"lead_in\"", "7").find("read_behind"), std::string::npos);
  EXPECT_NE(with("\"lead_in\"", "\"related\"").find("different texts"), std::string::npos);
  EXPECT_NE(with("lead_in_sha256", "lead_in_sha257").find("lead_in_sha256"), std::string::npos);
  EXPECT_NE(with(sha256("one").hex(), "12").find("lead_in_sha256"), std::string::npos);
}

TEST(CertificateRule, DocumentsThatAllSawDifferentTextsCertifyNothing) {
  EXPECT_EQ(make_certificates(good_report({})).size(), 1u);
  EXPECT_TRUE(make_certificates(good_report({ReadBehind::Kind::kRelated, {}})).empty());
}

TEST_F(CertificateStoreTest, UnreadableRecordsCountAsNoneAndAreLogged) {
  const std::string good = certificates_json(
      make_certificates(report_of(600, {0, 0, 0}, {0, 0, 0})));
  std::string other = good;
  other.replace(other.find(model_), 64, std::string(64, 'c'));
  std::string wrong_kind = good;
  wrong_kind.replace(wrong_kind.find("\"passed\":true"), 13, "\"passed\":1234");
  static std::atomic<int> warnings;
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string("{\"format\":\"x\"}"),
        good.substr(0, good.size() / 2), wrong_kind, other}) {
    warnings = 0;
    set_log_sink(
        [](LogLevel level, std::string_view, std::initializer_list<LogField>) {
          warnings += level == LogLevel::kWarning ? 1 : 0;
        },
        LogLevel::kInfo);
    ASSERT_TRUE(store_->put_meta("fidelity/" + model_, text).ok());
    EXPECT_TRUE(load_certificates(*store_, model_).empty()) << text;
    EXPECT_EQ(warnings, text == other ? 0 : 1) << text;
    set_log_sink(nullptr, LogLevel::kWarning);
  }
  // The next certificates replace unreadable records.
  ASSERT_TRUE(save_certificates(*store_, *parse_certificates(good)).ok());
  EXPECT_EQ(load_certificates(*store_, model_).size(), 1u);
}

}  // namespace
}  // namespace quire
