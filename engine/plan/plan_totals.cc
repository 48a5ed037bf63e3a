#include <algorithm>
#include <utility>

#include "base/index.h"
#include "engine/api/speed_meter.h"
#include "engine/plan/plan_builder.h"

namespace quire {
namespace {

void predict(const EngineFacts& facts, const Speeds& speeds, QueryPlan& qp) {
  Plan& plan = qp.plan;
  double dram = 0, disk = 0;
  std::int64_t computed = plan.prefix_tokens + plan.suffix_tokens - qp.execution.shared_tokens;
  for (std::size_t i = 0; i < qp.execution.work.size(); ++i) {
    const PlannedContext& c = plan.contexts[i];
    const ContextWork& w = qp.execution.work[i];
    if (w.source == ContextSource::kAlone || w.source == ContextSource::kInPlace)
      computed += c.num_tokens;
    if (w.source == ContextSource::kAlone) {
      computed += count_of(facts.ingest_prefix);
      // A chunk goes on from the rows of the one before if that one is computed, too.
      const bool goes_on = i > 0 && qp.execution.work[i - 1].source == ContextSource::kAlone;
      if (!goes_on) computed += w.left_tokens;
    }
    if (w.source != ContextSource::kStored) continue;
    for (std::size_t b = 0; b < c.blocks.size(); ++b) {
      if (c.blocks[b].kept_layers == 0) continue;
      const auto bytes = static_cast<double>(w.layout.layer_bytes(static_cast<std::int32_t>(b)) *
                                             facts.shape.num_layers);
      (c.blocks[b].tier == Tier::kDisk ? disk : dram) += bytes;
    }
  }
  plan.predicted_load_ms = (speeds.dram_bytes_per_ms > 0 ? dram / speeds.dram_bytes_per_ms : 0) +
                           (speeds.disk_bytes_per_ms > 0 ? disk / speeds.disk_bytes_per_ms : 0);
  plan.predicted_prefill_ms = speeds.prefill_tokens_per_ms > 0
                                  ? static_cast<double>(computed) / speeds.prefill_tokens_per_ms
                                  : 0;
}

Fate fate_of(const ContextWork& work, const PlannedContext& context, const PlannedBlock& block) {
  switch (work.source) {
    case ContextSource::kNothing:
      return Fate::kDropped;
    case ContextSource::kInPlace:
      return context.cached ? Fate::kRecomputed : Fate::kComputed;
    case ContextSource::kAlone:
      return Fate::kComputed;
    case ContextSource::kStored:
      break;
  }
  if (block.kept_layers == 0) return Fate::kDropped;
  return block.recomputed_tokens > 0 ? Fate::kRecomputed : Fate::kReused;
}

}  // namespace

void finish_plan(const EngineFacts& facts, const Speeds& speeds, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.fates = FateCounts{};
  if (plan.prompt_cut) plan.fates.dropped = plan.prompt_cut->removed_tokens;
  // This counts the front of the prompt as causal_front() defines it: prefix, contexts in place,
  // question.
  std::int64_t shared = qp.execution.shared_tokens;
  const auto share = [&](std::int64_t tokens) {
    const std::int64_t taken = std::min(shared, tokens);
    shared -= taken;
    plan.fates.reused += taken;
    return taken;
  };
  plan.fates.computed = plan.prefix_tokens - share(plan.prefix_tokens);
  std::int64_t pairs = 0, kept = 0, recomputed = 0;
  for (std::size_t i = 0; i < qp.execution.work.size(); ++i) {
    for (PlannedBlock& block : plan.contexts[i].blocks) {
      block.action = fate_of(qp.execution.work[i], plan.contexts[i], block);
      if (qp.execution.work[i].source == ContextSource::kInPlace) {
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
  plan.recompute_ratio = plan.document_tokens > 0 ? static_cast<double>(recomputed) /
                                                        static_cast<double>(plan.document_tokens)
                                                  : 0;
  predict(facts, speeds, qp);
}

void enter_cut(const EngineFacts& facts, const Speeds& speeds, PromptCut cut,
               std::span<const std::optional<CutText>> contexts, QueryPlan& qp) {
  Plan& plan = qp.plan;
  plan.prompt_tokens = plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens +
                       cut.removed_tokens;
  plan.prompt_cut = std::move(cut);
  for (std::size_t i = 0; i < plan.contexts.size() && i < contexts.size(); ++i)
    plan.contexts[i].cut = contexts[i];
  finish_plan(facts, speeds, qp);
}

}  // namespace quire
