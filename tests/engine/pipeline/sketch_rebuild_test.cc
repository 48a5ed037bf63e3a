#include "engine/pipeline/sketch_rebuild.h"

#include <gtest/gtest.h>

#include "engine/pipeline/kv_writer.h"
#include "engine/pipeline/sketch.h"
#include "tests/engine/pipeline/harness.h"

namespace quire::testing {
namespace {

std::vector<std::byte> copy(const PinnedBytes& bytes) { return {bytes.bytes().begin(), bytes.bytes().end()}; }

class SketchRebuildTest : public ::testing::Test {
 protected:
  SketchRebuildTest() : store_(open_test_store(folder_.path() / "store")), ids_(random_ids(rng_, 150)) {
    auto engine = make_test_engine(files_.path(), *store_);
    key_ = ingest(*engine, *store_, "doc", ids_);
    EXPECT_EQ(*engine->tokenizer().bos_id(), 1);
    engine->stop(std::chrono::milliseconds(0));

    auto model = load_model(files_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF16});
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    const ModelConfig& c = model_->config();
    core_.facts.shape = {c.num_layers, c.num_kv_heads, c.head_dim, DType::kF16};
    core_.facts.num_heads = c.num_heads;
    core_.facts.ingest_prefix = {1};
    pool_ = std::make_unique<PagePool>(PageFormat{c.num_kv_heads, c.head_dim, DType::kF16}, 64 << 20);
    writer_ = std::make_unique<KvWriter>(*store_, model_->rope(), c.num_heads, "m-test");
    core_.model = model_.get();
    core_.store = store_.get();
    core_.pool = pool_.get();
    core_.writer = writer_.get();
    core_.meter = &meter_;
    core_.chunk_tokens = 64;
  }
  std::vector<std::byte> stored_sketch() {
    auto segment = store_->find_segment(key_);
    EXPECT_TRUE(segment);
    auto bytes = store_->read_sketch(*segment, 0);
    EXPECT_TRUE(bytes.ok());
    return copy(*bytes);
  }
  /// Puts a sketch of an older build in the place of the document's, and everything else as it was.
  void make_outdated() {
    auto segment = store_->find_segment(key_);
    ASSERT_TRUE(segment);
    const SegmentLayout layout = (*segment)->layout;
    std::vector<std::vector<std::byte>> values;
    for (std::uint32_t b = 0; b < layout.num_blocks; ++b) {
      for (std::uint32_t g = 0; g < layout.values_per_block; ++g) values.push_back(copy(*store_->read_value(*segment, b, g)));
    }
    auto sketch = copy(*store_->read_sketch(*segment, 0));
    sketch[4] = std::byte{1};  // version
    ASSERT_TRUE(store_->discard_segment(*segment).ok());
    segment.reset();
    auto writer = store_->begin_segment(key_, layout, 1 << 24, "t", "m-test");
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    for (std::uint32_t b = 0; b < layout.num_blocks; ++b) {
      for (std::uint32_t g = 0; g < layout.values_per_block; ++g) {
        ASSERT_TRUE((*writer)->put_value(b, g, values[b * layout.values_per_block + g]).ok());
      }
    }
    ASSERT_TRUE((*writer)->put_sketch(0, sketch).ok());
    auto handle = (*writer)->finish();
    ASSERT_TRUE(handle.ok());
    ASSERT_EQ(*store_->commit_segments(std::span(&*handle, 1)), 1u);
    ASSERT_EQ(SketchView::parse(stored_sketch()).code(), Code::kCorruption);
  }

  std::mt19937 rng_{5};
  TempFolder folder_;
  RandomModelFolder files_;
  std::unique_ptr<Store> store_;
  std::vector<std::int32_t> ids_;
  ContextKey key_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<KvWriter> writer_;
  SpeedMeter meter_;
  EngineCore core_;
};

TEST_F(SketchRebuildTest, ARebuiltSketchHasTheBitsOfIngest) {
  const auto record = rebuild_sketch(core_, ids_);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(*record, stored_sketch());
  EXPECT_EQ(rebuild_sketch(core_, {}).code(), Code::kInvalidArgument);
}

TEST_F(SketchRebuildTest, AnOutdatedSketchIsReplacedInTheStore) {
  const auto good = stored_sketch();
  auto before = store_->find_segment(key_);
  const auto value = copy(*store_->read_value(*before, 2, 0));
  before.reset();
  make_outdated();
  auto reading = store_->find_segment(key_);  // a query in flight
  const auto record = complete_sketch(core_, key_, ids_, "t");
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(*record, good);
  writer_->stop();
  EXPECT_EQ(copy(*store_->read_value(*reading, 2, 0)), value);
  reading.reset();
  EXPECT_EQ(stored_sketch(), good);
  store_.reset();
  store_ = open_test_store(folder_.path() / "store");
  EXPECT_EQ(stored_sketch(), good) << "kept over a restart";
  EXPECT_EQ(copy(*store_->read_value(*store_->find_segment(key_), 2, 0)), value);
  EXPECT_TRUE(store_->get_document("t", "doc").ok());
}

}  // namespace
}  // namespace quire::testing
