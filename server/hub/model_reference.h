/// Names of models on a hub, and which of a repository's files a model needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::hub {

/// "hf:org/repo", with "@revision" and ":file" where they are given.
struct ModelReference {
  std::string repo;               ///< "org/repo", or one word for the oldest models
  std::string revision = "main";  ///< branch, tag or commit
  std::string file;  ///< path of a file, or the name of a quantisation ("Q4_K_M"); empty: chosen

  std::string text() const;
};

/// Whether the text asks for a hub at all.
bool is_reference(std::string_view text);
/// Whether it could name a repository if "hf:" stood before it.
bool looks_like_repo(std::string_view text);
/// Errors: kInvalidArgument (field "model") saying how such a name is written.
Result<ModelReference> parse_reference(std::string_view text);

/// One file of a repository, as the hub lists it.
struct HubFile {
  std::string path;
  std::uint64_t size = 0;
  std::string sha256;    ///< of large files (LFS); else empty
  std::string git_sha1;  ///< of the file as a git blob; of large files that of their pointer

  bool operator==(const HubFile&) const = default;
};

struct ChosenFiles {
  std::vector<HubFile> files;
  std::string model;  ///< what is loaded: a GGUF file's path, or empty for the folder
};

/// The files to fetch. Without a file: where the repository has config.json and safetensors in its
/// root, those with the tokenizer, chat template and licence; else of the GGUF files the first
/// quantisation there is of Q4_K_M, Q4_K_S, Q4_0, Q5_K_M, Q5_K_S, Q6_K, Q8_0, F16, BF16, or the
/// only one. With a file: that path, or the GGUF file of that quantisation. All parts of a GGUF
/// file in parts. Errors: kNotFound naming the repository and listing what could be asked for.
Result<ChosenFiles> choose_files(const ModelReference& reference, std::span<const HubFile> files);

}  // namespace quire::hub
