/// Patterns of file names, as shells with ** have them.
#pragma once

#include <string_view>

namespace quire {

/// Returns whether `text` has a character that makes it a pattern: * ? [
bool is_glob(std::string_view text);

/// Returns whether the whole of `path` matches: * is any text without '/', ** any text, ? one
/// character but '/', [a-z] and [!a-z] one of a set. "a/**/b" also matches "a/b".
bool glob_matches(std::string_view pattern, std::string_view path);

/// The same for --include and --exclude: a pattern without '/' is for the name at the end of
/// `path`, and one that matches a folder holds for all below it.
bool filter_matches(std::string_view pattern, std::string_view path);

}  // namespace quire
