/// This file declares the CUDA kernels, for the calling thread's current device. It is built only
/// with QUIRE_CUDA.
///
/// Every function checks shapes, enqueues on `stream` and returns; results are ready once the
/// stream is synchronized. All pointers are device memory that must stay valid until then. Nothing
/// is allocated. Values in device memory (positions, ids, lists) are not checked. Zero rows are
/// valid. Errors: kInvalidArgument (shapes), kDeviceLost (the context is gone), kInternal (the
/// launch failed).
#pragma once

#include "kernels/attention/attention_mass.h"
#include "kernels/attention/attention_scores.h"
#include "kernels/attention/attention_stats.h"
#include "kernels/choice/candidates.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/page_choice.h"
#include "kernels/choice/page_slots.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/voted_lists.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/op_list.h"
#include "kernels/cuda/runtime/properties.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/kv_gather.h"

namespace quire::cuda {

#define QUIRE_PLAIN(code, Args, function) Status function(const Args& args, StreamHandle stream);
QUIRE_CUDA_OPS(QUIRE_PLAIN, QUIRE_CUDA_NO_ROW, QUIRE_CUDA_NO_ROW)
#undef QUIRE_PLAIN

Status rope_rotate(const DeviceRopeTable& table, const RopeRotateArgs& args, StreamHandle stream);
Status kv_place(const DeviceRopeTable& table, const KvPlaceArgs& args, StreamHandle stream);
Status write_new_rows(const DeviceRopeTable& table, const NewRowsArgs& args, StreamHandle stream);
Status kv_gather(const KvGatherArgs& args, StreamHandle stream);
Status fill_slots(const FillSlotsArgs& args, StreamHandle stream);
Status block_summaries(const DeviceRopeTable& table, const BlockSummariesArgs& args,
                       StreamHandle stream);
/// Computes a product that bf16_gemv_takes() (matmul/bf16_gemv.cuh).
Status bf16_gemv(const MatmulArgs& args, StreamHandle stream);
Status decode_attention(const DecodeAttentionArgs& args, StreamHandle stream);
/// Returns the best DecodeAttentionArgs::run_chunks for this call on this device.
std::int32_t decode_run_chunks(const DeviceProperties& device, const DecodeAttentionArgs& args);
/// Computes attention() for many query rows on tensor cores. Queries and softmax weights are
/// rounded to the type of the KV, f16 or bf16, and to f16 for f8. A row's result does not depend on
/// the other rows. Pages and strides are multiples of 16 bytes.
Status prefill_attention(const PrefillAttentionArgs& args, StreamHandle stream);
Status int8_gemv(const Int8GemvArgs& args, StreamHandle stream);
/// Returns the best Int8GemvArgs::warps for n outputs of k inputs on this device. It is more than
/// one where one warp per output leaves the device idle.
std::int32_t int8_gemv_warps(const DeviceProperties& device, std::int64_t n, std::int64_t k);
Status grouped_gemv(const GroupedGemvArgs& args, StreamHandle stream);
/// Returns the best GroupedGemvArgs::warps in the same way.
std::int32_t grouped_gemv_warps(const DeviceProperties& device, GroupKind kind, std::int64_t n,
                                std::int64_t k);
Status grouped_product(const GroupedProductArgs& args, StreamHandle stream);
Status int8_product(const Int8ProductArgs& args, StreamHandle stream);
/// Returns the best FewRowsArgs::splits for n outputs of k inputs on this device, whatever the
/// number of rows.
std::int32_t few_rows_splits(const DeviceProperties& device, std::int64_t n, std::int64_t k);
Status sample(const SampleArgs& args, StreamHandle stream);
/// Returns the best SampleArgs::parts for rows of n logits on this device.
std::int32_t sample_parts(const DeviceProperties& device, std::int64_t rows, std::int64_t n);
Status blend_rows(const BlendRowsArgs& args, StreamHandle stream);
Status samkv_scores(const DeviceRopeTable& table, const SamkvScoresArgs& args, StreamHandle stream);

}  // namespace quire::cuda
