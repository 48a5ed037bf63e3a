/// Weights of four and eight bits on an emulated device, from stored blocks and from values.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "engine/device/device_compute.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "tests/support/compressed_folders.h"
#include "tests/support/gguf_models.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

using namespace testing;
using cuda::OpCode;

/// Returns blocks of random bytes with scales that give weights of about 0.1.
std::string random_blocks(BlockType type, std::int64_t count, std::mt19937& rng) {
  struct Half {
    std::size_t at;
    float value;
  };
  const auto halves = [type]() -> std::vector<Half> {
    switch (type) {
      case BlockType::kQ4_0:
        return {{0, 0.02f}};
      case BlockType::kQ4_1:
        return {{0, 0.02f}, {2, -0.15f}};
      case BlockType::kQ4_K:
        return {{0, 0.0003f}, {2, 0.002f}};
      case BlockType::kQ6_K:
        return {{208, 0.00005f}};
      default:
        return {{0, 0.002f}};
    }
  };
  const auto size = static_cast<std::size_t>(block_bytes(type));
  std::string bytes(static_cast<std::size_t>(count) * size, '\0');
  for (char& b : bytes) b = static_cast<char>(rng());
  for (std::size_t b = 0; b < bytes.size(); b += size) {
    for (const Half& half : halves()) {
      const std::uint16_t bits = f32_to_f16(half.value);
      std::memcpy(bytes.data() + b + half.at, &bits, 2);
    }
  }
  return bytes;
}

std::string config_json(int hidden) {
  const std::string width = std::to_string(hidden);
  return tiny_config_json("\"hidden_size\": " + width + ", \"intermediate_size\": " + width,
                          {"hidden_size", "intermediate_size"});
}

class DeviceBlocksTest : public ::testing::Test {
 protected:
  /// Writes a GGUF file of such blocks and a folder of their expanded values. The token table is as
  /// devices keep it, and V has blocks of `of_v`.
  void write(int hidden, BlockType type, BlockType of_v) {
    const std::string json = config_json(hidden);
    const ModelConfig c = *parse_model_config(json);
    std::vector<FileTensor> blocks = llama_tensors(c, 7), expanded = blocks;
    std::mt19937 rng(3);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].shape.size() != 2) continue;
      const BlockType one = blocks[i].name.find("v_proj") == std::string::npos ? type : of_v;
      const std::int64_t count = blocks[i].shape[0] * blocks[i].shape[1] / block_weights(one);
      blocks[i].dtype = block_type_name(one);
      blocks[i].bytes = random_blocks(one, count, rng);
      std::vector<float> values(static_cast<std::size_t>(count * block_weights(one)));
      dequantise_blocks(one, blocks[i].bytes.data(), count, values.data());
      if (blocks[i].name.find("embed_tokens") != std::string::npos) {
        for (float& v : values) v = bf16_to_f32(f32_to_bf16(v));
      }
      expanded[i] = f32_tensor(blocks[i].name, blocks[i].shape, values);
    }
    test::GgufWriter out;
    test::add_gguf_config(out, c, "llama");
    test::add_gguf_tensors(out, c, "llama", blocks);
    out.write(file());
    fs::create_directories(folder());
    write_file(folder() / "config.json", json);
    write_file(folder() / "model.safetensors", safetensors_bytes(expanded));
  }
  fs::path file() const { return dir_.path() / "model.gguf"; }
  fs::path folder() const { return dir_.path() / "folder"; }

  static std::unique_ptr<Model> load(const fs::path& path, WeightFormat format,
                                     std::shared_ptr<Compute> compute) {
    auto model = load_model(path, {.weights = format, .kv_dtype = DType::kF32}, std::move(compute));
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    return std::move(*model);
  }
  std::shared_ptr<Compute> device() const { return make_device_compute(ops_); }

  /// Returns the errors of a prompt, a decode step and a question against `truth`.
  static std::vector<double> errors(Runner& run, Runner& truth) {
    std::mt19937 rng(3);
    std::vector<std::int32_t> ids(78);
    for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 40);
    std::vector<double> out;
    std::size_t at = 0;
    run.clear();
    truth.clear();
    for (const std::size_t chunk : {std::size_t{70}, std::size_t{1}, std::size_t{7}}) {
      const std::span<const std::int32_t> part = std::span(ids).subspan(at, chunk);
      const auto rows = static_cast<std::int64_t>(chunk);
      out.push_back(relative_frobenius(run.append(part, rows), truth.append(part, rows)));
      at += chunk;
    }
    return out;
  }
  static void expect_as_good(const std::vector<double>& of_device, const std::vector<double>& cpu) {
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_LE(of_device[i], 1.5 * cpu[i] + 2e-3) << "chunk " << i;
    }
  }

  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  TempFolder dir_;
};

