/// SpecPC queries: a draft's attention cuts uncached text before the target computes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

/// Captures raw queries and keys of every row in every layer.
class RawCapture final : public ForwardHook {
 public:
  explicit RawCapture(const ModelConfig& c)
      : c_(c), q(static_cast<std::size_t>(c.num_layers)), k(q.size()) {}
  Status after_projection(LayerPass& pass) override {
    for (std::int64_t r = 0; r < pass.qkv.rows; ++r) {
      const float *qr = pass.qkv.q + r * pass.qkv.ld, *kr = pass.qkv.k + r * pass.qkv.ld;
      q[static_cast<std::size_t>(pass.layer)].emplace_back(qr, qr + c_.num_heads * c_.head_dim);
      k[static_cast<std::size_t>(pass.layer)].emplace_back(kr, kr + c_.num_kv_heads * c_.head_dim);
    }
    return {};
  }

 private:
  const ModelConfig& c_;

 public:
  std::vector<std::vector<std::vector<double>>> q, k;  ///< [layer][row][head * head_dim]
};

/// Computes which tokens SpecPC keeps, in plain loops over the draft's whole attention.
class SpecPcReference {
 public:
  struct Settings {
    std::int64_t capacity = 0, window = 64;
    std::int32_t around = 32, skip_layers = 8;
    bool weighted = true, mean = false, average = false;
  };

  explicit SpecPcReference(const fs::path& folder) {
    ModelOptions options;
    options.weights = WeightFormat::kF32;
    options.kv_dtype = DType::kF32;
    auto model = load_model(folder, options);
    if (!model.ok()) {
      ADD_FAILURE() << model.status().to_string();
      std::abort();
    }
    model_ = std::move(*model);
  }

  std::vector<std::int32_t> kept(const std::vector<std::int32_t>& ids, const Settings& s,
                                 const std::set<std::int32_t>& stay) {
    const std::vector<double> smooth = smoothed(scores(ids, s), s);
    const auto n = static_cast<std::int32_t>(ids.size());
    std::vector<std::int32_t> list;
    for (std::int32_t t = n - static_cast<std::int32_t>(std::min<std::int64_t>(s.window, n)); t < n;
         ++t)
      list.push_back(t);
    list.insert(list.end(), stay.begin(), stay.end());
    std::vector<std::int32_t> peaks(static_cast<std::size_t>(n));
    for (std::int32_t t = 0; t < n; ++t) peaks[static_cast<std::size_t>(t)] = t;
    std::stable_sort(peaks.begin(), peaks.end(), [&](std::int32_t a, std::int32_t b) {
      return smooth[static_cast<std::size_t>(a)] > smooth[static_cast<std::size_t>(b)];
    });
    const std::int32_t before = (s.around - 1) / 2, after = s.around - 1 - before;
    for (const std::int32_t peak : peaks) {
      list.push_back(peak);
      for (std::int32_t d = 1; d <= after; ++d) {
        if (d <= before && peak - d >= 0) list.push_back(peak - d);
        if (peak + d < n) list.push_back(peak + d);
      }
    }
    std::set<std::int32_t> out;
    for (const std::int32_t t : list) {
      if (static_cast<std::int64_t>(out.size()) < s.capacity) out.insert(t);
    }
    return {out.begin(), out.end()};
  }

