/// Tables of character sets, which the C library loads from files when they are first used.
#pragma once

namespace quire {

/// Loads those that mails name in their headers, and UTF-16, which Poppler converts from. In the
/// sandbox no file can be opened. The tables stay until the process ends.
void load_character_sets();

}  // namespace quire
