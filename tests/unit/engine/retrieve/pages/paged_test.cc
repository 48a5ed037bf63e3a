// FreeKV and Quest over a growing cache: which rows they attend to, what they copy, and that timing
// changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "engine/residency/device_pool.h"
#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/choice/query_turn.h"
#include "tests/support/harness/random_row.h"
#include "tests/support/host_compute.h"

namespace quire {

namespace {

constexpr std::int32_t kLayers = 3, kHeads = 6, kKvHeads = 2, kDim = 16, kPrompt = 203;
constexpr std::size_t kQuery = kHeads * kDim;

using testing::host_compute;
using testing::random_row;

/// Queries of one answer, and the cache that it grows, equal for every retriever. Keys are random,
/// and queries turn slowly with occasional jumps.
class Sequence {
 public:
  Sequence()
      : pool_(PageFormat{kKvHeads, kDim, DType::kF16}, 0),
        cache_(pool_, kLayers),
        rope_(make_rope()) {
    for (std::int32_t p = 0; p < kPrompt; ++p) add_row(p);
  }
  void add_row(std::int32_t position) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_TRUE(cache_.add_rows(layer, std::span(&position, 1)).ok());
      const auto raw = random_row(static_cast<std::uint32_t>(position * kLayers + layer),
                                  kKvHeads * 2 * kDim);
      EXPECT_TRUE(cache_
                      .place(layer, rope_,
                             {raw.data(), 1, DType::kF32, 2 * kDim * 4, kDim * 4, kDim * 4},
                             cache_.num_rows(layer) - 1)
                      .ok());
    }
  }
  static std::vector<float> query(std::int32_t layer, int step) {
    auto q = random_row(static_cast<std::uint32_t>(9000 + layer + 10 * (step / 5)), kQuery);
    const auto drift = random_row(static_cast<std::uint32_t>(500 + layer + 10 * step), kQuery);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] += 0.2f * drift[i];
    return q;
  }
  WorkingCache& cache() { return cache_; }
  std::int32_t next_position() const { return static_cast<std::int32_t>(cache_.num_rows(0)); }

  RetrieveStep step(std::int32_t layer, const std::vector<float>& query, std::vector<float>& out) {
    out.assign(kQuery, NAN);
    return {layer, query.data(), next_position() - 1, &cache_,        kHeads,
            kDim,  out.data(),   DType::kF32,         &host_compute()};
  }

 private:
  static RopeTable make_rope() {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    return std::move(*RopeTable::build(config, 512));
  }
  PagePool pool_;
  WorkingCache cache_;
  RopeTable rope_;
};

/// A retriever over its own sequence.
struct Decoding {
  explicit Decoding(std::string_view name, std::map<std::string, std::string, std::less<>> given,
                    TransferStreams* lane = nullptr, std::int64_t device_bytes = 0,
                    const RetainedRows* retained = nullptr)
      : device(device_bytes),
        retriever(std::move(*retrievers().make(name, PlugOptions(std::move(given))))) {
    SequenceContext context;
    context.compute = &host_compute();
    AssembledPrompt assembled;
    context.cache = &sequence.cache();
    assembled.retained = retained;
    assembled.contexts = contexts;
    context.device = &device;
    context.transfers = lane;
    assembled.num_tokens = kPrompt;
    context.num_layers = kLayers;
    context.num_heads = kHeads;
    context.num_kv_heads = kKvHeads;
    context.head_dim = kDim;
    EXPECT_TRUE(retriever->prepare(context, assembled).ok());
  }
  ~Decoding() { retriever->synchronize(); }
  PagedRetriever& paged() { return dynamic_cast<PagedRetriever&>(*retriever); }

  /// Runs one token: its row, then every layer. Returns the layers' outputs.
  std::vector<std::vector<float>> token(int n) {
    return token_with([n](std::int32_t layer) { return Sequence::query(layer, n); });
  }
  template <class Query>
  std::vector<std::vector<float>> token_with(Query&& query) {
    const Status begun = retriever->begin_step(0, sequence.next_position());
    EXPECT_TRUE(begun.ok()) << begun.to_string();
    sequence.add_row(sequence.next_position());
    std::vector<std::vector<float>> outs(kLayers);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto q = query(layer);
      const Status s = retriever->attend(
          sequence.step(layer, q, outs[static_cast<std::size_t>(layer)]));
      EXPECT_TRUE(s.ok()) << s.to_string();
    }
    return outs;
  }

  Sequence sequence;
  DevicePool device;
  std::vector<ContextRows> contexts = {{1, 70}, {71, 100}};
  std::unique_ptr<Retriever> retriever;
};

