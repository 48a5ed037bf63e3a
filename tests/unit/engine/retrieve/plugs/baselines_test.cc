// ArkVale, RaaS and ShadowKV over the pages of FreeKV and Quest choose what plain loops choose.
#include <tuple>

#include "engine/retrieve/pages/paged.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/topk.h"
#include "tests/support/harness/row_harness.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kKvHeads = RowSequence::kKvHeads, kGroup = RowSequence::kGroup,
                       kDim = RowSequence::kDim;

struct PagedDecoding : RowDecoding {
  using RowDecoding::RowDecoding;
  std::vector<std::int32_t> pages(std::int32_t layer, std::int32_t head) const {
    return dynamic_cast<PagedRetriever&>(*retriever).attended_pages(layer, head);
  }
};

/// Returns the current pages of the cache.
RetrievalPages cut(PagedDecoding& run, std::int32_t page_tokens) {
  RetrievalPages pages(page_tokens, {});
  pages.extend(run.sequence.cache().positions(0));
  return pages;
}

/// Returns the scores of pages [first, last) for every query head, by their summary: [head][page].
std::vector<std::vector<float>> scores(PagedDecoding& run, std::int32_t layer,
                                       const std::vector<float>& query, const RetrievalPages& pages,
                                       std::int32_t first, std::int32_t last, PageSummary summary) {
  const std::int64_t n = last - first;
  std::vector<std::uint16_t> bounds(static_cast<std::size_t>(n * kKvHeads * 2 * kDim));
  PageBoundsArgs args{};
  args.kv = run.sequence.cache().view(layer);
  args.pages = pages.all().data() + first;
  args.num_pages = n;
  args.bounds = bounds.data();
  args.summary = summary;
  EXPECT_TRUE(page_bounds_reference(args).ok());
  std::vector<float> flat(static_cast<std::size_t>(RowSequence::kHeads * n));
  EXPECT_TRUE(page_scores_reference({query.data(), bounds.data(), n, n, RowSequence::kHeads,
                                     kKvHeads, kDim, 0.25f, flat.data()})
                  .ok());
  std::vector<std::vector<float>> out;
  for (std::int64_t h = 0; h < RowSequence::kHeads; ++h)
    out.emplace_back(flat.begin() + h * n, flat.begin() + (h + 1) * n);
  return out;
}

std::vector<double> softmax(const std::vector<float>& x, const std::vector<std::int32_t>& of) {
  double sum = 0;
  for (const std::int32_t i : of) sum += std::exp(double{x[static_cast<std::size_t>(i)]});
  std::vector<double> out;
  for (const std::int32_t i : of)
    out.push_back(std::exp(double{x[static_cast<std::size_t>(i)]}) / sum);
  return out;
}

/// Expects the k largest votes, except where rounding of a page's summary may swap two.
void expect_best(const std::vector<std::int32_t>& chosen, const std::vector<double>& votes,
                 std::size_t k, double slack, const std::string& what) {
  std::vector<double> sorted = votes;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  ASSERT_EQ(chosen.size(), std::min(k, votes.size())) << what;
  for (const std::int32_t page : chosen)
    ASSERT_GE(votes[static_cast<std::size_t>(page)], sorted[chosen.size() - 1] - slack)
        << what << ": page " << page;
}

void expect_attends_to_its_pages(PagedDecoding& run, std::int32_t layer,
                                 const std::vector<float>& q, const RetrievalPages& pages,
                                 const std::vector<float>& out) {
  std::vector<std::vector<std::int32_t>> rows(kKvHeads);
  for (std::int32_t m = 0; m < kKvHeads; ++m) {
    for (const std::int32_t page : run.pages(layer, m)) {
      for (std::int64_t r = pages[page].begin; r < pages[page].end; ++r)
        rows[static_cast<std::size_t>(m)].push_back(static_cast<std::int32_t>(r));
    }
  }
  expect_near(out, run.sequence.attention_to(layer, q, rows), 1e-4,
              "layer " + std::to_string(layer));
}

/// Returns the pages of [first, last) that KV head m attends to, counted from the first.
std::vector<std::int32_t> chosen_of(PagedDecoding& run, std::int32_t layer, std::int32_t m,
                                    std::int32_t first, std::int32_t last) {
  std::vector<std::int32_t> out;
  for (const std::int32_t page : run.pages(layer, m)) {
    if (page >= first && page < last) out.push_back(page - first);
  }
  return out;
}

