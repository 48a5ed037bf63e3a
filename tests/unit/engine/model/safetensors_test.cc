#include "engine/model/safetensors.h"

#include <gtest/gtest.h>

#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::safetensors_raw;

Result<std::vector<TensorEntry>> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size());
}

TEST(SafetensorsHeaderTest, ReadsEntriesInFileOrder) {
  const auto entries = parse(safetensors_raw(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"e":{"dtype":"I64","shape":[0],)"
      R"("data_offsets":[20,20]}})",
      std::string(20, 'x')));
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].dtype, DType::kBF16);
  EXPECT_EQ((*entries)[1].shape_text(), "[2, 3]");
  EXPECT_EQ((*entries)[1].end - (*entries)[1].begin, 12u);
  EXPECT_FALSE((*entries)[2].dtype.has_value());
}

TEST(SafetensorsHeaderTest, LiesAreRefusedWithTheirReason) {
  const std::string four(4, 'x'), eight(8, 'x');
  const struct {
    std::string file;
    const char* why;
  } cases[] = {
      {"", "too short"},
      {"abc", "too short"},
      {safetensors_raw("{}", "x"), "the file holds 1"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}", "no safetensors file"},
      {std::string("\x10\0\0\0\0\0\0\0", 8) + "{}", "truncated"},
      {safetensors_raw("not json", ""), "not valid JSON"},
      {safetensors_raw("[]", ""), "not a JSON object"},
      {safetensors_raw(R"({"a":5})", ""), "not described"},
      {safetensors_raw(R"({"a":{}})", ""), "needs dtype"},
      {safetensors_raw(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", four),
       "unknown dtype"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four),
       "impossible dimension"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", four),
       "impossible dimension"},
      {safetensors_raw(
           R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,)"
           R"(4]}})",
           four),
       "too large"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
                       four),
       "dimensions"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four),
       "needs 8"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four),
       "data_offsets"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", four),
       "data_offsets"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", four),
       "data_offsets"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four),
       "truncated"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,)"
                       R"(18446744073709551615]}})",
                       four),
       "spans 3"},
      {safetensors_raw(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32",)"
           R"("shape":[1],"data_offsets":[2,6]}})",
           eight),
       "overlaps"},
      {safetensors_raw(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32",)"
           R"("shape":[1],"data_offsets":[0,4]}})",
           four),
       "overlaps"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight), "hole"},
      {safetensors_raw(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32",)"
           R"("shape":[1],"data_offsets":[0,4]}})",
           four),
       "twice"},
      {safetensors_raw(R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})",
                       four),
       "twice"},
      {safetensors_raw(std::string(5000, '['), ""), "not valid JSON"},
  };
  for (const auto& c : cases) {
    const auto entries = parse(c.file);
    EXPECT_EQ(entries.code(), Code::kInvalidArgument) << c.why;
    EXPECT_NE(entries.status().message().find(c.why), std::string::npos)
        << c.why << " | " << entries.status().message();
  }
}

TEST(SafetensorsHeaderTest, EveryTruncationIsRefused) {
  const std::string whole = testing::safetensors_bytes(
      {testing::f32_tensor("a", {3}, {1, 2, 3}), testing::f32_tensor("b", {2, 2}, {1, 2, 3, 4})});
  ASSERT_TRUE(parse(whole).ok());
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n)).ok()) << n;
}

TEST(SafetensorsIndexTest, OnlyPlainFileNames) {
  const auto good = parse_safetensors_index(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors",)"
      R"("b":"model-2.safetensors"}})");
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good->at("b"), "model-2.safetensors");
  for (const char* name :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".hidden.safetensors", "..",
        "", "x.bin", "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    EXPECT_FALSE(
        parse_safetensors_index(std::string(R"({"weight_map":{"a":")") + name + "\"}}").ok())
        << name;
  }
  for (const char* text : {"{}", "[]", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    EXPECT_FALSE(parse_safetensors_index(text).ok()) << text;
  }
}

TEST(TensorFolderTest, ShardsMustHoldWhatTheIndexSays) {
  testing::TempFolder dir;
  testing::write_file(dir.path() / "x-1.safetensors",
                      testing::safetensors_bytes({testing::f32_tensor("a", {1}, {1})}));
  testing::write_file(dir.path() / "x-2.safetensors",
                      testing::safetensors_bytes({testing::f32_tensor("b", {2}, {2, 3})}));
  const auto index = [&](const std::string& map) {
    testing::write_file(dir.path() / "model.safetensors.index.json",
                        "{\"weight_map\":" + map + "}");
  };
  index(R"({"a":"x-1.safetensors","b":"x-2.safetensors"})");
  {
    const auto folder = TensorFolder::open(dir.path());
    ASSERT_TRUE(folder.ok()) << folder.status().to_string();
    const TensorView b = (*folder)->find("b");
    ASSERT_NE(b.entry, nullptr);
    EXPECT_EQ(load_f32(b.bytes.data(), DType::kF32, 1), 3.0f);
    EXPECT_EQ((*folder)->find("c").entry, nullptr);
    EXPECT_EQ((*folder)->names(), (std::vector<std::string>{"a", "b"}));
  }
  index(R"({"a":"x-2.safetensors","b":"x-2.safetensors"})");
  EXPECT_EQ(TensorFolder::open(dir.path()).status().field(), "model.safetensors.index.json");
  index(R"({"a":"x-1.safetensors","b":"x-3.safetensors"})");
  EXPECT_EQ(TensorFolder::open(dir.path()).code(), Code::kNotFound);
  testing::write_file(dir.path() / "x-3.safetensors",
                      testing::safetensors_bytes({testing::f32_tensor("a", {1}, {1}),
                                                  testing::f32_tensor("b", {1}, {1})}));
  EXPECT_NE(TensorFolder::open(dir.path()).status().message().find("another file"),
            std::string::npos);
}

TEST(TensorFolderTest, EmptyFolderIsNotFound) {
  testing::TempFolder dir;
  EXPECT_EQ(TensorFolder::open(dir.path()).code(), Code::kNotFound);
  testing::write_file(dir.path() / "model.safetensors", "");
  EXPECT_EQ(TensorFolder::open(dir.path()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
