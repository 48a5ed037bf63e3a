/// This file holds the resources that every pass of one engine thread uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/facts.h"
#include "engine/api/speed_meter.h"
#include "engine/cache/page_pool.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire {

class RetrievalHead;

/// Resources of passes. Pointers are not null unless stated, and their targets outlive this.
/// Threads: the engine thread.
struct PassResources {
  EngineFacts facts;
  Model* model = nullptr;
  PagePool* pool = nullptr;
  SpeedMeter* meter = nullptr;
  const RetrievalHead* head = nullptr;  ///< null: no retrieval head is loaded
  std::int32_t chunk_tokens = 512;      ///< rows of the next chunk of a prompt; multiple of 16
  /// Names of the record kinds that ingest makes besides those it always makes.
  std::vector<std::string> more_records;
  ForwardWorkspace workspace;
};

}  // namespace quire
