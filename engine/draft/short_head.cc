#include "engine/draft/short_head.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

/// Least ratio of the vocabulary to the common ids; below it the full head costs hardly more.
constexpr std::int64_t kWorthwhile = 4;

}  // namespace

Result<ShortHead::Part> ShortHead::part_of(std::vector<std::int32_t> ids) const {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::erase_if(ids, [&](std::int32_t id) { return id >= vocab_size_; });
  Part part;
  part.ids = std::move(ids);
  part.logits.resize(part.ids.size());
  if (!part.ids.empty()) {
    QUIRE_ASSIGN_OR_RETURN(part.weights, model_.head_rows(part.ids));
  }
  return part;
}

Result<std::unique_ptr<ShortHead>> ShortHead::make(Model& model, std::int32_t vocab_size,
                                                   std::int32_t common,
                                                   std::span<const std::int32_t> always) {
  if (common <= 0 || vocab_size < kWorthwhile * common) return std::unique_ptr<ShortHead>();
  std::unique_ptr<ShortHead> head(new ShortHead(model, vocab_size));
  std::vector<std::int32_t> ids(to_size(common));
  std::iota(ids.begin(), ids.end(), 0);
  ids.insert(ids.end(), always.begin(), always.end());
  QUIRE_ASSIGN_OR_RETURN(head->common_, head->part_of(std::move(ids)));
  if (head->common_.weights == nullptr) return std::unique_ptr<ShortHead>();
  return head;
}

Status ShortHead::add_only(std::span<const std::int32_t> token_ids) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : token_ids) {
    if (!std::binary_search(common_.ids.begin(), common_.ids.end(), id)) ids.push_back(id);
  }
  QUIRE_ASSIGN_OR_RETURN(own_, part_of(std::move(ids)));
  return {};
}

Result<std::int32_t> ShortHead::best(const float* hidden) {
  normed_.resize(to_size(model_.config().hidden_size));
  QUIRE_RETURN_IF_ERROR(model_.final_norm(hidden, 1, normed_.data()));
  std::int32_t best = -1;
  float most = 0;
  for (Part* part : {&common_, &own_}) {
    if (part->weights == nullptr) continue;
    const auto n = count_of(part->ids);
    QUIRE_RETURN_IF_ERROR(model_.compute().linear().product({part->weights.get(), normed_.data(), 1,
                                                             model_.config().hidden_size, nullptr,
                                                             part->logits.data(), n}));
    const auto first = to_size(argmax(part->logits.data(), n));
    if (best >= 0 && part->logits[first] <= most) continue;
    best = part->ids[first];
    most = part->logits[first];
  }
  return best;
}

}  // namespace quire
