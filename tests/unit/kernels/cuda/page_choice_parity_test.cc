// Reference, CPU and CUDA (emulated) choose the same pages over many steps: which heads choose,
// what they choose and the rows that they attend to. On the host each part is an operation of its
// own.
#include "kernels/cuda/choice/page_choice.cuh"

#include <numeric>
#include <span>
#include <string>

#include "kernels/choice/query_turn.h"
#include "kernels/choice/topk.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Case {
  std::string name;
  std::vector<std::int64_t> rows;  ///< of each sequence before the first step
  std::int32_t kv_heads, group, dim;
  DType dtype;
  TestLayout layout;
  std::int32_t page, first, window, selected, near;
  std::int64_t most_candidates;
  PageSummary summary;
  CandidateVote vote;
  bool by_turn;
  double tau;
  std::int32_t reuse;
  int steps;
};

const Case kCases[] = {
    {"turns and near pages",
     {150, 203},
     2,
     4,
     128,
     DType::kBF16,
     TestLayout::kHeadPages,
     16,
     1,
     2,
     3,
     6,
     37,
     PageSummary::kExtremes,
     CandidateVote::kMeanSoftmax,
     true,
     0.8,
     3,
     8},
    {"every step anew",
     {70, 131, 64},
     3,
     3,
     24,
     DType::kF32,
     TestLayout::kTokenMajor,
     8,
     2,
     1,
     4,
     0,
     64,
     PageSummary::kExtremes,
     CandidateVote::kMaxScore,
     false,
     0,
     1,
     9},
    {"no turn counts",
     {90},
     1,
     1,
     256,
     DType::kF16,
     TestLayout::kHeadMajor,
     5,
     0,
     3,
     2,
     9,
     30,
     PageSummary::kMean,
     CandidateVote::kMaxSoftmax,
     true,
     -1,
     2,
     6},
    {"every turn counts",
     {61, 80},
     2,
     7,
     8,
     DType::kF32,
     TestLayout::kGranules,
     4,
     3,
     0,
     5,
     8,
     32,
     PageSummary::kDeviation,
     CandidateVote::kMeanScore,
     true,
     2,
     4,
     5},
    {"turns without near pages",
     {128, 128},
     2,
     5,
     64,
     DType::kF16,
     TestLayout::kHeadPages,
     35,
     0,
     0,
     1,
     0,
     4,
     PageSummary::kExtremes,
     CandidateVote::kMeanSoftmax,
     true,
     0.8,
     2,
     8},
    {"eight bits",
     {150, 131},
     2,
     3,
     48,
     DType::kF8,
     TestLayout::kHeadPages,
     16,
     1,
     2,
     2,
     4,
     37,
     PageSummary::kExtremes,
     CandidateVote::kMeanSoftmax,
     true,
     0.8,
     3,
     8},
};

/// Rows cut into units of c.page, the second one of which is shorter.
std::vector<RowRange> units_of(const Case& c, std::int64_t rows) {
  std::vector<RowRange> units;
  for (std::int64_t begin = 0; begin < rows;) {
    const std::int64_t length = units.size() == 1 ? c.page - 1 : c.page,
                       end = std::min(rows, begin + length);
    units.push_back({begin, end});
    begin = end;
  }
  return units;
}
bool complete(const Case& c, const std::vector<RowRange>& units) {
  const RowRange& last = units.back();
  return last.end - last.begin == (units.size() == 2 ? c.page - 1 : c.page);
}
std::int32_t candidates_end(const Case& c, const std::vector<RowRange>& units) {
  const auto whole = static_cast<std::int32_t>(units.size()) - (complete(c, units) ? 0 : 1);
  return std::max(c.first, whole - c.window);
}

