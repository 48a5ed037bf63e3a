/// Reads the file that gives namespaces words of their own around documents and questions, and a
/// citation style (prompt.namespaces_file).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/chat/chat_template.h"

namespace quire {

struct NamespaceWords {
  PromptWording wording;
  std::optional<std::string> citation;  ///< pattern of a CitationStyle; none: the service's
};
using NamespaceWordings = std::map<std::string, NamespaceWords, std::less<>>;

/// Parses a TOML text with a table for each namespace: intro, document, question and citation.
/// Words left out stay "auto". Errors: kInvalidArgument (field "prompt.namespaces_file") with
/// `file_name` and the entry. What the words may hold is for PromptFormat::with() to say.
Result<NamespaceWordings> parse_namespace_wordings(std::string_view text,
                                                   const std::string& file_name);
/// Reads the file; an empty path gives none. Errors: also kInvalidArgument for a file that cannot
/// be read.
Result<NamespaceWordings> load_namespace_wordings(const std::string& path);

}  // namespace quire
