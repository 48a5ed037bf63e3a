/// One pass of `quire ingest`: what becomes of every file.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "readers/reader_process.h"
#include "server/commands/client.h"
#include "server/commands/files/file_documents.h"
#include "server/commands/files/file_walk.h"
#include "server/commands/files/interrupt.h"
#include "server/commands/files/stored_files.h"

namespace quire {

struct IngestFlags {
  ClientFlags client;
  std::vector<std::string> paths;
  WalkFilter filter;
  std::string encoding;
  std::string stdin_name = "stdin.txt";
  std::string chunking = "auto";  ///< auto, markdown, tokens
  std::int64_t max_tokens = 512, overlap = 0, context_tokens = 4096, related_tokens = 0;
  bool pinned = false, quiet = false, sync = false, watch = false, dry_run = false;
  bool replace = false;
  std::optional<bool> lead_in;  ///< none: as the service does by default
  std::string kv = "eager";     ///< eager, lazy, text_only
};

/// Files by what became of them.
struct IngestCounts {
  std::int64_t created = 0, updated = 0, unchanged = 0, deleted = 0, skipped = 0, failed = 0,
               cancelled = 0;
};

/// Runs passes for one command line. Threads: one object, one thread.
class IngestRun {
 public:
  /// All must outlive the object.
  IngestRun(const IngestFlags& flags, const ReaderProcess& reader, Interrupt& interrupt)
      : flags_(flags), reader_(reader), interrupt_(interrupt) {}

  /// Reads the files, sends what is new or changed, with `sync` deletes what vanished, and prints
  /// the fate of each. Errors: the service cannot be reached, or refuses all.
  Result<IngestCounts> pass(const FileWalk& walk);
  /// The same for one document on standard input.
  Result<IngestCounts> pass_stdin(std::string_view bytes);
  /// The same for the file at a web address. One that cannot be fetched is a failed file.
  Result<IngestCounts> pass_url(const std::string& url);

  /// Prints "created 3, unchanged 12, failed 1".
  void summarize(const IngestCounts& counts) const;

 private:
  enum class Fate : unsigned char {
    kCreated,
    kUpdated,
    kUnchanged,
    kDeleted,
    kSkipped,
    kFailed,
    kCancelled
  };
  struct Pending {
    FileDocument document;
    FoundFile file;
  };

  void say(Fate fate, const std::string& name, const std::string& detail);
  /// Notes what Ctrl-C came before; tell_cancelled() says it. What somebody else cancelled is said
  /// by name at once.
  void cancel(const std::string& unit, const std::string& name, const std::string& why);
  /// Says what was cancelled: by name where it is one, else how many there are.
  void tell_cancelled();
  struct TellsCancelled;
  /// Learns which documents the service has of these files.
  Status look_up(const FileWalk& walk);
  void remember(StoredFile stored);
  bool is_stored(const FoundFile& file, const std::string& hash) const;
  /// Returns why the document may not take its id; empty: it may.
  Result<std::string> conflict(const FoundFile& file, const std::string& id);
  Status take(const FoundFile& file, Result<FileContent> content);
  void refuse(const FoundFile& file, const Status& why);
  Status send(std::vector<Pending> batch, bool markdown);
  Status send_pending(bool all);
  Status delete_vanished(const FileWalk& walk);
  void begin_pass();
  void draw(double batch_ratio, double speed);
  void clear_bar();
  std::string settings_text() const;
  void print_estimate(const FileWalk& walk, const std::vector<std::string>& hashes);
  /// Returns what the file holds, from before if it was read for the estimate.
  Result<FileContent> content_of(const FileWalk& walk, std::size_t index, const std::string& hash);

  const IngestFlags& flags_;
  const ReaderProcess& reader_;
  Interrupt& interrupt_;
  IngestCounts counts_;
  std::map<std::string, StoredFile> stored_;  ///< by id
  /// Of the files whose documents are ready, by root, source and hash: how many are, and how many
  /// the file has.
  struct Ready {
    std::set<std::string> ids;
    std::size_t documents = 1;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Ready> ready_;
  /// Documents that the files have now, by root and source, of files that were read.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> read_ids_;
  std::set<std::string> kept_;  ///< ids that this pass has sent or confirmed
  /// Root and source of files of whose documents it is not known which ids they have.
  std::set<std::pair<std::string, std::string>> unsure_;
  struct Cancelled {
    std::string name;  ///< of the first
    std::int64_t number = 0;
  };
  std::map<std::pair<std::string, std::string>, Cancelled> cancelled_;  ///< by unit and reason
  std::vector<Pending> pending_[2];                        ///< cut by tokens; at headings
  std::map<std::size_t, Result<FileContent>> read_ahead_;  ///< for the estimate, by index
  std::uint64_t pending_bytes_[2] = {0, 0};
  std::uint64_t bytes_done_ = 0, bytes_sending_ = 0, bytes_total_ = 0;
  std::chrono::steady_clock::time_point started_;
  bool bar_ = false;
};

}  // namespace quire
