// A sketch record of any bytes is refused with a reason, or every part of it can be read within its
// bounds.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/record/sketch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto view = SketchView::parse(std::as_bytes(std::span(data, size)));
  if (!view.ok()) {
    if (view.status().message().empty()) std::abort();
    return 0;
  }
  std::vector<float> kv(static_cast<std::size_t>(view->num_kv_heads()) *
                        static_cast<std::size_t>(view->head_dim()));
  std::vector<float> query(static_cast<std::size_t>(view->num_heads()) *
                           static_cast<std::size_t>(view->head_dim()));
  std::vector<float> all;
  if (view->has(kSketchMeans)) all.resize(kv.size() * static_cast<std::size_t>(view->num_blocks()));
  const std::int32_t last = view->num_blocks() - 1;
  for (std::int32_t layer = 0; layer < view->num_layers(); ++layer) {
    for (const std::int32_t block : {0, last}) {
      if (view->has(kSketchMeans)) view->mean(layer, block, kv);
      if (view->has(kSketchMinMax)) {
        view->min(layer, block, kv);
        view->max(layer, block, kv);
      }
    }
    if (view->has(kSketchMeans)) view->means(layer, all);
    if (view->has(kSketchLocalQuery)) view->local_query(layer, query);
    if (!view->has(kSketchStats)) continue;
    for (std::int32_t block = 0; block <= last; ++block) {
      const std::int64_t token = view->stats(layer, block).representative;
      if (token / view->block_tokens() != block || token >= view->num_tokens()) std::abort();
    }
    for (const std::int32_t token : view->pauta_tokens(layer)) {
      if (token < view->block_tokens() || token >= view->num_tokens()) std::abort();
    }
  }
  return 0;
}