TEST(ArkVale, BringsThePagesThatTheStepsOwnQueryAsksFor) {
  PagedDecoding run("arkvale", {{"decode_page", "16"},
                                {"decode_budget", "128"},
                                {"decode_sink", "16"},
                                {"decode_window", "32"},
                                {"decode_dense_layers", "0"},
                                {"decode_resident", "none"}});
  for (int n = 0; n < 40; ++n) {
    std::vector<std::vector<float>> queries;
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      queries.push_back(q);
      const RetrievalPages pages = cut(run, 16);
      const std::int32_t first = 1, last = pages.complete() - 2;
      const auto all = scores(run, layer, q, pages, first, last, PageSummary::kDeviation);
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        std::vector<double> votes(static_cast<std::size_t>(last - first), 0.0);
        for (std::int32_t h = m * kGroup; h < (m + 1) * kGroup; ++h) {
          for (std::size_t j = 0; j < votes.size(); ++j)
            votes[j] += all[static_cast<std::size_t>(h)][j];
        }
        expect_best(chosen_of(run, layer, m, first, last), votes, 5, 0.05,
                    "token " + std::to_string(n));
      }
    });
    const RetrievalPages pages = cut(run, 16);
    for (std::int32_t layer = 0; layer < RowSequence::kLayers; ++layer) {
      expect_attends_to_its_pages(run, layer, queries[static_cast<std::size_t>(layer)], pages,
                                  outs[static_cast<std::size_t>(layer)]);
    }
  }
  const RetrieveStats s = run.retriever->stats();
  EXPECT_EQ(s.selections, s.sparse_steps) << "nothing is chosen ahead";
  EXPECT_EQ(s.waits, 0) << "every copy is waited for where it is made";
  EXPECT_GT(s.pages_copied, 0);
  EXPECT_LT(s.pages_copied, s.pages_wanted) << "what is there is not copied again";
  EXPECT_EQ(s.bytes_copied % (2 * kDim * 4), 0);
  EXPECT_EQ(s.device_bytes, run.device.bytes_in_use());
}

TEST(Raas, KeepsThePagesThatMatteredLast) {
  constexpr std::size_t kMost = 6;
  const double alpha = 0.08;
  PagedDecoding run("raas", {{"decode_page", "8"},
                             {"decode_budget", "80"},
                             {"decode_sink", "8"},
                             {"decode_window", "24"},
                             {"decode_dense_layers", "1"},
                             {"decode_alpha", "0.08"}});
  struct Head {
    std::vector<std::int32_t> alive;
    std::map<std::int32_t, int> stamps;
    std::int32_t joined = 0;
  };
  std::vector<Head> heads(kKvHeads);
  int evicted_for_age = 0;
  for (int n = 1; n <= 80; ++n) {
    std::vector<float> query;
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      if (layer == 0) return;
      query = q;
      const RetrievalPages pages = cut(run, 8);
      const std::int32_t first = 1, last = pages.complete() - 3;
      const auto all = scores(run, 1, q, pages, first, last, PageSummary::kExtremes);
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        Head& head = heads[static_cast<std::size_t>(m)];
        for (; head.joined < last - first; ++head.joined) {
          head.alive.push_back(head.joined);
          head.stamps[head.joined] = n;
        }
        std::map<std::int32_t, double> shares;
        for (std::int32_t h = m * kGroup; h < (m + 1) * kGroup; ++h) {
          const auto weights = softmax(all[static_cast<std::size_t>(h)], head.alive);
          for (std::size_t i = 0; i < weights.size(); ++i)
            shares[head.alive[i]] += weights[i] / kGroup;
        }
        for (const std::int32_t page : head.alive) {
          if (shares[page] > alpha) head.stamps[page] = n;
        }
        while (head.alive.size() > kMost) {
          const auto worst = std::min_element(head.alive.begin(), head.alive.end(),
                                              [&](std::int32_t a, std::int32_t b) {
                                                return std::tuple(head.stamps[a], shares[a], a) <
                                                       std::tuple(head.stamps[b], shares[b], b);
                                              });
          evicted_for_age += n > 1 && head.stamps[*worst] < n ? 1 : 0;
          head.alive.erase(worst);
        }
        ASSERT_EQ(chosen_of(run, 1, m, first, last), head.alive) << "token " << n << " head " << m;
      }
    });
    expect_attends_to_its_pages(run, 1, query, cut(run, 8), outs[1]);
  }
  EXPECT_GT(evicted_for_age, 0);
  EXPECT_EQ(run.retriever->stats().bytes_copied, 0) << "pages are read where they are";
  EXPECT_EQ(run.device.peak_bytes(), 0);
}

