/// Products and models whose matrices are cut over several emulated devices have the bits of one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/device/device_compute.h"
#include "engine/device/team/team_compute.h"
#include "engine/device/team/team_memory.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "tests/support/gguf_models.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_team.h"

namespace quire {
namespace {

using namespace testing;
using cuda::OpCode;

TEST(OutputCut, GivesEachRankNeighboursAndTheLastOnesFewerOrNone) {
  const OutputCut even = OutputCut::of(4096, 4), odd = OutputCut::of(100, 3),
                  few = OutputCut::of(17, 4);
  for (std::int64_t r = 0; r < 4; ++r) EXPECT_EQ(even.size(r), 1024);
  EXPECT_EQ(odd.width, 48);
  EXPECT_EQ(odd.size(0), 48);
  EXPECT_EQ(odd.begin(2), 96);
  EXPECT_EQ(odd.size(2), 4);
  EXPECT_EQ(few.size(0), 16);
  EXPECT_EQ(few.size(1), 1);
  EXPECT_EQ(few.size(2), 0);
  EXPECT_EQ(few.end(3), 17);
}

std::vector<float> random_values(std::int64_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> of(-1, 1);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = of(rng);
  return out;
}

/// A matrix of n outputs and k inputs, in one part or several kinds of blocks.
struct Weights {
  std::int64_t n, k;
  WeightFormat format;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<WeightPart> parts;

  void add_values(std::int64_t rows, std::uint32_t seed) {
    const std::vector<float> values = random_values(rows * k, seed);
    add(rows, std::nullopt, std::as_bytes(std::span(values)));
  }
  void add_blocks(std::int64_t rows, BlockType type, std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t count = rows * k / block_weights(type), size = block_bytes(type);
    std::vector<std::byte> blocks(static_cast<std::size_t>(count * size));
    for (std::byte& b : blocks) b = std::byte(rng() % 120);  // floats of eight bits stay finite
    for (std::int64_t b = 0; b < count; ++b) {
      std::byte* at = blocks.data() + b * size;
      const float scale = 0.01f + static_cast<float>(b % 7) * 0.003f;
      const std::uint16_t half = f32_to_f16(scale);
      if (type == BlockType::kF8_E4M3)
        std::memcpy(at, &scale, sizeof scale);
      else
        std::memcpy(at, &half, sizeof half);
      if (type == BlockType::kQ4_1) std::memcpy(at + 2, &half, sizeof half);
    }
    add(rows, type, blocks);
  }

 private:
  void add(std::int64_t rows, std::optional<BlockType> type, std::span<const std::byte> values) {
    bytes.emplace_back(values.begin(), values.end());
    parts.push_back({bytes.back().data(), rows, type});
  }
};

struct Kind {
  const char* name;
  WeightFormat format;
  std::int64_t k;
  std::vector<BlockType> blocks;  ///< one third of the outputs each; empty: values
};

/// k of 36 inputs has no fast kernel; three kinds of blocks make three runs of outputs.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"f32", WeightFormat::kF32, 36, {}},
      {"bf16", WeightFormat::kBF16, 72, {}},
      {"bf16 of odd rows", WeightFormat::kBF16, 36, {}},
      {"int8", WeightFormat::kInt8, 128, {}},
      {"w4 of values", WeightFormat::kW4, 576, {}},
      {"w8 of values", WeightFormat::kW8, 64, {}},
      {"w4 of blocks",
       WeightFormat::kW4,
       96,
       {BlockType::kQ4_0, BlockType::kQ4_1, BlockType::kQ8_0}},
      {"floats of eight bits", WeightFormat::kW4, 96, {BlockType::kF8_E4M3}}};
  return all;
}

