#include "engine/plan/plan_builder.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/index.h"
#include "engine/plan/plan_choices.h"
#include "engine/plan/plug_inputs.h"
#include "engine/plan/request_checks.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

MissReason reason_of_miss(const EngineFacts& facts, const QueryRequest& request,
                          const QueryContext& context, const ContextKey& expected) {
  if (!context.key) return MissReason::kNotCached;
  if (context.key->is_zero()) return MissReason::kNotCached;
  if (*context.key == expected) return context.lazy ? MissReason::kNotCached : MissReason::kEvicted;
  const bool salted = request.salt_digest != SaltDigest{};
  if (salted && *context.key == facts.names.context_key(context.token_ids, request.tenant,
                                                        SaltDigest{}, context.left_context))
    return MissReason::kSaltMismatch;
  return MissReason::kModelChanged;
}

/// Enters what the request alone says: lengths, blocks, copies.
void describe_contexts(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  const std::vector<std::size_t> first = first_equal_contexts(request);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const QueryContext& context = request.contexts[i];
    PlannedContext planned;
    ContextWork work;
    planned.index = static_cast<std::int32_t>(i);
    planned.document_id = context.document_id;
    planned.chunk = context.chunk;
    planned.num_tokens = count_of(context.token_ids);
    planned.duplicate = planned.num_tokens > 0 && first[i] != i;
    if (planned.num_tokens > 0) {
      work.layout = kv_layout(facts, planned.num_tokens);
      work.left_tokens = count_of(context.left_context);
      planned.block_tokens = work.layout.block_tokens();
      for (std::int32_t b = 0; b < work.layout.num_blocks(); ++b) {
        PlannedBlock block;
        block.first_token = static_cast<std::int32_t>(work.layout.first_token(b));
        block.num_tokens = work.layout.tokens_in(b);
        block.tier = Tier::kNone;
        planned.blocks.push_back(block);
      }
    }
    qp.plan.contexts.push_back(std::move(planned));
    qp.execution.work.push_back(std::move(work));
  }
}

/// Hashes the contexts' tokens on all cores: with many documents that would be most of a plan.
std::vector<ContextNames::Named> named_contexts(const EngineFacts& facts,
                                                const QueryRequest& request) {
  const Digest alone = facts.names.key_seed(request.tenant, request.salt_digest);
  std::vector<ContextNames::Named> names(request.contexts.size());
  parallel_tasks(count_of(names), [&](std::int64_t i) {
    const QueryContext& context = request.contexts[at(i)];
    names[at(i)] = facts.names.named(
        context.left_context.empty()
            ? alone
            : facts.names.key_seed(request.tenant, request.salt_digest, context.left_context),
        context.token_ids);
  });
  return names;
}

/// Enters keys and what the store has under them.
void look_up_contexts(const EngineFacts& facts, const QueryRequest& request,
                      const LookupContext& lookup, QueryPlan& qp) {
  const std::vector<ContextNames::Named> names = named_contexts(facts, request);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const QueryContext& context = request.contexts[i];
    PlannedContext& planned = qp.plan.contexts[i];
    ContextWork& work = qp.execution.work[i];
    if (planned.num_tokens == 0) continue;
    work.key = names[i].key;
    work.writable = request.cache.write && context.key && *context.key == work.key;
    ContextLookup found = lookup(work.key, work.layout);
    planned.cached = found.segment.valid();
    if (!planned.cached) planned.miss = reason_of_miss(facts, request, context, work.key);
    if (planned.cached && !work.layout.fits(found.segment->layout)) {
      // An equal key with another shape cannot occur by design, so the record is wrong.
      planned.cached = false;
      planned.miss = MissReason::kCorrupt;
    }
    if (planned.cached) work.segment = std::move(found.segment);
    for (std::size_t b = 0; b < planned.blocks.size(); ++b) {
      planned.blocks[b].id = names[i].block_ids[b];
      if (planned.cached && b < found.block_tiers.size())
        planned.blocks[b].tier = found.block_tiers[b];
    }
  }
}

