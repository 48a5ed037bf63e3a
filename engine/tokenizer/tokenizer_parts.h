/// The last steps of making a tokenizer, whatever its vocabulary was read from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/config_files.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::tokenizer_internal {

/// What a kind of vocabulary does where the configuration files are silent.
struct KindDefaults {
  std::optional<std::string> bos;  ///< used where no tokenizer_config.json speaks
  std::vector<std::string> eos;    ///< used where no file names one
  bool add_bos = false;
  bool space_after_special = false;
};

/// Errors: kInvalidArgument (field: spec.file, or the key at fault).
Result<std::unique_ptr<Tokenizer>> finish_bpe(BpeSpec spec, const ConfigFiles& config,
                                              const KindDefaults& kind, std::string description);

/// `bytes` is a sentencepiece model, `file` its name in errors.
Result<std::unique_ptr<Tokenizer>> finish_spm(const std::string& file, const std::string& bytes,
                                              const ConfigFiles& config, const KindDefaults& kind,
                                              std::string description);

/// A vocabulary must be no larger than the model, and a model not much larger than its vocabulary
/// (rows are padded). Errors: kInvalidArgument.
Status check_fit(const ConfigFiles& config, const Tokenizer& tokenizer);

}  // namespace quire::tokenizer_internal
