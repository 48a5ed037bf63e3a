/// What cache.decode `auto` becomes: by the length of the context, the budget, the model, the
/// device and what was measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/api/device_facts.h"

namespace quire {

struct DecodeInput {
  std::int64_t rows = 0;               ///< of the context at the answer's end
  std::int64_t budget = 2048;          ///< rows a step would attend to
  std::string dense_because;           ///< not empty: nothing may be left out, for this reason
  bool head = false;                   ///< a retrieval head is loaded
  std::span<const std::string> names;  ///< of the retrievers that can work with the budget
  DeviceFacts device;
};
struct DecodeChoice {
  std::string decode, reason;
};

/// `dense` where nothing may be left out, where the context fits the budget, where speeds are not
/// known, and where attending to the budget alone would save less than a third of a step (unless
/// dense would not fit a device of its own). Else `specontext` with a head; `ctkvr`, which moves no
/// rows, where the copies of `freekv` would take longer than half a step; else `freekv`; of these
/// only what is among the names, and `dense` where none is.
DecodeChoice choose_decode(const DecodeInput& input);

}  // namespace quire