/// Sets offsets in the concatenation; empty contexts and dropped duplicates take no room.
std::int64_t assign_offsets(QueryPlan& qp) {
  std::int64_t at = qp.plan.prefix_tokens;
  for (PlannedContext& c : qp.plan.contexts) {
    c.offset = at;
    if (!c.duplicate) at += c.num_tokens;
  }
  return at;
}

Status choose_sources(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  QUIRE_ASSIGN_OR_RETURN(const auto recomputer,
                         recomputers().make(qp.plan.recomputer, qp.plan.options));
  const PlugInputs inputs(facts, request, qp);
  const RecomputeInput input = inputs.recompute();
  for (std::size_t i = 0; i < qp.execution.work.size(); ++i) {
    PlannedContext& c = qp.plan.contexts[i];
    qp.execution.work[i].exact = inputs.contexts()[i].exact;
    if (c.num_tokens == 0 || c.duplicate) continue;
    if (recomputer->computes_in_place(input, static_cast<std::int32_t>(i))) {
      qp.execution.work[i].source = ContextSource::kInPlace;
      if (c.cached) c.miss = MissReason::kPolicyOff;
    } else {
      qp.execution.work[i].source = c.cached ? ContextSource::kStored : ContextSource::kAlone;
    }
  }
  return {};
}

Selection nothing_selected(const EngineFacts& facts, std::size_t num_contexts) {
  return Selection::shared(facts.shape.num_layers, Selection::ContextBlocks(num_contexts));
}

/// Returns the selection if it needs neither the question nor sketches; else the blocks of the
/// query pass.
Status select_blocks(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  Execution& execution = qp.execution;
  QUIRE_ASSIGN_OR_RETURN(const auto selector,
                         selectors().make(execution.strategy.selector, qp.plan.options));
  const PlugInputs inputs(facts, request, qp);
  const SelectionInput input = inputs.selection();
  const bool any = std::any_of(input.contexts.begin(), input.contexts.end(),
                               [](const SelectableContext& c) { return c.num_blocks > 0; });
  std::optional<Selection> pass;
  if (any && !request.suffix_ids.empty()) pass = selector->query_pass_blocks(input);
  execution.needs_query_pass = pass.has_value();
  execution.needs_sketches = any && selector->needs_sketches(input);
  execution.needs_head_queries = pass && selector->wants_head_queries(input);
  execution.kept_as_stored = selector->keeps_as_stored(input);
  qp.plan.selection_pending = execution.needs_query_pass || execution.needs_sketches;
  if (qp.plan.selection_pending) {
    execution.selection = pass ? std::move(*pass) : nothing_selected(facts, execution.work.size());
  } else {
    QUIRE_ASSIGN_OR_RETURN(execution.selection, selector->select(input));
    if (!execution.selection.note.empty()) qp.plan.add_fallback(execution.selection.note);
  }
  return {};
}

/// Enters the tokens that will be recomputed, as far as the recomputer knows.
Status plan_recompute(const EngineFacts& facts, const QueryRequest& request,
                      const SketchLookup& sketch, QueryPlan& qp) {
  QUIRE_ASSIGN_OR_RETURN(const auto recomputer,
                         recomputers().make(qp.plan.recomputer, qp.plan.options));
  const PlugInputs inputs(facts, request, qp);
  RecomputeInput input = inputs.recompute();
  input.selection = &qp.execution.selection;
  input.sketch = sketch;
  const auto again = recomputer->planned_tokens(input);
  for (std::size_t i = 0; i < qp.plan.contexts.size(); ++i) {
    for (PlannedBlock& b : qp.plan.contexts[i].blocks) b.recomputed_tokens = 0;
    if (i >= again.size()) continue;
    for (const std::int32_t token : again[i])
      ++qp.plan.contexts[i].blocks[at(token / qp.plan.contexts[i].block_tokens)].recomputed_tokens;
  }
  return {};
}

/// Returns PlannedContext::kept_in.
std::vector<bool> kept_in(const Selection& selection, std::int32_t context, std::size_t blocks) {
  std::vector<bool> out;
  if (selection.same_in_all_layers()) return out;
  const std::int32_t layers = selection.num_layers();
  out.resize(blocks * at(layers));
  for (std::int32_t layer = 0; layer < layers; ++layer)
    for (const std::int32_t block : selection.kept(layer, context))
      out[at(block) * at(layers) + at(layer)] = true;
  return out;
}