std::map<std::string, std::string, std::less<>> small(std::string_view tau = "0.8") {
  return {{"decode_page", "16"},
          {"decode_budget", "96"},
          {"decode_sink", "16"},
          {"decode_window", "32"},
          {"decode_tau", std::string(tau)},
          {"decode_resident", "none"},
          {"decode_rerank", "1"},
          {"decode_reuse", "1"},
          {"decode_dense_layers", "1"}};
}

/// Returns the mean softmax weight that the KV head's query heads give to each of pages [first,
/// last), over candidate rows.
std::vector<double> attention_to(std::span<const RowRange> pages, std::int32_t first,
                                 std::int32_t last, const KvView& kv, std::int32_t m,
                                 const std::vector<float>& q) {
  std::vector<double> shares(static_cast<std::size_t>(last - first));
  for (std::int32_t h = m * 3; h < (m + 1) * 3; ++h) {
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t row = pages[static_cast<std::size_t>(first)].begin;
         row < pages[static_cast<std::size_t>(last - 1)].end; ++row) {
      const auto* key = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                        m * kv.head_stride + row % kPageTokens * kv.token_stride;
      double dot = 0;
      for (std::int32_t c = 0; c < kDim; ++c)
        dot += double{q[static_cast<std::size_t>(h * kDim + c)]} * load_f32(key, kv.dtype, c);
      sum += weights.emplace_back(std::exp(dot / std::sqrt(double{kDim})));
    }
    for (std::int32_t page = first; page < last; ++page) {
      for (std::int64_t row = pages[static_cast<std::size_t>(page)].begin;
           row < pages[static_cast<std::size_t>(page)].end; ++row) {
        shares[static_cast<std::size_t>(page - first)] +=
            weights[static_cast<std::size_t>(row - pages[static_cast<std::size_t>(first)].begin)] /
            sum / 3;
      }
    }
  }
  return shares;
}

TEST(Paged, LookedAtKeysDecideBetweenPages) {
  for (const char* name : {"freekv", "quest"}) {
    auto options = small("1.1");
    if (std::string_view(name) == "quest")
      options = {{"decode_page", "16"},
                 {"decode_budget", "96"},
                 {"decode_sink", "16"},
                 {"decode_window", "32"},
                 {"decode_dense_layers", "1"}};
    options["decode_rerank"] = "64";  // reranks all candidates
    Decoding run(name, options);
    for (int n = 0; n < 30; ++n) {
      (void)run.token(n);
      for (std::int32_t layer = 1; layer < kLayers; ++layer) {
        const KvView kv = run.sequence.cache().view(layer);
        RetrievalPages pages(16, run.contexts);
        pages.extend(std::span(kv.positions, static_cast<std::size_t>(kv.num_rows)));
        const std::int32_t first = 1, last = pages.complete() - 2;
        for (std::int32_t m = 0; m < kKvHeads; ++m) {
          const auto shares = attention_to(pages.all(), first, last, kv, m,
                                           Sequence::query(layer, n));
          std::vector<std::int32_t> best(shares.size());
          std::iota(best.begin(), best.end(), 0);
          std::ranges::sort(best, [&](std::int32_t a, std::int32_t b) {
            return shares[static_cast<std::size_t>(a)] > shares[static_cast<std::size_t>(b)];
          });
          best.resize(3);
          std::ranges::sort(best);
          std::vector<std::int32_t> want = {0};
          for (const std::int32_t page : best) want.push_back(page + first);
          for (std::int32_t page = last; page < pages.size(); ++page) want.push_back(page);
          EXPECT_EQ(run.paged().attended_pages(layer, m), want)
              << name << " token " << n << " layer " << layer << " head " << m;
        }
      }
    }
  }
}

TEST(Paged, ABudgetOverTheContextIsDense) {
  for (const char* name : {"freekv", "quest"}) {
    Decoding run(name, {{"decode_page", "16"},
                        {"decode_budget", "512"},
                        {"decode_sink", "16"},
                        {"decode_window", "32"}}),
        dense("dense", {});
    for (int n = 0; n < 40; ++n) EXPECT_EQ(run.token(n), dense.token(n)) << name << " token " << n;
    EXPECT_EQ(run.retriever->stats().sparse_steps, 0);
    EXPECT_EQ(run.device.peak_bytes(), 0);
  }
}

