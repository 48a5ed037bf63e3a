#include "engine/supply/stored_queries.h"

#include "base/index.h"
#include "engine/record/tail_record.h"

#include <algorithm>
#include <vector>

namespace quire {
namespace {

/// Returns the stored rows of a context that lie in a kept block of the prompt; ascending.
struct PlacedRow {
  std::int64_t row = 0;
  std::int32_t position = 0;
};

std::vector<PlacedRow> placed_rows(QueryRun& run, std::int32_t context,
                                   const TailRecordView& record) {
  std::vector<PlacedRow> out;
  const auto& blocks = run.planned(context).blocks;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::int32_t first = run.work(context).block_position[b];
    if (first < 0) continue;
    for (std::int64_t token = std::max<std::int64_t>(blocks[b].first_token, record.first_token());
         token < blocks[b].first_token + blocks[b].num_tokens; ++token) {
      out.push_back({token - record.first_token(),
                     first + static_cast<std::int32_t>(token - blocks[b].first_token)});
    }
  }
  return out;
}

}  // namespace

Status add_stored_queries(QueryRun& run, const KvSupply& supply) {
  const EngineFacts& facts = run.core.facts;
  std::vector<float> query(to_size(facts.num_heads) * to_size(facts.shape.head_dim));
  for (std::int32_t context = run.num_contexts() - 1; context >= 0; --context) {
    const ContextSource source = run.work(context).source;
    const TailRecordView* record = source == ContextSource::kStored ||
                                           source == ContextSource::kAlone
                                       ? supply.record<TailRecordView>(context)
                                       : nullptr;
    if (record == nullptr) continue;
    const std::vector<PlacedRow> rows = placed_rows(run, context, *record);
    for (std::int32_t layer = 0; layer < facts.shape.num_layers; ++layer) {
      for (auto row = rows.rbegin(); row != rows.rend() && run.queries->has_room(layer); ++row) {
        record->query(layer, row->row, query);
        QUIRE_RETURN_IF_ERROR(run.queries->add_stored(layer, row->position, query));
      }
    }
  }
  return {};
}

}  // namespace quire