/// Chunks of one document follow each other in the prompt, by ascending number.
bool begins_document(const PlannedContext& before, const PlannedContext& context) {
  return context.document_id != before.document_id || context.chunk <= before.chunk;
}

/// `rank` tokens are kept before the context, whose document begins at `document`.
std::int64_t first_position(const EngineFacts& facts, const Plan& plan, const PlannedContext& c,
                            std::int64_t rank, std::int64_t document) {
  switch (plan.positions) {
    case PositionMode::kGlobal:
      return c.offset;
    case PositionMode::kCompact:
      return rank;
    // This is its position at ingest, where the prefix stood before it.
    case PositionMode::kLocalNaive:
      return count_of(facts.ingest_prefix);
    case PositionMode::kParallel:
      return plan.prefix_tokens + c.offset - document;
  }
  return c.offset;
}

void assign_positions(const EngineFacts& facts, QueryPlan& qp) {
  Plan& plan = qp.plan;
  Execution& execution = qp.execution;
  std::int64_t rank = plan.prefix_tokens, longest_end = plan.prefix_tokens, document = 0;
  for (std::size_t i = 0; i < execution.work.size(); ++i) {
    PlannedContext& c = plan.contexts[i];
    ContextWork& w = execution.work[i];
    if (i == 0 || begins_document(plan.contexts[i - 1], c)) document = c.offset;
    w.block_position.assign(c.blocks.size(), -1);
    w.first_position = first_position(facts, plan, c, rank, document);
    c.kept_in.clear();
    if (w.source == ContextSource::kNothing) continue;
    if (w.source != ContextSource::kInPlace)
      c.kept_in = kept_in(execution.selection, static_cast<std::int32_t>(i), c.blocks.size());
    for (std::size_t b = 0; b < c.blocks.size(); ++b) {
      PlannedBlock& block = c.blocks[b];
      block.kept_layers = w.source == ContextSource::kInPlace
                              ? facts.shape.num_layers
                              : execution.selection.kept_layers(static_cast<std::int32_t>(i),
                                                                static_cast<std::int32_t>(b));
      if (i < execution.selection.scores.size() && b < execution.selection.scores[i].size())
        block.score = execution.selection.scores[i][b];
      if (block.kept_layers == 0) continue;
      w.block_position[b] = static_cast<std::int32_t>(
          plan.positions == PositionMode::kCompact ? rank : w.first_position + block.first_token);
      longest_end = std::max<std::int64_t>(longest_end, w.block_position[b] + block.num_tokens);
      rank += block.num_tokens;
    }
  }
  std::int64_t behind = execution.end_of_documents;
  if (plan.positions == PositionMode::kCompact) behind = rank;
  if (plan.positions == PositionMode::kParallel) behind = longest_end;
  execution.suffix_position = static_cast<std::int32_t>(behind);
}

Status check_window(const EngineFacts& facts, const QueryRequest& request, const QueryPlan& qp) {
  const std::int64_t actual = qp.execution.suffix_position + qp.plan.suffix_tokens + 1;
  if (actual <= facts.window) return {};
  return window_exceeded_status({facts.window, actual}, qp.plan.document_tokens > 0
                                                            ? request.documents_param
                                                            : request.question_param);
}

/// Without a question the last token of the documents runs once more, so the last one must keep
/// some of its tokens.
Status check_end(const QueryRequest& request, const QueryPlan& qp) {
  if (!request.suffix_ids.empty()) return {};
  const std::vector<ContextWork>& work = qp.execution.work;
  const auto last = std::find_if(work.rbegin(), work.rend(), [](const ContextWork& w) {
    return w.source != ContextSource::kNothing;
  });
  if (last == work.rend() || last->source == ContextSource::kInPlace) return {};
  const auto context = static_cast<std::int32_t>(work.rend() - last) - 1;
  const Selection& selection = qp.execution.selection;
  for (std::int32_t layer = 0; layer < selection.num_layers(); ++layer) {
    if (selection.kept(layer, context).empty())
      return Status::invalid(request.question_param,
                             "strategy " + qp.plan.strategy + " needs a question");
  }
  return {};
}