TEST(Paged, FirstLayersAreDense) {
  auto options = small();
  options["decode_dense_layers"] = "3";
  Decoding run("freekv", options), dense("dense", {});
  for (int n = 0; n < 5; ++n) EXPECT_EQ(run.token(n), dense.token(n));
}

/// Returns the expected output of a step: attention over the rows of these pages, and of pages
/// begun since.
std::vector<float> expected(Decoding& run, std::int32_t layer, const std::vector<float>& query,
                            const std::vector<std::vector<std::int32_t>>& pages,
                            const RetrievalPages& cut) {
  std::vector<float> out;
  std::vector<std::vector<std::int32_t>> rows(kKvHeads);
  std::vector<RowList> lists;
  for (std::size_t m = 0; m < kKvHeads; ++m) {
    for (const std::int32_t page : pages[m]) {
      for (std::int64_t r = cut[page].begin; r < cut[page].end; ++r)
        rows[m].push_back(static_cast<std::int32_t>(r));
    }
    lists.push_back({rows[m].data(), static_cast<std::int64_t>(rows[m].size())});
  }
  const RetrieveStep step = run.sequence.step(layer, query, out);
  EXPECT_TRUE(
      attention_rows_reference({attention_args(step, step.cache->view(layer)), lists.data()}).ok());
  return out;
}

TEST(FreeKv, AttendsWithTheChoiceOfAQueryBefore) {
  for (const std::int64_t reuse : {1, 2, 5, 15}) {
    auto options = small("-1");
    options["decode_reuse"] = std::to_string(reuse);
    Decoding run("freekv", options);
    RetrievalPages cut(16, run.contexts);
    (void)run.token(0);
    for (int n = 1; n < 60; ++n) {
      std::vector<std::vector<std::vector<std::int32_t>>> chosen(kLayers);
      for (std::int32_t layer = 1; layer < kLayers; ++layer) {
        for (std::int32_t m = 0; m < kKvHeads; ++m)
          chosen[static_cast<std::size_t>(layer)].push_back(run.paged().attended_pages(layer, m));
      }
      const std::int32_t before = cut.size();
      const auto outs = run.token(n);
      cut.extend(run.sequence.cache().positions(1));
      for (std::int32_t layer = 1; layer < kLayers; ++layer) {
        auto& pages = chosen[static_cast<std::size_t>(layer)];
        for (auto& list : pages) {
          EXPECT_EQ(list[0], 0) << "the sink";
          for (std::int32_t page = std::max(before, list.back() + 1); page < cut.size(); ++page)
            list.push_back(page);
          EXPECT_EQ(list.back(), cut.size() - 1) << "the row of this token";
        }
        const auto want = expected(run, layer, Sequence::query(layer, n), pages, cut);
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(outs[static_cast<std::size_t>(layer)][i], want[i], 2e-3)
              << "token " << n << " layer " << layer << " at " << i;
      }
    }
    EXPECT_EQ(run.retriever->stats().heads_corrected, 0);
    EXPECT_GT(run.retriever->stats().heads_kept, 0);
    // Layers 1 and 2 choose in the first step, take turns for the second choice, and then choose
    // every `reuse` steps.
    EXPECT_EQ(run.retriever->stats().selections,
              2 + (59 + 1 % reuse) / reuse + (59 + 2 % reuse) / reuse);
  }
}

TEST(FreeKv, AChoiceStaysAsLongAsItServes) {
  auto options = small("-1");
  options["decode_reuse"] = "5";
  Decoding kept("freekv", options), anew("freekv", small("-1"));
  std::vector<std::vector<std::int32_t>> chosen(kKvHeads);
  for (int n = 0; n < 60; ++n) {
    (void)kept.token(n);
    (void)anew.token(n);
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      // Take the sink and the three chosen pages; the others are those that no choice has seen.
      const auto of = [&](Decoding& run) {
        auto pages = run.paged().attended_pages(1, m);
        pages.resize(4);
        return pages;
      };
      auto& list = chosen[static_cast<std::size_t>(m)];
      // After the first choice, layer 1 is one step ahead of its turn.
      if (n == 0 || n % 5 == 4) list = of(anew);
      EXPECT_EQ(of(kept), list) << "token " << n << " head " << m;
    }
  }
}