 private:
  static void rotate(std::vector<double>& x, std::int32_t heads, std::int32_t dim,
                     std::int64_t position) {
    for (std::int32_t h = 0; h < heads; ++h) {
      for (std::int32_t c = 0; c < dim / 2; ++c) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * c / dim);
        double &a = x[static_cast<std::size_t>(h * dim + c)],
               &b = x[static_cast<std::size_t>(h * dim + c + dim / 2)];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = rotated;
      }
    }
  }

  std::vector<double> scores(const std::vector<std::int32_t>& ids, const Settings& s) {
    const ModelConfig& c = model_->config();
    PagePool pool(PageFormat{c.num_kv_heads, c.head_dim, DType::kF32}, 0);
    WorkingCache cache(pool, c.num_layers);
    RawCapture raw(c);
    std::vector<std::int32_t> positions(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = &raw;
    EXPECT_TRUE(forward(*model_, request, workspace_).ok());
    const auto n = static_cast<std::int64_t>(ids.size()), w = std::min<std::int64_t>(s.window, n);
    std::vector<double> out(ids.size(), 0.0);
    for (std::int32_t layer = std::min(s.skip_layers, c.num_layers - 1); layer < c.num_layers;
         ++layer) {
      auto& q = raw.q[static_cast<std::size_t>(layer)];
      auto& k = raw.k[static_cast<std::size_t>(layer)];
      for (std::int64_t t = 0; t < n; ++t) {
        rotate(q[static_cast<std::size_t>(t)], c.num_heads, c.head_dim, t);
        rotate(k[static_cast<std::size_t>(t)], c.num_kv_heads, c.head_dim, t);
      }
      for (std::int32_t h = 0; h < c.num_heads; ++h) {
        for (std::int64_t u = 0; u < w; ++u)
          add_row(q[static_cast<std::size_t>(n - w + u)], k, h, n - w + u,
                  s.weighted && w > 1 ? static_cast<double>(u) / static_cast<double>(w - 1) : 1,
                  s.mean, out);
      }
    }
    return out;
  }

  void add_row(const std::vector<double>& q, const std::vector<std::vector<double>>& k,
               std::int32_t h, std::int64_t row, double weight, bool mean,
               std::vector<double>& out) const {
    const ModelConfig& c = model_->config();
    const std::int32_t m = h / (c.num_heads / c.num_kv_heads);
    std::vector<double> p(static_cast<std::size_t>(row) + 1);
    double total = 0;
    for (std::int64_t j = 0; j <= row; ++j) {
      double dot = 0;
      for (std::int32_t x = 0; x < c.head_dim; ++x)
        dot += q[static_cast<std::size_t>(h * c.head_dim + x)] *
               k[static_cast<std::size_t>(j)][static_cast<std::size_t>(m * c.head_dim + x)];
      total += p[static_cast<std::size_t>(j)] = std::exp(
          dot / std::sqrt(static_cast<double>(c.head_dim)));
    }
    for (std::size_t j = 0; j < p.size(); ++j) {
      const double a = weight * p[j] / total;
      out[j] = mean ? out[j] + a : std::max(out[j], a);
    }
  }

  static std::vector<double> smoothed(const std::vector<double>& scores, const Settings& s) {
    const auto n = static_cast<std::int64_t>(scores.size());
    std::vector<double> out(scores.size(), 0.0);
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, most = 0;
      for (std::int64_t i = j - (s.around - 1) / 2; i <= j + s.around - 1 - (s.around - 1) / 2;
           ++i) {
        if (i < 0 || i >= n) continue;
        sum += scores[static_cast<std::size_t>(i)];
        most = std::max(most, scores[static_cast<std::size_t>(i)]);
      }
      out[static_cast<std::size_t>(j)] = s.average ? sum / s.around : most;
    }
    return out;
  }

  std::unique_ptr<Model> model_;
  ForwardWorkspace workspace_;
};

