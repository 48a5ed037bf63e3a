#include "engine/pipeline/plan_builder.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/compress/compressor.h"
#include "engine/pipeline/plug_inputs.h"
#include "engine/retrieve/decode_choice.h"
#include "engine/retrieve/retriever.h"

namespace quire {
namespace {

std::int64_t count(const std::vector<std::int32_t>& ids) { return static_cast<std::int64_t>(ids.size()); }

Status check_ids(const EngineFacts& facts, std::span<const std::int32_t> ids, const std::string& field) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < facts.vocab_size) continue;
    return Status::invalid(field, "token id " + std::to_string(ids[i]) + " at " + std::to_string(i) + " is outside the vocabulary of " +
                                      std::to_string(facts.vocab_size));
  }
  return {};
}

MissReason reason_of_miss(const EngineFacts& facts, const QueryRequest& request, const QueryContext& context, const ContextKey& expected) {
  if (!context.key) return MissReason::kNotCached;
  if (context.key->is_zero()) return MissReason::kNotCached;
  if (*context.key == expected) return MissReason::kEvicted;
  const bool salted = request.salt_digest != SaltDigest{};
  if (salted && *context.key == context_key(facts, context.token_ids, request.tenant, SaltDigest{})) return MissReason::kSaltMismatch;
  return MissReason::kModelChanged;
}

void describe_contexts(const EngineFacts& facts, const QueryRequest& request, const LookupContext& lookup, QueryPlan& qp) {
  const std::vector<std::size_t> first = first_equal_contexts(request);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const QueryContext& context = request.contexts[i];
    PlannedContext planned;
    ContextWork work;
    planned.index = static_cast<std::int32_t>(i);
    planned.document_id = context.document_id;
    planned.chunk = context.chunk;
    planned.num_tokens = count(context.token_ids);
    planned.duplicate = planned.num_tokens > 0 && first[i] != i;
    if (planned.num_tokens > 0) {
      work.layout = kv_layout(facts, planned.num_tokens);
      planned.block_tokens = work.layout.block_tokens();
      work.key = context_key(facts, context.token_ids, request.tenant, request.salt_digest);
      work.writable = request.cache.write && context.key && *context.key == work.key;
      ContextLookup found = lookup(work.key, work.layout);
      planned.cached = found.segment.valid();
      if (!planned.cached) planned.miss = reason_of_miss(facts, request, context, work.key);
      if (planned.cached && !work.layout.fits(found.segment->layout)) {
        // Same key, other shape: cannot happen by design, so the record lies.
        planned.cached = false;
        planned.miss = MissReason::kCorrupt;
      }
      if (planned.cached) work.segment = std::move(found.segment);
      const auto ids = block_ids(facts, context.token_ids, request.tenant, request.salt_digest);
      for (std::int32_t b = 0; b < work.layout.num_blocks(); ++b) {
        PlannedBlock block;
        block.first_token = static_cast<std::int32_t>(work.layout.first_token(b));
        block.num_tokens = work.layout.tokens_in(b);
        block.id = ids[static_cast<std::size_t>(b)];
        const auto at = static_cast<std::size_t>(b);
        block.tier = planned.cached && at < found.block_tiers.size() ? found.block_tiers[at] : Tier::kNone;
        planned.blocks.push_back(block);
      }
    }
    qp.plan.contexts.push_back(std::move(planned));
    qp.work.push_back(std::move(work));
  }
}

void add_fallback(Plan& plan, const std::string& why) { plan.fallback = plan.fallback ? *plan.fallback + "; " + why : why; }

