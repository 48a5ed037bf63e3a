// Head keys of a context, of any bytes, are refused with a reason, or every key can be read.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/record/head_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto view = HeadRecordView::parse({reinterpret_cast<const std::byte*>(data), size});
  if (!view.ok()) {
    if (view.status().code() != Code::kCorruption || view.status().message().empty()) std::abort();
    return 0;
  }
  std::vector<float> keys;
  view->keys(0, view->shape().num_tokens, keys);
  for (const float x : keys) {
    if (!std::isfinite(x)) std::abort();
  }
  return 0;
}
