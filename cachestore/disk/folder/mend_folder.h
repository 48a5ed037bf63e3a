/// Mends what is damaged in a store's folder besides the record, so that it never keeps a store
/// from opening.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

/// Sets aside what lies in the place of a seal, a ledger or an identity and is not a file; ends
/// CURRENT as RocksDB does, and points it to the manifest where that is the only one; cuts the torn
/// end of a manifest; ends an interrupted replacement (replacement.h). Each is said in the log. A
/// folder without a record stays as it is. The caller has the folder locked: what another process
/// writes may look damaged. `found`, if not null, receives what is damaged, instead of the log:
/// this is a copy. Errors: kIo, kResourceExhausted.
Status mend_folder(const std::string& root, std::vector<std::string>* found = nullptr);

}  // namespace quire