/// Predicted ms until the first token if `strategy` served the documents: its usual share of their stored KV is read, and of their tokens
/// computed again; what is not stored is computed. 0 when speeds are not known.
double predicted_ms(const EngineFacts& facts, const Speeds& speeds, const QueryRequest& request, const Strategy& strategy, const QueryPlan& qp) {
  if (speeds.prefill_tokens_per_ms <= 0) return 0;
  const bool first_exact = request.prefix_ids == facts.ingest_prefix;
  double dram = 0, disk = 0;
  auto computed = static_cast<double>(qp.plan.prefix_tokens + qp.plan.suffix_tokens);
  bool first = true;
  for (std::size_t i = 0; i < qp.plan.contexts.size(); ++i) {
    const PlannedContext& c = qp.plan.contexts[i];
    if (c.num_tokens == 0 || c.duplicate) continue;
    const bool exact = first && first_exact;
    first = false;
    if (!c.cached || (strategy.same_as_recompute && (strategy.name == "recompute" || !exact))) {
      computed += static_cast<double>(c.num_tokens);
      continue;
    }
    if (!exact) computed += strategy.typical_recompute * static_cast<double>(c.num_tokens);
    const double bytes = strategy.typical_load * static_cast<double>(qp.work[i].layout.total_bytes());
    (c.blocks.front().tier == Tier::kDram ? dram : disk) += bytes;
  }
  if ((dram > 0 && speeds.dram_bytes_per_ms <= 0) || (disk > 0 && speeds.disk_bytes_per_ms <= 0)) return 0;
  return computed / speeds.prefill_tokens_per_ms + (dram > 0 ? dram / speeds.dram_bytes_per_ms : 0) + (disk > 0 ? disk / speeds.disk_bytes_per_ms : 0);
}

AutoChoice choose(const EngineFacts& facts, const Speeds& speeds, const QueryRequest& request, const QueryPlan& qp) {
  AutoInput input;
  input.prompt_tokens = qp.plan.prompt_tokens;
  input.small_context_tokens = facts.small_context_tokens;
  for (const PlannedContext& c : qp.plan.contexts) input.cached_tokens += c.cached ? c.num_tokens : 0;
  const auto predicted = [&](std::string_view name) {
    const auto strategy = find_strategy(name);
    return strategy.ok() ? predicted_ms(facts, speeds, request, *strategy, qp) : 0;
  };
  input.recompute_ms = predicted("recompute");
  input.exact_ms = predicted("exact");
  if (request.certified_strategy && find_strategy(*request.certified_strategy).ok()) {
    input.certified_strategy = request.certified_strategy;
    input.certified_ms = predicted(*request.certified_strategy);
  }
  return choose_strategy(input);
}

/// Why `auto` may leave nothing out, if that is so.
std::string dense_because(const QueryPlan& qp) {
  const Plan& plan = qp.plan;
  const auto drop = plan.options.given().find("drop_mode");
  if (drop != plan.options.given().end() && drop->second == "drop") return "compression drops rows, there is nothing to choose from";
  if (qp.strategy.same_as_recompute) return "strategy " + plan.strategy + " promises the answer of a full prefill";
  if (plan.strategy_asked == "auto") return "the fidelity test that strategy " + plan.strategy + " passed is one of dense decoding; name a strategy or a retriever to leave rows out";
  return {};
}

/// What a decode step attends to, where the request leaves that to the service.
Status choose_retriever(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.decode = request.cache.decode;
  if (plan.decode != "auto") return {};
  std::vector<std::string> names;
  for (const std::string& name : retriever_names()) {
    // Sinks and windows differ: some can do nothing with a small budget, or with one that is no whole number of their pages.
    QUIRE_ASSIGN_OR_RETURN(const auto retriever, make_retriever(name));
    if (retriever->check(plan.options).ok()) names.push_back(name);
  }
  DecodeInput input;
  const double kept = static_cast<double>(plan.document_tokens) * qp.strategy.typical_load;
  input.rows = plan.prefix_tokens + plan.suffix_tokens + static_cast<std::int64_t>(kept) + request.sampling.max_tokens;
  input.budget = static_cast<std::int64_t>(plan.options.number(auto_decode_options(), "decode_budget"));
  input.dense_because = dense_because(qp);
  input.head = facts.retrieval_head;
  input.names = names;
  input.device = facts.device;
  DecodeChoice choice = choose_decode(input);
  plan.decode = std::move(choice.decode);
  plan.decode_reason = std::move(choice.reason);
  return {};
}

