#include "engine/plan/plug_inputs.h"

namespace quire {

ExactContexts::ExactContexts(const EngineFacts& facts, const QueryRequest& request)
    : all_exact_(request.prefix_ids == facts.ingest_prefix) {}

bool ExactContexts::next(const QueryContext& context) {
  all_exact_ = all_exact_ && context.left_context == before_;
  if (all_exact_) before_.insert(before_.end(), context.token_ids.begin(), context.token_ids.end());
  return all_exact_;
}

PlugInputs::PlugInputs(const EngineFacts& facts, const QueryRequest& request, const QueryPlan& qp)
    : facts_(facts), request_(request), plan_(qp) {
  ExactContexts exact(facts, request);
  for (std::size_t i = 0; i < qp.plan.contexts.size(); ++i) {
    const PlannedContext& c = qp.plan.contexts[i];
    const ContextWork& work = qp.execution.work[i];
    const bool has_tokens = c.num_tokens > 0 && !c.duplicate;
    RecomputableContext r;
    r.offset = c.offset;
    r.block_tokens = c.block_tokens;
    if (has_tokens) {
      r.token_ids = request.contexts[i].token_ids;
      r.num_blocks = static_cast<std::int32_t>(c.blocks.size());
      r.block_position = work.block_position;
      r.exact = exact.next(request.contexts[i]);
    }
    recomputable_.push_back(r);
    SelectableContext s;
    if (has_tokens && work.source != ContextSource::kNothing) {
      s = {c.num_tokens, c.offset,   c.block_tokens, static_cast<std::int32_t>(c.blocks.size()),
           r.exact,      r.token_ids};
    }
    if (i > 0) {
      const QueryContext &before = request.contexts[i - 1], &own = request.contexts[i];
      s.continues = !own.document_id.empty() && own.document_id == before.document_id &&
                    own.chunk == before.chunk + 1;
    }
    s.title = request.contexts[i].title;
    selectable_.push_back(s);
  }
}

SelectionInput PlugInputs::selection() const {
  SelectionInput input;
  input.contexts = selectable_;
  input.question = request_.suffix_ids;
  const auto [begin, end] = request_.question_words;
  if (begin < end && end <= request_.suffix_ids.size())
    input.question_words = input.question.subspan(begin, end - begin);
  if (!facts_.selection_heads.empty()) input.heads = &facts_.selection_heads;
  input.words = facts_.words;
  input.title_words = facts_.title_words;
  input.num_layers = facts_.shape.num_layers;
  input.num_heads = facts_.num_heads;
  input.num_kv_heads = facts_.shape.num_kv_heads;
  input.head_dim = facts_.shape.head_dim;
  input.keep_ratio = plan_.execution.cache.keep_ratio;
  input.stable_layers = facts_.stable_layers;
  return input;
}

RecomputeInput PlugInputs::recompute() const {
  RecomputeInput input;
  input.contexts = recomputable_;
  input.num_layers = facts_.shape.num_layers;
  input.num_heads = facts_.num_heads;
  input.num_kv_heads = facts_.shape.num_kv_heads;
  input.head_dim = facts_.shape.head_dim;
  input.recompute_ratio = plan_.execution.cache.recompute_ratio;
  input.question = request_.suffix_ids;
  input.question_position = plan_.execution.suffix_position;
  return input;
}

}  // namespace quire