TEST(FreeKv, HeadsThatTurnedDoNotWaitForTheirTurn) {
  auto options = small("2");
  options["decode_reuse"] = "7";
  Decoding kept("freekv", options), anew("freekv", small("2"));
  for (int n = 0; n < 40; ++n) EXPECT_EQ(kept.token(n), anew.token(n)) << "token " << n;
}

TEST(FreeKv, AHeadThatTurnedGoesByItsNewChoiceForAsManySteps) {
  constexpr int kReuse = 4;
  constexpr double kTau = 0.7;
  auto options = small("0.7");
  options["decode_reuse"] = std::to_string(kReuse);
  Decoding kept("freekv", options), anew("freekv", small("2"));
  struct Head {
    std::vector<std::int32_t> pages;
    std::vector<float> by;
    int served = 1 % kReuse;  // layer 1
  };
  std::vector<Head> heads(kKvHeads);
  int turned = 0, due = 0, late = 0;
  for (int n = 0; n < 80; ++n) {
    (void)kept.token(n);
    (void)anew.token(n);
    const auto query = Sequence::query(1, n);
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      Head& head = heads[static_cast<std::size_t>(m)];
      constexpr std::int64_t kWidth = kQuery / kKvHeads;
      const std::vector<float> own(query.begin() + m * kWidth, query.begin() + (m + 1) * kWidth);
      const bool turns = n > 0 &&
                         mean_cosine(own.data(), head.by.data(), kHeads / kKvHeads,
                                     kDim)<kTau, is_due = n> 0 &&
                         ++head.served >= kReuse;
      // Take the sink and the three chosen pages; the others are those that no choice has seen.
      const auto of = [&](Decoding& run) {
        auto pages = run.paged().attended_pages(1, m);
        pages.resize(4);
        return pages;
      };
      if (turns || is_due) head.served = 0;
      if (n == 0 || turns || is_due) {
        head.pages = of(anew);
        head.by = own;
      }
      turned += turns ? 1 : 0;
      due += is_due && !turns ? 1 : 0;
      late += is_due && !turns && (n + 1) % kReuse != 0 ? 1 : 0;  // later than without turned heads
      ASSERT_EQ(of(kept), head.pages) << "token " << n << " head " << m;
    }
  }
  EXPECT_GT(turned, 0);
  EXPECT_GT(due, 0);
  EXPECT_GT(late, 0);
}

TEST(FreeKv, AlwaysCorrectingIsChoosingWithTheQueryItself) {
  Decoding corrected("freekv", small("2"));
  auto options = small();
  for (const char* name : {"decode_tau", "decode_resident", "decode_reuse"}) options.erase(name);
  options["decode_pool"] = "avg_softmax";
  options["decode_dense_layers"] = "1";
  Decoding quest("quest", options);  // chooses in every step and reads the cache in place
  for (int n = 0; n < 60; ++n) {
    const auto a = corrected.token(n), b = quest.token(n);
    for (std::int32_t layer = 1; layer < kLayers; ++layer) {
      for (std::int32_t m = 0; m < kKvHeads; ++m)
        EXPECT_EQ(corrected.paged().attended_pages(layer, m),
                  quest.paged().attended_pages(layer, m))
            << "token " << n;
      for (std::size_t i = 0; i < kQuery; ++i)
        ASSERT_NEAR(a[static_cast<std::size_t>(layer)][i], b[static_cast<std::size_t>(layer)][i],
                    1e-4)
            << "token " << n;
    }
  }
  EXPECT_EQ(corrected.retriever->stats().heads_kept, 0);
}

TEST(FreeKv, ASteadyQueryCorrectsNothingAndMovesNothing) {
  Decoding run("freekv", small());
  const auto steady = [](std::int32_t layer) { return Sequence::query(layer, 0); };
  // A page completes every 16 rows; in between the candidates do not change.
  while ((run.sequence.next_position() - 171) % 16 != 2) (void)run.token_with(steady);
  (void)run.token_with(steady);
  const RetrieveStats before = run.retriever->stats();
  for (int n = 0; n < 8; ++n) (void)run.token_with(steady);
  const RetrieveStats after = run.retriever->stats();
  EXPECT_EQ(after.heads_corrected, 0);
  EXPECT_EQ(after.bytes_copied, before.bytes_copied);
  EXPECT_EQ(after.bytes_appended - before.bytes_appended,
            8 * (kLayers - 1) * kKvHeads * 2 * kDim * 2)
      << "the rows of the new tokens";
}

