/// The audit log: who changed what and when, and who was refused. One JSON object a line.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"

namespace quire {

/// AuditEntry is one request. No member holds a secret or a text of a body.
struct AuditEntry {
  std::int64_t unix_ms = 0;  ///< when the reply was complete
  std::string request_id, peer;
  std::string key;    ///< name of the API key; empty: none was presented, or it is unknown
  std::string ns;     ///< namespace; empty: refused before one was chosen
  std::string route;  ///< pattern, such as "/v1/documents/{id}"; empty: no such path
  std::string method, path;
  int status = 0;
  std::string error_code;  ///< empty: none
};

/// Returns the entry as one JSON object without a line end. Empty texts are null.
std::string audit_json(const AuditEntry& entry);

/// AuditLog appends entries to a file. A thread of its own writes them, so that a slow disk never
/// holds a request up. At most kMaxWaiting lines wait. What does not fit, or cannot be written, is
/// lost: it is counted, said once in the log of the service, and noted in the file once that can be
/// written again.
///
/// Threads: any.
class AuditLog {
 public:
  static constexpr std::size_t kMaxWaiting = 8192;

  /// Opens the file for appending; a regular file gets the mode 0600. Errors: kInvalidArgument
  /// (log.audit: the file cannot be opened, with the system's reason).
  static Result<std::unique_ptr<AuditLog>> open(std::string path);
  /// Returns whether open() would work, and makes no file. Errors: as open().
  static Status check(const std::string& path);
  /// Writes what waits.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void add(const AuditEntry& entry);
  /// A file that is open. It is closed with the object.
  class File {
   public:
    File(int fd, bool line_is_open) : fd_(fd), line_is_open_(line_is_open) {}
    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;
    ~File();

   private:
    friend class AuditLog;
    int fd_ = -1;
    bool line_is_open_ = false;  ///< it may end within a line
  };
  /// Opens the path again, whose file a rotation may have renamed. Nothing changes before use().
  /// Errors: as open().
  Result<File> open_again() const { return open_file(path_); }
  /// Writes to this file from now on, also lines that wait.
  void use(File file);
  /// Returns how many lines were lost.
  std::uint64_t lost() const;

 private:
  static Result<File> open_file(const std::string& path);
  AuditLog(std::string path, File file);
  void run();
  void write_line(const std::string& line);
  bool append(const std::string& line);
  void lose(std::uint64_t lines, const std::string& reason);

  const std::string path_;
  std::mutex file_mu_;  ///< held while the file is written or exchanged
  File file_;           // guarded by file_mu_
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;      // guarded by mu_
  bool stop_ = false;                    // guarded by mu_
  std::uint64_t lost_ = 0, unsaid_ = 0;  // guarded by mu_; unsaid_: not yet noted in the file
  std::thread thread_;
};

}  // namespace quire