/// Removes blocks of a selection that exceeds the window when its tokens are numbered without gaps.
/// Blocks with the lowest scores go first, among those chosen besides `fixed`. A block has a
/// position if any layer keeps it.
void fit_window(const EngineFacts& facts, const Selection& fixed, Selection& selection,
                Plan& plan) {
  struct Chosen {
    float score;
    std::int32_t context, block;
    std::int64_t tokens;
  };
  std::vector<Chosen> chosen;
  std::int64_t over = plan.prefix_tokens + plan.suffix_tokens + 1 - facts.window;
  for (std::size_t i = 0; i < plan.contexts.size(); ++i) {
    const auto context = static_cast<std::int32_t>(i);
    const auto stay = fixed.kept_in_any_layer(context);
    for (const std::int32_t block : selection.kept_in_any_layer(context)) {
      const std::int64_t tokens = plan.contexts[i].blocks[at(block)].num_tokens;
      over += tokens;
      if (std::binary_search(stay.begin(), stay.end(), block)) continue;
      const bool scored = i < selection.scores.size() &&
                          static_cast<std::size_t>(block) < selection.scores[i].size();
      const float score = scored ? selection.scores[i][at(block)] : 0;
      chosen.push_back({score == score ? score : -std::numeric_limits<float>::infinity(), context,
                        block, tokens});
    }
  }
  if (over <= 0) return;
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Chosen& a, const Chosen& b) { return a.score < b.score; });
  std::vector<std::pair<std::int32_t, std::int32_t>> dropped;
  for (auto c = chosen.begin(); c != chosen.end() && over > 0; ++c) {
    dropped.emplace_back(c->context, c->block);
    over -= c->tokens;
  }
  selection.drop(dropped);
  plan.add_fallback(std::to_string(dropped.size()) +
                    " blocks less than chosen, so that the rest fits the window");
}

/// Returns a plan that knows the request's tokens, but neither the store nor the strategy.
QueryPlan described(const EngineFacts& facts, const QueryRequest& request) {
  QueryPlan qp;
  Plan& plan = qp.plan;
  plan.query_id = request.id;
  plan.num_layers = facts.shape.num_layers;
  plan.prefix_tokens = count_of(request.prefix_ids);
  plan.suffix_tokens = count_of(request.suffix_ids);
  for (const QueryContext& c : request.contexts) plan.document_tokens += count_of(c.token_ids);
  plan.prompt_tokens = plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens;
  describe_contexts(facts, request, qp);
  qp.execution.end_of_documents = assign_offsets(qp);
  return qp;
}

/// Decides everything that the question need not decide: strategy, sources, selection, positions.
Status decide(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
              QueryPlan& qp) {
  Plan& plan = qp.plan;
  QUIRE_RETURN_IF_ERROR(pick_strategy(facts, request, speeds, qp));
  QUIRE_RETURN_IF_ERROR(choose_sources(facts, request, qp));
  QUIRE_RETURN_IF_ERROR(select_blocks(facts, request, qp));
  if (qp.execution.kept_as_stored && !names_recomputer(qp.execution.strategy, plan.options)) {
    plan.recomputer = "none";
    QUIRE_RETURN_IF_ERROR(choose_sources(facts, request, qp));
  }
  const bool too_long = qp.execution.end_of_documents + plan.suffix_tokens + 1 > facts.window;
  plan.positions = qp.execution.cache.positions.value_or(PositionMode::kGlobal);
  if (plan.positions == PositionMode::kGlobal && too_long && qp.execution.strategy.sparse) {
    plan.positions = PositionMode::kCompact;
    plan.add_fallback(
        "the documents exceed the model's window: kept tokens are numbered without gaps");
    // No block of such a choice has to stay.
    if (!plan.selection_pending && qp.execution.kept_as_stored)
      fit_window(facts, nothing_selected(facts, plan.contexts.size()), qp.execution.selection,
                 plan);
  }
  assign_positions(facts, qp);
  QUIRE_RETURN_IF_ERROR(check_window(facts, request, qp));
  if (plan.selection_pending) return {};
  QUIRE_RETURN_IF_ERROR(check_end(request, qp));
  return plan_recompute(facts, request, {}, qp);
}

}  // namespace

