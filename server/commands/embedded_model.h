/// The model within the binary, so that a copied `quire` starts.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

/// The folder of the embedded model, unpacked at first use into <cache of models>/embedded/<hash of
/// its bytes>/ (hub/model_cache.h says where that is; the temporary folder where that cannot be
/// written). A folder that is there and whole is used as it is. Errors: kNotFound (built without
/// QUIRE_EMBED_MODEL), kResourceExhausted (the disk is full), kIo, kCorruption (a bug: the archive
/// is damaged).
Result<std::string> unpack_embedded_model();

}  // namespace quire
