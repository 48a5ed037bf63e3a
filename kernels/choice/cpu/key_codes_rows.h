/// This file declares the bodies of key_codes() and code_scores() for rows [begin, end) of a
/// checked call.
#pragma once

#include <cstdint>

#include "kernels/choice/key_codes.h"

namespace quire::cpu {

/// The number of queries that code_scores() multiplies at once.
inline constexpr std::int64_t kCodeQueries = 8;

/// Queries times steps as integers. Query i, times steps and the scale of the call, is
/// approximately scales[i] * q[i][c].
struct CodedQueries {
  alignas(64) std::int8_t q[kCodeQueries][256];
  float scales[kCodeQueries];
};

void key_codes_rows(const KeyCodesArgs& args, std::int64_t begin, std::int64_t end);
/// Scores queries [first, first + count) with listed rows [begin, end).
void code_scores_rows(const CodeScoresArgs& args, const CodedQueries& queries, std::int64_t first,
                      std::int64_t count, std::int64_t begin, std::int64_t end);

/// Versions of the two with AVX512-VNNI, for bf16 keys and head_dim a multiple of 64.
void vnni_key_codes_rows(const KeyCodesArgs& args, std::int64_t begin, std::int64_t end);
void vnni_code_scores_rows(const CodeScoresArgs& args, const CodedQueries& queries,
                           std::int64_t first, std::int64_t count, std::int64_t begin,
                           std::int64_t end);

}  // namespace quire::cpu
