// Strategies with settings, as on a command line, are refused with the field or give a canonical
// text with the same meaning.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fidelity/strategy_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto specs = parse_strategy_list({reinterpret_cast<const char*>(data), size});
  if (!specs.ok()) {
    if (specs.status().message().empty() || specs.status().field().empty()) std::abort();
    return 0;
  }
  for (const StrategySpec& spec : *specs) {
    const auto again = parse_strategy_spec(spec.text);
    if (!again.ok() || again->text != spec.text || again->strategy != spec.strategy ||
        again->approximate != spec.approximate)
      std::abort();
    if (again->cache.options != spec.cache.options ||
        again->cache.prompt_options != spec.cache.prompt_options)
      std::abort();
  }
  return 0;
}