Weights weights_of(const Kind& kind, std::int64_t n) {
  Weights out{n, kind.k, kind.format, {}, {}};
  if (kind.blocks.empty()) {
    out.add_values(n, 5);
    return out;
  }
  std::int64_t done = 0;
  for (std::size_t i = 0; i < kind.blocks.size(); ++i) {
    const std::int64_t end = n * static_cast<std::int64_t>(i + 1) /
                             static_cast<std::int64_t>(kind.blocks.size());
    if (end > done) out.add_blocks(end - done, kind.blocks[i], static_cast<std::uint32_t>(i));
    done = end;
  }
  return out;
}

/// A team with buffers for one operation.
class Ranks {
 public:
  explicit Ranks(std::int64_t n)
      : team_(simt::make_emulated_team(n)), compute_(make_team_compute(team_.team)) {}
  Compute& compute() { return *compute_; }
  std::int64_t runs(OpCode code) const {
    std::int64_t sum = 0;
    for (const auto& device : team_.devices) sum += device->runs(code);
    return sum;
  }
  float* put(const std::vector<float>& values) {
    buffers_.emplace_back();
    const std::int64_t room = std::max<std::int64_t>(1, count_of(values));
    EXPECT_TRUE(buffers_.back().reserve(compute_->memory(), room).ok());
    EXPECT_TRUE(compute_->memory()
                    ->write(buffers_.back().data(), values.data(),
                            count_of(values) * static_cast<std::int64_t>(sizeof(float)))
                    .ok());
    return buffers_.back().data();
  }
  std::vector<float> get(const float* from, std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    const Status status = compute_->read(from, n, out.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  }

 private:
  simt::EmulatedTeam team_;
  std::shared_ptr<Compute> compute_;
  std::vector<ComputeBuffer<float>> buffers_;
};

/// Returns y and what lies between its rows, of a product that replaces y and one that adds to it.
std::vector<float> products(Ranks& ranks, const ComputeMatrix& w, std::int64_t rows) {
  const std::int64_t n = w.n(), k = w.k(), ldx = k + 4, ldy = n + 3;
  const auto product = [&](const float* bias) {
    return ProductArgs{.weights = &w,
                       .x = ranks.put(random_values(rows * ldx, 1)),
                       .rows = rows,
                       .ldx = ldx,
                       .bias = bias,
                       .y = ranks.put(random_values(rows * ldy, 2)),
                       .ldy = ldy};
  };
  const float* bias = ranks.put(random_values(n, 3));
  std::vector<float> out;
  for (const float* one : {static_cast<const float*>(nullptr), bias}) {
    const ProductArgs replaced = product(one);
    EXPECT_TRUE(ranks.compute().linear().product(replaced).ok());
    ProductArgs added = product(one);
    added.ldy = n;
    float* scratch = ranks.put(std::vector<float>(static_cast<std::size_t>(rows * n)));
    const Status status = ranks.compute().linear().add_product(added, scratch);
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (const ProductArgs& a : {replaced, added}) {
      const std::vector<float> y = ranks.get(a.y, rows * ldy);
      out.insert(out.end(), y.begin(), y.end());
    }
  }
  return out;
}

void expect_same(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
#ifdef QUIRE_ON_HARDWARE
    // cuBLASLt may sum in another order for another number of outputs.
    EXPECT_LE(max_relative(got[i], expected[i]), 1e-2) << "result " << i;
#else
    EXPECT_EQ(got[i], expected[i]) << "result " << i;
#endif
  }
}

/// The rows choose every way to multiply: 1 and 3 for few, 20 for some, 70 for many.
TEST(DeviceTeam, ProductsOfEveryFormatHaveTheBitsOfOneDevice) {
  for (const Kind& kind : kinds()) {
    for (const std::int64_t n : {17, 200}) {
      const Weights w = weights_of(kind, n);
      const auto all = [&](Ranks& ranks) {
        const auto matrix = ranks.compute().pack(w.parts, w.k, DType::kF32, w.format);
        EXPECT_TRUE(matrix.ok()) << matrix.status().to_string();
        EXPECT_EQ((*matrix)->n(), n);
        std::vector<std::vector<float>> out;
        for (const std::int64_t rows : {0, 1, 3, 20, 70})
          out.push_back(products(ranks, **matrix, rows));
        out.push_back({static_cast<float>((*matrix)->bytes())});
        return out;
      };
      Ranks one(1);
      const auto expected = all(one);
      for (const std::int64_t count : {2, 3, 4}) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(n) + " outputs on " +
                     std::to_string(count));
        Ranks ranks(count);
        EXPECT_EQ(ranks.compute().devices(), count);
        expect_same(all(ranks), expected);
        EXPECT_GT(ranks.runs(OpCode::kJoinColumns), 0);
      }
    }
  }
}

