/// Notes how long a manifest of RocksDB is, so that the next start notices if it has lost its last
/// edits: the tables that these name would be deleted, and their logs are gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

/// Returns the name that RocksDB has given a database, in db/IDENTITY; empty: it has none.
std::string record_identity(const std::string& db);

/// A line of a file beside the record: name, length, the record's identity and a checksum. It is
/// written once the edits are on stable storage, and is not synchronized: after a loss of power it
/// may know less than the manifest has, never more.
struct ManifestNote {
  std::string manifest;     ///< name of the file
  std::uint64_t bytes = 0;  ///< its length, with whole edits to the end
  std::string record = {};  ///< record_identity()

  std::string text() const;
  /// Returns nothing for what text() did not make. What follows the line does not count.
  static std::optional<ManifestNote> parse(std::string_view text);
  /// Reads a note; none: there is none, it is damaged, or it is of another record.
  static std::optional<ManifestNote> read(const std::string& path, std::string_view record);
  /// Writes it over an older one. A failure is ignored: the next start only knows less.
  void write(const std::string& path) const;

  /// Returns whether a record has all the edits that were noted, whose CURRENT names `name`, a file
  /// with this content. Later manifests begin with all that earlier ones had. Where there is no
  /// whole edit at all the answer is yes: RocksDB itself says that.
  bool is_in(std::string_view name, std::string_view content) const;
};

}  // namespace quire
