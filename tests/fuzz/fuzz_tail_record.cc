// Stored queries of a context, of any bytes, are refused with a reason, or every query can be read.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/record/tail_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto view = TailRecordView::parse({reinterpret_cast<const std::byte*>(data), size});
  if (!view.ok()) {
    if (view.status().code() != Code::kCorruption || view.status().message().empty()) std::abort();
    return 0;
  }
  const TailRecordShape& shape = view->shape();
  std::vector<float> query(static_cast<std::size_t>(shape.num_heads) *
                           static_cast<std::size_t>(shape.head_dim));
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::int64_t row = 0; row < shape.num_rows; ++row) {
      view->query(layer, row, query);
      for (const float x : query) {
        if (!std::isfinite(x)) std::abort();
      }
    }
  }
  return 0;
}