double least_cosine(PagedDecoding& run, std::int32_t layer, std::int32_t m, const RowRange& rows) {
  const KvView kv = run.sequence.cache().view(layer);
  std::vector<double> mean(kDim, 0.0);
  const auto key = [&](std::int64_t row, std::size_t c) {
    return double{load_f32(static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                               m * kv.head_stride + row % kPageTokens * kv.token_stride,
                           kv.dtype, static_cast<std::int64_t>(c))};
  };
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    for (std::size_t c = 0; c < kDim; ++c) mean[c] += key(r, c);
  }
  double least = 1;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t c = 0; c < kDim; ++c) {
      ab += key(r, c) * mean[c];
      aa += key(r, c) * key(r, c);
      bb += mean[c] * mean[c];
    }
    least = std::min(least, ab / std::sqrt(aa * bb));
  }
  return least;
}

TEST(ShadowKv, AttendsToOutliersAndToTheBestLandmarks) {
  // The budget of 136 is sink 8, window 32 and twelve chunks; 256 of 1024 tokens make four of them
  // outliers.
  PagedDecoding run("shadowkv", {{"decode_budget", "136"},
                                 {"decode_sink", "8"},
                                 {"decode_window", "32"},
                                 {"decode_outliers", "256"},
                                 {"decode_dense_layers", "0"}});
  std::vector<std::vector<std::int32_t>> outliers;
  for (int n = 0; n < 30; ++n) {
    std::vector<std::vector<float>> queries;
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      queries.push_back(q);
      const RetrievalPages pages = cut(run, 8);
      const std::int32_t first = 1, last = pages.complete() - 4;
      const auto all = scores(run, layer, q, pages, first, last, PageSummary::kMean);
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        if (n == 0) {
          std::vector<float> far;
          for (std::int32_t page = first; page < last; ++page)
            far.push_back(static_cast<float>(-least_cosine(run, layer, m, pages[page])));
          outliers.push_back(top_k_reference(far, 4));
        }
        auto chosen = chosen_of(run, layer, m, first, last);
        ASSERT_EQ(chosen.size(), 12u);
        for (const std::int32_t page : outliers[static_cast<std::size_t>(layer * kKvHeads + m)])
          ASSERT_EQ(std::erase(chosen, page), 1) << "token " << n << " outlier " << page;
        std::vector<std::int32_t> every;
        for (std::int32_t j = 0; j < last - first; ++j) every.push_back(j);
        std::vector<double> votes(every.size(), 0.0);
        for (std::int32_t h = m * kGroup; h < (m + 1) * kGroup; ++h) {
          const auto weights = softmax(all[static_cast<std::size_t>(h)], every);
          for (std::size_t j = 0; j < votes.size(); ++j) votes[j] = std::max(votes[j], weights[j]);
        }
        for (const std::int32_t page : outliers[static_cast<std::size_t>(layer * kKvHeads + m)])
          votes[static_cast<std::size_t>(page)] = -1;
        expect_best(chosen, votes, 8, 2e-3, "token " + std::to_string(n));
      }
    });
    for (std::int32_t layer = 0; layer < RowSequence::kLayers; ++layer) {
      expect_attends_to_its_pages(run, layer, queries[static_cast<std::size_t>(layer)], cut(run, 8),
                                  outs[static_cast<std::size_t>(layer)]);
    }
  }
}

TEST(Baselines, ABudgetOverTheContextIsDense) {
  for (const char* name : {"arkvale", "raas", "shadowkv"}) {
    PagedDecoding run(name, {{"decode_budget", "512"}}), dense("dense", {});
    for (int n = 0; n < 10; ++n) EXPECT_EQ(run.token(), dense.token()) << name << " token " << n;
    EXPECT_EQ(run.retriever->stats().sparse_steps, 0);
  }
}

TEST(Baselines, OptionsThatDoNotFitAreNamed) {
  const auto field = [](std::string_view name, RetrieverOptions given) {
    return std::string(retrievers().make(name, PlugOptions(std::move(given))).status().field());
  };
  for (const char* name : {"arkvale", "raas", "shadowkv"}) EXPECT_EQ(field(name, {}), "") << name;
  EXPECT_EQ(field("arkvale", {{"decode_page", "24"}}), "cache.options.decode_page");
  EXPECT_EQ(field("raas", {{"decode_window", "20"}}), "cache.options.decode_window");
  EXPECT_EQ(field("shadowkv", {{"decode_outliers", "1024"}}), "cache.options.decode_outliers");
  EXPECT_EQ(field("shadowkv", {{"decode_window", "2048"}}), "cache.options.decode_budget");
}

}  // namespace
}  // namespace quire::testing
