// The recompute pass equals an independent, slow implementation of the method: dictionaries of
// rows, one token at a time, sums in f64.
#include <cmath>

#include "engine/recompute/row_pass.h"
#include "engine/recompute/samkv_rows.h"
#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

using Token = std::pair<std::int32_t, std::int32_t>;  // (context, token)
// The layers in which a token passes the 3-sigma test.
using Important = std::map<Token, std::set<std::int32_t>>;

struct Row {
  std::vector<float> k, v;  ///< raw
};

class SlowReference {
 public:
  SlowReference(Bed& bed, const Selection& selection)
      : bed_(bed), selection_(selection), c_(bed.model().config()) {}

  /// Fills r_ by the published rule, or with every kept token.
  void choose(const Important& important, bool every_kept) {
    r_.assign(static_cast<std::size_t>(bed_.num_layers()), {});
    for (std::int32_t layer = 0; layer < bed_.num_layers(); ++layer) {
      for (std::int32_t d = 0; d < bed_.num_contexts(); ++d) {
        if (bed_.contexts()[static_cast<std::size_t>(d)].exact) continue;
        for (std::int32_t t = 0;
             t < static_cast<std::int32_t>(bed_.docs()[static_cast<std::size_t>(d)].size()); ++t) {
          const std::int32_t block = t / Bed::kBlock, blocks = bed_.blocks(d);
          const bool anchor = block == 0 || block == blocks - 1 || block == blocks - 2;
          const auto found = important.find({d, t});
          const bool sigma = found != important.end() && found->second.contains(layer);
          if (kept(layer, d, block) && (anchor || every_kept || sigma))
            r_[static_cast<std::size_t>(layer)].insert({d, t});
        }
      }
    }
  }
  const std::vector<std::set<Token>>& r() const { return r_; }

  CacheContent run(bool fusion) {
    std::map<Token, std::int32_t> top;
    for (std::int32_t layer = 0; layer < bed_.num_layers(); ++layer)
      for (const Token& t : r_[static_cast<std::size_t>(layer)]) top[t] = layer;
    std::map<Token, std::vector<float>> x;
    for (const auto& [t, unused] : top) {
      x[t].resize(static_cast<std::size_t>(c_.hidden_size));
      const std::int32_t id = bed_.docs()[static_cast<std::size_t>(t.first)]
                                         [static_cast<std::size_t>(t.second)];
      EXPECT_TRUE(bed_.model().embed({&id, 1}, x[t].data()).ok());
    }
    CacheContent out(r_.size());
    for (std::int32_t layer = 0; layer < bed_.num_layers(); ++layer) {
      const auto& here = r_[static_cast<std::size_t>(layer)];
      std::map<std::int32_t, Row> keys;  // by position
      for (std::int32_t d = 0; d < bed_.num_contexts(); ++d) {
        for (std::int32_t t = 0;
             t < static_cast<std::int32_t>(bed_.docs()[static_cast<std::size_t>(d)].size()); ++t) {
          const auto active = top.find({d, t});
          if (kept(layer, d, t / Bed::kBlock) || (active != top.end() && active->second >= layer))
            keys[bed_.position(d, t)] = stored(d, t, layer);
        }
      }
      std::map<Token, std::vector<float>> queries;
      for (const auto& [t, highest] : top) {
        if (highest < layer) continue;
        const auto qkv = bed_.model().project_qkv(layer, x[t].data(), 1);
        EXPECT_TRUE(qkv.ok());
        const auto dim = static_cast<std::size_t>(c_.num_kv_heads * c_.head_dim);
        queries[t].assign(qkv->q, qkv->q + c_.num_heads * c_.head_dim);
        if (here.contains(t))
          keys[bed_.position(t.first, t.second)] = {{qkv->k, qkv->k + dim}, {qkv->v, qkv->v + dim}};
      }
      const auto prefix = prefix_row(layer);
      for (const auto& [t, highest] : top) {
        if (highest <= layer) continue;
        const std::vector<float> o = attend(queries[t], bed_.position(t.first, t.second), prefix,
                                            keys);
        EXPECT_TRUE(bed_.model().finish_layer(layer, x[t].data(), o.data(), DType::kF32, 1).ok());
      }
      for (std::int32_t d = 0; d < bed_.num_contexts(); ++d) {
        for (std::int32_t t = 0;
             t < static_cast<std::int32_t>(bed_.docs()[static_cast<std::size_t>(d)].size()); ++t) {
          if (!kept(layer, d, t / Bed::kBlock)) continue;
          Row row = keys[bed_.position(d, t)];
          if (fusion && here.contains({d, t})) {
            const Row old = stored(d, t, layer);
            row.k = blended(row.k, old.k);
            row.v = blended(row.v, old.v);
          }
          auto& to = out[static_cast<std::size_t>(layer)][bed_.position(d, t)];
          to = rotated(row.k, bed_.position(d, t));
          to.insert(to.end(), row.v.begin(), row.v.end());
        }
      }
      out[static_cast<std::size_t>(layer)][0] = prefix;
    }
    return out;
  }

