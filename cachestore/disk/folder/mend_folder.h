/// Mends what is damaged in a store's folder besides the record, so that it never keeps a store
/// from opening.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// A file that names the new record while it is put in the place of the old one.
inline constexpr std::string_view kNewRecordName = "/NEW_RECORD";

/// Sets aside what lies in the place of a seal, a ledger or an identity and is not a file; ends
/// CURRENT as RocksDB does, and points it to the manifest where that is the only one; cuts the torn
/// end of a manifest; ends an interrupted StoreFolder::replace_record(). Each is said in the log. A
/// folder without a record stays as it is. The caller has the folder locked: what another process
/// writes may look damaged. Errors: kIo, kResourceExhausted.
Status mend_folder(const std::string& root);

}  // namespace quire