TEST(FreeKv, NoPageIsEverOutOfSight) {
  for (const char* reuse : {"1", "15"}) {
    auto options = small(*reuse == '1' && reuse[1] == 0 ? "0.8" : "-1");
    options["decode_reuse"] = reuse;
    Decoding run("freekv", options);
    RetrievalPages cut(16, run.contexts);
    for (int n = 0; n < 120; ++n) {
      (void)run.token(n);
      cut.extend(run.sequence.cache().positions(1));
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        const auto pages = run.paged().attended_pages(1, m);
        // There are one sink page and three chosen ones, and then all pages to the end: at least
        // the window and the page being filled.
        ASSERT_TRUE(std::is_sorted(pages.begin(), pages.end()));
        ASSERT_EQ(std::adjacent_find(pages.begin(), pages.end()), pages.end());
        ASSERT_GE(pages.size(), 1u + 3u + 2u);
        for (std::int32_t page = cut.complete() - 2; page < cut.size(); ++page)
          EXPECT_NE(std::find(pages.begin(), pages.end(), page), pages.end())
              << "token " << n << " page " << page;
      }
    }
  }
}

TEST(FreeKv, DelaysChangeNothing) {
  std::mt19937 random(5);
  TransferStreams slow([&random] {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
    return Status();
  });
  TransferStreams fast;
  Decoding at_once("freekv", small()), beside("freekv", small(), &fast),
      delayed("freekv", small(), &slow);
  for (int n = 0; n < 60; ++n) {
    const auto want = at_once.token(n);
    EXPECT_EQ(beside.token(n), want) << "token " << n;
    EXPECT_EQ(delayed.token(n), want) << "token " << n;
  }
  TransferStreams streams(
      [] {
        thread_local std::mt19937 other(std::hash<std::thread::id>()(std::this_thread::get_id()));
        std::this_thread::sleep_for(std::chrono::microseconds(other() % 300));
        return Status();
      },
      2);
  Decoding again("freekv", small()), double_buffered("freekv", small(), &streams);
  for (int n = 0; n < 60; ++n) EXPECT_EQ(double_buffered.token(n), again.token(n)) << "token " << n;
  const RetrieveStats a = at_once.retriever->stats(), b = delayed.retriever->stats();
  EXPECT_EQ(double_buffered.retriever->stats().bytes_copied, a.bytes_copied);
  EXPECT_GT(double_buffered.retriever->stats().copies, b.copies) << "a piece for each stream";
  EXPECT_EQ(a.bytes_copied, b.bytes_copied);
  auto reused = small("0.5");
  reused["decode_reuse"] = "4";
  Decoding reused_at_once("freekv", reused), reused_delayed("freekv", reused, &slow);
  for (int n = 0; n < 60; ++n)
    EXPECT_EQ(reused_at_once.token(n), reused_delayed.token(n)) << "token " << n;
  EXPECT_EQ(a.pages_copied, b.pages_copied);
  EXPECT_EQ(a.heads_corrected, b.heads_corrected);
  EXPECT_GT(a.heads_corrected, 0);
  EXPECT_GT(a.heads_kept, a.heads_corrected);
  EXPECT_LT(a.pages_copied, a.pages_wanted / 2) << "most pages stay from step to step";
}

/// Returns the first error within this many tokens.
Status first_error(Decoding& run, int tokens) {
  std::vector<float> out;
  for (int n = 0; n < tokens; ++n) {
    if (const Status s = run.retriever->begin_step(0, run.sequence.next_position()); !s.ok())
      return s;
    run.sequence.add_row(run.sequence.next_position());
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto q = Sequence::query(layer, n);
      if (const Status s = run.retriever->attend(run.sequence.step(layer, q, out)); !s.ok())
        return s;
    }
  }
  return {};
}

TEST(FreeKv, ACopyThatFailsEndsThisRequestOnly) {
  for (const int failing_copy : {1, 2, 3, 8, 21}) {
    std::atomic<int> number = 0;
    TransferStreams lane(
        [&number, failing_copy] {
          const int at = ++number;
          std::this_thread::sleep_for(std::chrono::microseconds(at * 131 % 300));
          return at == failing_copy ? Status::io("the bus is down") : Status();
        },
        2);
    Decoding failing("freekv", small(), &lane);
    const Status failed = first_error(failing, 60);
    EXPECT_EQ(failed.code(), Code::kIo) << "copy " << failing_copy;
    EXPECT_NE(failed.message().find("the bus is down"), std::string::npos);
    failing.retriever->synchronize();
    Decoding other("freekv", small(), &lane), plain("freekv", small());
    for (int n = 0; n < 10; ++n)
      EXPECT_EQ(other.token(n), plain.token(n)) << "copy " << failing_copy << " token " << n;
  }
}

