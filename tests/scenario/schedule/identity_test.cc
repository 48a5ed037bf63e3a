#include <gtest/gtest.h>

#include "engine/compress/compressor.h"
#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

/// The answer of a query does not depend on concurrent work. 64 queries of every kind run alone and
/// all at once.
class IdentityTest : public ScheduleTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    start([this](EngineOptions& o) {
      o.weights = GetParam();
      o.num_threads = 2;
    });
    for (int i = 0; i < 4; ++i) {
      Doc doc{"cached" + std::to_string(i), random_ids(rng_, static_cast<std::size_t>(40 + 37 * i)),
              std::nullopt};
      doc.key = ingest(*engine_, store_, doc.id, doc.ids);
      cached_.push_back(doc);
    }
    // Inline texts have no key. The store has nothing of the missing document.
    inline_ = {"", random_ids(rng_, 33), std::nullopt};
    missing_ = {"missing", random_ids(rng_, 51), std::nullopt};
    missing_.key = engine_->names().context_key(missing_.ids, "t", {});
  }

  std::vector<Doc> documents(int i) const {
    switch (i % 6) {
      case 0:
        return {};
      case 1:
        return {cached_[0], cached_[1]};
      case 2:
        return {cached_[2], inline_};
      case 3:
        return {missing_, cached_[3]};
      case 4:
        return {cached_[1], cached_[2], cached_[3]};
      default:
        return {inline_};
    }
  }
  std::vector<QueryRequest> requests() {
    const std::vector<std::string> names = strategy_names_and_auto();
    const std::vector<std::string> compress = compressors().names(), decode = headless_retrievers();
    std::vector<QueryRequest> out;
    for (int i = 0; i < 64; ++i) {
      QueryRequest r = make_request(*engine_, documents(i),
                                    random_ids(rng_, static_cast<std::size_t>(1 + (i * 13) % 90)),
                                    names[static_cast<std::size_t>(i) % names.size()]);
      r.id = "qry_" + std::to_string(i);
      r.cache.write = false;
      r.sampling.max_tokens = 1 + (i * 7) % 40;
      if (i % 4 == 1) {
        r.cache.compress = compress[static_cast<std::size_t>(i / 4) % compress.size()];
        if (r.cache.compress != "none")
          r.cache.options = PlugOptions(
              {{"capacity", "40"}, {"window", "5"}, {"drop_mode", i % 8 == 1 ? "drop" : "demote"}});
      }
      if (i % 4 == 3) {
        r.cache.decode = decode[static_cast<std::size_t>(i / 4) % decode.size()];
        r.cache.options = PlugOptions(options_of(r.cache.decode, small_budget("64")));
      }
      if (i % 5 == 4) {
        r.sampling.temperature = 0.8f;
        r.sampling.seed = static_cast<std::uint64_t>(i);
      }
      out.push_back(std::move(r));
    }
    return out;
  }

  std::vector<Doc> cached_;
  Doc inline_, missing_;
};

TEST_P(IdentityTest, SixtyFourMixedQueriesAnswerAsTheyDoAlone) {
  std::vector<QueryRequest> all = requests();
  std::vector<Outcome> alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    QueryRequest& r = all[i];
    Outcome first = run_query(*engine_, r);
    ASSERT_TRUE(first.status.ok())
        << r.id << " " << r.cache.strategy << ": " << first.status.to_string();
    // Every third query ends at a token of its answer, so that queries leave the batch at different
    // steps.
    if (i % 3 == 0 && first.ids.size() > 6) {
      r.sampling.stop_token_ids = {first.ids[first.ids.size() / 2]};
      first = run_query(*engine_, r);
    }
    alone.push_back(std::move(first));
  }
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::shared_ptr<CollectingSink>> together;
  for (const QueryRequest& r : all) together.push_back(submit(r));
  // New documents are computed concurrently.
  std::vector<std::future<bool>> ingested;
  for (int i = 0; i < 6; ++i) {
    auto done = std::make_shared<std::promise<bool>>();
    ingested.push_back(done->get_future());
    PrefillRequest request;
    request.token_ids = random_ids(rng_, 150);
    engine_->prefill(std::move(request),
                     [done](Result<PrefillResult> r) { done->set_value(r.ok()); });
  }
  gate.open();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Outcome& o = together[i]->wait();
    ASSERT_TRUE(o.status.ok()) << all[i].id << ": " << o.status.to_string();
    EXPECT_EQ(o.ids, alone[i].ids) << all[i].id << " " << all[i].cache.strategy;
    EXPECT_EQ(o.text, alone[i].text);
    EXPECT_EQ(o.reason, alone[i].reason);
    expect_fates_sum(o.plan);
  }
  for (auto& f : ingested) EXPECT_TRUE(f.get());
  (void)blocker->wait();
}

INSTANTIATE_TEST_SUITE_P(Weights, IdentityTest,
                         ::testing::Values("f32", "bf16", "int8", "w8a8", "w4"),
                         [](const auto& weights) { return std::string(weights.param); });

}  // namespace
}  // namespace quire::testing
