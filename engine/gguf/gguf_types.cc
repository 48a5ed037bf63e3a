#include "engine/gguf/gguf_types.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace quire::gguf_internal {
namespace {

/// bytes == 0: taken out of the format.
struct Row {
  std::uint32_t number;
  const char* name;
  std::int64_t weights, bytes;
};

constexpr Row kRows[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {4, "Q4_2", 0, 0},        {5, "Q4_3", 0, 0},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},
    {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},        {26, "I32", 1, 4},
    {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {31, "Q4_0_4_4", 0, 0},   {32, "Q4_0_4_8", 0, 0},
    {33, "Q4_0_8_8", 0, 0},   {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {36, "IQ4_NL_4_4", 0, 0}, {37, "IQ4_NL_4_8", 0, 0}, {38, "IQ4_NL_8_8", 0, 0},
    {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

}  // namespace

Result<GgufType> gguf_type(std::uint32_t number) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.number == number; });
  if (row == std::end(kRows)) {
    return Status::unimplemented("has the tensor type " + std::to_string(number) +
                                 ", which this build does not know");
  }
  if (row->bytes == 0) {
    return Status::unimplemented(std::string("is stored as ") + row->name +
                                 ", which was taken out of the format; use a newer file");
  }
  GgufType type{.number = number,
                .name = row->name,
                .weights = row->weights,
                .bytes = row->bytes,
                .dtype = {},
                .blocks = {}};
  for (int i = 0; i < kNumGgmlTypes; ++i) {
    const auto block = static_cast<BlockType>(i);
    if (block_type_name(block) == type.name) type.blocks = block;
  }
  if (type.name == "F32") type.dtype = DType::kF32;
  if (type.name == "F16") type.dtype = DType::kF16;
  if (type.name == "BF16") type.dtype = DType::kBF16;
  return type;
}

}  // namespace quire::gguf_internal