/// Gate and up come as one part or as two, and only the biases of a part travel with it.
TEST(DeviceTeam, TheFeedForwardPartHasTheBitsOfOneDevice) {
  const Kind* chosen[] = {&kinds()[1], &kinds()[3], &kinds()[4]};
  for (const Kind* kind : chosen) {
    for (const std::int64_t dim : {64, 192}) {
      const std::int64_t n = 37;
      Weights up = weights_of(*kind, 2 * dim), two{2 * dim, kind->k, kind->format, {}, {}};
      Weights down{n, dim, kind->format, {}, {}};
      two.add_values(dim, 8);
      two.add_values(dim, 9);
      down.add_values(n, 10);
      const std::vector<float> bias = random_values(2 * dim, 11), down_bias = random_values(n, 12);
      const auto all = [&](Ranks& ranks) {
        std::vector<std::vector<float>> out;
        for (const Weights* w : {&up, &two}) {
          for (const bool with_bias : {false, true}) {
            const auto gate_up = ranks.compute().pack_gate_up(
                w->parts, w->k, DType::kF32, w->format,
                with_bias ? std::span<const float>(bias) : std::span<const float>());
            const auto narrow = ranks.compute().pack(down.parts, dim, DType::kF32, down.format);
            EXPECT_TRUE(gate_up.ok()) << gate_up.status().to_string();
            EXPECT_TRUE(narrow.ok()) << narrow.status().to_string();
            for (const std::int64_t rows : {0, 1, 5, 66}) {
              float* y = ranks.put(random_values(rows * n, 2));
              const auto room = [&](std::int64_t columns) {
                return ranks.put(std::vector<float>(static_cast<std::size_t>(rows * columns)));
              };
              const Status status = ranks.compute().linear().feed_forward(
                  {.gate_up = gate_up->get(),
                   .down = narrow->get(),
                   .x = ranks.put(random_values(rows * w->k, 1)),
                   .x_dtype = DType::kF32,
                   .rows = rows,
                   .gate_up_bias = with_bias ? ranks.put(bias) : nullptr,
                   .down_bias = with_bias ? ranks.put(down_bias) : nullptr,
                   .y = y,
                   .gate_up_scratch = room(2 * dim),
                   .activated_scratch = room(dim),
                   .scratch = room(n)});
              EXPECT_TRUE(status.ok()) << status.to_string();
              out.push_back(ranks.get(y, rows * n));
            }
          }
        }
        return out;
      };
      Ranks one(1);
      const auto expected = all(one);
      for (const std::int64_t count : {2, 3, 4}) {
        SCOPED_TRACE(std::string(kind->name) + ", " + std::to_string(dim) + " channels on " +
                     std::to_string(count));
        Ranks ranks(count);
        expect_same(all(ranks), expected);
      }
    }
  }
}

TEST(DeviceTeam, GateAndUpOfUnequalSizesAreRefused) {
  Ranks ranks(2);
  const std::vector<float> values(7 * 32);
  const WeightPart part{values.data(), 7, std::nullopt};
  const auto odd = ranks.compute().pack_gate_up({&part, 1}, 32, DType::kF32, WeightFormat::kF32,
                                                {});
  EXPECT_EQ(odd.code(), Code::kInvalidArgument);
}

class DeviceTeamModelTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Model> model_of(const std::string& json, WeightFormat format,
                                         std::shared_ptr<Compute> compute) {
    const auto config = parse_model_config(json);
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    auto model = make_random_model(*config, {.weights = format, .kv_dtype = DType::kF16}, 11,
                                   std::move(compute));
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    return std::move(*model);
  }
  static std::vector<std::int32_t> ids(std::size_t n) {
    std::vector<std::int32_t> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(3 + i * 7 % 37);
    return out;
  }
  /// A pass over these tokens, which may fail.
  struct Pass {
    explicit Pass(std::unique_ptr<Model> of)
        : model(std::move(of)),
          pool({2, 8, DType::kF16}, 0, model->compute().memory()),
          cache(pool, 2) {}
    Status run() {
      cache.truncate_all(0);
      const auto tokens = ids(33);
      std::vector<std::int32_t> positions(tokens.size());
      std::iota(positions.begin(), positions.end(), 0);
      const std::int32_t wanted[] = {31, 32};
      logits.assign(80, 0);
      ForwardRequest r;
      r.token_ids = tokens;
      r.positions = positions;
      r.cache = &cache;
      r.logit_rows = wanted;
      r.logits = logits.data();
      return forward(*model, r, workspace);
    }
    std::unique_ptr<Model> model;
    PagePool pool;
    WorkingCache cache;
    ForwardWorkspace workspace;
    std::vector<float> logits;
  };
  const std::string json_ = tiny_config_json(
      "\"attention_bias\": true, \"mlp_bias\": true, \"tie_word_embeddings\": true",
      {"tie_word_embeddings"});
};

TEST_F(DeviceTeamModelTest, LogitsAreThoseOfOneDevice) {
  const std::string plain = tiny_config_json(
      "\"hidden_size\": 64, \"intermediate_size\": 128, \"head_dim\": 16",
      {"hidden_size", "intermediate_size"});
  const std::pair<std::string, WeightFormat> cases[] = {{json_, WeightFormat::kF32},
                                                        {json_, WeightFormat::kBF16},
                                                        {plain, WeightFormat::kInt8},
                                                        {plain, WeightFormat::kW4}};
  for (const auto& [json, format] : cases) {
    Runner one(model_of(json, format, make_device_compute(simt::make_emulated_ops())));
    for (const std::int64_t count : {2, 3}) {
      SCOPED_TRACE(std::string(weight_format_name(format)) + " on " + std::to_string(count));
      const simt::EmulatedTeam team = simt::make_emulated_team(count);
      Runner several(model_of(json, format, make_team_compute(team.team)));
      EXPECT_EQ(several.model().memory_bytes(), one.model().memory_bytes());
      one.clear();
      const auto tokens = ids(79);
      for (const std::size_t chunk :
           {std::size_t{70}, std::size_t{1}, std::size_t{1}, std::size_t{7}}) {
        const auto part = std::span(tokens).subspan(static_cast<std::size_t>(one.size()), chunk);
        const auto rows = static_cast<std::int64_t>(chunk);
        expect_same({several.append(part, rows)}, {one.append(part, rows)});
      }
      EXPECT_EQ(team.devices[1]->runs(OpCode::kEmbedding), 0) << "only shares of matrices";
      EXPECT_GT(team.devices[1]->runs(OpCode::kSwiglu), 0);
    }
  }
}

/// Twins compute one after the other here; on hardware they may interleave.
TEST_F(DeviceTeamModelTest, ATwinSharesTheTeam) {
  const simt::EmulatedTeam team = simt::make_emulated_team(2);
  Pass first(model_of(json_, WeightFormat::kBF16, make_team_compute(team.team)));
  ASSERT_TRUE(first.run().ok());
  const std::int64_t held = team.devices[1]->bytes_in_use();
  {
    Pass twin(first.model->twin());
    EXPECT_EQ(twin.model->compute().devices(), 2);
    ASSERT_TRUE(twin.run().ok());
    EXPECT_EQ(twin.logits, first.logits);
  }
  EXPECT_EQ(team.devices[1]->bytes_in_use(), held);
}

