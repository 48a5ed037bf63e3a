/// Vocabularies in the metadata of GGUF files (tokenizer.ggml.*).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::tokenizer_internal {

/// Models "gpt2" (byte-level BPE with a named pre-tokeniser, gguf_pretokenizers.h) and "llama"
/// (sentencepiece). Errors: kInvalidArgument, kUnimplemented without the file's name; field() is
/// the metadata key.
Result<std::unique_ptr<Tokenizer>> make_gguf_tokenizer(const GgufMetadata& metadata);

/// The text of a tokenizer_config.json with what the file at `path` (or the one in that folder,
/// find_gguf) says of prompts: chat_template, bos_token, eos_token, add_bos_token. None where
/// `path` is no GGUF model. Errors: those of find_gguf() and GgufFile::open().
Result<std::optional<std::string>> gguf_tokenizer_config(const std::filesystem::path& path);

}  // namespace quire::tokenizer_internal
