/// Puts the new record of a repair in the place of the old one, as if it were one step.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// A file that says what is being replaced, until all of it is.
inline constexpr std::string_view kNewRecordName = "/NEW_RECORD";
/// The folder in which a repair works. In it lies the new record, db/.
inline constexpr std::string_view kWorkName = "/repair";

/// A file beside a record that has lost what its copy may have.
inline constexpr std::string_view kWantsCopyName = "/WANTS_COPY";

/// The line of kNewRecordName: these two and a checksum.
struct Replacement {
  std::string kept;     ///< name of the folder, in the store's, to which the old record goes
  bool keep_kv = true;  ///< false: the KV goes there, too

  std::string text() const;
  /// Returns nothing for what text() did not make.
  static std::optional<Replacement> parse(std::string_view text);
};

/// Returns whether a replacement was begun and not ended.
bool is_replacing(const std::string& root);

/// Moves the record and what belongs to it away, and the new record to its place. Where it fails or
/// is interrupted, all is as it was, or end_replacement() goes on: the old record is never there
/// without what is known of its end. Errors: kIo, kResourceExhausted.
Status replace_record(const std::string& root, const Replacement& replacement);

/// Ends what was interrupted: goes on with it, or takes it back where the new record is gone. Says
/// so in the log. The caller has the folder locked. Errors: kIo, kResourceExhausted.
Status end_replacement(const std::string& root);

}  // namespace quire