std::vector<std::size_t> first_equal_contexts(const QueryRequest& request) {
  std::vector<std::size_t> first(request.contexts.size());
  std::map<std::span<const std::int32_t>, std::size_t,
           bool (*)(std::span<const std::int32_t>, std::span<const std::int32_t>)>
      seen([](std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
      });
  for (std::size_t i = 0; i < first.size(); ++i)
    first[i] = request.cache.dedupe
                   ? seen.try_emplace(request.contexts[i].token_ids, i).first->second
                   : i;
  return first;
}

std::int64_t most_prompt_tokens(const QueryRequest& request) {
  const std::vector<std::size_t> first = first_equal_contexts(request);
  std::int64_t tokens = count_of(request.prefix_ids) + count_of(request.suffix_ids);
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] == i) tokens += count_of(request.contexts[i].token_ids);
  }
  return tokens;
}

Status complete_plan(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
                     Selection selection, const SketchLookup& sketch, QueryPlan& qp) {
  Plan& plan = qp.plan;
  if (plan.positions == PositionMode::kCompact)
    fit_window(facts, qp.execution.selection, selection, plan);
  qp.execution.selection = std::move(selection);
  const Selection& taken = qp.execution.selection;
  plan.selection_pending = false;
  assign_positions(facts, qp);
  for (std::size_t i = 0; i < plan.contexts.size() && i < taken.contexts.size(); ++i) {
    plan.contexts[i].keep_share = taken.contexts[i].keep_share;
    plan.contexts[i].bias_weight = taken.contexts[i].bias_weight;
  }
  if (!taken.note.empty()) plan.add_fallback(taken.note);
  QUIRE_RETURN_IF_ERROR(check_window(facts, request, qp));
  QUIRE_RETURN_IF_ERROR(check_end(request, qp));
  QUIRE_RETURN_IF_ERROR(plan_recompute(facts, request, sketch, qp));
  finish_plan(facts, speeds, qp);
  return {};
}

CausalFront causal_front(const QueryRequest& request, const QueryPlan& qp) {
  CausalFront front;
  front.token_ids = request.prefix_ids;
  for (std::size_t i = 0; i < qp.execution.work.size(); ++i) {
    if (qp.execution.work[i].source == ContextSource::kNothing) continue;
    if (qp.execution.work[i].source != ContextSource::kInPlace ||
        qp.plan.contexts[i].offset != count_of(front.token_ids))
      return front;
    front.token_ids.insert(front.token_ids.end(), request.contexts[i].token_ids.begin(),
                           request.contexts[i].token_ids.end());
  }
  if (qp.execution.suffix_position != count_of(front.token_ids)) return front;
  front.token_ids.insert(front.token_ids.end(), request.suffix_ids.begin(),
                         request.suffix_ids.end());
  front.whole = true;
  return front;
}

void turn_into_miss(QueryPlan& qp, std::int32_t context, MissReason reason) {
  PlannedContext& c = qp.plan.contexts[at(context)];
  ContextWork& w = qp.execution.work[at(context)];
  c.cached = false;
  c.miss = reason;
  for (PlannedBlock& b : c.blocks) b.tier = Tier::kNone;
  w.segment = SegmentHandle();
  w.source = ContextSource::kAlone;
}

Status check_request(const EngineFacts& facts, const QueryRequest& request) {
  QUIRE_RETURN_IF_ERROR(validate_query(facts, request));
  QueryPlan qp = described(facts, request);
  return decide(facts, request, Speeds(), qp);
}

Result<QueryPlan> build_plan(const EngineFacts& facts, const QueryRequest& request,
                             const LookupContext& lookup, const Speeds& speeds) {
  QUIRE_RETURN_IF_ERROR(validate_query(facts, request));
  QueryPlan qp = described(facts, request);
  look_up_contexts(facts, request, lookup, qp);
  QUIRE_RETURN_IF_ERROR(decide(facts, request, speeds, qp));
  finish_plan(facts, speeds, qp);
  return qp;
}

}  // namespace quire
