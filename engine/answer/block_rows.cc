#include "engine/answer/block_rows.h"

#include <algorithm>
#include <string>

#include "base/index.h"

namespace quire {
Result<std::vector<BlockRows>> block_rows(const QueryRun& run, std::int32_t layer,
                                          std::int64_t rows_after) {
  std::vector<BlockRows> out;
  const std::span<const std::int32_t> positions = run.cache->positions(layer);
  std::int64_t row = run.plan.prefix_tokens;
  bool whole = true;
  const auto add = [&](std::int32_t context, std::int32_t block, std::int64_t tokens,
                       std::int64_t position) {
    whole = whole && row + tokens <= count_of(positions) && positions[at(row)] == position;
    out.push_back({context, block, {row, row + tokens}});
    row += tokens;
  };
  for (std::int32_t i = 0; i < run.num_contexts(); ++i) {
    const ContextWork& work = run.work(i);
    const PlannedContext& context = run.plan.contexts[at(i)];
    if (work.source == ContextSource::kInPlace) {
      for (std::size_t b = 0; b < context.blocks.size(); ++b) {
        add(i, static_cast<std::int32_t>(b), context.blocks[b].num_tokens,
            context.offset + context.blocks[b].first_token);
      }
    } else if (work.source != ContextSource::kNothing) {
      for (const std::int32_t b : run.execution.selection.kept(layer, i))
        add(i, b, context.blocks[at(b)].num_tokens, work.block_position[at(b)]);
    }
  }
  if (!whole || row + rows_after > count_of(positions)) {
    return Status::internal("layer " + std::to_string(layer) +
                            " of the working cache does not hold the rows of the plan");
  }
  return out;
}

LayerRows layer_rows(const QueryRun& run, std::int32_t layer, std::span<const BlockRows> blocks) {
  LayerRows out;
  out.num_rows = run.cache->num_rows(layer);
  out.prefix = {0, run.plan.prefix_tokens};
  std::int32_t context = -1;
  for (const BlockRows& b : blocks) {
    if (b.context != context) out.contexts.push_back({b.rows.begin, b.rows.begin});
    context = b.context;
    out.contexts.back().end = b.rows.end;
    if (!run.execution.strategy.sparse) continue;
    const auto num_blocks = static_cast<std::int32_t>(
        run.plan.contexts[at(b.context)].blocks.size());
    const auto& given = run.execution.selection.anchors;
    const auto anchors = given ? (*given)[at(b.context)] : anchor_blocks(num_blocks);
    if (std::find(anchors.begin(), anchors.end(), b.block) != anchors.end())
      out.anchors.push_back(b.rows);
  }
  out.question = {blocks.empty() ? out.prefix.end : blocks.back().rows.end, out.num_rows};
  return out;
}

}  // namespace quire
