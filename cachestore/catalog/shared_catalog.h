/// This file declares what the store needs of a shared catalog: documents by name, each with a
/// revision, and a log of their changes that no reader can skip a part of.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/catalog/catalog_options.h"
#include "cachestore/catalog/shared_jobs.h"
#include "cachestore/catalog/shared_records.h"

namespace quire {

/// The log has parts, so that changes of documents in different ones do not wait for each other.
/// Within a part the changes are numbered 1, 2, 3, ... in the order in which they become visible,
/// without a gap. A document's changes are all in one part.
inline constexpr std::uint32_t kCatalogShards = 16;
/// Returns the part of the log that a document belongs to. It is the same in every build.
std::uint32_t catalog_shard(std::string_view ns, std::string_view id);

struct CatalogName {
  std::string ns, id;
  friend auto operator<=>(const CatalogName&, const CatalogName&) = default;
};

/// Which state of a document this is. The number of a change is never used twice, so a document
/// that was deleted and posted again has another revision.
struct CatalogRevision {
  std::uint64_t number = 0;  ///< of the document's last change; 0: it is not there
  std::uint64_t body = 0;    ///< of the last change of its token ids or its text
  friend bool operator==(const CatalogRevision&, const CatalogRevision&) = default;
};

struct CatalogEntry {
  CatalogName name;
  CatalogRevision revision;
  std::string head;  ///< record::encode_head(); empty in list()
};
struct CatalogBody {
  CatalogName name;
  std::uint64_t body = 0;    ///< CatalogRevision::body
  std::string tokens, text;  ///< record::encode_tokens(), and the text itself
};

/// The new state of a document. Without a text that of before stays, and without token ids both do.
struct CatalogPut {
  std::string_view ns, id;
  std::uint64_t version = 0;
  std::string head;
  std::optional<std::string> tokens;
  std::optional<std::string_view> text;
  /// Not empty: the state is made only while this replica has the job, and its item is done then.
  std::optional<JobFence> fence;
};

struct CatalogChange {
  std::uint32_t shard = 0;
  std::uint64_t number = 0;
  CatalogName name;
  std::string writer{};  ///< no two changes have the same
};
/// The number of the last change of each part.
using CatalogPosition = std::array<std::uint64_t, kCatalogShards>;
/// Who made the last change of each part; empty: not known.
using CatalogWriters = std::array<std::string, kCatalogShards>;
struct CatalogChanges {
  CatalogPosition end{};               ///< of the log, at least; read before the changes
  std::vector<CatalogChange> changes;  ///< by part and number
  /// Who made the changes at the position behind which these are, where the log still has them.
  CatalogWriters before{};
  /// A change that this process made is not among them, though another has its number: the catalog
  /// has lost it.
  bool lost = false;
};

/// Threads: all methods concurrently; wait() on one thread at a time. Errors of all: kIo with the
/// field `catalog.url`, if the catalog gave no usable answer (catalog_is_away()).
class SharedCatalog {
 public:
  virtual ~SharedCatalog() = default;

  /// Returns the name that the catalog was given when it was made. Errors: kFailedPrecondition (its
  /// layout is newer).
  virtual Result<std::string> identity() = 0;
  /// Makes this the state of the document, durably, if its revision has the number `expected` (0:
  /// it is not there), and returns the number of the change. Errors: kFailedPrecondition (the
  /// revision is another), job_taken_over(), change_overtaken(). With kIo the change was made or
  /// was not, and never comes later: who asks again sees which.
  virtual Result<std::uint64_t> put(const CatalogPut& put, std::uint64_t expected) = 0;
  /// Deletes the document in the same way and returns the number of the change. Jobs from before
  /// cannot make it again. Where it has `expired`, those from before the change that made it
  /// cannot: a later one may have been made before somebody noticed the end.
  virtual Result<std::uint64_t> remove(std::string_view ns, std::string_view id,
                                       std::uint64_t expected, bool expired) = 0;
  /// Marks the item as done with a document that is already as the job wants it if its revision has
  /// the number `expected`, so that no earlier job changes it. Errors: kFailedPrecondition (the
  /// revision is another), job_taken_over(), change_overtaken().
  virtual Status confirm(std::string_view ns, std::string_view id, std::uint64_t expected,
                         const JobFence& fence) = 0;
  /// Keeps all unfinished jobs from making a document that is not there. Errors:
  /// kFailedPrecondition (it is there by now).
  virtual Status bar(std::string_view ns, std::string_view id) = 0;
  /// Returns those of the documents that are there, in any order.
  virtual Result<std::vector<CatalogEntry>> heads(std::span<const CatalogName> names) = 0;
  virtual Result<std::vector<CatalogBody>> bodies(std::span<const CatalogName> names) = 0;
  /// Returns names and revisions after this name (exclusive), in order of bytes.
  virtual Result<std::vector<CatalogEntry>> list(const CatalogName& after, std::size_t limit) = 0;
  virtual Result<CatalogPosition> end() = 0;
  /// Returns changes behind this position. Where the log has been cut, they begin later.
  virtual Result<CatalogChanges> changes(const CatalogPosition& after, std::size_t limit) = 0;
  /// Cuts off changes that are so old that every replica that runs has seen them.
  virtual Status trim() = 0;
  /// Returns when a change was announced, after this time, or after wake().
  virtual void wait(std::chrono::milliseconds longest) = 0;
  /// Ends wait(), and lets calls that wait for an answer fail from now on.
  virtual void stop() = 0;
  virtual std::uint64_t failures() const = 0;  ///< calls without a usable answer
  /// Returns the jobs of the replicas that share the catalog.
  virtual SharedJobs& jobs() = 0;
  virtual SharedRecords& records() = 0;
  virtual SharedReplies& replies() = 0;
};

/// Returns the failure of a change whose request another replica has by now (RequestFence). It is
/// as that of a catalog that is away: who sends the request again is told what became of it.
Status request_taken_over();
/// Returns the failure of a catalog that does not answer.
Status catalog_away(const std::string& why);
/// Returns what catalog_away() was told.
std::string why_away(const Status& status);
/// Returns whether a call failed because the catalog gave no usable answer.
bool catalog_is_away(const Status& status);
/// Returns catalog_away() if there is a shared catalog and it is not up.
Status catalog_status(const CatalogStats& stats);

/// Checks `catalog.url`. Errors: kInvalidArgument, field `catalog.url`; the message never shows a
/// password.
Status check_catalog_url(const std::string& url);
/// Returns the catalog at options.url, which may be away; null if the address is empty. Errors:
/// kInvalidArgument.
Result<std::unique_ptr<SharedCatalog>> open_shared_catalog(const CatalogOptions& options);

}  // namespace quire