class SpecPcQueryTest : public ::testing::Test {
 protected:
  SpecPcQueryTest() : store_(open_test_store(folder_.path() / "store")) {
    start(draft_.path().string());
  }
  ~SpecPcQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  void start(const std::string& draft) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.kv_dtype = "f32";
      o.draft_path = draft;
      o.draft_wait_ms = 600000;
    });
  }
  QueryRequest plain(std::vector<std::int32_t> ids) const {
    QueryRequest r = make_request(*engine_, {}, std::move(ids), "auto");
    r.prefix_ids.clear();
    return r;
  }
  static void compress(QueryRequest& r, const Options& options,
                       const std::string& method = "specpc") {
    r.cache.prompt_compression = method;
    r.cache.prompt_options = PlugOptions(options);
  }
  Outcome ask(QueryRequest r) {
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.plan.fates.total(), o.plan.prompt_tokens);
    return o;
  }
  /// Returns the kept tokens of one part of the prompt.
  static std::vector<std::int32_t> kept_of(const Plan& plan, PromptCut::Part part,
                                           std::int32_t context = -1) {
    std::vector<std::int32_t> out;
    for (const auto& k : plan.prompt_cut->parts) {
      if (k.part != part || k.context != context) continue;
      for (const TokenRange& r : k.tokens.kept) {
        for (std::int32_t t = r.begin; t < r.end; ++t) out.push_back(t);
      }
    }
    return out;
  }
  static std::vector<std::int32_t> pick(const std::vector<std::int32_t>& ids,
                                        const std::vector<std::int32_t>& kept) {
    std::vector<std::int32_t> out;
    for (const std::int32_t t : kept) out.push_back(ids[static_cast<std::size_t>(t)]);
    return out;
  }

  std::mt19937 rng_{31};
  TempFolder folder_;
  RandomModelFolder model_, draft_{11, 2048};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(SpecPcQueryTest, KeepsWhatTheSpecificationKeepsAndAnswersItAsAnOrdinaryPrompt) {
  const auto ids = random_ids(rng_, 301);
  SpecPcReference reference(draft_.path());
  const std::pair<Options, SpecPcReference::Settings> cases[] = {
      {{{"capacity", "100"}}, {.capacity = 100}},
      {{{"capacity", "40"}, {"window", "9"}, {"kernel", "5"}, {"neighbors", "5"}},
       {.capacity = 40, .window = 9, .around = 5}},
      {{{"capacity", "77"},
        {"window", "1"},
        {"kernel", "1"},
        {"neighbors", "1"},
        {"skip_layers", "0"}},
       {.capacity = 77, .window = 1, .around = 1, .skip_layers = 0}},
      {{{"capacity", "90"},
        {"window", "70"},
        {"skip_layers", "1"},
        {"weighted", "off"},
        {"pool", "avg"},
        {"reduce", "mean"}},
       {.capacity = 90,
        .window = 70,
        .skip_layers = 1,
        .weighted = false,
        .mean = true,
        .average = true}},
  };
  for (const auto& [given, settings] : cases) {
    Options options = given;
    options["lookahead"] = "1";  // the published setting
    options["band"] = "0";
    QueryRequest r = plain(ids);
    compress(r, options);
    const Outcome o = ask(std::move(r));
    ASSERT_TRUE(o.plan.prompt_cut);
    EXPECT_EQ(o.plan.prompt_cut->note, "");
    const std::vector<std::int32_t> kept = kept_of(o.plan, PromptCut::Part::kQuestion);
    EXPECT_EQ(kept, reference.kept(ids, settings, {})) << settings.capacity;
    EXPECT_EQ(static_cast<std::int64_t>(kept.size()), settings.capacity);
    EXPECT_EQ(o.plan.prompt_tokens, 301);
    EXPECT_EQ(o.plan.fates.dropped, 301 - settings.capacity);
    EXPECT_GT(o.stats.prompt_ms, 0);
    EXPECT_EQ(ask(plain(pick(ids, kept))).ids, o.ids);
  }
}

TEST_F(SpecPcQueryTest, APromptThatFitsIsLeftAsItIs) {
  const auto ids = random_ids(rng_, 90);
  const Outcome whole = ask(plain(ids));
  EXPECT_FALSE(whole.plan.prompt_cut);
  for (const char* capacity : {"90", "91", "5000"}) {
    QueryRequest r = plain(ids);
    compress(r, {{"capacity", capacity}});
    const Outcome o = ask(std::move(r));
    EXPECT_EQ(o.ids, whole.ids);
    EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 90);
    EXPECT_EQ(o.plan.prompt_cut->removed_tokens, 0);
    EXPECT_NE(o.plan.prompt_cut->note.find(capacity), std::string::npos);
    EXPECT_EQ(o.stats.prompt_ms, 0);
  }
}

TEST_F(SpecPcQueryTest, AShareOfThePromptIsACapacityOfThatMany) {
  const auto ids = random_ids(rng_, 301);
  for (const char* method : {"specpc", "surprisal"}) {
    const auto kept = [&](const Options& options) {
      QueryRequest r = plain(ids);
      compress(r, options, method);
      return kept_of(ask(std::move(r)).plan, PromptCut::Part::kQuestion);
    };
    EXPECT_EQ(kept({{"keep_ratio", "0.5"}}), kept({{"capacity", "150"}})) << method;
    EXPECT_EQ(kept({{"keep_ratio", "0.01"}, {"window", "20"}}),
              kept({{"capacity", "21"}, {"window", "20"}}))
        << method;
    QueryRequest all = plain(ids);
    compress(all, {{"keep_ratio", "1"}}, method);
    EXPECT_EQ(ask(std::move(all)).plan.prompt_cut->kept_tokens, 301) << method;
  }
}

TEST_F(SpecPcQueryTest, AWideCutGoesByTheMeanAndATightOneByTheMaximum) {
  const auto ids = random_ids(rng_, 301);
  const auto kept = [&](const char* capacity, const char* reduce) {
    QueryRequest r = plain(ids);
    compress(r, {{"capacity", capacity}, {"reduce", reduce}});
    return kept_of(ask(std::move(r)).plan, PromptCut::Part::kQuestion);
  };
  for (const char* capacity : {"100", "101"})
    ASSERT_NE(kept(capacity, "max"), kept(capacity, "mean")) << capacity;
  EXPECT_EQ(kept("100", "auto"), kept("100", "max"));
  EXPECT_EQ(kept("101", "auto"), kept("101", "mean"));
}

