/// Finds logs of a record that are not what their names say.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

/// Returns the names of the logs in a folder that begin with a record which is no batch of writes,
/// or whose writes do not follow those of the logs before them: such a file has the content of
/// another one. RocksDB ends the process where it reads one.
/// Of logs that contradict each other, as many as possible are taken for right. Logs whose
/// beginning cannot be read are not named. Errors: kIo (the folder cannot be listed).
Result<std::vector<std::string>> misplaced_logs(const std::string& folder);

}  // namespace quire
