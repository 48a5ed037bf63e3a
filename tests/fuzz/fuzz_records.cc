// The records of a context, of any bytes and of every kind: refused with a reason, or read.
#include <cstdint>
#include <cstdlib>

#include "engine/prefill/record_kind.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const EngineFacts facts;
  const KvLayout layout;
  for (const auto& kind : all_record_kinds()) {
    const auto view = kind->parse({reinterpret_cast<const std::byte*>(data), size},
                                  {facts, layout, nullptr});
    if (!view.ok() && (view.code() != Code::kCorruption || view.status().message().empty()))
      std::abort();
  }
  return 0;
}
