/// What a reader makes of a file: documents with the places of pages and headings in their text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/text_mark.h"

namespace quire {

struct ReadDocument {
  std::string title;
  /// Names the document within a file of several, such as a mailbox; else empty.
  std::string part;
  std::string text;             ///< valid UTF-8 without NUL; lines end with \n
  bool markdown = false;        ///< headings begin with '#', so it is best cut at them
  std::vector<TextMark> marks;  ///< by ascending offset
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> warnings;  ///< what of the file is not in the text
  friend bool operator==(const ReadDocument&, const ReadDocument&) = default;
};

/// What one file may cost.
struct ReaderLimits {
  std::uint64_t file_bytes = std::uint64_t{256} << 20;
  std::uint64_t text_bytes = std::uint64_t{64} << 20;  ///< of all documents of the file
  std::uint64_t documents = 100'000;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;  ///< address space of the child process
  std::uint32_t cpu_seconds = 60;
  std::uint32_t wall_seconds = 120;
};

/// What is asked of a reader beside the bytes.
struct ReaderRequest {
  std::string name;      ///< of the file; its ending is a hint, its stem the title of last resort
  std::string encoding;  ///< of text files, an IANA name; empty: found out
  ReaderLimits limits;
};

}  // namespace quire
