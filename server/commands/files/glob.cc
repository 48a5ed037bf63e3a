#include "server/commands/files/glob.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace quire {
namespace {

/// Bytes of the character at the front of `text`, which need not be UTF-8.
std::size_t character_size(std::string_view text) {
  std::size_t n = 1;
  while (n < text.size() && n < 4 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) ++n;
  return n;
}

/// Matches a set at the front of `pattern` with one byte. Returns the bytes of the set, or 0 where
/// it has no end and so is plain text.
std::size_t match_set(std::string_view pattern, char c, bool& matched) {
  std::size_t i = 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (bool first = true; i < pattern.size(); first = false) {
    if (pattern[i] == ']' && !first) {
      matched = found != negated;
      return i + 1;
    }
    const char low = pattern[i];
    char high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = pattern[i + 2];
      i += 2;
    }
    ++i;
    found = found || (low <= c && c <= high);
  }
  return 0;
}

/// Each pair of positions is looked at once, so that no pattern takes exponential time.
class Matcher {
 public:
  Matcher(std::string_view pattern, std::string_view path)
      : pattern_(pattern), path_(path), failed_((pattern.size() + 1) * (path.size() + 1)) {}

  bool match(std::size_t p, std::size_t t) {
    if (failed_[p * (path_.size() + 1) + t]) return false;
    const bool ok = step(p, t);
    if (!ok) failed_[p * (path_.size() + 1) + t] = true;
    return ok;
  }

 private:
  bool step(std::size_t p, std::size_t t) {
    if (p == pattern_.size()) return t == path_.size();
    const std::string_view rest = pattern_.substr(p);
    if (rest.starts_with("**/"))  // no folder, or some
      return match(p + 3, t) || (t < path_.size() && match_folder(p, t));
    if (rest.starts_with("**")) return match(p + 2, t) || (t < path_.size() && match(p, t + 1));
    if (rest[0] == '*')
      return match(p + 1, t) || (t < path_.size() && path_[t] != '/' && match(p, t + 1));
    if (t == path_.size()) return false;
    if (rest[0] == '?') return path_[t] != '/' && match(p + 1, t + character_size(path_.substr(t)));
    if (rest[0] == '[' && path_[t] != '/') {
      bool matched = false;
      if (const std::size_t size = match_set(rest, path_[t], matched); size > 0)
        return matched && match(p + size, t + 1);
    }
    return rest[0] == path_[t] && match(p + 1, t + 1);
  }

  bool match_folder(std::size_t p, std::size_t t) {
    const auto slash = path_.find('/', t);
    return slash != std::string_view::npos && match(p, slash + 1);
  }

  const std::string_view pattern_, path_;
  std::vector<bool> failed_;
};

}  // namespace

bool is_glob(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

bool glob_matches(std::string_view pattern, std::string_view path) {
  return Matcher(pattern, path).match(0, 0);
}

bool filter_matches(std::string_view pattern, std::string_view path) {
  while (pattern.ends_with('/')) pattern.remove_suffix(1);
  const bool by_name = pattern.find('/') == std::string_view::npos;
  // Each part of the path is a name, and each beginning of it a folder.
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('/', begin), path.size());
    if (glob_matches(pattern, by_name ? path.substr(begin, end - begin) : path.substr(0, end)))
      return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace quire
