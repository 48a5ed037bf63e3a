/// The marker of a store's folder: the file STORE, which names the layout of what lies beside it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// What the text of a marker says.
struct StoreMarker {
  enum class Kind {
    kDamaged,
    kPlain,    ///< without a checksum, as programs wrote it that knew the layouts 1 and 2
    kChecked,  ///< with one: the number is what was written
  };
  Kind kind = Kind::kDamaged;
  int layout = 0;

  static StoreMarker parse(std::string_view text);
  /// Returns the text of a marker, with a checksum.
  static std::string text(int layout);
};

/// What is to be known of a folder before a store is opened in it.
struct FolderLook {
  bool is_store = false;  ///< false: it is empty, or holds something else
  int layout = 0;         ///< of the store
  bool is_unnamed =
      false;  ///< its marker is lost or damaged: the layout follows from what is there
};

/// Looks at a folder and changes nothing. A marker with a checksum is believed. One without, whose
/// number is larger than `known_layout`, is taken for damaged if a record lies beside it: newer
/// layouts always have a checksum. Errors: kFailedPrecondition (a newer layout), kCorruption (the
/// marker is damaged, and nothing else shows that this is a store), kIo.
Result<FolderLook> look_at_folder(const std::string& root, int known_layout);

/// Writes the marker of a folder. A crash leaves the old one or the new one. Errors: kIo,
/// kResourceExhausted.
Status write_marker(const std::string& root, int layout);

}  // namespace quire