 private:
  bool kept(std::int32_t layer, std::int32_t d, std::int32_t block) const {
    const auto k = selection_.kept(layer, d);
    return std::find(k.begin(), k.end(), block) != k.end();
  }
  Row stored(std::int32_t d, std::int32_t t, std::int32_t layer) const {
    const RawKvView& view = bed_.stored().blocks.at({d, t / Bed::kBlock, layer}).view;
    Row row;
    for (std::int32_t h = 0; h < c_.num_kv_heads; ++h) {
      const auto* at = static_cast<const char*>(view.data) + h * view.head_stride +
                       (t % Bed::kBlock) * view.row_stride;
      for (std::int32_t i = 0; i < c_.head_dim; ++i) {
        row.k.push_back(load_f32(at, view.dtype, i));
        row.v.push_back(load_f32(at + view.kv_stride, view.dtype, i));
      }
    }
    return row;
  }
  /// Returns the row of the system prefix, which is one BOS here, as the cache has it, rotated.
  std::vector<float> prefix_row(std::int32_t layer) const {
    return content(bed_.cache())[static_cast<std::size_t>(layer)].at(0);
  }
  std::vector<float> rotated(const std::vector<float>& x, std::int32_t position) const {
    std::vector<float> out(x.size());
    const auto heads = static_cast<std::int64_t>(x.size()) / c_.head_dim;
    EXPECT_TRUE(rope_rotate_reference(bed_.model().rope(), {.x = x.data(),
                                                            .out = out.data(),
                                                            .positions = &position,
                                                            .rows = 1,
                                                            .num_heads = heads,
                                                            .ldx = heads * c_.head_dim,
                                                            .ldo = heads * c_.head_dim})
                    .ok());
    return out;
  }
  std::vector<float> attend(const std::vector<float>& q, std::int32_t position,
                            const std::vector<float>& prefix,
                            const std::map<std::int32_t, Row>& keys) const {
    const std::vector<float> query = rotated(q, position);
    const auto d = static_cast<std::size_t>(c_.head_dim),
               kv_dim = d * static_cast<std::size_t>(c_.num_kv_heads);
    std::vector<std::vector<float>> k = {
        {prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(kv_dim)}};
    std::vector<std::vector<float>> v = {
        {prefix.begin() + static_cast<std::ptrdiff_t>(kv_dim), prefix.end()}};
    for (const auto& [p, row] : keys) {
      if (p > position) continue;
      k.push_back(rotated(row.k, p));
      v.push_back(row.v);
    }
    std::vector<float> out(q.size());
    for (std::size_t h = 0; h < static_cast<std::size_t>(c_.num_heads); ++h) {
      const std::size_t m = h / static_cast<std::size_t>(c_.group_size());
      std::vector<double> weight;
      double sum = 0, most = -1e300;
      for (const auto& key : k) {
        double s = 0;
        for (std::size_t i = 0; i < d; ++i)
          s += static_cast<double>(query[h * d + i]) * key[m * d + i];
        weight.push_back(s / std::sqrt(static_cast<double>(d)));
        most = std::max(most, weight.back());
      }
      for (double& w : weight) sum += w = std::exp(w - most);
      for (std::size_t i = 0; i < d; ++i) {
        double o = 0;
        for (std::size_t j = 0; j < v.size(); ++j) o += weight[j] / sum * v[j][m * d + i];
        out[h * d + i] = static_cast<float>(o);
      }
    }
    return out;
  }
  static std::vector<float> blended(const std::vector<float>& fresh,
                                    const std::vector<float>& old) {
    double dot = 0, a = 0, b = 0;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      dot += static_cast<double>(fresh[i]) * old[i];
      a += static_cast<double>(fresh[i]) * fresh[i];
      b += static_cast<double>(old[i]) * old[i];
    }
    const double theta = std::min(1.0, std::max(0.0, dot / std::sqrt(a) / std::sqrt(b)));
    std::vector<float> out;
    for (std::size_t i = 0; i < fresh.size(); ++i)
      out.push_back(static_cast<float>(theta * fresh[i] + (1 - theta) * old[i]));
    return out;
  }

  Bed& bed_;
  const Selection& selection_;
  const ModelConfig& c_;
  std::vector<std::set<Token>> r_;
};

class AlignmentTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  std::mt19937 rng_{static_cast<std::uint32_t>(40 + GetParam())};
  const Family& family() const { return families()[GetParam()]; }

  /// Returns random tokens, each of which is important in some layers.
  Important random_important(const Bed& bed, int count) {
    Important out;
    for (int i = 0; i < count; ++i) {
      const auto d = static_cast<std::int32_t>(rng_() %
                                               static_cast<std::uint32_t>(bed.num_contexts()));
      const auto n = static_cast<std::uint32_t>(bed.docs()[static_cast<std::size_t>(d)].size());
      if (n == 0) continue;
      auto& layers = out[{d, static_cast<std::int32_t>(rng_() % n)}];
      for (std::int32_t layer = 0; layer < bed.num_layers(); ++layer)
        if (rng_() % 2) layers.insert(layer);
    }
    return out;
  }
  static ImportantTokens as_function(const Important& important) {
    return [&important](std::int32_t context, std::int32_t layer) {
      Ids tokens;
      for (const auto& [t, layers] : important)
        if (t.first == context && layers.contains(layer)) tokens.push_back(t.second);
      return tokens;
    };
  }
};

// The pass equals the slow reference, and padding leaves no trace.
TEST_P(AlignmentTest, EqualsTheSlowReferenceForSelectionsOfTheirOwnInEveryLayer) {
  for (int round = 0; round < 6; ++round) {
    Bed bed(family_model(family()), random_docs(rng_, {1 + rng_() % 40, 30 + rng_() % 20,
                                                       round == 2 ? 0 : 3 + rng_() % 9, 41}));
    // as after a different system prompt at ingest
    if (round % 3 == 1) bed.contexts()[0].exact = false;
    const Selection selection = bed.random_selection(rng_, 0.35);
    const Important important = random_important(bed, 12);
    const bool every_kept = round % 2 == 1;
    for (const WriteBack write_back : {WriteBack::kOverwrite, WriteBack::kFusion}) {
      SCOPED_TRACE(std::string(family().name) + " round " + std::to_string(round) +
                   (write_back == WriteBack::kFusion ? " fusion" : " overwrite"));
      bed.place(selection);
      SlowReference slow(bed, selection);
      slow.choose(important, every_kept);
      const CacheContent want = slow.run(write_back == WriteBack::kFusion);
      std::int64_t replaced = 0;
      for (const auto& layer : slow.r()) replaced += static_cast<std::int64_t>(layer.size());
      std::vector<CacheContent> got;
      for (const std::int64_t chunk : {1000, 7, 1}) {
        bed.place(selection);
        const RecomputeInput input = bed.input(selection);
        RowSet rows = samkv_rows(input,
                                 every_kept ? SamkvRows::kKept : SamkvRows::kAnchorsAndImportant,
                                 as_function(important));
        if (const auto padding = rows.padding(input))
          bed.stored().load(*padding, bed.num_contexts());
        auto pass = make_row_pass(input, std::move(rows), write_back);
        ASSERT_TRUE(pass.ok() && *pass != nullptr);
        EXPECT_EQ(bed.finish(**pass, chunk).replaced, replaced);
        got.push_back(content(bed.cache()));
      }
      EXPECT_LE(difference(got[0], want), 1e-4);
      EXPECT_EQ(got[1], got[0]) << "chunks change nothing";
      EXPECT_EQ(got[2], got[0]);
    }
  }
}

