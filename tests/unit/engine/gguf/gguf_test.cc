// Valid GGUF bytes are read, and others are refused.
#include "engine/gguf/gguf.h"

#include <limits>

#include "gtest/gtest.h"
#include "tests/support/gguf_files.h"

namespace quire {
namespace {

using test::GgufWriter;

Result<GgufHeader> parse(const std::string& bytes) {
  return parse_gguf(std::as_bytes(std::span(bytes)));
}

std::string error_of(const std::string& bytes) {
  const auto header = parse(bytes);
  return header.ok() ? "accepted" : header.status().message();
}

void expect_error(const std::string& bytes, const std::string& part) {
  EXPECT_NE(error_of(bytes).find(part), std::string::npos)
      << error_of(bytes) << "\nlacks: " << part;
}

GgufWriter small() {
  GgufWriter out;
  out.text("general.architecture", "llama").u32("llama.block_count", 2).f32("llama.eps", 0.5f);
  out.boolean("yes", true).i32("minus", -3).texts("words", {"a", "", "bcd"});
  out.numbers<std::int32_t>("types", 5, {1, -2}).numbers<float>("scores", 6, {1.5f});
  out.tensor("one", {4, 2}, 0, std::string(32, 'x')).tensor("two", {32}, 8, std::string(34, 'y'));
  return out;
}

TEST(GgufTest, ReadsKeysAndTensors) {
  const std::string bytes = small().bytes();
  const auto header = parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  GgufFields in(header->metadata);
  EXPECT_EQ(in.text("general.architecture"), "llama");
  EXPECT_EQ(in.integer("llama.block_count", 0, 10), 2);
  EXPECT_EQ(in.number("llama.eps"), 0.5);
  EXPECT_EQ(in.boolean("yes"), true);
  EXPECT_EQ(in.integer("minus", -10, 10), -3);
  ASSERT_NE(in.array("words"), nullptr);
  EXPECT_EQ(in.array("words")->strings, (std::vector<std::string_view>{"a", "", "bcd"}));
  EXPECT_EQ(in.array("types")->integers, (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(in.array("scores")->reals, (std::vector<double>{1.5}));
  EXPECT_TRUE(in.status().ok());
  ASSERT_EQ(header->tensors.size(), 2U);
  const GgufTensor &one = header->tensors[0], &two = header->tensors[1];
  EXPECT_EQ(one.shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(one.type.name, "F32");
  EXPECT_EQ(bytes.substr(one.begin, one.end - one.begin), std::string(32, 'x'));
  EXPECT_EQ(two.type.blocks, BlockType::kQ8_0);
  EXPECT_EQ(bytes.substr(two.begin, two.end - two.begin), std::string(34, 'y'));
}

TEST(GgufTest, VersionTwoIsReadLikeThree) {
  GgufWriter out = small();
  out.version = 2;
  EXPECT_EQ(error_of(out.bytes()), "accepted");
}

TEST(GgufTest, OtherFilesAreNamed) {
  expect_error("", "is empty");
  expect_error("{\"a\": 1}", "does not begin with \"GGUF\"");
  expect_error("version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS");
  expect_error("tjgg" + std::string(100, '\0'), "before GGUF");
  GgufWriter out = small();
  out.version = 1;
  expect_error(out.bytes(), "of version 1");
  out.version = 4;
  expect_error(out.bytes(), "of version 4");
  out.version = 3U << 24;
  expect_error(out.bytes(), "big-endian");
}

TEST(GgufTest, AFileCutOffAnywhereIsRefused) {
  const std::string bytes = small().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(std::string(bytes.data(), size)), "accepted")
        << size << " of " << bytes.size();
  }
  EXPECT_EQ(error_of(bytes + "more"), "accepted");  // some writers pad the end
}

/// A file with any one byte changed is refused or read, but never read past its end (the sanitizers
/// check).
TEST(GgufTest, AnyByteMayBeWrong) {
  const std::string bytes = small().bytes();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const char wrong : {'\0', '\1', '\x7f', '\xff'}) {
      std::string damaged = bytes;
      damaged[at] = wrong;
      if (const auto header = parse(damaged); header.ok()) {
        for (const GgufTensor& t : header->tensors) {
          EXPECT_LE(t.begin, t.end);
          EXPECT_LE(t.end, damaged.size());
        }
      }
    }
  }
}

TEST(GgufTest, CountsThatNoFileCouldHoldAreRefused) {
  const std::string head = "GGUF" + GgufWriter::raw<std::uint32_t>(3);
  for (const std::uint64_t many :
       {std::uint64_t{1} << 20, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    expect_error(
        head + GgufWriter::raw(many) + GgufWriter::raw<std::uint64_t>(0) + std::string(100, '\0'),
        "tensors");
    expect_error(
        head + GgufWriter::raw<std::uint64_t>(0) + GgufWriter::raw(many) + std::string(100, '\0'),
        "keys");
  }
}

TEST(GgufTest, LengthsPastTheEndAreRefused) {
  for (const std::uint64_t size :
       {std::uint64_t{1000}, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    expect_error(GgufWriter().add("s", 8, GgufWriter::raw(size) + "abc").bytes(), "the string of");
    for (const std::uint32_t type : {0U, 4U, 8U, 9U, 12U}) {
      expect_error(GgufWriter().add("a", 9, GgufWriter::raw(type) + GgufWriter::raw(size)).bytes(),
                   "claims");
    }
  }
}

TEST(GgufTest, ManyValuesAndDeepNestingAreRefused) {
  // There are 2^24 + 1 bytes, and each would take eight in memory.
  const std::uint64_t many = (std::uint64_t{1} << 24) + 1;
  expect_error(
      GgufWriter()
          .add("a", 9,
               GgufWriter::raw<std::uint32_t>(0) + GgufWriter::raw(many) + std::string(many, 'x'))
          .bytes(),
      "all arrays together");
  // The limit also holds for several pieces.
  GgufWriter pieces;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t size = std::uint64_t{1} << 23;
    pieces.add("a" + std::to_string(i), 9,
               GgufWriter::raw<std::uint32_t>(0) + GgufWriter::raw(size) + std::string(size, 'x'));
  }
  expect_error(pieces.bytes(), "all arrays together");

  const auto nested = [](int levels) {
    std::string bytes = GgufWriter::raw<std::uint32_t>(0) + GgufWriter::raw<std::uint64_t>(1) + "x";
    for (int i = 1; i < levels; ++i)
      bytes = GgufWriter::raw<std::uint32_t>(9) + GgufWriter::raw<std::uint64_t>(1) + bytes;
    return GgufWriter().add("deep", 9, bytes).bytes();
  };
  EXPECT_EQ(error_of(nested(4)), "accepted");
  expect_error(nested(5), "nests arrays");
  expect_error(nested(100000), "nests arrays");
}

TEST(GgufTest, UnknownTypesAreRefused) {
  expect_error(GgufWriter().add("a", 13, "12345678").bytes(), "unknown type 13");
  expect_error(
      GgufWriter()
          .add("a", 9, GgufWriter::raw<std::uint32_t>(99) + GgufWriter::raw<std::uint64_t>(0))
          .bytes(),
      "unknown type 99");
  expect_error(GgufWriter().tensor("t", {32}, 42, std::string(64, '\0')).bytes(), "tensor type 42");
  expect_error(GgufWriter().tensor("t", {32}, 31, std::string(64, '\0')).bytes(), "Q4_0_4_4");
}

TEST(GgufTest, TypesOfKnownSizeAreListedWithTheirName) {
  const std::string bytes = GgufWriter()
                                .tensor("t", {256}, 16, std::string(66, '\0'))
                                .tensor("u", {32}, 39, std::string(17, '\0'))
                                .bytes();
  const auto header = parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->tensors[0].type.name, "IQ2_XXS");
  EXPECT_FALSE(header->tensors[0].type.supported());
  EXPECT_EQ(header->tensors[1].type.name, "MXFP4");
}

TEST(GgufTest, NamesMayNotComeTwice) {
  expect_error(GgufWriter().u32("k", 1).u32("k", 2).bytes(), "\"k\" is there twice");
  expect_error(GgufWriter().tensor("t", {1}, 0, "1234").tensor("t", {1}, 0, "1234").bytes(),
               "\"t\" is there twice");
}

TEST(GgufTest, ImpossibleShapesAreRefused) {
  const std::uint64_t big = std::uint64_t{1} << 40;
  expect_error(GgufWriter().describe("t", {0}, 0, 0).bytes(), "impossible dimension");
  expect_error(GgufWriter().describe("t", {big, big}, 0, 0).bytes(), "impossible dimension");
  expect_error(GgufWriter().describe("t", {~std::uint64_t{0}}, 0, 0).bytes(),
               "impossible dimension");
  expect_error(GgufWriter().describe("t", {big, 1 << 15}, 0, 0).bytes(), "ends at byte");
  expect_error(GgufWriter().describe("t", {1, 1, 1, 1, 1}, 0, 0).bytes(), "5 dimensions");
  expect_error(GgufWriter().describe("t", {33}, 2, 0).bytes(), "no whole blocks of Q4_0");
}

TEST(GgufTest, OffsetsMustFit) {
  const auto with_offset = [](std::uint64_t offset) {
    return GgufWriter().describe("t", {8}, 0, offset).bytes() + std::string(64, '\0');
  };
  expect_error(with_offset(4096), "the file holds only");
  expect_error(with_offset(7), "no multiple of the alignment");
  expect_error(with_offset(~std::uint64_t{0} - 31), "too large");
  expect_error(with_offset(~std::uint64_t{0} - 63), "the file holds only");
  expect_error(GgufWriter().describe("t", {16}, 0, 0).describe("u", {8}, 0, 32).bytes() +
                   std::string(200, '\0'),
               "overlaps");
}

TEST(GgufTest, AlignmentIsAPowerOfTwo) {
  GgufWriter out;
  out.alignment = 64;
  out.u32("general.alignment", 64).tensor("a", {1}, 0, "1234").tensor("b", {1}, 0, "5678");
  const std::string bytes = out.bytes();
  const auto header = parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->tensors[1].begin % 64, 0U);
  EXPECT_EQ(bytes.substr(header->tensors[1].begin, 4), "5678");
  expect_error(GgufWriter().u32("general.alignment", 0).bytes(), "general.alignment");
  expect_error(GgufWriter().u32("general.alignment", 48).bytes(), "power of two");
  expect_error(GgufWriter().u32("general.alignment", 1U << 31).bytes(), "general.alignment");
  expect_error(GgufWriter().text("general.alignment", "32").bytes(), "whole number");
}

TEST(GgufTest, FieldsSayWhatIsWrong) {
  const std::string bytes = small().bytes();
  const auto header = parse(bytes);
  ASSERT_TRUE(header.ok());
  GgufFields missing(header->metadata);
  EXPECT_EQ(missing.integer("nothing", 1, 2), 1);
  EXPECT_EQ(missing.status().message(), "nothing is missing");
  EXPECT_EQ(missing.status().field(), "nothing");
  GgufFields range(header->metadata);
  (void)range.integer("minus", 0, 5);
  EXPECT_NE(range.status().message().find("must be in 0..5"), std::string::npos);
  GgufFields kind(header->metadata);
  EXPECT_EQ(kind.text("minus"), std::nullopt);
  EXPECT_NE(kind.status().message().find("must be a string"), std::string::npos);
  EXPECT_EQ(kind.integer("llama.block_count", 0, 10), 0) << "nothing is read after an error";
}

}  // namespace
}  // namespace quire
