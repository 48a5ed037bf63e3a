/// This file resolves cache.decode `auto` by the length of the context, the budget, the model, the
/// device and measured speeds.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/api/device_facts.h"

namespace quire {

struct DecodeInput {
  std::int64_t rows = 0;               ///< rows of the context at the end of the answer
  std::int64_t budget = 2048;          ///< rows that a step would attend to
  std::string dense_because;           ///< not empty: attention must be dense, for this reason
  bool head = false;                   ///< a retrieval head is loaded
  std::span<const std::string> names;  ///< retrievers that can work with the budget
  DeviceFacts device;
};
struct DecodeChoice {
  std::string decode, reason;
};

/// Chooses the retriever for `auto`. The choice is `dense` if attention must be dense, the context
/// fits the budget, speeds are unknown, or attending to the budget alone would save less than a
/// third of a step (unless dense would not fit a device with its own memory). Otherwise it is
/// `specontext` with a retrieval head; `ctkvr`, which moves no rows, if the copies of `freekv`
/// would take longer than half a step; else `freekv`. Only names in `names` are chosen, or `dense`
/// if none fits.
DecodeChoice choose_decode(const DecodeInput& input);

}  // namespace quire
