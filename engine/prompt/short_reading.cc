#include "engine/prompt/short_reading.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "kernels/attention/attention_vslash.h"

namespace quire {

ShortReading::ShortReading(std::int32_t model_layers, std::int32_t num_kv_heads,
                           const Settings& settings)
    : last_layer_(
          (settings.num_layers > 0 ? std::min(settings.num_layers, model_layers) : model_layers) -
          1),
      num_kv_heads_(num_kv_heads),
      ends_early_(last_layer_ + 1 < model_layers),
      settings_(settings),
      first_rows_(kFirstRows) {
  std::iota(first_rows_.begin(), first_rows_.end(), 0);
}

/// Rows before the scoring ones need only K and V in the last layer.
Status ShortReading::after_projection(LayerPass& pass) {
  if (pass.layer != last_layer_ || !settings_.drop_last) return {};
  for (std::size_t r = 0; r < pass.positions.size(); ++r) {
    if (pass.positions[r] < settings_.first_dense) (*pass.carry_on)[r] = 0;
  }
  return {};
}

Result<bool> ShortReading::attend(LayerPass&, const AttentionArgs& dense) {
  if (settings_.band == 0 || dense.query_positions[0] >= settings_.first_dense) return false;
  const std::int64_t near = std::lower_bound(dense.query_positions,
                                             dense.query_positions + dense.rows,
                                             settings_.first_dense) -
                            dense.query_positions;
  AttentionArgs part = dense;
  part.rows = near;
  const RowList first{first_rows_.data(), std::min<std::int64_t>(kFirstRows, dense.kv.num_rows)};
  const std::vector<RowList> columns(to_size(num_kv_heads_), first);
  QUIRE_RETURN_IF_ERROR(attention_vslash({part, columns.data(), settings_.band}));
  if (near == dense.rows) return true;
  part = dense;
  part.q += near * dense.ldq;
  part.query_positions += near;
  part.rows -= near;
  part.out += near * dense.ldo;
  if (part.lse != nullptr) part.lse += near * dense.num_heads;
  QUIRE_RETURN_IF_ERROR(attention(part));
  return true;
}

Status ShortReading::after_attention(LayerPass& pass) {
  if (pass.layer == last_layer_ && ends_early_)
    std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
  return {};
}

}  // namespace quire
