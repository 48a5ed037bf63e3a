/// Sequences whose rows a retrieval head chooses on a device: all of a step together choose what
/// each chooses alone, and the host waits once for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "engine/answer/decode_batch.h"
#include "engine/device/device_compute.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/head/specontext.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/harness/kernel_test_support.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::testing {
namespace {

using cuda::OpCode;
using Options = std::map<std::string, std::string, std::less<>>;

constexpr std::int32_t kLayers = 3, kHeads = 6, kKvHeads = 2, kDim = 16;
constexpr std::int32_t kBudget = 40;

#ifdef QUIRE_ON_HARDWARE
// Products of other numbers of rows may differ in their last bits there, and so do features.
constexpr const char* kFeatures = "embed";
constexpr float kApart = 1e-3f;
#else
constexpr const char* kFeatures = "auto";
constexpr float kApart = 0;
#endif

std::int32_t token(std::int32_t position) { return 300 + position * 37 % 3000; }

/// What of a sequence may differ from others.
struct Given {
  std::int32_t length;
  std::string head = "embed";  ///< what the head sees of a token
  std::string reuse = "1", resident = "auto";
  bool lacks_rows = false;  ///< one layer has other rows, so that the host chooses by the scores
  std::uint32_t seed = 0;
};

/// A model on a device with a retrieval head, and steps of sequences.
class HeadsOnDevice {
 public:
  explicit HeadsOnDevice(const HeadShape& shape = {})
      : head_folder_(shape),
        model_(std::move(*load_model(model_folder_.path(),
                                     {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32},
                                     make_device_compute(ops_)))),
        pool_(PageFormat{kKvHeads, kDim, DType::kF32}, 0, model_->compute().memory(), 1 << 24),
        slots_(1 << 26, model_->compute().memory()),
        head_(std::move(*RetrievalHead::load(head_folder_.path(), *model_))),
        batch_(*model_) {}

  struct Sequence {
    Sequence(HeadsOnDevice& test, const Given& given)
        : cache(test.pool_, kLayers), position(given.length) {
      Compute& compute = test.model_->compute();
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<std::int32_t> positions, rows;
        for (std::int32_t p = 0; p < given.length; ++p) {
          if (given.lacks_rows && layer == 1 && p % 5 == 3) continue;
          rows.push_back(static_cast<std::int32_t>(positions.size()));
          positions.push_back(p);
        }
        EXPECT_TRUE(cache.add_rows(layer, positions).ok());
        const std::int64_t n = count_of(rows), row_bytes = kDim * 4;
        const auto raw = random_floats(n * kKvHeads * 2 * kDim,
                                       given.seed + static_cast<std::uint32_t>(layer));
        const StoredRows stored{
            {raw.data(), n, DType::kF32, 2 * n * row_bytes, n * row_bytes, row_bytes},
            positions,
            rows};
        EXPECT_TRUE(compute.kv()
                        .place(test.model_->rope(), *cache.writable(layer, rows), {&stored, 1})
                        .ok());
      }
      const Options options = {{"decode_budget", std::to_string(kBudget)},
                               {"decode_sink", "3"},
                               {"decode_window", "6"},
                               {"decode_head", given.head},
                               {"decode_reuse", given.reuse},
                               {"decode_resident", given.resident}};
      retriever = std::move(*retrievers().make("specontext", PlugOptions(options)));
      HeadTrack track(*test.head_, capability<HeadDriven>(*retriever)->head_input(*test.head_));
      std::vector<std::int32_t> ids, positions(static_cast<std::size_t>(given.length));
      std::iota(positions.begin(), positions.end(), 0);
      for (const std::int32_t p : positions) ids.push_back(token(p));
      EXPECT_TRUE(track.add_embedded(ids, positions).ok());
      SequenceContext context;
      context.cache = &cache;
      context.device = &test.slots_;
      context.compute = &compute;
      context.head = test.head_.get();
      context.num_layers = kLayers;
      context.num_heads = kHeads;
      context.num_kv_heads = kKvHeads;
      context.head_dim = kDim;
      AssembledPrompt prompt;
      prompt.head_track = &track;
      prompt.num_tokens = given.length;
      const Status status = prepare_whole(*retriever, context, prompt);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    ~Sequence() { retriever->synchronize(); }
    SpeContextRetriever& plug() const { return dynamic_cast<SpeContextRetriever&>(*retriever); }

    WorkingCache cache;
    std::int32_t position;
    std::unique_ptr<Retriever> retriever;
  };

