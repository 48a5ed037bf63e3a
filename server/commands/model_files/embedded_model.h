/// Unpacks the model embedded in the binary, so that a copied `quire` starts.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

/// Returns the folder of the embedded model, unpacked at first use into <cache of
/// models>/embedded/<hash of its bytes>/. hub/model_cache.h names that cache; where it cannot be
/// written, the temporary folder is used. A complete folder is used as it is.
///
/// Errors: kNotFound (built without QUIRE_EMBED_MODEL), kResourceExhausted (the disk is full), kIo,
/// kCorruption (a bug: the archive is damaged).
Result<std::string> unpack_embedded_model();

}  // namespace quire