struct ByReference {
  static Status bounds(const PageBoundsArgs& a) { return page_bounds_reference(a); }
  static Status scores(const PageScoresArgs& a) { return page_scores_reference(a); }
  static Status votes(const CandidateVotesArgs& a) { return candidate_votes_reference(a); }
  static Status products(const RowScoresArgs& a) { return row_scores_reference(a); }
  static std::vector<std::int32_t> best(std::span<const float> scores, std::int64_t k) {
    std::vector<std::int32_t> out = top_k_reference(scores, k);
    std::sort(out.begin(), out.end());
    return out;
  }
  static float log_of_sum(const std::vector<float>& x) {
    double sum = 0;
    for (const float v : x) sum += std::exp(double{v});
    return static_cast<float>(std::log(sum));
  }
};
struct ByCpu {
  static Status bounds(const PageBoundsArgs& a) { return page_bounds(a); }
  static Status scores(const PageScoresArgs& a) { return page_scores(a); }
  static Status votes(const CandidateVotesArgs& a) { return candidate_votes(a); }
  static Status products(const RowScoresArgs& a) { return row_scores(a); }
  static std::vector<std::int32_t> best(std::span<const float> scores, std::int64_t k) {
    return top_k_sorted(scores, k);
  }
  static float log_of_sum(const std::vector<float>& x) {
    return log_sum_exp(x.data(), static_cast<std::int64_t>(x.size()));
  }
};

/// One sequence as the host keeps it.
template <class Ops>
class HostSequence {
 public:
  HostSequence(const Case& c, std::int32_t first_served)
      : c_(c), heads_(static_cast<std::size_t>(c.kv_heads)), first_served_(first_served) {}

  /// Runs a step of a cache, in which the query is [num_heads, dim].
  void step(const KvView& kv, const std::vector<float>& q) {
    units_ = units_of(c_, kv.num_rows);
    const std::size_t width = static_cast<std::size_t>(c_.group * c_.dim);
    bool any = false;
    for (std::size_t m = 0; m < heads_.size(); ++m) {
      Head& head = heads_[m];
      const bool first = head.by.empty();
      const std::vector<float> own(q.begin() + static_cast<std::ptrdiff_t>(m * width),
                                   q.begin() + static_cast<std::ptrdiff_t>((m + 1) * width));
      if (head.coming) head.now = head.next;
      head.coming = false;
      const bool turned = !first && c_.by_turn &&
                          mean_cosine(own.data(), head.by.data(), c_.group, c_.dim) < c_.tau;
      bool due = true;
      if (first) {
        head.served = first_served_;
      } else {
        due = ++head.served >= c_.reuse;
        if (due || turned) head.served = 0;
        if (c_.by_turn) ++(turned ? head.corrected : head.kept);
      }
      if (!due && !turned) continue;
      any = true;
      head.next = {chosen(kv, own, static_cast<std::int32_t>(m)), candidates_end(c_, units_)};
      head.by = own;
      if (first || turned || !c_.by_turn)
        head.now = head.next;
      else
        head.coming = true;
    }
    if (any) ++selections;
  }
  std::vector<std::int32_t> rows_of(std::size_t m) const {
    const Choice& now = heads_[m].now;
    std::vector<std::int32_t> units(static_cast<std::size_t>(c_.first)), rows;
    std::iota(units.begin(), units.end(), 0);
    for (const std::int32_t unit : now.units) units.push_back(c_.first + unit);
    for (std::size_t u = static_cast<std::size_t>(now.seen); u < units_.size(); ++u)
      units.push_back(static_cast<std::int32_t>(u));
    for (const std::int32_t unit : units) {
      const RowRange& range = units_[static_cast<std::size_t>(unit)];
      for (std::int64_t row = range.begin; row < range.end; ++row)
        rows.push_back(static_cast<std::int32_t>(row));
    }
    return rows;
  }
  std::int32_t corrected(std::size_t m) const { return heads_[m].corrected; }
  std::int32_t kept(std::size_t m) const { return heads_[m].kept; }
  std::int32_t selections = 0;

 private:
  struct Choice {
    std::vector<std::int32_t> units;
    std::int32_t seen = 0;
  };
  struct Head {
    Choice now, next;
    bool coming = false;
    std::int32_t served = 0, corrected = 0, kept = 0;
    std::vector<float> by;
  };