TEST_F(SpecPcQueryTest, ADraftThatCannotReadThePromptLeavesItAsItIs) {
  const auto ids = random_ids(rng_, 200);
  const Outcome whole = ask(plain(ids));
  const RandomModelFolder small(5, 128);
  for (const auto& [draft, why] :
       {std::pair{std::string(), "model.draft_path"}, std::pair{small.path().string(), "window"}}) {
    start(draft);
    QueryRequest r = plain(ids);
    compress(r, {{"capacity", "80"}});
    const Outcome o = ask(std::move(r));
    EXPECT_EQ(o.ids, whole.ids);
    EXPECT_EQ(o.plan.prompt_cut->removed_tokens, 0);
    EXPECT_NE(o.plan.prompt_cut->note.find(why), std::string::npos) << o.plan.prompt_cut->note;
  }
}

TEST_F(SpecPcQueryTest, InlineDocumentsAreCutAndSystemPartAndQuestionStay) {
  const std::vector<Doc> docs = {{"a", random_ids(rng_, 150), std::nullopt},
                                 {"b", random_ids(rng_, 60), std::nullopt}};
  const auto question = random_ids(rng_, 20);
  QueryRequest r = make_request(*engine_, docs, question, "recompute");
  const auto prefix = static_cast<std::int64_t>(r.prefix_ids.size());
  compress(r, {{"capacity", "100"}, {"window", "8"}, {"kernel", "4"}, {"neighbors", "4"}});
  const Outcome o = ask(std::move(r));
  EXPECT_EQ(kept_of(o.plan, PromptCut::Part::kQuestion).size(), question.size());
  EXPECT_EQ(static_cast<std::int64_t>(kept_of(o.plan, PromptCut::Part::kPrefix).size()), prefix);
  EXPECT_EQ(o.plan.prompt_tokens, prefix + 230);
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 100);
  EXPECT_EQ(o.plan.fates.dropped, prefix + 130);
  std::vector<Doc> left;
  for (std::int32_t i = 0; i < 2; ++i) {
    const PlannedContext& c = o.plan.contexts[static_cast<std::size_t>(i)];
    const auto kept = kept_of(o.plan, PromptCut::Part::kContext, i);
    EXPECT_EQ(c.num_tokens, static_cast<std::int64_t>(kept.size()));
    EXPECT_EQ(c.cut->uncut_tokens,
              static_cast<std::int64_t>(docs[static_cast<std::size_t>(i)].ids.size()));
    for (std::size_t t = 0; t < kept.size(); ++t)
      EXPECT_EQ(uncut_token(c, static_cast<std::int32_t>(t)), kept[t]);
    left.push_back({docs[static_cast<std::size_t>(i)].id,
                    pick(docs[static_cast<std::size_t>(i)].ids, kept), std::nullopt});
  }
  EXPECT_EQ(ask(make_request(*engine_, left, question, "recompute")).ids, o.ids);
}

TEST_F(SpecPcQueryTest, CachedDocumentsStayWholeAndCopiesStayCopies) {
  Doc cached{"c", random_ids(rng_, 90), std::nullopt};
  cached.key = ingest(*engine_, *store_, cached.id, cached.ids);
  const Doc text{"", random_ids(rng_, 120), std::nullopt};
  const std::vector<Doc> docs = {text, cached, text};
  QueryRequest r = make_request(*engine_, docs, random_ids(rng_, 12), "reuse");
  const std::int64_t uncached = static_cast<std::int64_t>(r.prefix_ids.size()) + 120 + 12;
  compress(r, {{"capacity", "60"}, {"window", "8"}});
  const Outcome o = ask(std::move(r));
  EXPECT_EQ(o.plan.prompt_cut->tokens, uncached);
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 60);
  EXPECT_FALSE(o.plan.contexts[1].cut);
  EXPECT_EQ(o.plan.contexts[1].num_tokens, 90);
  EXPECT_GT(o.plan.fates.reused, 0);
  EXPECT_TRUE(o.plan.contexts[2].duplicate);
  EXPECT_EQ(o.plan.contexts[2].num_tokens, o.plan.contexts[0].num_tokens);
  EXPECT_EQ(o.plan.prompt_tokens, uncached + 90 + 120);
}