Status pick_strategy(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.strategy_asked = request.cache.strategy;
  std::string name = request.cache.strategy;
  if (name == "auto") {
    AutoChoice choice = choose(facts, speeds, request, qp);
    name = std::move(choice.strategy);
    plan.reason = std::move(choice.reason);
  }
  QUIRE_ASSIGN_OR_RETURN(qp.strategy, find_strategy(name));
  plan.strategy = qp.strategy.name;
  plan.selector = qp.strategy.selector;
  plan.options = request.cache.options;
  plan.prompt_compression = request.cache.prompt_compression;
  plan.prompt_options = request.cache.prompt_options;
  plan.recomputer = recomputer_of(qp.strategy, request.cache.options);
  plan.compress = request.cache.compress == "auto" ? "none" : request.cache.compress;
  QUIRE_RETURN_IF_ERROR(choose_retriever(facts, request, qp));
  std::string unused;
  const auto note = [&unused](bool asked, bool taken, const char* what) {
    if (!asked || taken) return;
    unused += unused.empty() ? what : std::string(" and ") + what;
  };
  note(request.cache.keep_ratio.has_value(), qp.strategy.takes_keep_ratio, "keep_ratio");
  note(request.cache.recompute_ratio.has_value(), qp.strategy.takes_recompute_ratio, "recompute_ratio");
  if (!unused.empty()) add_fallback(plan, "strategy " + plan.strategy + " does not take " + unused);
  return {};
}

/// Offsets in the concatenation; empty contexts and dropped duplicates take no room.
std::int64_t assign_offsets(QueryPlan& qp) {
  std::int64_t at = qp.plan.prefix_tokens;
  for (PlannedContext& c : qp.plan.contexts) {
    c.offset = at;
    if (!c.duplicate) at += c.num_tokens;
  }
  return at;
}

Status choose_sources(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  QUIRE_ASSIGN_OR_RETURN(const auto recomputer, make_recomputer(qp.plan.recomputer));
  const PlugInputs inputs(facts, request, qp);
  const RecomputeInput input = inputs.recompute();
  for (std::size_t i = 0; i < qp.work.size(); ++i) {
    PlannedContext& c = qp.plan.contexts[i];
    qp.work[i].exact = inputs.contexts()[i].exact;
    if (c.num_tokens == 0 || c.duplicate) continue;
    if (recomputer->computes_in_place(input, static_cast<std::int32_t>(i))) {
      qp.work[i].source = ContextSource::kInPlace;
      if (c.cached) c.miss = MissReason::kPolicyOff;
    } else {
      qp.work[i].source = c.cached ? ContextSource::kStored : ContextSource::kAlone;
    }
  }
  return {};
}

Selection nothing_selected(const EngineFacts& facts, std::size_t num_contexts) {
  return Selection::shared(facts.shape.num_layers, Selection::ContextBlocks(num_contexts));
}

/// The selection, where it needs neither the question nor sketches; else what the question is to be run over.
Status select_blocks(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  QUIRE_ASSIGN_OR_RETURN(const auto selector, make_selector(qp.strategy.selector));
  const PlugInputs inputs(facts, request, qp);
  const SelectionInput input = inputs.selection();
  const bool any = std::any_of(input.contexts.begin(), input.contexts.end(), [](const SelectableContext& c) { return c.num_blocks > 0; });
  std::optional<Selection> pass;
  if (any && !request.suffix_ids.empty()) pass = selector->query_pass_blocks(input);
  qp.needs_query_pass = pass.has_value();
  qp.needs_sketches = any && selector->needs_sketches(input);
  qp.plan.selection_pending = qp.needs_query_pass || qp.needs_sketches;
  if (qp.plan.selection_pending) {
    qp.selection = pass ? std::move(*pass) : nothing_selected(facts, qp.work.size());
  } else {
    QUIRE_ASSIGN_OR_RETURN(qp.selection, selector->select(input));
  }
  return {};
}