  std::vector<std::int32_t> chosen(const KvView& kv, const std::vector<float>& q,
                                   std::int32_t m) const {
    const std::int64_t n = candidates_end(c_, units_) - c_.first;
    const std::size_t of_page = static_cast<std::size_t>(2 * c_.dim),
                      all = of_page * static_cast<std::size_t>(c_.kv_heads);
    std::vector<std::uint16_t> bounds(static_cast<std::size_t>(n) * all), own;
    EXPECT_OK(Ops::bounds({kv, units_.data() + c_.first, n, bounds.data(), c_.summary}));
    for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) {
      const auto at = bounds.begin() +
                      static_cast<std::ptrdiff_t>(j * all + static_cast<std::size_t>(m) * of_page);
      own.insert(own.end(), at, at + static_cast<std::ptrdiff_t>(of_page));
    }
    std::vector<float> scores(static_cast<std::size_t>(c_.group * n));
    EXPECT_OK(
        Ops::scores({q.data(), own.data(), n, n, c_.group, 1, c_.dim, kScale, scores.data()}));
    if (c_.near == 0) return best(scores, n, c_.vote, c_.selected);
    const std::vector<std::int32_t> near = best(scores, n, c_.vote, c_.near);
    const auto num_near = static_cast<std::int64_t>(near.size());
    std::vector<float> masses(static_cast<std::size_t>(c_.group * num_near));
    for (std::size_t i = 0; i < near.size(); ++i) {
      const RowRange& range = units_[static_cast<std::size_t>(c_.first + near[i])];
      const std::int64_t rows = range.end - range.begin;
      std::vector<float> products(static_cast<std::size_t>(c_.group * rows));
      EXPECT_OK(Ops::products({q.data(),
                               c_.group,
                               c_.dim,
                               kKeyScale,
                               {kv, m, nullptr, range.begin, rows},
                               products.data(),
                               rows}));
      for (std::int32_t h = 0; h < c_.group; ++h) {
        const auto at = products.begin() + h * rows;
        masses[static_cast<std::size_t>(h * num_near) + i] = Ops::log_of_sum({at, at + rows});
      }
    }
    std::vector<std::int32_t> out = best(masses, num_near, CandidateVote::kMeanSoftmax,
                                         c_.selected);
    for (std::int32_t& i : out) i = near[static_cast<std::size_t>(i)];
    return out;
  }
  std::vector<std::int32_t> best(std::vector<float>& scores, std::int64_t n, CandidateVote vote,
                                 std::int32_t k) const {
    std::vector<float> votes(static_cast<std::size_t>(n));
    EXPECT_OK(Ops::votes({scores.data(), n, n, 1, c_.group, vote, votes.data()}));
    return Ops::best(votes, k);
  }

 public:
  static constexpr float kScale = 0.3f, kKeyScale = 0.2f;

 private:
  const Case& c_;
  std::vector<Head> heads_;
  const std::int32_t first_served_;
  std::vector<RowRange> units_;
};

/// One sequence as the device keeps it.
struct ThereSequence {
  KvView kv;
  ChoosingSequence s{};
  std::int32_t bounded = 0;  ///< units whose bounds are known
};

/// Queries drift: some steps turn far, others hardly.
std::vector<float> drifting(const Case& c, std::size_t sequence, int step) {
  const std::int64_t n = std::int64_t{c.kv_heads} * c.group * c.dim;
  const auto seed = static_cast<std::uint32_t>(100 * sequence);
  std::vector<float> q = random_floats(n, seed);
  for (int i = 1; i <= step; ++i) {
    const std::vector<float> by = random_floats(n, seed + static_cast<std::uint32_t>(i));
    for (std::size_t j = 0; j < q.size(); ++j) {
      // The heads turn in different steps.
      const std::size_t head = j / static_cast<std::size_t>(c.group * c.dim);
      q[j] += ((static_cast<std::size_t>(i) + head) % 3 == 0 ? 1.2f : 0.2f) * by[j];
    }
  }
  return q;
}

class PageChoice {
 public:
  explicit PageChoice(const Case& c) : c_(c) {}

