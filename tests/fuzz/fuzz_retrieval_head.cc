// config.json of a retrieval head, of any bytes, is refused with a reason or gives sensible
// numbers.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/retrieve/head/retrieval_head.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto config = parse_retrieval_head_config({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) {
    if (config.status().message().empty() || config.status().field().empty()) std::abort();
    return 0;
  }
  const bool sane = config->hidden_size > 0 && config->num_kv_heads > 0 &&
                    config->num_heads % config->num_kv_heads == 0 && config->head_dim > 0 &&
                    config->head_dim % 8 == 0 && config->rope_theta >= 1 &&
                    config->trained_positions > 0 &&
                    (config->feature_layers.empty() || config->feature_layers.size() == 3);
  if (!sane) std::abort();
  return 0;
}