/// Tokens that will be recomputed, as far as the recomputer knows.
Status plan_recompute(const EngineFacts& facts, const QueryRequest& request, const SketchLookup& sketch, QueryPlan& qp) {
  QUIRE_ASSIGN_OR_RETURN(const auto recomputer, make_recomputer(qp.plan.recomputer));
  const PlugInputs inputs(facts, request, qp);
  RecomputeInput input = inputs.recompute();
  input.selection = &qp.selection;
  input.sketch = sketch;
  const auto again = recomputer->planned_tokens(input);
  for (std::size_t i = 0; i < qp.plan.contexts.size(); ++i) {
    for (PlannedBlock& b : qp.plan.contexts[i].blocks) b.recomputed_tokens = 0;
    if (i >= again.size()) continue;
    for (const std::int32_t token : again[i]) ++qp.plan.contexts[i].blocks[static_cast<std::size_t>(token / qp.plan.contexts[i].block_tokens)].recomputed_tokens;
  }
  return {};
}

void assign_positions(const EngineFacts& facts, QueryPlan& qp) {
  Plan& plan = qp.plan;
  std::int64_t rank = plan.prefix_tokens;
  for (std::size_t i = 0; i < qp.work.size(); ++i) {
    PlannedContext& c = plan.contexts[i];
    ContextWork& w = qp.work[i];
    w.block_position.assign(c.blocks.size(), -1);
    if (w.source == ContextSource::kNothing) continue;
    for (std::size_t b = 0; b < c.blocks.size(); ++b) {
      PlannedBlock& block = c.blocks[b];
      block.kept_layers = w.source == ContextSource::kInPlace ? facts.shape.num_layers
                                                              : qp.selection.kept_layers(static_cast<std::int32_t>(i), static_cast<std::int32_t>(b));
      if (i < qp.selection.scores.size() && b < qp.selection.scores[i].size()) block.score = qp.selection.scores[i][b];
      if (block.kept_layers == 0) continue;
      const std::int64_t local = block.first_token;
      switch (plan.positions) {
        case PositionMode::kGlobal: w.block_position[b] = static_cast<std::int32_t>(c.offset + local); break;
        case PositionMode::kCompact: w.block_position[b] = static_cast<std::int32_t>(rank); break;
        // The position it had at ingest, where the prefix stood before it.
        case PositionMode::kLocalNaive: w.block_position[b] = static_cast<std::int32_t>(count(facts.ingest_prefix) + local); break;
      }
      rank += block.num_tokens;
    }
  }
  qp.suffix_position = static_cast<std::int32_t>(plan.positions == PositionMode::kCompact ? rank : qp.end_of_documents);
}

Status check_window(const EngineFacts& facts, const QueryPlan& qp) {
  const std::int64_t actual = qp.suffix_position + qp.plan.suffix_tokens + 1;
  if (actual <= facts.window) return {};
  return window_exceeded_status({facts.window, actual}, qp.plan.document_tokens > 0 ? "document_ids" : "query");
}

/// Takes out what a selection has over the window when its tokens are numbered without gaps: the blocks with the lowest scores first, of those that
/// were chosen besides `fixed`. A position belongs to a block that any layer keeps.
void fit_window(const EngineFacts& facts, const Selection& fixed, Selection& selection, Plan& plan) {
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
      const std::int64_t tokens = plan.contexts[i].blocks[static_cast<std::size_t>(block)].num_tokens;
      over += tokens;
      if (std::binary_search(stay.begin(), stay.end(), block)) continue;
      const bool scored = i < selection.scores.size() && static_cast<std::size_t>(block) < selection.scores[i].size();
      const float score = scored ? selection.scores[i][static_cast<std::size_t>(block)] : 0;
      chosen.push_back({score == score ? score : -std::numeric_limits<float>::infinity(), context, block, tokens});
    }
  }
  if (over <= 0) return;
  std::stable_sort(chosen.begin(), chosen.end(), [](const Chosen& a, const Chosen& b) { return a.score < b.score; });
  std::vector<std::pair<std::int32_t, std::int32_t>> dropped;
  for (auto c = chosen.begin(); c != chosen.end() && over > 0; ++c) {
    dropped.emplace_back(c->context, c->block);
    over -= c->tokens;
  }
  selection.drop(dropped);
  add_fallback(plan, std::to_string(dropped.size()) + " blocks less than chosen, so that the rest fits the window");
}

