/// A model for measuring speed on large shapes.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/model/model.h"

namespace quire {

/// Makes a model with random weights as make_random_model() does, in seconds also for billions of
/// them: matrices with as many columns repeat each other's values, and the digest leaves the bytes
/// out. Its KV must therefore not be stored beside that of another model. Errors: those of
/// make_random_model().
Result<std::unique_ptr<Model>> make_benchmark_model(const ModelConfig& config,
                                                    const ModelOptions& options, std::uint64_t seed,
                                                    std::shared_ptr<Compute> compute = nullptr);

}  // namespace quire
