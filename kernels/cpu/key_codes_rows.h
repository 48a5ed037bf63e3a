/// Bodies of key_codes() and code_scores(): rows [begin, end) of a checked call.
#pragma once

#include <cstdint>

#include "kernels/key_codes.h"

namespace quire::cpu {

/// Queries that code_scores() multiplies at once.
inline constexpr std::int64_t kCodeQueries = 8;

/// Queries times steps in whole numbers: q[i][c] of query i, which is scales[i] times that, the
/// scale of the call included.
struct CodedQueries {
  alignas(64) std::int8_t q[kCodeQueries][256];
  float scales[kCodeQueries];
};

void key_codes_rows(const KeyCodesArgs& args, std::int64_t begin, std::int64_t end);
/// Queries [first, first + count), listed rows [begin, end).
void code_scores_rows(const CodeScoresArgs& args, const CodedQueries& queries, std::int64_t first,
                      std::int64_t count, std::int64_t begin, std::int64_t end);

/// The same with AVX512-VNNI: bf16 keys, head_dim a multiple of 64.
void vnni_key_codes_rows(const KeyCodesArgs& args, std::int64_t begin, std::int64_t end);
void vnni_code_scores_rows(const CodeScoresArgs& args, const CodedQueries& queries,
                           std::int64_t first, std::int64_t count, std::int64_t begin,
                           std::int64_t end);

}  // namespace quire::cpu
