/// A folder for files that a command needs while it runs.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// Makes a new folder for this user alone, whose own name begins with `name`, in the folder that
/// TMPDIR (else TMP, TEMP, TEMPDIR) names, or in /tmp. Returns its path; the caller deletes it.
/// Errors: kIo, which names the folder, the variable and the reason.
Result<std::string> make_temporary_folder(std::string_view name);

}  // namespace quire
