/// The members of POST /v1/chat/completions and POST /v1/completions: every one that OpenAI's API,
/// vLLM or llama.cpp's server defines. The table decides what is read and what is refused, and
/// docs/openai.md shows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json_reader.h"

namespace quire {

enum class OpenAiPath : std::uint8_t { kChat = 1, kCompletion = 2 };

enum class FieldUse : std::uint8_t {
  kDone,    ///< has the effect that its protocol gives it
  kLabel,   ///< says who asks or where a cache may be; it never changes an answer, so it is taken
  kRefused  ///< 400, unless it has a value that asks for nothing
};

struct OpenAiField {
  std::string_view name;
  std::uint8_t paths;     ///< OpenAiPath values, or-ed
  std::string_view from;  ///< whose field it is
  FieldUse use;
  /// kRefused: JSON values beside null, [] and {} that are taken, separated by '|'.
  std::string_view harmless = {};
  std::string_view about = {};  ///< a few words for people; may be empty
};

/// Returns the table, in the order of the documentation.
std::span<const OpenAiField> openai_fields();

/// Fails on the first member that the table refuses or does not have; `r` reads the whole body.
/// It must be called before the members are read.
void check_openai_fields(JsonReader& r, const boost::json::value& body, OpenAiPath path);

/// Returns the table in Markdown, as it stands in docs/openai.md.
std::string openai_fields_markdown();

}  // namespace quire
