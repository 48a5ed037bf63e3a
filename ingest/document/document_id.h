/// Ids of documents: which ones are allowed, and the one that a file gets. The Python client has
/// the same rule (clients/python/quire_client/_ids.py); tests/data/document_ids.json holds both to
/// it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

/// Returns whether `id` is 1 to 200 bytes of Unicode letters, marks, decimal digits and . _ : ~ -
/// that begin with a letter or a digit.
bool is_document_id(std::string_view id);

/// Returns the id of the file at `path`, which is relative to the folder that was named, or is the
/// name of a file that was named alone. '/' becomes ':'. Letters, marks and digits stay, in NFC,
/// and so do . _ and -; each run of other characters becomes one '-'. What the first letter or
/// digit follows is left out. If any of this changed more than '/' into ':', the id ends with '~'
/// and the first 8 hex digits of the path's SHA-256, so that no two paths share an id unseen. A
/// path need not be UTF-8.
std::string document_id_of_path(std::string_view path);

}  // namespace quire
