/// Embeddings in the form of OpenAI's API.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json_reader.h"

namespace quire {

inline constexpr std::size_t kMostEmbeddingInputs = 2048;

enum class EmbeddingFormat : std::uint8_t { kFloat, kBase64 };

/// EmbeddingBody is the body of POST /v1/embeddings. Members by which vLLM and llama.cpp make other
/// vectors are refused unless they ask for what vectors are here; unknown ones are ignored.
struct EmbeddingBody {
  std::vector<std::variant<std::string, std::vector<std::int32_t>>> inputs;  ///< texts or token ids
  std::string model;
  EmbeddingFormat format = EmbeddingFormat::kFloat;
};
std::optional<JsonError> read_embedding(const boost::json::value& body, EmbeddingBody& out);

boost::json::object embeddings_json(const std::vector<std::vector<float>>& vectors,
                                    EmbeddingFormat format, const std::string& model,
                                    std::int64_t prompt_tokens);

}  // namespace quire