TEST_P(AlignmentTest, LoadsPaddingAndNothingElse) {
  Bed bed(family_model(family()), random_docs(rng_, {20, 45, 38}));
  const Selection selection = bed.random_selection(rng_, 0.3);
  const Important important = random_important(bed, 20);
  bed.place(selection);
  const RecomputeInput input = bed.input(selection);
  const RowSet rows = samkv_rows(input, SamkvRows::kAnchorsAndImportant, as_function(important));
  const auto padding = rows.padding(input);
  ASSERT_TRUE(padding.has_value());
  std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> want, got;
  SlowReference slow(bed, selection);
  slow.choose(important, false);
  std::int64_t active = 0;
  for (std::int32_t layer = 0; layer < bed.num_layers(); ++layer) {
    std::set<Token> above;
    for (auto l = static_cast<std::size_t>(layer); l < slow.r().size(); ++l)
      above.insert(slow.r()[l].begin(), slow.r()[l].end());
    active += static_cast<std::int64_t>(above.size());
    for (const auto& [d, t] : above) {
      const auto kept = selection.kept(layer, d);
      if (std::find(kept.begin(), kept.end(), t / Bed::kBlock) == kept.end())
        want.insert({d, t / Bed::kBlock, layer});
    }
    for (std::int32_t d = 0; d < bed.num_contexts(); ++d)
      for (const std::int32_t b : padding->kept(layer, d)) got.insert({d, b, layer});
  }
  EXPECT_EQ(got, want);
  // The work is in proportion to the rows. Every active row runs once per layer and reads at most
  // two stored blocks (check and padding).
  bed.stored().load(*padding, bed.num_contexts());
  bed.stored().reads = 0;
  auto pass = make_row_pass(input, rows, WriteBack::kOverwrite);
  ASSERT_TRUE(pass.ok());
  EXPECT_EQ(bed.finish(**pass, 16).projected, active);
  EXPECT_LE(bed.stored().reads, 2 * active);
}

// Compact positions work: one position per token in all layers, without gaps.
TEST_P(AlignmentTest, PositionsMayBeCompact) {
  Bed bed(family_model(family()), random_docs(rng_, {22, 45, 38}));
  const Selection selection = bed.random_selection(rng_, 0.3);
  std::vector<Ids> block_position(3);
  std::int32_t at = 1;
  for (std::int32_t c = 0; c < 3; ++c) {
    for (std::int32_t b = 0; b < bed.blocks(c); ++b) {
      const bool kept = selection.kept_layers(c, b) > 0;
      block_position[static_cast<std::size_t>(c)].push_back(kept ? at : -1);
      if (kept)
        at += std::min(Bed::kBlock,
                       static_cast<std::int32_t>(bed.docs()[static_cast<std::size_t>(c)].size()) -
                           b * Bed::kBlock);
    }
    bed.contexts()[static_cast<std::size_t>(c)]
        .block_position = block_position[static_cast<std::size_t>(c)];
  }
  bed.place(selection);
  SlowReference slow(bed, selection);
  slow.choose({}, true);
  const CacheContent want = slow.run(false);
  const auto recomputer = std::move(
      *recomputers().make("samkv_overwrite", options({{"rows", "kept"}})));
  ASSERT_TRUE(bed.recompute(*recomputer, selection, 9));
  EXPECT_LE(difference(content(bed.cache()), want), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, AlignmentTest,
                         ::testing::Range<std::size_t>(0, families().size()),
                         [](const auto& i) { return families()[i.param].name; });

}  // namespace
}  // namespace quire::testing