void predict(const EngineFacts& facts, const Speeds& speeds, QueryPlan& qp) {
  Plan& plan = qp.plan;
  double dram = 0, disk = 0;
  std::int64_t computed = plan.prefix_tokens + plan.suffix_tokens - qp.shared_tokens;
  for (std::size_t i = 0; i < qp.work.size(); ++i) {
    const PlannedContext& c = plan.contexts[i];
    const ContextWork& w = qp.work[i];
    if (w.source == ContextSource::kAlone || w.source == ContextSource::kInPlace) computed += c.num_tokens;
    if (w.source == ContextSource::kAlone) computed += count(facts.ingest_prefix);
    if (w.source != ContextSource::kStored) continue;
    for (std::size_t b = 0; b < c.blocks.size(); ++b) {
      if (c.blocks[b].kept_layers == 0) continue;
      const auto bytes = static_cast<double>(w.layout.layer_bytes(static_cast<std::int32_t>(b)) * facts.shape.num_layers);
      (c.blocks[b].tier == Tier::kDram ? dram : disk) += bytes;
    }
  }
  plan.predicted_load_ms = (speeds.dram_bytes_per_ms > 0 ? dram / speeds.dram_bytes_per_ms : 0) +
                           (speeds.disk_bytes_per_ms > 0 ? disk / speeds.disk_bytes_per_ms : 0);
  plan.predicted_prefill_ms = speeds.prefill_tokens_per_ms > 0 ? static_cast<double>(computed) / speeds.prefill_tokens_per_ms : 0;
}

Fate fate_of(const ContextWork& work, const PlannedContext& context, const PlannedBlock& block) {
  switch (work.source) {
    case ContextSource::kNothing: return Fate::kDropped;
    case ContextSource::kInPlace: return context.cached ? Fate::kRecomputed : Fate::kComputed;
    case ContextSource::kAlone: return Fate::kComputed;
    case ContextSource::kStored: break;
  }
  if (block.kept_layers == 0) return Fate::kDropped;
  return block.recomputed_tokens > 0 ? Fate::kRecomputed : Fate::kReused;
}

Status check_head(const EngineFacts& facts, const QueryRequest& request) {
  if (request.cache.decode == "auto" || facts.retrieval_head) return {};
  QUIRE_ASSIGN_OR_RETURN(const auto retriever, make_retriever(request.cache.decode));
  if (!retriever->wants_head()) return {};
  if (facts.draft_window == 0) {
    return Status::invalid("cache.decode", request.cache.decode + " chooses by a retrieval head and this service has none: name its folder in model.retrieval_head_path, or in model.draft_path that of a draft "
                                                                  "with the model's tokens, or take freekv or auto");
  }
  std::int64_t tokens = static_cast<std::int64_t>(request.prefix_ids.size() + request.suffix_ids.size()) + request.sampling.max_tokens;
  for (const QueryContext& c : request.contexts) tokens += static_cast<std::int64_t>(c.token_ids.size());
  if (tokens <= facts.draft_window) return {};
  return Status::invalid("cache.decode", "without a retrieval head " + request.cache.decode + " chooses by the draft, whose window holds " + std::to_string(facts.draft_window) +
                                             " tokens; the prompt and its answer have " + std::to_string(tokens) + ": take freekv, or name a head in model.retrieval_head_path");
}

}  // namespace

std::vector<std::size_t> first_equal_contexts(const QueryRequest& request) {
  std::vector<std::size_t> first(request.contexts.size());
  std::map<std::span<const std::int32_t>, std::size_t, bool (*)(std::span<const std::int32_t>, std::span<const std::int32_t>)> seen(
      [](std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
      });
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = request.cache.dedupe ? seen.try_emplace(request.contexts[i].token_ids, i).first->second : i;
  return first;
}