TEST(FreeKv, HoldsWhatItSaysAndNoMore) {
  DevicePool* pool = nullptr;
  Decoding run("freekv", small());
  pool = &run.device;
  for (int n = 0; n < 3; ++n) (void)run.token(n);
  // 8 pages of 16 rows: sink, three selected, two of window, one that left it, one being filled. K
  // and V take two bytes in two layers.
  EXPECT_EQ(pool->bytes_in_use(), (kLayers - 1) * kKvHeads * 8 * 16 * 2 * kDim * 2);
  EXPECT_EQ(run.retriever->stats().device_bytes, pool->bytes_in_use());
  run.retriever->synchronize();
  run.retriever.reset(retrievers().make("dense")->release());
  EXPECT_EQ(pool->bytes_in_use(), 0);
}

TEST(FreeKv, LayersLeaveOneByOneAndChooseAsBefore) {
  auto kept = small();
  kept["decode_resident"] = "auto";
  // A row of the two layers that may leave takes 128 bytes. Both fit for 250 rows, then one, then
  // none.
  const std::int64_t bytes = 2 * 128 * 250 + 2 * 16 * 128;
  Decoding brought("freekv", small()), adaptive("freekv", kept, nullptr, bytes),
      roomy("freekv", kept);
  std::int64_t before = 0;
  for (int n = 0; n < 220; ++n) {
    const auto a = brought.token(n), b = adaptive.token(n), c = roomy.token(n);
    for (std::int32_t layer = 1; layer < kLayers; ++layer) {
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        EXPECT_EQ(adaptive.paged().attended_pages(layer, m),
                  brought.paged().attended_pages(layer, m))
            << "token " << n;
        EXPECT_EQ(roomy.paged().attended_pages(layer, m), brought.paged().attended_pages(layer, m))
            << "token " << n;
      }
      for (std::size_t i = 0; i < kQuery; ++i) {
        ASSERT_NEAR(b[static_cast<std::size_t>(layer)][i], a[static_cast<std::size_t>(layer)][i],
                    1e-4)
            << "token " << n;
        ASSERT_NEAR(c[static_cast<std::size_t>(layer)][i], a[static_cast<std::size_t>(layer)][i],
                    1e-4)
            << "token " << n;
      }
    }
    const std::int64_t away = adaptive.retriever->stats().layers_offloaded;
    EXPECT_LE(adaptive.device.bytes_in_use(), bytes);
    EXPECT_GE(away, before);
    EXPECT_LE(away - before, 1);
    before = away;
  }
  EXPECT_EQ(before, 2);
  EXPECT_EQ(roomy.retriever->stats().layers_offloaded, 0);
  EXPECT_EQ(roomy.retriever->stats().bytes_copied, 0) << "what stays is read where it is";
  EXPECT_LT(adaptive.retriever->stats().bytes_copied, brought.retriever->stats().bytes_copied);
}

TEST(FreeKv, AFullDeviceFailsThisRequestOnly) {
  Decoding run("freekv", small());
  DevicePool tiny(1 << 16);
  auto others = tiny.allocate((1 << 16) - 1000);  // the request's memory exists but is taken
  ASSERT_TRUE(others.ok());
  SequenceContext context;
  context.compute = &host_compute();
  AssembledPrompt assembled;
  context.cache = &run.sequence.cache();
  assembled.contexts = run.contexts;
  context.device = &tiny;
  context.num_layers = kLayers;
  context.num_heads = kHeads;
  context.num_kv_heads = kKvHeads;
  context.head_dim = kDim;
  ASSERT_TRUE(run.retriever->prepare(context, assembled).ok());
  std::vector<float> out;
  const auto q = Sequence::query(1, 0);
  const Status s = run.retriever->attend(run.sequence.step(1, q, out));
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_NE(s.message().find("device memory"), std::string::npos) << s.message();
  EXPECT_EQ(tiny.bytes_in_use(), (1 << 16) - 1000);
}

