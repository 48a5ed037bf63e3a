/// Reads bodies of Ollama's API.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/json/query_request.h"

namespace quire {

/// Read a body of POST /api/chat or /api/generate into `out`, which holds the defaults before.
/// Members and options of the protocol that are not supported are refused by name. A body without a
/// message or a prompt asks for the model to be loaded, and leaves `out` without either.
std::optional<JsonError> read_ollama_chat(const boost::json::value& body, QueryBody& out);
std::optional<JsonError> read_ollama_generate(const boost::json::value& body, QueryBody& out);

struct OllamaEmbed {
  std::string model;
  std::vector<std::string> inputs;
  bool truncate = true;  ///< texts that are too long are cut instead of refused
};
/// Reads a body of POST /api/embed.
std::optional<JsonError> read_ollama_embed(const boost::json::value& body, OllamaEmbed& out);
/// Reads one of its older form, POST /api/embeddings: one text, as `prompt`; an empty one gives no
/// input.
std::optional<JsonError> read_ollama_embeddings(const boost::json::value& body, OllamaEmbed& out);
struct OllamaPull {
  std::string model;
  bool stream = true;
};
std::optional<JsonError> read_ollama_pull(const boost::json::value& body, OllamaPull& out);
std::optional<JsonError> read_ollama_show(const boost::json::value& body, std::string& model);

/// Returns the model's name without the tag "latest", which Ollama's clients add.
std::string untagged(std::string model);

}  // namespace quire