  void run() {
    std::vector<PagedKv> kvs;
    for (std::size_t i = 0; i < c_.rows.size(); ++i) {
      kvs.emplace_back(c_.rows[i] + c_.steps, c_.kv_heads, c_.dim, c_.dtype, c_.layout,
                       7 + static_cast<std::uint32_t>(i));
      reference_.emplace_back(c_, kFirstServed % c_.reuse);
      cpu_.emplace_back(c_, kFirstServed % c_.reuse);
    }
    for (PagedKv& kv : kvs) there_.push_back(started(kv));
    for (int step = 0; step < c_.steps; ++step) {
      SCOPED_TRACE(c_.name + ", step " + std::to_string(step));
      std::vector<ChoosingSequence> sequences;
      for (std::size_t i = 0; i < kvs.size(); ++i) {
        const std::vector<float> q = drifting(c_, i, step);
        const std::int64_t rows = c_.rows[i] + step + 1;
        const KvView view = kvs[i].view(rows, true);
        reference_[i].step(view, q);
        cpu_[i].step(view, q);
        sequences.push_back(at_rows(there_[i], rows, step == 0));
        sequences.back().query = device_.upload(q, "q");
      }
      ChoosePagesArgs args = arguments();
      args.sequences = device_.upload(sequences, "sequences");
      auto launcher = device_.launcher();
      ASSERT_OK(launch_choose_pages(launcher, args));
      for (std::size_t i = 0; i < kvs.size(); ++i) expect_rows(i);
      if (step == 0) expect_refusals(args);
    }
    std::int32_t turned = 0, kept = 0;
    for (std::size_t i = 0; i < kvs.size(); ++i) {
      const auto heads = device_.download(there_[i].s.heads, c_.kv_heads);
      EXPECT_EQ(heads[0].selections, reference_[i].selections);
      for (std::size_t m = 0; m < heads.size(); ++m) {
        EXPECT_EQ(heads[m].corrected, reference_[i].corrected(m));
        EXPECT_EQ(heads[m].kept, reference_[i].kept(m));
        turned += heads[m].corrected;
        kept += heads[m].kept;
      }
    }
    EXPECT_EQ(turned > 0, c_.by_turn && c_.tau > -1);
    EXPECT_EQ(kept > 0, c_.by_turn && c_.tau < 1);
  }

 private:
  static constexpr std::int32_t kFirstServed = 5;