Status validate_uncut(const EngineFacts& facts, const QueryRequest& request) {
  QUIRE_RETURN_IF_ERROR(validate(request.cache));
  QUIRE_RETURN_IF_ERROR(check_head(facts, request));
  QUIRE_RETURN_IF_ERROR(validate(request.sampling, facts.vocab_size));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.prefix_ids, "system"));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.suffix_ids, "query"));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.sampling.forced_tokens, "forced_tokens"));
  std::int64_t total = count(request.prefix_ids) + count(request.suffix_ids);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(check_ids(facts, request.contexts[i].token_ids, "documents[" + std::to_string(i) + "]"));
    total += count(request.contexts[i].token_ids);
  }
  if (total == 0) return Status::invalid("query", "the prompt is empty: give a question");
  return {};
}

Status validate_query(const EngineFacts& facts, const QueryRequest& request) {
  QUIRE_RETURN_IF_ERROR(validate_uncut(facts, request));
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const std::int64_t alone = count(facts.ingest_prefix) + count(request.contexts[i].token_ids);
    if (alone > facts.window) return window_exceeded_status({facts.window, alone}, "documents[" + std::to_string(i) + "]");
  }
  return {};
}

void finish_plan(const EngineFacts& facts, const QueryRequest&, const Speeds& speeds, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.fates = FateCounts{};
  if (plan.prompt_cut) plan.fates.dropped = plan.prompt_cut->removed_tokens;
  // The front of the prompt, as causal_front() has it: prefix, contexts in place, question.
  std::int64_t shared = qp.shared_tokens;
  const auto share = [&](std::int64_t tokens) {
    const std::int64_t taken = std::min(shared, tokens);
    shared -= taken;
    plan.fates.reused += taken;
    return taken;
  };
  plan.fates.computed = plan.prefix_tokens - share(plan.prefix_tokens);
  std::int64_t pairs = 0, kept = 0, recomputed = 0;
  for (std::size_t i = 0; i < qp.work.size(); ++i) {
    for (PlannedBlock& block : plan.contexts[i].blocks) {
      block.action = fate_of(qp.work[i], plan.contexts[i], block);
      if (qp.work[i].source == ContextSource::kInPlace) {
        const std::int64_t taken = share(block.num_tokens), rest = block.num_tokens - taken;
        block.recomputed_tokens = plan.contexts[i].cached ? static_cast<std::int32_t>(rest) : 0;
        (plan.contexts[i].cached ? plan.fates.recomputed : plan.fates.computed) += rest;
        if (rest == 0) {
          block.action = Fate::kReused;
          block.tier = Tier::kDram;
        }
      } else if (block.action == Fate::kDropped) {
        plan.fates.dropped += block.num_tokens;
      } else if (block.action == Fate::kComputed) {
        plan.fates.computed += block.num_tokens;
      } else {
        plan.fates.recomputed += block.recomputed_tokens;
        plan.fates.reused += block.num_tokens - block.recomputed_tokens;
      }
      if (block.action == Fate::kRecomputed) recomputed += block.recomputed_tokens;
      pairs += facts.shape.num_layers;
      kept += block.kept_layers;
    }
  }
  plan.fates.computed += plan.suffix_tokens - share(plan.suffix_tokens);
  plan.keep_ratio = pairs > 0 ? static_cast<double>(kept) / static_cast<double>(pairs) : 1;
  plan.recompute_ratio = plan.document_tokens > 0 ? static_cast<double>(recomputed) / static_cast<double>(plan.document_tokens) : 0;
  predict(facts, speeds, qp);
}

void enter_cut(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds, PromptCut cut,
               std::span<const std::optional<CutText>> contexts, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.prompt_tokens = plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens + cut.removed_tokens;
  plan.prompt_cut = std::move(cut);
  for (std::size_t i = 0; i < plan.contexts.size() && i < contexts.size(); ++i) plan.contexts[i].cut = contexts[i];
  finish_plan(facts, request, speeds, qp);
}