/// Blocks err as little as on the CPU. The CPU rounds inputs to int8. A device rounds inputs of
/// many rows and the token table to bf16.
TEST_F(DeviceBlocksTest, BlocksErrAsLittleAsOnTheCpu) {
  const struct {
    int hidden;
    BlockType type, of_v;
  } files[] = {{64, BlockType::kQ4_0, BlockType::kQ4_0},
               {96, BlockType::kQ4_1, BlockType::kQ4_1},
               {64, BlockType::kQ8_0, BlockType::kQ8_0},
               {64, BlockType::kQ4_1, BlockType::kQ8_0},
               {256, BlockType::kQ4_K, BlockType::kQ6_K}};
  for (const auto& f : files) {
    SCOPED_TRACE(std::string(block_type_name(f.type)) + ", V " +
                 std::string(block_type_name(f.of_v)));
    write(f.hidden, f.type, f.of_v);
    const std::int64_t of_one = ops_->runs(OpCode::kGroupedGemv),
                       of_few = ops_->runs(OpCode::kGroupedProduct);
    Runner truth(load(file(), WeightFormat::kF32, nullptr));
    Runner cpu(load(file(), WeightFormat::kW4, nullptr));
    Runner run(load(file(), WeightFormat::kW4, device()));
    const std::vector<double> of_device = errors(run, truth);
    expect_as_good(of_device, errors(cpu, truth));
    EXPECT_LE(*std::ranges::max_element(of_device), 3e-2);
    // Two passes have few rows, one of them a single one. Q and K are one matrix, and V is a
    // separate one if its type differs.
    const std::int64_t matrices = f.type == f.of_v ? 4 : 5;
    EXPECT_EQ(ops_->runs(OpCode::kGroupedGemv) - of_one, 2 * matrices + 1);
    // Logits of the first pass come in two pieces, which have few rows, too.
    EXPECT_EQ(ops_->runs(OpCode::kGroupedProduct) - of_few, 2 * matrices + 1 + 2);
  }
  EXPECT_GT(ops_->runs(OpCode::kGroupedExpand), 0);
}

/// Floats of eight bits keep their fraction on a device, where a CPU rounds them to whole numbers.
TEST_F(DeviceBlocksTest, FloatsOfEightBitsStayAsTheyAre) {
  write_compressed_folders(dir_.path() / "f8", folder(), kCompressedKinds[0]);
  Runner truth(load(folder(), WeightFormat::kF32, nullptr));
  Runner run(load(dir_.path() / "f8", WeightFormat::kW4, device()));
  const std::int64_t products = ops_->runs(OpCode::kGroupedProduct);
  const std::vector<double> of_device = errors(run, truth);
  EXPECT_LE(*std::ranges::max_element(of_device), 1.5e-2);
  EXPECT_GT(ops_->runs(OpCode::kGroupedProduct), products);
  const CompressedMatrix m("m", 5, 96, kCompressedKinds[2], 1);
  std::vector<std::byte> blocks;
  for (std::size_t i = 0; i < m.numbers.size(); i += 32) {
    const auto* scale = reinterpret_cast<const std::byte*>(&m.scales[i / 96]);
    blocks.insert(blocks.end(), scale, scale + 4);
    const auto* numbers = reinterpret_cast<const std::byte*>(m.numbers.data() + i);
    blocks.insert(blocks.end(), numbers, numbers + 32);
  }
  const WeightPart part{blocks.data(), 5, BlockType::kF8_E4M3};
  const auto matrix = device()->pack({&part, 1}, 96, DType::kF32, WeightFormat::kW4);
  ASSERT_TRUE(matrix.ok()) << matrix.status().to_string();
  EXPECT_EQ((*matrix)->bytes(), 5 * (128 + 8));
}

