/// Copies what is known of a record, for who looks at it as if it were mended.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

/// Puts db/ of a store's folder into the folder `to`, with SEAL, LEDGER and EDITS. Tables and logs,
/// which nobody changes, are linked where the file system can; all else is copied. What is no file
/// is left out, and so is what cannot be read, of which `found` gets a line. Errors: kIo (a folder
/// cannot be read), kResourceExhausted.
Status copy_record_files(const std::string& root, const std::string& to,
                         std::vector<std::string>* found);

}  // namespace quire
