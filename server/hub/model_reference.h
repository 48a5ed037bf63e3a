/// Names of models on a hub, and the choice of the files that a model needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::hub {

/// ModelReference is "hf:org/repo" with an optional "@revision" and ":file".
struct ModelReference {
  std::string repo;               ///< "org/repo", or one word for the oldest models
  std::string revision = "main";  ///< branch, tag or commit
  /// Path of a file, or the name of a quantisation ("Q4_K_M"); empty: chosen automatically.
  std::string file;

  std::string text() const;
};

/// Returns "name-00002-of-00003.gguf" without the number of its part, and other names unchanged.
std::string group_of(std::string_view path);

/// Returns whether the text names a model on a hub.
bool is_reference(std::string_view text);
/// Returns whether the text could name a repository if "hf:" preceded it.
bool looks_like_repo(std::string_view text);
/// Parses such a name. Errors: kInvalidArgument (field "model") explaining the syntax.
Result<ModelReference> parse_reference(std::string_view text);

/// HubFile is one file of a repository, as the hub lists it.
struct HubFile {
  std::string path;
  std::uint64_t size = 0;
  std::string sha256;    ///< for large files (LFS); else empty
  std::string git_sha1;  ///< hash of the git blob; for large files, of their pointer

  bool operator==(const HubFile&) const = default;
};

struct ChosenFiles {
  std::vector<HubFile> files;
  std::string model;  ///< the part to load: the path of a GGUF file; empty: the folder
};

/// Returns the files to fetch. Without a file in the reference: if the repository's root has
/// config.json and safetensors, those with the tokenizer, chat template and licence. Otherwise one
/// GGUF file: the first quantisation that exists of Q4_K_M, Q4_K_S, Q4_0, Q5_K_M, Q5_K_S, Q6_K,
/// Q8_0, F16, BF16, or the only one.
///
/// With a file: that path, or the GGUF file of that quantisation. A GGUF file in parts is fetched
/// with all parts. Errors: kNotFound naming the repository and listing the possible choices.
Result<ChosenFiles> choose_files(const ModelReference& reference, std::span<const HubFile> files);

}  // namespace quire::hub