/// Weights that stay in eight bits count as such, though the format is that of four.
TEST_F(DeviceBlocksTest, AModelThatDoesNotFitIsRefusedBeforeItIsRead) {
  write(256, BlockType::kQ8_0, BlockType::kQ8_0);
  write_compressed_folders(dir_.path() / "f8", dir_.path() / "values", kCompressedKinds[0]);
  for (const fs::path& path : {file(), dir_.path() / "f8"}) {
    const auto fits_in = [&](double bytes_per_weight) {
      const ModelConfig c = path == file() ? *parse_model_config(config_json(256))
                                           : *load_model_config(path);
      const double table = static_cast<double>(c.max_position_embeddings) * c.rope.rotary_dim * 4;
      const double rows = static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size);
      return static_cast<std::int64_t>(static_cast<double>(c.num_parameters()) * bytes_per_weight +
                                       table + (path == file() ? 2 * rows : 0));
    };
    const std::int64_t reserved = cuda::reserved_bytes({});
    const auto ops = simt::make_emulated_ops({.memory_bytes = reserved + fits_in(0.9)});
    const auto model = load_model(path, {.weights = WeightFormat::kW4}, make_device_compute(ops));
    EXPECT_EQ(model.code(), Code::kResourceExhausted) << path;
    EXPECT_EQ(model.status().message().rfind("the model needs", 0), 0u) << model.status().message();
  }
}

TEST_F(DeviceBlocksTest, OtherFormatsMultiplyWhatBlocksExpandTo) {
  const std::vector<std::int32_t> ids = {1,  5, 39, 0, 7, 7, 22, 31, 3,
                                         14, 2, 18, 4, 4, 9, 17, 6,  1};
  for (const BlockType type : {BlockType::kQ4_1, BlockType::kQ8_0}) {
    write(64, type, type);
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
      Runner blocks(load(file(), format, device())), values(load(folder(), format, device()));
      const auto rows = static_cast<std::int64_t>(ids.size());
      EXPECT_EQ(blocks.append(ids, rows), values.append(ids, rows))
          << block_type_name(type) << " " << weight_format_name(format);
    }
  }
}

TEST_F(DeviceBlocksTest, ValuesAreRoundedAsOnTheCpu) {
  // The second model has products of 48 inputs, which are kept in bf16.
  for (const std::string& json : {config_json(64), tiny_config_json()}) {
    const ModelConfig config = *parse_model_config(json);
    const auto model = [&](WeightFormat format, std::shared_ptr<Compute> compute) {
      const ModelOptions options{.weights = format, .kv_dtype = DType::kF32};
      auto made = make_random_model(config, options, 11, std::move(compute));
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      return std::move(*made);
    };
    Runner truth(model(WeightFormat::kF32, nullptr)), cpu(model(WeightFormat::kW4, nullptr));
    Runner run(model(WeightFormat::kW4, device()));
    expect_as_good(errors(run, truth), errors(cpu, truth));
  }
}

TEST_F(DeviceBlocksTest, AMatrixTakesTheBytesOfItsNumbersAndScales) {
  std::mt19937 rng(1);
  const std::string four = random_blocks(BlockType::kQ4_0, 3 * 8, rng);
  const std::string with_minimum = random_blocks(BlockType::kQ4_1, 5 * 8, rng);
  const std::string eight = random_blocks(BlockType::kQ8_0, 2 * 8, rng);
  const WeightPart parts[] = {{four.data(), 3, BlockType::kQ4_0},
                              {with_minimum.data(), 5, BlockType::kQ4_1},
                              {eight.data(), 2, BlockType::kQ8_0}};
  const auto matrix = device()->pack(parts, 256, DType::kF32, WeightFormat::kW4);
  ASSERT_TRUE(matrix.ok()) << matrix.status().to_string();
  EXPECT_EQ((*matrix)->n(), 10);
  EXPECT_EQ((*matrix)->k(), 256);
  EXPECT_EQ((*matrix)->bytes(), 3 * (128 + 16) + 5 * (128 + 32) + 2 * (256 + 16));
}

TEST_F(DeviceBlocksTest, WeightsThatHaveNoScaleAreRefused) {
  std::vector<float> values(2 * 32, 0.5f);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  const WeightPart part{values.data(), 2, std::nullopt};
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8}) {
    const auto refused = device()->pack({&part, 1}, 32, DType::kF32, format);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.status().field(), "weights");
  }
  const WeightPart cut{values.data(), 1, BlockType::kQ4_0};
  EXPECT_EQ(device()->pack({&cut, 1}, 40, DType::kF32, WeightFormat::kW4).status().field(), "k");
  EXPECT_EQ(device()->pack({}, 32, DType::kF32, WeightFormat::kW4).status().field(), "parts");
  EXPECT_EQ(ops_->bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
