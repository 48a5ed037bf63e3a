/// The note of a restore in a store's folder: until it is gone, nothing opens what lies there.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// A file beside a record that is being made of a backup. Half of a record may look like a whole
/// one that a power failure tore.
inline constexpr std::string_view kRestoringName = "/RESTORING";

/// Returns whether a restore was begun and not ended.
bool is_restoring(const std::string& root);
/// Says that a folder holds half of a backup, and what to do (kFailedPrecondition).
Status half_restored(const std::string& root);

/// Returns whether a backup may be restored to a folder: it is missing or empty, or holds what an
/// interrupted restore left and nothing else. Errors: kFailedPrecondition, kIo.
Status check_restorable(const std::string& root);
/// Notes a restore and deletes what an earlier one left. The caller has the folder locked. Errors:
/// those of check_restorable(), kResourceExhausted.
Status begin_restore(const std::string& root);
/// Makes durable what was restored, and removes the note. Errors: kIo; the note stays.
Status end_restore(const std::string& root);
/// Empties the folder, of which the note and the lock go last. What cannot be removed is left to
/// the next begin_restore().
void abandon_restore(const std::string& root);

}  // namespace quire
