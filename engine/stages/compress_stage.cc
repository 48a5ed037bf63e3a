#include "engine/stages/compress_stage.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "engine/answer/block_rows.h"
#include "engine/draft/draft.h"
#include "engine/plan/plan_builder.h"
#include "engine/stages/decode_stage.h"
#include "engine/supply/stored_queries.h"

namespace quire {
namespace {

/// Counts a layer's hot rows, of all KV heads, per block.
void count_hot(std::span<const std::vector<std::int32_t>> hot, std::span<const BlockRows> blocks,
               std::vector<std::vector<std::int64_t>>& counts) {
  for (const auto& rows : hot) {
    for (const std::int32_t row : rows) {
      const auto found = std::upper_bound(
          blocks.begin(), blocks.end(), row,
          [](std::int32_t r, const BlockRows& b) { return r < b.rows.end; });
      if (found != blocks.end() && row >= found->rows.begin)
        ++counts[at(found->context)][at(found->block)];
    }
  }
}

/// Row counts per context and block: all rows and hot rows, over layers and KV heads.
struct BlockCounts {
  explicit BlockCounts(const Plan& plan) {
    for (const PlannedContext& c : plan.contexts) there.emplace_back(c.blocks.size());
    hot = there;
  }
  std::vector<std::vector<std::int64_t>> there, hot;
};

void enter(const BlockCounts& counts, Plan& plan) {
  for (std::size_t i = 0; i < plan.contexts.size(); ++i) {
    for (std::size_t b = 0; b < plan.contexts[i].blocks.size(); ++b) {
      const std::int64_t rows = counts.there[i][b];
      if (rows > 0)
        plan.contexts[i].blocks[b].hot_share = static_cast<float>(counts.hot[i][b]) /
                                               static_cast<float>(rows);
    }
  }
}

/// Removes all rows but the hot ones from the cache. Pages that are shared with kept prompts become
/// copies, after which the originals are memory of their own. Kept prompts that this leaves no room
/// for go first.
Status drop_rows(QueryRun& run, const RetainedRows& retained) {
  WorkingCache& cache = *run.cache;
  if (run.core.prefixes != nullptr) run.core.prefixes->shrink(run.core.unreserved_bytes);
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    std::vector<std::vector<std::int32_t>> rows = retained.hot[at(layer)];
    for (auto& list : rows) std::sort(list.begin(), list.end());
    QUIRE_RETURN_IF_ERROR(cache.keep_rows(layer, rows));
  }
  return {};
}

/// Returns whether the prompt attends by the compressor's sparse rule, and enters this into the
/// plan with the reason if not.
bool plan_sparse_prefill(QueryRun& run) {
  Plan& plan = run.plan;
  const std::optional<SparseRule> rule = run.compressor->sparse_prefill();
  if (!rule) return false;
  SparsePrefill& sparse = plan.sparse_prefill.emplace();
  sparse.band = rule->band;
  sparse.columns = rule->columns;
  const CausalFront front = causal_front(run.request, run);
  const auto tokens = count_of(front.token_ids);
  if (!front.whole || run.recomputer->has_pass()) {
    sparse.note =
        "strategy " + plan.strategy +
        " places stored KV: only a prompt that is computed from its beginning to its end is sparse";
  } else if (tokens <= sparse.band + sparse.columns) {
    sparse.note = "the prompt has no more tokens than prefill_band and prefill_columns cover";
  }
  return sparse.note.empty();
}

/// Returns the ranges of contexts in a prompt that is computed in order.
std::vector<RowRange> context_ranges(const QueryRun& run) {
  std::vector<RowRange> out;
  for (const PlannedContext& c : run.plan.contexts) {
    if (c.num_tokens > 0 && !c.duplicate) out.push_back({c.offset, c.offset + c.num_tokens});
  }
  return out;
}

/// Ranks the assembled cache, drops rows as the compressor decides, and records the result in plan
/// and statistics. Returns the retained rows for the retriever; empty if every row stayed or the
/// others were dropped, as all remaining rows are then hot.
Result<RetainedRows> compress(QueryRun& run) {
  if (run.compressor->keeps_everything()) return RetainedRows{};
  const auto started = Clock::now();
  Plan& plan = run.plan;
  const std::int32_t layers = run.core.facts.shape.num_layers,
                     kv_heads = run.core.facts.shape.num_kv_heads;
  std::vector<std::vector<BlockRows>> blocks;
  std::vector<LayerRows> rows;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    QUIRE_ASSIGN_OR_RETURN(std::vector<BlockRows> in_layer,
                           block_rows(run, layer, plan.suffix_tokens));
    rows.push_back(layer_rows(run, layer, in_layer));
    blocks.push_back(std::move(in_layer));
  }
  QUIRE_ASSIGN_OR_RETURN(RetainedRows retained, run.compressor->compress({&*run.cache, rows}));
  if (!retained.hot.empty()) {
    Compression result;
    result.by = run.compressor->name();
    result.dropped = retained.drop;
    result.lookahead_tokens = run.stats.lookahead_tokens;
    if (run.look_ahead) result.note = run.look_ahead->reason();
    BlockCounts counts(plan);
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      result.rows += rows[at(layer)].num_rows * kv_heads;
      for (const auto& list : retained.hot[at(layer)]) result.hot_rows += count_of(list);
      for (const BlockRows& b : blocks[at(layer)])
        counts.there[at(b.context)][at(b.block)] += (b.rows.end - b.rows.begin) * kv_heads;
      count_hot(retained.hot[at(layer)], blocks[at(layer)], counts.hot);
    }
    enter(counts, plan);
    if (retained.drop) {
      QUIRE_RETURN_IF_ERROR(drop_rows(run, retained));
      retained = RetainedRows{};
    }
    plan.compression = std::move(result);
  }
  const auto now = Clock::now();
  run.stats.compress_ms = ms_between(started, now);
  run.add_span("compress", started, now);
  return retained;
}

