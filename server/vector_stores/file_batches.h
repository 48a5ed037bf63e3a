/// Batches of files that are attached to vector stores behind the calls that asked for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/vector_stores/file_batch_codec.h"
#include "server/vector_stores/file_counts.h"

namespace quire {

struct Services;

/// A batch is a record that the replicas of a shared catalog have in common, and one state of each
/// file in it. It is saved before begin() returns, after each step, and when it ends. Another
/// record names this replica's batches that have not ended, with which the next start goes on.
/// Attaching a file twice changes nothing, so a crash between two saves is no loss, and two
/// replicas may carry out a batch at once.
///
/// The replica that took the batch carries it out. Another one that is asked for it reads the
/// record, and goes on with it where that has not changed for some time: the first may be gone.
///
/// Files whose documents are ready are attached first. The batch then waits for the others, which
/// are being cached or cut again, and holds no thread meanwhile.
///
/// Threads: any. Methods may wait on disk and on the catalog.
class FileBatches {
 public:
  /// After this time without progress a batch of another replica is taken over.
  static constexpr std::chrono::seconds kTakeOverAfter{10};

  /// `services` must outlive it; its store and document service are needed from the first call on.
  explicit FileBatches(Services& services,
                       std::chrono::milliseconds take_over_after = kTakeOverAfter);
  ~FileBatches();

  /// Goes on with the batches that a stop or a crash interrupted. A record that cannot be read is
  /// logged and left.
  void resume();
  /// Waits for the step in progress of each batch, and begins no more. What is unfinished stays so.
  void stop();

  /// Makes the batch durable, enters it in its vector store and begins. Errors: kNotFound (no such
  /// vector store), kResourceExhausted with field "file_batches" (too many that have not ended),
  /// those of the store, catalog_is_away().
  Status begin(const std::string& ns, FileBatch batch);
  /// Errors: kNotFound, kCorruption, kIo.
  Result<FileBatch> get(const std::string& ns, const std::string& store_id, const std::string& id);
  /// Cancels the files that are not begun, and returns the batch. One that has ended stays as it
  /// is. A file that another replica has begun may be completed all the same. Errors: those of
  /// get() and of saving it.
  Result<FileBatch> cancel(const std::string& ns, const std::string& store_id,
                           const std::string& id);
  /// Ends and removes the batches of a vector store that is gone.
  void forget(const std::string& ns, const std::vector<std::string>& ids);
  /// Returns the files that batches have yet to attach; `ids` are the vector store's batches.
  std::vector<std::string> waiting(const std::string& ns, const std::string& store_id,
                                   const std::vector<std::string>& ids);

  /// Counts of vector stores' files that were made lately.
  FileCountCache& counts() { return counts_; }

  static constexpr std::size_t kMostOfAStore = 100;  ///< beyond it the oldest ended one goes

 private:
  struct Run;
  using Key = std::pair<std::string, std::string>;  // namespace, id

  /// The record of a batch that another replica carries out, as it was seen here.
  struct Seen {
    std::size_t hash = 0;  // of its text
    std::chrono::steady_clock::time_point since;
  };

  bool is_shared() const;
  std::shared_ptr<Run> running(const Key& key) const;
  std::shared_ptr<Run> adopt(const std::string& ns, FileBatch batch);
  Result<std::shared_ptr<Run>> find(const std::string& ns, const std::string& store_id,
                                    const std::string& id, FileBatch& elsewhere);
  bool is_left(const Key& key, const std::string& text);
  bool has_ended(const std::string& ns, const std::string& id);
  bool look_again(Run& run) const;
  void post(const std::shared_ptr<Run>& run);
  void post_later(const std::shared_ptr<Run>& run, std::chrono::milliseconds after);
  void step(const std::shared_ptr<Run>& run);
  bool attach_next(Run& run, std::size_t i);
  void end(const std::shared_ptr<Run>& run);
  Status save(Run& run) const;
  Status drop_record(const std::string& ns, const std::string& id);
  void save_unfinished();

  Services& services_;
  const std::chrono::milliseconds take_over_after_;
  FileCountCache counts_;
  mutable std::mutex mu_;
  std::condition_variable idle_;
  std::map<Key, std::shared_ptr<Run>> runs_;  // guarded by mu_; not ended
  std::map<Key, Seen> elsewhere_;             // guarded by mu_
  std::set<Key> ended_;                       // guarded by mu_; some that need not be read again
  std::size_t stepping_ = 0;                  // guarded by mu_
  bool stopping_ = false;                     // guarded by mu_
  std::mutex unfinished_mu_;                  // held while their record is written
};

}  // namespace quire
