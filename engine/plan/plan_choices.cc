#include "engine/plan/plan_choices.h"

#include <string>
#include <vector>

#include "engine/api/speed_meter.h"
#include "engine/compress/compressor.h"
#include "engine/plan/decode_choice.h"
#include "engine/plan/plug_inputs.h"
#include "engine/retrieve/retriever.h"

namespace quire {
namespace {

/// Predicts the ms until the first token if `strategy` served the documents. It loads its usual
/// share of their stored KV, recomputes its usual share of their tokens, and computes what is not
/// stored. 0 if speeds are unknown.
double predicted_ms(const EngineFacts& facts, const Speeds& speeds, const QueryRequest& request,
                    const Strategy& strategy, const CacheOptions& cache, const QueryPlan& qp) {
  if (speeds.prefill_tokens_per_ms <= 0) return 0;
  ExactContexts exact_contexts(facts, request);
  double dram = 0, disk = 0;
  auto computed = static_cast<double>(qp.plan.prefix_tokens + qp.plan.suffix_tokens);
  for (std::size_t i = 0; i < qp.plan.contexts.size(); ++i) {
    const PlannedContext& c = qp.plan.contexts[i];
    if (c.num_tokens == 0 || c.duplicate) continue;
    const bool exact = exact_contexts.next(request.contexts[i]);
    if (!c.cached || (strategy.same_as_recompute && (strategy.name == "recompute" || !exact))) {
      computed += static_cast<double>(c.num_tokens);
      continue;
    }
    if (!exact)
      computed += cache.recompute_ratio.value_or(strategy.typical_recompute) *
                  static_cast<double>(c.num_tokens);
    const double bytes = cache.keep_ratio.value_or(strategy.typical_load) *
                         static_cast<double>(qp.execution.work[i].layout.total_bytes());
    (c.blocks.front().tier == Tier::kDisk ? disk : dram) += bytes;
  }
  if ((dram > 0 && speeds.dram_bytes_per_ms <= 0) || (disk > 0 && speeds.disk_bytes_per_ms <= 0))
    return 0;
  return computed / speeds.prefill_tokens_per_ms +
         (dram > 0 ? dram / speeds.dram_bytes_per_ms : 0) +
         (disk > 0 ? disk / speeds.disk_bytes_per_ms : 0);
}

AutoChoice choose(const EngineFacts& facts, const Speeds& speeds, const QueryRequest& request,
                  const QueryPlan& qp) {
  AutoInput input;
  input.prompt_tokens = qp.plan.prompt_tokens;
  input.small_context_tokens = facts.small_context_tokens;
  for (const PlannedContext& c : qp.plan.contexts)
    input.cached_tokens += c.cached ? c.num_tokens : 0;
  const auto predicted = [&](std::string_view name, const CacheOptions& cache) {
    const auto strategy = find_strategy(name);
    return strategy.ok() ? predicted_ms(facts, speeds, request, *strategy, cache, qp) : 0;
  };
  input.recompute_ms = predicted("recompute", {});
  input.exact_ms = predicted("exact", {});
  if (request.certified && find_strategy(request.certified->cache.strategy).ok()) {
    const CacheOptions& cache = request.certified->cache;
    input.certified_strategy = cache.strategy;
    input.certified_because = request.certified->evidence;
    input.certified_ms = predicted(cache.strategy, cache);
  } else {
    input.not_certified = request.not_certified;
  }
  return choose_strategy(input);
}

/// Returns why `auto` must attend densely, if so.
std::string dense_because(const EngineFacts& facts, const QueryPlan& qp) {
  const Plan& plan = qp.plan;
  if (facts.split_kv) return "KV is cut over several GPUs (model.split_kv)";
  const auto compressor = compressors().make(plan.compress, plan.options);
  if (compressor.ok() && (*compressor)->drops_rows())
    return "compression drops rows, there is nothing to choose from";
  if (qp.execution.strategy.same_as_recompute)
    return "strategy " + plan.strategy + " promises the answer of a full prefill";
  if (plan.strategy_asked == "auto")
    return "the fidelity test that strategy " + plan.strategy +
           " passed is one of dense decoding; name a strategy or a retriever to leave rows out";
  return {};
}

/// Returns whether a request's share of the device holds what the retriever needs if every layer is
/// on the host: the budget, and what it chooses by.
bool has_room(const EngineFacts& facts, const Retriever& retriever, std::int64_t num_contexts,
              const DecodeInput& input, std::int64_t most_rows) {
  // For rounding to whole pages, and for pages being filled.
  constexpr std::int64_t kRoundedUp = 64;
  const std::int64_t part = facts.device_part(), budget = retriever.traits().uses_device
                                                              ? (input.budget + kRoundedUp) *
                                                                    facts.device.num_layers *
                                                                    facts.device.row_bytes
                                                              : 0;
  return part == 0 ||
         budget + choosing_bytes(facts.choosing, retriever, num_contexts, most_rows) <= part;
}

/// Chooses what a decode step attends to, if the request leaves that to the service.
Status choose_retriever(const EngineFacts& facts, const QueryRequest& request, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.decode = request.cache.decode;
  if (plan.decode != "auto") return {};
  DecodeInput input;
  const double kept = static_cast<double>(plan.document_tokens) *
                      qp.execution.strategy.typical_load;
  const std::int64_t prompt_rows = plan.prefix_tokens + plan.suffix_tokens +
                                   static_cast<std::int64_t>(kept);
  // What is faster is judged by the answer that is expected; room must be there for the longest.
  input.rows = prompt_rows + counted_answer_tokens(request.sampling);
  const std::int64_t most_rows = prompt_rows + request.sampling.max_tokens;
  QUIRE_ASSIGN_OR_RETURN(const AutoDecodeOptions asked,
                         auto_decode_options().parse(plan.options, "cache.options"));
  input.budget = asked.budget;
  input.dense_because = dense_because(facts, qp);
  input.head = facts.retrieval_head;
  input.device = facts.device;
  std::vector<std::string> names;
  for (const std::string& name : retrievers().names()) {
    // Retrievers differ in sinks and windows: some cannot use a small budget, or one that is not a
    // whole number of pages.
    const auto retriever = retrievers().make(name, plan.options);
    if (retriever.ok() &&
        has_room(facts, **retriever, std::ssize(request.contexts), input, most_rows))
      names.push_back(name);
  }
  input.names = names;
  DecodeChoice choice = choose_decode(input);
  plan.decode = std::move(choice.decode);
  plan.decode_reason = std::move(choice.reason);
  return {};
}

/// Takes over the settings that a strategy was certified with. What concerns compression, decoding
/// and writing stays the request's.
void take_settings(const CacheOptions& certified, CacheOptions& cache) {
  cache.positions = certified.positions;
  cache.keep_ratio = certified.keep_ratio;
  cache.recompute_ratio = certified.recompute_ratio;
  cache.options = certified.options;
}

}  // namespace

Status pick_strategy(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
                     QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.strategy_asked = request.cache.strategy;
  CacheOptions& cache = qp.execution.cache;
  cache = request.cache;
  std::string name = cache.strategy;
  if (name == "auto") {
    AutoChoice choice = choose(facts, speeds, request, qp);
    name = std::move(choice.strategy);
    plan.reason = std::move(choice.reason);
    if (choice.certified) take_settings(request.certified->cache, cache);
  }
  QUIRE_ASSIGN_OR_RETURN(qp.execution.strategy, find_strategy(name));
  plan.strategy = qp.execution.strategy.name;
  plan.selector = qp.execution.strategy.selector;
  plan.options = cache.options;
  plan.prompt_compression = request.cache.prompt_compression;
  plan.prompt_options = request.cache.prompt_options;
  plan.recomputer = recomputer_of(qp.execution.strategy, cache.options);
  plan.compress = request.cache.compress == "auto" ? "none" : request.cache.compress;
  QUIRE_RETURN_IF_ERROR(choose_retriever(facts, request, qp));
  std::string unused;
  const auto note = [&unused](bool asked, bool taken, const char* what) {
    if (!asked || taken) return;
    unused += unused.empty() ? what : std::string(" and ") + what;
  };
  note(cache.keep_ratio.has_value(), qp.execution.strategy.takes_keep_ratio, "keep_ratio");
  note(cache.recompute_ratio.has_value(), qp.execution.strategy.takes_recompute_ratio,
       "recompute_ratio");
  if (!unused.empty()) plan.add_fallback("strategy " + plan.strategy + " does not take " + unused);
  return {};
}

}  // namespace quire