/// Returns the contexts that have rows, by position.
std::vector<ContextRows> context_rows(QueryRun& run) {
  std::vector<ContextRows> out;
  for (std::int32_t i = 0; i < run.num_contexts(); ++i) {
    if (run.work(i).source != ContextSource::kNothing)
      out.push_back({run.planned(i).offset, run.planned(i).num_tokens});
  }
  return out;
}

SequenceContext sequence_of(QueryRun& run) {
  const EngineFacts& facts = run.core.facts;
  SequenceContext sequence;
  sequence.cache = &*run.cache;
  sequence.device = run.core.device;
  sequence.device_requests = run.core.device_requests;
  sequence.transfers = run.core.transfers;
  sequence.compute = &run.core.model->compute();
  sequence.num_layers = facts.shape.num_layers;
  sequence.num_heads = facts.num_heads;
  sequence.num_kv_heads = facts.shape.num_kv_heads;
  sequence.head_dim = facts.shape.head_dim;
  sequence.head = run.core.head;
  if (sequence.head == nullptr && facts.draft_window > 0)
    sequence.draft = &run.core.draft->reader();
  return sequence;
}

}  // namespace

Status begin_compress(QueryRun& run) {
  if (run.compressor->keeps_everything()) return {};
  const EngineFacts& facts = run.core.facts;
  CompressSetup setup;
  setup.rope = &run.core.model->rope();
  setup.num_layers = facts.shape.num_layers;
  setup.num_heads = facts.num_heads;
  setup.num_kv_heads = facts.shape.num_kv_heads;
  setup.head_dim = facts.shape.head_dim;
  setup.question_begin = run.execution.suffix_position;
  setup.question_end = run.execution.suffix_position +
                       static_cast<std::int32_t>(run.request.suffix_ids.size());
  // Without a question the last document token runs once more, wherever it stands.
  if (run.request.suffix_ids.empty()) setup.question_begin = 0;
  setup.sparse = plan_sparse_prefill(run);
  if (setup.sparse) setup.contexts = context_ranges(run);
  return run.compressor->begin(setup);
}

Status CompressStage::begin() {
  shared_.run.add_span("prefill", assembly_->compute_started(), Clock::now());
  shared_.front->keep();
  return prepare_retriever();
}

Status CompressStage::prepare_retriever() {
  QueryRun& run = shared_.run;
  const std::vector<ContextRows> contexts = context_rows(run);
  QUIRE_ASSIGN_OR_RETURN(const RetainedRows retained, compress(run));
  if (run.queries && run.queries->wanted().stored)
    QUIRE_RETURN_IF_ERROR(add_stored_queries(run, *shared_.supply));
  AssembledPrompt prompt;
  prompt.retained = &retained;
  prompt.contexts = contexts;
  prompt.queries = run.queries.get();
  prompt.head_track = run.head_track.get();
  prompt.num_tokens = run.plan.prefix_tokens + run.plan.document_tokens + run.plan.suffix_tokens;
  QUIRE_RETURN_IF_ERROR(run.retriever->prepare(sequence_of(run), prompt));
  run.head_track.reset();
  run.queries.reset();
  return {};
}

bool CompressStage::done() const {
  const auto* pieces = capability<PreparesInPieces>(*shared_.run.retriever);
  return pieces == nullptr || pieces->prepared();
}

Status CompressStage::work() {
  return capability<PreparesInPieces>(*shared_.run.retriever)->prepare_more();
}

AfterStage CompressStage::next() {
  return {
      std::make_unique<DecodeStage>(shared_, assembly_->take_logits(), assembly_->next_position())};
}

}  // namespace quire
