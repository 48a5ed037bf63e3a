/// The tensor types of ggml. Internal to engine/gguf.
#pragma once

#include <cstdint>

#include "engine/gguf/gguf.h"

namespace quire::gguf_internal {

/// The type of a number in a file. Errors: kUnimplemented for types that were taken out of the
/// format again, by name, and for unknown numbers.
Result<GgufType> gguf_type(std::uint32_t number);

}  // namespace quire::gguf_internal