Status complete_plan(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds, Selection selection, const SketchLookup& sketch,
                     QueryPlan& qp) {
  if (qp.plan.positions == PositionMode::kCompact) fit_window(facts, qp.selection, selection, qp.plan);
  qp.selection = std::move(selection);
  qp.plan.selection_pending = false;
  assign_positions(facts, qp);
  for (std::size_t i = 0; i < qp.plan.contexts.size() && i < qp.selection.contexts.size(); ++i) {
    qp.plan.contexts[i].keep_share = qp.selection.contexts[i].keep_share;
    qp.plan.contexts[i].bias_weight = qp.selection.contexts[i].bias_weight;
  }
  if (!qp.selection.note.empty()) add_fallback(qp.plan, qp.selection.note);
  QUIRE_RETURN_IF_ERROR(check_window(facts, qp));
  QUIRE_RETURN_IF_ERROR(plan_recompute(facts, request, sketch, qp));
  finish_plan(facts, request, speeds, qp);
  return {};
}

CausalFront causal_front(const QueryRequest& request, const QueryPlan& qp) {
  CausalFront front;
  front.token_ids = request.prefix_ids;
  for (std::size_t i = 0; i < qp.work.size(); ++i) {
    if (qp.work[i].source == ContextSource::kNothing) continue;
    if (qp.work[i].source != ContextSource::kInPlace || qp.plan.contexts[i].offset != count(front.token_ids)) return front;
    front.token_ids.insert(front.token_ids.end(), request.contexts[i].token_ids.begin(), request.contexts[i].token_ids.end());
  }
  if (qp.suffix_position != count(front.token_ids)) return front;
  front.token_ids.insert(front.token_ids.end(), request.suffix_ids.begin(), request.suffix_ids.end());
  front.whole = true;
  return front;
}

void turn_into_miss(QueryPlan& qp, std::int32_t context, MissReason reason) {
  PlannedContext& c = qp.plan.contexts[static_cast<std::size_t>(context)];
  ContextWork& w = qp.work[static_cast<std::size_t>(context)];
  c.cached = false;
  c.miss = reason;
  for (PlannedBlock& b : c.blocks) b.tier = Tier::kNone;
  w.segment = SegmentHandle();
  w.source = ContextSource::kAlone;
}

Result<QueryPlan> build_plan(const EngineFacts& facts, const QueryRequest& request, const LookupContext& lookup, const Speeds& speeds) {
  QUIRE_RETURN_IF_ERROR(validate_query(facts, request));
  QueryPlan qp;
  Plan& plan = qp.plan;
  plan.query_id = request.id;
  plan.num_layers = facts.shape.num_layers;
  plan.prefix_tokens = count(request.prefix_ids);
  plan.suffix_tokens = count(request.suffix_ids);
  for (const QueryContext& c : request.contexts) plan.document_tokens += count(c.token_ids);
  plan.prompt_tokens = plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens;
  describe_contexts(facts, request, lookup, qp);
  qp.end_of_documents = assign_offsets(qp);
  QUIRE_RETURN_IF_ERROR(pick_strategy(facts, request, speeds, qp));
  QUIRE_RETURN_IF_ERROR(choose_sources(facts, request, qp));
  QUIRE_RETURN_IF_ERROR(select_blocks(facts, request, qp));
  const bool too_long = qp.end_of_documents + plan.suffix_tokens + 1 > facts.window;
  plan.positions = request.cache.positions.value_or(PositionMode::kGlobal);
  if (plan.positions == PositionMode::kGlobal && too_long && qp.strategy.sparse) {
    plan.positions = PositionMode::kCompact;
    add_fallback(plan, "the documents exceed the model's window: kept tokens are numbered without gaps");
  }
  assign_positions(facts, qp);
  QUIRE_RETURN_IF_ERROR(check_window(facts, qp));
  if (!plan.selection_pending) QUIRE_RETURN_IF_ERROR(plan_recompute(facts, request, {}, qp));
  finish_plan(facts, request, speeds, qp);
  return qp;
}

}  // namespace quire