TEST_F(SpecPcQueryTest, APromptBeyondTheWindowIsAnsweredOnceItIsCut) {
  const auto ids = random_ids(rng_, 900);
  EXPECT_TRUE(parse_window_exceeded(run_query(*engine_, plain(ids)).status));
  QueryRequest r = plain(ids);
  compress(r, {{"capacity", "200"}});
  EXPECT_EQ(ask(r).plan.prompt_cut->kept_tokens, 200);
  compress(r, {{"capacity", "600"}});
  EXPECT_TRUE(parse_window_exceeded(run_query(*engine_, std::move(r)).status));
}

TEST_F(SpecPcQueryTest, OneReadingServesTheLookAheadOfSpecKv) {
  const auto ids = random_ids(rng_, 260);
  QueryRequest r = plain(ids);
  r.cache.compress = "speckv";
  r.cache.options = PlugOptions(
      Options{{"capacity", "50"}, {"window", "6"}, {"lookahead", "7"}, {"drop_mode", "drop"}});
  compress(r, {{"capacity", "120"}, {"window", "10"}});
  const Outcome o = ask(r);
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 120);
  ASSERT_TRUE(o.plan.compression);
  EXPECT_EQ(o.plan.compression->note, "");
  EXPECT_GT(o.stats.lookahead_tokens, 0);
  EXPECT_EQ(o.stats.lookahead_tokens, o.plan.prompt_cut->lookahead_tokens);
  EXPECT_EQ(o.plan.compression->hot_rows, 3 * 2 * 50);
  EXPECT_EQ(ask(r).ids, o.ids);
}

TEST_F(SpecPcQueryTest, AShortReadingThatLeavesNothingOutKeepsTheSame) {
  const auto ids = random_ids(rng_, 331);
  const auto kept = [&](Options options) {
    options["capacity"] = "60";
    options["window"] = "9";
    options["skip_layers"] = "0";
    options["kernel"] = options["neighbors"] = "1";
    options.try_emplace("lookahead", "1");
    options.try_emplace("band", "0");
    QueryRequest r = plain(ids);
    compress(r, options);
    const Outcome o = ask(std::move(r));
    EXPECT_EQ(o.plan.prompt_cut->note, "");
    const auto out = kept_of(o.plan, PromptCut::Part::kQuestion);
    EXPECT_EQ(out.size(), 60u);
    return out;
  };
  const auto whole = kept({});
  EXPECT_EQ(kept({{"band", "384"}}), whole);
  EXPECT_EQ(kept({{"layers", "3"}}), whole);
  EXPECT_EQ(kept({{"layers", "9"}, {"band", "1024"}}), whole);
  // A setting that omits rows or layers keeps as many tokens, but different ones.
  for (const Options& options :
       {Options{{"band", "64"}}, Options{{"layers", "2"}}, Options{{"band", "64"}, {"layers", "1"}},
        Options{{"band", "64"}, {"lookahead", "4"}}}) {
    EXPECT_NE(kept(options), whole);
  }
  // If the draft also writes an answer, all layers run.
  EXPECT_EQ(kept({{"layers", "1"}, {"lookahead", "4"}}), kept({{"lookahead", "4"}}));
  const auto refused = [&](const Options& options) {
    QueryRequest r = plain(ids);
    compress(r, options);
    return run_query(*engine_, std::move(r)).status.field();
  };
  EXPECT_EQ(refused({{"band", "65"}}), "cache.prompt_compression.band");
  EXPECT_EQ(refused({{"band", "64.5"}}), "cache.prompt_compression.band");
  EXPECT_EQ(refused({{"layers", "8"}}), "cache.prompt_compression.layers");
  EXPECT_EQ(refused({{"layers", "1.5"}, {"skip_layers", "0"}}), "cache.prompt_compression.layers");
}