  std::int64_t most_rows() const {
    return std::int64_t{c_.page} * (c_.first + c_.selected + c_.window + 3) + c_.reuse;
  }
  /// Puts on the device what it has before the first step. Every buffer has the room of the last.
  ThereSequence started(PagedKv& kv) {
    ThereSequence out;
    out.kv = kv.view(true);
    const KvView there = device_.upload(out.kv);
    const std::vector<RowRange> units = units_of(c_, out.kv.num_rows);
    const auto heads = static_cast<std::size_t>(c_.kv_heads);
    out.s.kv_pages = there.pages;
    out.s.units = device_.output(std::vector<RowRange>(units.size(), {-1, -1}), "units");
    out.s.bounds = device_.output(
        std::vector<std::uint16_t>(units.size() * heads * 2 * static_cast<std::size_t>(c_.dim)),
        "bounds");
    out.s.heads = device_.output(std::vector<PageHead>(heads, PageHead{-7, -7, -7, {}, 9, 9, 9}),
                                 "heads");
    out.s.chosen = device_.output(
        std::vector<std::int32_t>(2 * heads * static_cast<std::size_t>(c_.selected), -1), "chosen");
    if (c_.by_turn) out.s.chosen_by = device_.output(c_.kv_heads * c_.group * c_.dim, "chosen_by");
    out.s.rows = device_.output(
        std::vector<std::int32_t>(heads * static_cast<std::size_t>(most_rows()), -1), "rows");
    out.s.lists = device_.output(std::vector<RowList>(heads), "lists");
    return out;
  }
  /// Returns the sequence with so many rows. Before the first step the device gets all units but
  /// the last and the bounds of all complete ones; after that it keeps them up.
  ChoosingSequence at_rows(ThereSequence& there, std::int64_t rows, bool first) {
    const std::vector<RowRange> units = units_of(c_, rows);
    const auto whole = static_cast<std::int32_t>(units.size()) - (complete(c_, units) ? 0 : 1);
    ChoosingSequence s = there.s;
    if (first) {
      std::vector<RowRange> known = units_of(c_, there.kv.num_rows);
      std::fill(known.begin() + static_cast<std::ptrdiff_t>(units.size()) - 1, known.end(),
                RowRange{-1, -1});
      s.units = there.s.units = device_.output(known, "units");
      KvView kv = there.kv;
      kv.num_rows = rows;
      std::vector<std::uint16_t> bounds(known.size() * static_cast<std::size_t>(c_.kv_heads) * 2 *
                                        static_cast<std::size_t>(c_.dim));
      EXPECT_OK(page_bounds({kv, units.data(), whole, bounds.data(), c_.summary}));
      s.bounds = there.s.bounds = device_.output(bounds, "bounds");
      there.bounded = whole;
    }
    s.last_unit = units.back();
    s.num_units = static_cast<std::int32_t>(units.size());
    s.fresh_unit = -1;
    if (whole > there.bounded) {
      EXPECT_EQ(whole, there.bounded + 1);
      s.fresh_unit = there.bounded;
      s.fresh = units[static_cast<std::size_t>(there.bounded)];
      there.bounded = whole;
    }
    s.candidates_end = candidates_end(c_, units);
    s.first_served = first ? kFirstServed % c_.reuse : -1;
    return s;
  }
  ChoosePagesArgs arguments() {
    const auto sequences = static_cast<std::int64_t>(there_.size());
    const KvView& kv = there_.front().kv;
    ChoosePagesArgs a{};
    a.num_sequences = sequences;
    a.num_heads = c_.kv_heads * c_.group;
    a.num_kv_heads = c_.kv_heads;
    a.head_dim = c_.dim;
    a.dtype = c_.dtype;
    a.head_stride = kv.head_stride;
    a.token_stride = kv.token_stride;
    a.summary = c_.summary;
    a.vote = c_.vote;
    a.scale = HostSequence<ByCpu>::kScale;
    a.key_scale = HostSequence<ByCpu>::kKeyScale;
    a.by_turn = c_.by_turn;
    a.tau = c_.tau;
    a.reuse = c_.reuse;
    a.num_first = c_.first;
    a.selected = c_.selected;
    a.near = c_.near;
    a.most_candidates = c_.most_candidates;
    a.most_rows = most_rows();
    a.chooses = device_.output(
        std::vector<std::int32_t>(static_cast<std::size_t>(sequences * c_.kv_heads), 7), "chooses");
    a.scores = device_.output(sequences * a.num_heads * a.most_candidates, "scores");
    a.votes = device_.output(sequences * c_.kv_heads * a.most_candidates, "votes");
    const auto chosen = static_cast<std::size_t>(sequences * c_.kv_heads);
    a.nearest = device_.output(
        std::vector<std::int32_t>(chosen * static_cast<std::size_t>(c_.near), 1 << 30), "nearest");
    a.picked = device_.output(
        std::vector<std::int32_t>(chosen * static_cast<std::size_t>(c_.selected), 1 << 30),
        "picked");
    return a;
  }
  void expect_rows(std::size_t i) {
    const auto lists = device_.download(there_[i].s.lists, c_.kv_heads);
    const auto rows = device_.download(there_[i].s.rows, c_.kv_heads * most_rows());
    for (std::size_t m = 0; m < lists.size(); ++m) {
      const std::int64_t at = static_cast<std::int64_t>(m) * most_rows();
      EXPECT_EQ(lists[m].rows, there_[i].s.rows + at);
      const std::vector<std::int32_t> expected = reference_[i].rows_of(m),
                                      got(rows.begin() + at, rows.begin() + at + lists[m].length);
      EXPECT_EQ(cpu_[i].rows_of(m), expected) << "sequence " << i << ", head " << m;
      EXPECT_EQ(got, expected) << "sequence " << i << ", head " << m;
    }
  }
  void expect_refusals(const ChoosePagesArgs& args) {
    const auto field_of = [&](auto edit) {
      ChoosePagesArgs bad = args;
      edit(bad);
      auto launcher = device_.launcher();
      return launch_choose_pages(launcher, bad).field();
    };
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) { a.num_heads = 0; }), "num_heads");
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) { a.head_dim = 12; }), "head_dim");
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) { a.selected = 0; }), "selected");
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) {
                a.near = static_cast<std::int32_t>(a.most_candidates) + 1;
              }),
              "near");
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) { a.reuse = 0; }), "reuse");
    EXPECT_EQ(field_of([](ChoosePagesArgs& a) { a.num_sequences = 0; }), "");
  }

  const Case& c_;
  TestDevice device_;
  std::vector<HostSequence<ByReference>> reference_;
  std::vector<HostSequence<ByCpu>> cpu_;
  std::vector<ThereSequence> there_;
};

TEST(CudaParity, PagesChosenStepByStepByManySequences) {
  for (const Case& c : kCases) PageChoice(c).run();
}

}  // namespace
}  // namespace quire::cuda
