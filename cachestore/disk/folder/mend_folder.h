/// Mends what is damaged in a store's folder besides the record, so that it never keeps a store
/// from opening.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// What the marker STORE begins with; a number and a line end follow.
inline constexpr std::string_view kStoreMarkerHead = "quire store layout ";
/// A file that names the new record while it is put in the place of the old one.
inline constexpr std::string_view kNewRecordName = "/NEW_RECORD";

/// Sets aside what lies in the place of a lock, a seal, a ledger, a marker or an identity and is
/// not a file; writes a damaged or lost marker of a folder with a record again, as `layout`; ends
/// CURRENT as RocksDB does, and points it to the manifest where that is the only one; cuts the torn
/// end of a manifest; ends an interrupted StoreFolder::replace_record(). Each is said in the log. A
/// folder that holds no store stays as it is. Errors: kIo.
Status mend_folder(const std::string& root, int layout);

}  // namespace quire
