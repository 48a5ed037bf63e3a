#include "engine/retrieve/pages/device_choices.h"

#include <utility>

#include "base/index.h"

namespace quire {

DeviceChoices::DeviceChoices(std::shared_ptr<ChoosingMemory> memory, const Shape& shape)
    : memory_(std::move(memory)), shape_(shape), layers_(at(shape.num_layers)) {}

ChoosingNeed DeviceChoices::need(const Shape& shape, std::int64_t page_tokens,
                                 std::int64_t more_pages) {
  const std::int64_t layers = shape.num_layers, heads = layers * shape.num_kv_heads;
  ChoosingNeed need{
      bytes_of<RowRange>(layers * with_room(more_pages)),
      (need_with_room(layers, 0, sizeof(RowRange)).row_bytes + page_tokens - 1) / page_tokens};
  need.fixed_bytes += bytes_of<PageHead>(heads) +
                      bytes_of<std::int32_t>(2 * heads * shape.selected) +
                      bytes_of<std::int32_t>(shape.num_kv_heads * shape.most_rows) +
                      bytes_of<RowList>(shape.num_kv_heads);
  if (shape.by_turn) need.fixed_bytes += bytes_of<float>(layers * shape.num_heads * shape.head_dim);
  return need;
}

Result<ChoosingSequence> DeviceChoices::of(std::int32_t layer, const RetrievalPages& pages,
                                           std::int32_t first_served) {
  const std::int64_t chosen = std::int64_t{2} * shape_.num_kv_heads * shape_.selected;
  if (heads_.data() == nullptr) {
    QUIRE_RETURN_IF_ERROR(heads_.reserve(memory_, heads()));
    // A step that fails before it ran has counted nothing.
    const std::vector<PageHead> none(to_size(heads()));
    QUIRE_RETURN_IF_ERROR(
        memory_->write(heads_.data(), none.data(), bytes_of<PageHead>(count_of(none))));
  }
  QUIRE_RETURN_IF_ERROR(chosen_.reserve(memory_, shape_.num_layers * chosen));
  if (shape_.by_turn)
    QUIRE_RETURN_IF_ERROR(chosen_by_.reserve(memory_, shape_.num_layers * width()));
  QUIRE_RETURN_IF_ERROR(rows_.reserve(memory_, shape_.num_kv_heads * shape_.most_rows));
  QUIRE_RETURN_IF_ERROR(lists_.reserve(memory_, shape_.num_kv_heads));
  Layer& one = layers_[at(layer)];
  if (pages.size() > one.room) {
    one.room = one.known_rows = 0;
    const std::int64_t room = with_room(pages.size());
    QUIRE_RETURN_IF_ERROR(one.units.reserve(memory_, room));
    one.room = room;
  }
  // A step adds one row, and the call writes the page that has it.
  if (pages.num_rows() != one.known_rows + 1)
    QUIRE_RETURN_IF_ERROR(
        memory_->write(one.units.data(), pages.all().data(), bytes_of<RowRange>(pages.size())));
  one.known_rows = pages.num_rows();
  ChoosingSequence out{};
  out.units = one.units.data();
  out.heads = heads_.data() + std::int64_t{layer} * shape_.num_kv_heads;
  out.chosen = chosen_.data() + layer * chosen;
  out.chosen_by = shape_.by_turn ? chosen_by_.data() + layer * width() : nullptr;
  out.rows = rows_.data();
  out.lists = lists_.data();
  out.last_unit = pages[pages.size() - 1];
  out.num_units = pages.size();
  out.fresh_unit = -1;
  out.first_served = one.chose ? -1 : first_served;
  return out;
}

Result<std::vector<DeviceChoices::Choice>> DeviceChoices::read(std::int32_t layer) const {
  const std::int64_t kv_heads = shape_.num_kv_heads, size = kv_heads * shape_.selected;
  std::vector<PageHead> heads(to_size(kv_heads));
  std::vector<std::int32_t> chosen(to_size(2 * size));
  QUIRE_RETURN_IF_ERROR(
      memory_->read(heads_.data() + layer * kv_heads, bytes_of<PageHead>(kv_heads), heads.data()));
  QUIRE_RETURN_IF_ERROR(memory_->read(chosen_.data() + 2 * layer * size,
                                      bytes_of<std::int32_t>(2 * size), chosen.data()));
  std::vector<Choice> out(to_size(kv_heads));
  for (std::int64_t m = 0; m < kv_heads; ++m) {
    const PageHead& head = heads[at(m)];
    const std::int32_t next = head.current ^ head.coming;
    const auto pages = chosen.begin() + (next * size + m * shape_.selected);
    out[at(m)] = {{pages, pages + shape_.selected}, head.seen[next]};
  }
  return out;
}

Result<DeviceChoices::Counts> DeviceChoices::counts() const {
  Counts out;
  std::vector<PageHead> heads(to_size(heads_.data() != nullptr ? this->heads() : 0));
  QUIRE_RETURN_IF_ERROR(
      memory_->read(heads_.data(), bytes_of<PageHead>(count_of(heads)), heads.data()));
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (!layers_[i / to_size(shape_.num_kv_heads)].chose) continue;
    out.heads_corrected += heads[i].corrected;
    out.heads_kept += heads[i].kept;
    if (i % to_size(shape_.num_kv_heads) == 0) out.selections += heads[i].selections;
  }
  return out;
}

}  // namespace quire
