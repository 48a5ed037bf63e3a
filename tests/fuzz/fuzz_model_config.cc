// config.json of any bytes is refused with a reason or gives a configuration with sensible numbers.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto config = parse_model_config({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) {
    if (config.status().message().empty() || config.status().field().empty()) std::abort();
    return 0;
  }
  const bool sane = config->num_layers > 0 && config->hidden_size > 0 &&
                    config->num_heads % config->num_kv_heads == 0 && config->head_dim % 8 == 0 &&
                    config->head_dim <= 256 && config->group_size() <= 16 &&
                    config->num_parameters() > 0 && config->max_position_embeddings > 0 &&
                    config->rope.theta >= 1 && config->rope.factor >= 1;
  if (!sane) std::abort();
  return 0;
}
