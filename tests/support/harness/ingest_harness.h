/// A small model that prefills contexts alone, as ingest does.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/prefill/context_kv.h"
#include "engine/prefill/record_kind.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/model_harness.h"

namespace quire::testing {

/// One model that prefills contexts alone, on the CPU (no ops) or on a device.
struct Ingest {
  Ingest(std::shared_ptr<simt::EmulatedOps> ops, std::int32_t layers, DType dtype) {
    const auto config = parse_model_config(tiny_config_json(
        "\"num_hidden_layers\": " + std::to_string(layers), {"num_hidden_layers"}));
    model = std::move(*make_random_model(*config,
                                         {.weights = WeightFormat::kF32, .kv_dtype = dtype}, 5,
                                         ops != nullptr ? make_device_compute(ops) : nullptr));
    pool = std::make_unique<PagePool>(PageFormat{config->num_kv_heads, config->head_dim, dtype}, 0,
                                      model->compute().memory());
    core.facts.shape = {layers, config->num_kv_heads, config->head_dim, dtype};
    core.facts.num_heads = config->num_heads;
    core.facts.vocab_size = static_cast<std::int32_t>(config->vocab_size);
    core.facts.ingest_prefix = {1, 7, 9};
    core.facts.names = ContextNames({}, 16);
    core.model = model.get();
    core.pool = pool.get();
    core.meter = &meter;
    core.chunk_tokens = 32;
  }
  static std::vector<std::int32_t> tokens(std::int32_t n) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < n; ++i) ids.push_back(3 + i * 11 % 37);
    return ids;
  }
  std::shared_ptr<const ContextKv> run(std::int32_t num_tokens,
                                       const std::function<void()>& after_chunk = {}) {
    const std::vector<std::int32_t> ids = tokens(num_tokens);
    ContextPrefill prefill(core, {ids, {}});
    while (!prefill.done()) {
      const Status status = prefill.step();
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!status.ok()) return nullptr;
      if (after_chunk) after_chunk();
    }
    return prefill.take();
  }
  std::unique_ptr<Model> model;
  std::unique_ptr<PagePool> pool;
  SpeedMeter meter;
  PassResources core;
};

}  // namespace quire::testing