TEST_F(DeviceTeamModelTest, MemoryThatRunsOutOnAnyDeviceFailsThePassAlone) {
  Pass healthy(
      model_of(json_, WeightFormat::kBF16, make_device_compute(simt::make_emulated_ops())));
  ASSERT_TRUE(healthy.run().ok());
  for (std::size_t rank = 0; rank < 3; ++rank) {
    bool failed = true;
    std::int64_t n = 0;
    for (; failed; ++n) {
      ASSERT_LT(n, 100);
      const simt::EmulatedTeam team = simt::make_emulated_team(3);
      Pass pass(model_of(json_, WeightFormat::kBF16, make_team_compute(team.team)));
      team.devices[rank]->fail_allocation(n);
      const Status status = pass.run();
      team.devices[rank]->fail_allocation(-1);
      failed = !status.ok();
      EXPECT_EQ(status.code(), failed ? Code::kResourceExhausted : Code::kOk) << status.to_string();
      ASSERT_TRUE(pass.run().ok()) << "allocation " << n << " on rank " << rank;
      expect_same({pass.logits}, {healthy.logits});
    }
    EXPECT_GT(n, 3) << "a pass allocates on rank " << rank;
  }
}

TEST_F(DeviceTeamModelTest, WeightsThatDoNotFitOnADeviceLeaveNothingBehind) {
  const auto config = parse_model_config(json_);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    bool failed = true;
    std::int64_t n = 0;
    for (; failed; ++n) {
      ASSERT_LT(n, 100);
      const simt::EmulatedTeam team = simt::make_emulated_team(3);
      team.devices[rank]->fail_allocation(n);
      {
        const auto model = make_random_model(*config, {.weights = WeightFormat::kBF16}, 1,
                                             make_team_compute(team.team));
        failed = !model.ok();
        EXPECT_EQ(model.code(), failed ? Code::kResourceExhausted : Code::kOk);
      }
      for (const auto& device : team.devices) EXPECT_EQ(device->bytes_in_use(), 0);
    }
    EXPECT_GT(n, 8) << "every matrix has a share on rank " << rank;
  }
}

/// A share needs room to compute, too, which a small device has not beside its reserve.
TEST_F(DeviceTeamModelTest, AShareThatDoesNotFitIsRefusedBeforeItIsRead) {
  const auto config = parse_model_config(json_);
  const ModelOptions options{.weights = WeightFormat::kBF16, .kv_dtype = DType::kF16};
  const std::int64_t room = cuda::reserved_bytes({}) + (std::int64_t{32} << 20);
  const simt::EmulatedTeam one = simt::make_emulated_team(1, {.memory_bytes = room}),
                           two = simt::make_emulated_team(2, {.memory_bytes = room});
  EXPECT_TRUE(make_random_model(*config, options, 1, make_team_compute(one.team)).ok());
  const auto refused = make_random_model(*config, options, 1, make_team_compute(two.team));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("on each of 2 GPUs"), std::string::npos)
      << refused.status().message();
  EXPECT_EQ(two.devices[0]->bytes_in_use(), 0);
}

TEST_F(DeviceTeamModelTest, ALostDeviceIsReportedWhicheverItIs) {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const simt::EmulatedTeam team = simt::make_emulated_team(3);
    Pass pass(model_of(json_, WeightFormat::kBF16, make_team_compute(team.team)));
    ASSERT_TRUE(pass.run().ok());
    team.devices[rank]->lose();
    EXPECT_EQ(pass.run().code(), Code::kDeviceLost) << "rank " << rank;
  }
}

TEST_F(DeviceTeamModelTest, EverythingGoesBack) {
  const simt::EmulatedTeam team = simt::make_emulated_team(2);
  {
    Pass pass(model_of(json_, WeightFormat::kBF16, make_team_compute(team.team)));
    ASSERT_TRUE(pass.run().ok());
    for (const auto& device : team.devices) EXPECT_GT(device->bytes_in_use(), 0);
  }
  for (const auto& device : team.devices) EXPECT_EQ(device->bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