TEST_F(SpecPcQueryTest, ChoicesOfOneRequestShareOneReading) {
  const auto ids = random_ids(rng_, 260);
  QueryRequest r = plain(ids);
  r.cache.compress = "speckv";
  r.cache.options = PlugOptions(Options{{"capacity", "50"}, {"window", "6"}, {"lookahead", "7"}});
  compress(r, {{"capacity", "120"}, {"window", "10"}});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    r.id = "qry_" + std::to_string(i);
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(r, sinks.back()).ok());
  }
  int read = 0;
  for (const auto& sink : sinks) {
    const Outcome& o = sink->wait();
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    read += o.plan.prompt_cut->read_before ? 0 : 1;
    EXPECT_EQ(o.ids, sinks[0]->wait().ids);
    EXPECT_EQ(kept_of(o.plan, PromptCut::Part::kQuestion),
              kept_of(sinks[0]->wait().plan, PromptCut::Part::kQuestion));
    EXPECT_EQ(o.stats.lookahead_tokens, sinks[0]->wait().stats.lookahead_tokens);
  }
  EXPECT_EQ(read, 1);
  // Requests with other settings or of another tenant read for themselves.
  const auto read_before = [&](const QueryRequest& request) {
    return ask(request).plan.prompt_cut->read_before;
  };
  EXPECT_TRUE(read_before(r));
  QueryRequest settings = r, tenant = r, salt = r;
  compress(settings, {{"capacity", "120"}, {"window", "11"}});
  tenant.tenant = "another";
  salt.salt_digest[3] = 1;
  for (const QueryRequest* other : {&settings, &tenant, &salt}) EXPECT_FALSE(read_before(*other));
}

TEST_F(SpecPcQueryTest, RowsOfTheDraftsAnswerScoreWhereAsked) {
  const auto ids = random_ids(rng_, 260);
  const auto kept = [&](const char* lookahead) {
    QueryRequest r = plain(ids);
    compress(r, {{"capacity", "60"},
                 {"window", "4"},
                 {"kernel", "1"},
                 {"neighbors", "1"},
                 {"lookahead", lookahead}});
    return kept_of(ask(std::move(r)).plan, PromptCut::Part::kQuestion);
  };
  EXPECT_EQ(kept("1"), kept("1"));
  EXPECT_NE(kept("1"), kept("12"));
}

TEST_F(SpecPcQueryTest, WhatCannotBeIsRefusedByName) {
  const auto field = [&](const std::string& method, const Options& options) {
    QueryRequest r = plain(random_ids(rng_, 80));
    compress(r, options, method);
    const Outcome o = run_query(*engine_, std::move(r));
    EXPECT_EQ(o.status.code(), Code::kInvalidArgument);
    return o.status.field();
  };
  EXPECT_EQ(field("shorter", {}), "cache.prompt_compression");
  EXPECT_EQ(field("none", {{"capacity", "70"}}), "cache.prompt_compression.capacity");
  for (const char* method : {"specpc", "surprisal"}) {
    for (const char* capacity : {"0", "-4", "64", "70.5", "many"})
      EXPECT_EQ(field(method, {{"capacity", capacity}}), "cache.prompt_compression.capacity")
          << method << capacity;
  }
  EXPECT_EQ(field("specpc", {{"window", "0"}}), "cache.prompt_compression.window");
  EXPECT_EQ(field("specpc", {{"pool", "median"}}), "cache.prompt_compression.pool");
  EXPECT_EQ(field("specpc", {{"drop_mode", "drop"}}), "cache.prompt_compression.drop_mode");
}

TEST_F(SpecPcQueryTest, APlanIsPendingUntilTheDraftHasRead) {
  QueryRequest r = plain(random_ids(rng_, 300));
  compress(r, {{"capacity", "100"}});
  const auto pending = engine_->plan(r);
  ASSERT_TRUE(pending.ok());
  EXPECT_TRUE(pending->prompt_pending);
  r.plan_only = true;
  const Outcome o = ask(std::move(r));
  EXPECT_FALSE(o.plan.prompt_pending);
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 100);
  EXPECT_TRUE(o.ids.empty());
}

TEST_F(SpecPcQueryTest, AnswersTheSameInCompanyAndAfterACancelledReading) {
  std::vector<QueryRequest> requests;
  std::vector<Outcome> alone;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(plain(random_ids(rng_, 150 + 30 * static_cast<std::size_t>(i))));
    if (i != 2) compress(requests.back(), {{"capacity", "90"}, {"window", "16"}});
    alone.push_back(ask(requests.back()));
  }
  auto dropped = std::make_shared<CollectingSink>();
  auto handle = engine_->query(requests[4], dropped);
  ASSERT_TRUE(handle.ok());
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const QueryRequest& r : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(r, sinks.back()).ok());
  }
  handle->cancel();
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const Outcome& o = sinks[i]->wait();
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, alone[i].ids) << i;
  }
  dropped->wait();
}

}  // namespace
}  // namespace quire::testing
