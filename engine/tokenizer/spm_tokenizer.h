/// Vocabularies in sentencepiece's own file format.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/spm_proto.h"
#include "engine/tokenizer/tokenizer_base.h"

namespace quire::tokenizer_internal {

/// Pieces the model lists as user-defined and `added` calls control tokens (or that are spelled
/// like one) can no longer be said by a text. Added tokens past the model's pieces extend the
/// vocabulary. `bytes` is the file, `model` its parsed form. Errors: kInvalidArgument (field: file)
/// with the library's reason.
Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(std::string file, std::string_view bytes,
                                                      SpmModel model, std::vector<AddedToken> added,
                                                      TokenizerSettings settings);

}  // namespace quire::tokenizer_internal