  /// What a step of a sequence gave.
  struct Got {
    Status status;
    std::vector<float> logits;
    std::vector<std::vector<std::int32_t>> rows;  ///< chosen, of every layer and head
    bool operator==(const Got& other) const {
      return status.code() == other.status.code() && rows == other.rows &&
             std::ranges::equal(logits, other.logits, [](float a, float b) {
               return a == b || std::abs(a - b) <= kApart;
             });
    }
  };
  std::vector<Got> step(std::span<Sequence* const> sequences) {
    std::vector<DecodeRow> rows(sequences.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Sequence& s = *sequences[i];
      rows[i] = {.token_id = token(s.position), .position = s.position, .cache = &s.cache};
      rows[i].retriever = s.retriever.get();
    }
    const Status status = batch_.step(rows);
    std::vector<Got> out(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[i].status = status.ok() ? rows[i].status : status;
      if (!out[i].status.ok()) continue;
      ++sequences[i]->position;
      out[i].logits.assign(rows[i].logits.begin(), rows[i].logits.end());
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        for (std::int32_t head = 0; head < kKvHeads; ++head)
          out[i].rows.push_back(sequences[i]->plug().attended_rows(layer, head));
      }
    }
    return out;
  }
  /// Runs steps of sequences made from this, and returns what each sequence got in each step.
  std::vector<std::vector<Got>> run(const std::vector<Given>& given, int steps) {
    std::vector<std::unique_ptr<Sequence>> made;
    std::vector<Sequence*> all;
    for (const Given& one : given) {
      made.push_back(std::make_unique<Sequence>(*this, one));
      all.push_back(made.back().get());
    }
    std::vector<std::vector<Got>> out(given.size());
    for (int n = 0; n < steps; ++n) {
      const std::int64_t waited = ops_->waits(), copied = ops_->runs(OpCode::kCopyAsync);
      const std::vector<Got> got = step(all);
      waits_ = ops_->waits() - waited;
      downloads_ = ops_->runs(OpCode::kCopyAsync) - copied;
      for (std::size_t i = 0; i < got.size(); ++i) out[i].push_back(got[i]);
    }
    return out;
  }

  /// Return the waits and the downloads beside the computation of the last step of run().
  std::int64_t waits() const { return waits_; }
  std::int64_t downloads() const { return downloads_; }
  simt::EmulatedOps& ops() { return *ops_; }
  Compute& compute() { return model_->compute(); }
  DevicePool& slots() { return slots_; }
  const RetrievalHead& head() const { return *head_; }

 private:
  const RandomModelFolder model_folder_;
  const HeadFolder head_folder_;
  const std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  const std::unique_ptr<Model> model_;
  PagePool pool_;
  DevicePool slots_;
  const std::unique_ptr<RetrievalHead> head_;
  DecodeBatch batch_;
  std::int64_t waits_ = 0, downloads_ = 0;
};

const std::vector<Given> kMany = {
    {.length = 150},
    {.length = 61, .head = kFeatures, .seed = 1000},
    {.length = 20, .seed = 2000},  // has fewer rows than the budget
    {.length = 97, .reuse = "3", .seed = 3000},
    {.length = 120, .lacks_rows = true, .seed = 4000},
    {.length = 88, .resident = "none", .seed = 5000},
    {.length = 36, .head = kFeatures, .seed = 6000}};  // comes to have more

TEST(DeviceHeadsTest, SequencesOfAStepChooseWhatEachChoosesAlone) {
  constexpr int kSteps = 9;
  HeadsOnDevice heads;
  const auto together = heads.run(kMany, kSteps);
  for (std::size_t i = 0; i < kMany.size(); ++i) {
    const auto alone = heads.run({kMany[i]}, kSteps);
    for (int n = 0; n < kSteps; ++n) {
      const auto& one = together[i][static_cast<std::size_t>(n)];
      ASSERT_TRUE(one.status.ok()) << one.status.to_string();
      EXPECT_TRUE(one == alone[0][static_cast<std::size_t>(n)])
          << "sequence " << i << ", step " << n;
      for (const auto& rows : one.rows)
        EXPECT_EQ(rows.size(), kMany[i].length + n < kBudget ? 0u : std::size_t{kBudget}) << i;
    }
  }
}

