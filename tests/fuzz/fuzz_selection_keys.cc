// The record of a context's keys in the selection heads, of any bytes, is refused or every key of
// it can be read and is finite.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "engine/record/selection_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto view = SelectionKeysView::parse(std::as_bytes(std::span(data, size)));
  if (!view.ok()) {
    if (view.status().code() != Code::kCorruption || view.status().message().empty()) std::abort();
    return 0;
  }
  const SelectionKeysShape& shape = view->shape();
  std::vector<float> keys(static_cast<std::size_t>(shape.num_tokens) *
                          static_cast<std::size_t>(shape.head_dim));
  for (std::size_t p = 0; p < shape.pairs.size(); ++p) {
    view->keys(p, 0, shape.num_tokens, keys);
    for (const float x : keys) {
      if (std::isnan(x)) std::abort();
    }
  }
  return 0;
}