/// Returns hot rows of every layer and KV head: those of these pages, the first page's before the
/// second's.
RetainedRows retained_of(const RetrievalPages& cut,
                         const std::vector<std::vector<std::vector<std::int32_t>>>& pages) {
  RetainedRows retained;
  for (const auto& layer : pages) {
    retained.hot.emplace_back();
    for (const auto& list : layer) {
      auto& rows = retained.hot.back().emplace_back();
      for (const std::int32_t page : list) {
        for (std::int64_t row = cut[page].end - 1; row >= cut[page].begin; --row)
          rows.push_back(static_cast<std::int32_t>(row));
      }
    }
  }
  return retained;
}

TEST(Paged, HotRowsAreThereWhenTheFirstStepBegins) {
  TransferStreams lane;
  Decoding cold("freekv", small(), &lane);
  RetrievalPages cut(16, cold.contexts);
  cut.extend(cold.sequence.cache().positions(0));
  // There are one sink page, three chosen pages, two of window, and the page being filled.
  const std::vector<std::vector<std::vector<std::int32_t>>> hot(kLayers,
                                                                {{9, 4, 6, 2, 3}, {5, 0, 8, 7, 1}});
  const RetainedRows retained = retained_of(cut, hot);
  Decoding warm("freekv", small(), &lane, 0, &retained);
  std::vector<std::int32_t> window;
  for (std::int32_t page = cut.complete() - 2; page < cut.size(); ++page) window.push_back(page);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      std::vector<std::int32_t> pages = m == 0 ? std::vector<std::int32_t>{0, 4, 6, 9}
                                               : std::vector<std::int32_t>{0, 5, 7, 8};
      for (const std::int32_t page : window) pages.push_back(page);
      EXPECT_EQ(warm.paged().resident_pages(layer, m),
                layer == 0 ? std::vector<std::int32_t>() : pages)
          << "layer " << layer << " head " << m;
    }
  }
  for (int n = 0; n < 60; ++n) EXPECT_EQ(warm.token(n), cold.token(n)) << "token " << n;
}

TEST(Paged, AGoodRankingLeavesTheFirstStepNothingToBring) {
  // This run always chooses anew, so nothing is prefetched between steps.
  Decoding cold("freekv", small("1.5"));
  (void)cold.token(0);
  RetrievalPages cut(16, cold.contexts);
  cut.extend(cold.sequence.cache().positions(0));
  std::vector<std::vector<std::vector<std::int32_t>>> chosen(kLayers);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int32_t m = 0; m < kKvHeads; ++m)
      chosen[static_cast<std::size_t>(layer)].push_back(cold.paged().attended_pages(layer, m));
  }
  const RetainedRows retained = retained_of(cut, chosen);
  Decoding warm("freekv", small("1.5"), nullptr, 0, &retained);
  const std::int64_t before = warm.retriever->stats().pages_copied,
                     first_step = cold.retriever->stats().pages_copied;
  (void)warm.token(0);
  EXPECT_GT(before, 0);
  EXPECT_LE(warm.retriever->stats().pages_copied - before, (kLayers - 1) * kKvHeads)
      << "a page that the step itself began, at most";
  EXPECT_GE(first_step, (kLayers - 1) * kKvHeads * 6);
}

TEST(Paged, OptionsThatDoNotFitAreNamed) {
  const auto field = [](std::string_view name,
                        std::map<std::string, std::string, std::less<>> given) {
    return std::string(retrievers().make(name, PlugOptions(std::move(given))).status().field());
  };
  EXPECT_EQ(field("freekv", {}), "");
  EXPECT_EQ(field("quest", {}), "");
  EXPECT_EQ(field("freekv", {{"decode_page", "24"}}), "cache.options.decode_page");
  EXPECT_EQ(field("freekv", {{"decode_budget", "1000"}}), "cache.options.decode_budget");
  EXPECT_EQ(field("freekv", {{"decode_sink", "40"}}), "cache.options.decode_sink");
  EXPECT_EQ(field("freekv", {{"decode_window", "33"}}), "cache.options.decode_window");
  EXPECT_EQ(
      field("freekv", {{"decode_budget", "256"}, {"decode_sink", "128"}, {"decode_window", "128"}}),
      "cache.options.decode_budget")
      << "sinks and window take all of it";
  EXPECT_EQ(field("freekv", {{"decode_budget", "256"}}), "")
      << "what is not given leaves something to choose";
  EXPECT_EQ(field("freekv", {{"decode_budget", "1024"}}), "");
}

}  // namespace
}  // namespace quire