TEST(DeviceHeadsTest, TheHostWaitsOnceForAll) {
  HeadsOnDevice heads;
  const auto waits = [&](std::uint32_t sequences, bool lack) {
    std::vector<Given> given;
    for (std::uint32_t i = 0; i < sequences; ++i)
      given.push_back({.length = 60, .lacks_rows = lack, .seed = i});
    const std::int64_t chosen = heads.ops().runs(OpCode::kTopK);
    (void)heads.run(given, 4);
    EXPECT_EQ(heads.ops().runs(OpCode::kTopK) - chosen, lack ? 0 : 4 * count_of(given))
        << "the device chooses where the tokens that it scores are the rows of every layer";
    EXPECT_EQ(heads.downloads(), 1);
    return heads.waits();
  };
  for (const bool lack : {false, true}) {
    const std::int64_t one = waits(1, lack);
    EXPECT_EQ(waits(2, lack), one);
    EXPECT_EQ(waits(5, lack), one);
  }
}

TEST(DeviceHeadsTest, AnAllocationThatFailsConcernsAtMostItsSequence) {
  HeadsOnDevice heads;
  const std::vector<Given> given = {
      {.length = 50}, {.length = 61, .head = kFeatures}, {.length = 55, .lacks_rows = true}};
  const auto expected = heads.run(given, 1);
  std::size_t all_answered = 0;
  for (std::int64_t n = 0; n < 20; ++n) {
    std::vector<std::unique_ptr<HeadsOnDevice::Sequence>> made;
    std::vector<HeadsOnDevice::Sequence*> all;
    for (const Given& one : given) {
      made.push_back(std::make_unique<HeadsOnDevice::Sequence>(heads, one));
      all.push_back(made.back().get());
    }
    heads.ops().fail_allocation(n);
    const auto got = heads.step(all);
    heads.ops().fail_allocation(-1);
    std::size_t answered = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!got[i].status.ok()) {
        EXPECT_EQ(got[i].status.code(), Code::kResourceExhausted) << got[i].status.to_string();
        continue;
      }
      ++answered;
      EXPECT_TRUE(got[i] == expected[i][0]) << "sequence " << i << ", allocation " << n;
    }
    EXPECT_GE(answered, got.size() - 1) << "allocation " << n;
    all_answered += answered == got.size() ? 1 : 0;
  }
  EXPECT_GT(all_answered, 0u);
}

/// Heads that have as many KV heads as the model, more, fewer, and such that all vote together.
TEST(DeviceHeadsTest, TheDeviceChoosesWhatTheHostChoosesByItsScores) {
  for (const auto& [query_heads, kv_heads] : {std::pair{6, 2}, {8, 4}, {6, 3}, {4, 1}}) {
    HeadsOnDevice heads({.heads = query_heads, .kv_heads = kv_heads});
    const RetrievalHeadConfig& c = heads.head().config();
    const auto memory = std::make_shared<ChoosingMemory>(heads.slots(), heads.compute().memory());
    DeviceHeadKeys few(heads.compute(), memory, heads.head()),
        many(heads.compute(), memory, heads.head());
    for (const auto& [keys, n] : {std::pair{&few, 37}, {&many, 300}}) {
      std::vector<std::int32_t> positions(static_cast<std::size_t>(n));
      std::iota(positions.begin(), positions.end(), 0);
      for (std::int32_t& p : positions) p %= 512;
      auto raw = random_floats(n * c.key_dim(), 3);
      // Equal keys have equal scores.
      std::copy_n(raw.begin(), 9 * c.key_dim(), raw.begin() + 15 * c.key_dim());
      for (int i = 15; i < 24; ++i) positions[static_cast<std::size_t>(i)] = i - 15;
      ASSERT_TRUE(keys->append(raw.data(), positions).ok());
    }
    const auto query = random_floats(2 * c.query_dim(), 4);
    for (const SelectionBudget budget :
         {SelectionBudget{32, 4, 8}, SelectionBudget{20, 0, 0}, SelectionBudget{9, 30, 8}}) {
      for (const std::int32_t target : {1, 2, 3, 4}) {
        std::vector<float> scores[2];
        std::vector<std::vector<std::int32_t>> rows[2];
        std::vector<DeviceHeadKeys::Asked> scored = {
            {&few, query.data(), target, nullptr, &scores[0], nullptr},
            {&many, query.data() + c.query_dim(), target, nullptr, &scores[1], nullptr}};
        auto chosen = scored;
        for (std::size_t i = 0; i < 2; ++i) {
          chosen[i].budget = &budget;
          chosen[i].rows = &rows[i];
        }
        ASSERT_TRUE(DeviceHeadKeys::ask(scored).ok());
        ASSERT_TRUE(DeviceHeadKeys::ask(chosen).ok());
        for (std::size_t i = 0; i < 2; ++i)
          EXPECT_EQ(rows[i], select_for_heads(scores[i], target, budget))
              << kv_heads << " KV heads for " << target << ", keys " << i;
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
