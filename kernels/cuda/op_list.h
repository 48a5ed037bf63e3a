/// QUIRE_CUDA_OPS lists the operations of a device, one row each: the enum, argument sizes,
/// dispatch, kernels' declarations and the emulated device are made from it.
///
/// PLAIN(code, Args, function): the kernel `Status function(const Args&, StreamHandle)`, whose body
/// is `launch_function(launcher, args)` in a .cuh file.
/// TABLE(code, Args, function, member): the same, called with (args.table, args.member).
/// OTHER(code, Args): the device (session.cu) and the emulated one say what it does.
///
/// A row's place is its number in the interface of libquire_cuda.so, so a new row comes last.
#pragma once

#define QUIRE_CUDA_OPS(PLAIN, TABLE, OTHER)                            \
  OTHER(kCopy, CopyArgs)                                               \
  PLAIN(kRmsNorm, ResidualRmsNormArgs, rms_norm)                       \
  PLAIN(kSwiglu, RoundedSwigluArgs, swiglu)                            \
  PLAIN(kEmbedding, EmbeddingArgs, embedding)                          \
  PLAIN(kConvert, ConvertArgs, convert)                                \
  PLAIN(kAddBias, AddBiasArgs, add_bias)                               \
  OTHER(kMatmul, MatmulArgs)                                           \
  PLAIN(kQkvSplit, QkvSplitArgs, qkv_split)                            \
  TABLE(kRotateRows, RotateRowsArgs, rope_rotate, rows)                \
  PLAIN(kKvPack, KvPackArgs, kv_pack)                                  \
  TABLE(kPlaceRows, PlaceRowsArgs, kv_place, rows)                     \
  OTHER(kDecodeAttention, DecodeAttentionArgs)                         \
  OTHER(kPrefillAttention, PrefillAttentionArgs)                       \
  OTHER(kCopyAsync, CopyAsyncArgs)                                     \
  OTHER(kRecordEvent, RecordEventArgs)                                 \
  OTHER(kHold, HoldArgs)                                               \
  OTHER(kWaitEvent, WaitEventArgs)                                     \
  OTHER(kStep, StepArgs)                                               \
  OTHER(kInt8Gemv, Int8GemvArgs)                                       \
  PLAIN(kInt8Expand, Int8ExpandArgs, int8_expand)                      \
  PLAIN(kArgmax, ArgmaxArgs, argmax)                                   \
  OTHER(kSample, SampleArgs)                                           \
  PLAIN(kColumnSums, ColumnSumsArgs, column_sums)                      \
  TABLE(kSamkvScores, ScoreDocumentsArgs, samkv_scores, scores)        \
  PLAIN(kBlendRows, BlendRowsArgs, blend_rows)                         \
  PLAIN(kAttentionScores, AttentionScoresArgs, attention_scores)       \
  PLAIN(kAttentionMass, AttentionMassArgs, attention_mass)             \
  PLAIN(kAttentionStats, AttentionStatsArgs, attention_stats)          \
  TABLE(kBlockSummaries, SummariseBlocksArgs, block_summaries, blocks) \
  PLAIN(kPageBounds, PageBoundsArgs, page_bounds)                      \
  PLAIN(kPageScores, PageScoresArgs, page_scores)                      \
  PLAIN(kKeyProducts, KeyProductsArgs, key_products)                   \
  PLAIN(kCandidateVotes, CandidateVotesArgs, candidate_votes)          \
  PLAIN(kTopK, TopKArgs, top_k)                                        \
  PLAIN(kCandidateRows, CandidateRowsArgs, candidate_rows)             \
  OTHER(kGatherRows, GatherRowsArgs)                                   \
  PLAIN(kListUnion, ListUnionArgs, list_union)                         \
  OTHER(kGroupedGemv, GroupedGemvArgs)                                 \
  PLAIN(kGroupedExpand, GroupedExpandArgs, grouped_expand)             \
  PLAIN(kWriteTables, WriteTablesArgs, write_tables)                   \
  PLAIN(kChoosePages, ChoosePagesArgs, choose_pages)                   \
  OTHER(kFillSlots, FillSlotsOnArgs)                                   \
  PLAIN(kVotedLists, VotedListsArgs, voted_lists)                      \
  OTHER(kGroupedProduct, GroupedProductArgs)                           \
  OTHER(kInt8Product, Int8ProductArgs)                                 \
  PLAIN(kJoinColumns, JoinColumnsArgs, join_columns)                   \
  TABLE(kWriteNewRows, WriteNewRowsArgs, write_new_rows, rows)

/// QUIRE_CUDA_NO_ROW expands to nothing, for the kinds of rows that a use leaves out.
#define QUIRE_CUDA_NO_ROW(...)
