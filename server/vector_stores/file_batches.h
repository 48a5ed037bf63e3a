/// Batches of files that are attached to vector stores behind the calls that asked for it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/vector_stores/file_batch_codec.h"

namespace quire {

struct Services;

/// A batch is a record of the store, and one state of each file in it. It is saved before begin()
/// returns, whenever it waits for documents, and when it ends. Another record names the batches
/// that have not ended, with which the next start goes on. Attaching a file twice changes nothing,
/// so a crash between two saves is no loss.
///
/// Files whose documents are ready are attached first. The batch then waits for the others, which
/// are being cached or cut again, and holds no thread meanwhile.
///
/// Threads: any. Methods may wait on disk.
class FileBatches {
 public:
  /// `services` must outlive it; its store and document service are needed from the first call on.
  explicit FileBatches(Services& services);
  ~FileBatches();

  /// Goes on with the batches that a stop or a crash interrupted. A record that cannot be read is
  /// logged and left.
  void resume();
  /// Waits for the step in progress of each batch, and begins no more. What is unfinished stays so.
  void stop();

  /// Makes the batch durable, enters it in its vector store and begins. Errors: kNotFound (no such
  /// vector store), kResourceExhausted with field "file_batches" (too many that have not ended),
  /// those of the store.
  Status begin(const std::string& ns, FileBatch batch);
  /// Errors: kNotFound, kCorruption, kIo.
  Result<FileBatch> get(const std::string& ns, const std::string& store_id, const std::string& id);
  /// Cancels the files that are not begun, and returns the batch. One that has ended stays as it
  /// is. Errors: those of get() and of saving it.
  Result<FileBatch> cancel(const std::string& ns, const std::string& store_id,
                           const std::string& id);
  /// Ends and removes the batches of a vector store that is gone.
  void forget(const std::string& ns, const std::vector<std::string>& ids);
  /// Returns the files that batches have yet to attach.
  std::vector<std::string> waiting(const std::string& ns, const std::string& store_id) const;

  static constexpr std::size_t kMostOfAStore = 100;  ///< beyond it the oldest ended one goes

 private:
  struct Run;
  using Key = std::pair<std::string, std::string>;  // namespace, id

  std::shared_ptr<Run> adopt(const std::string& ns, FileBatch batch);
  Result<std::shared_ptr<Run>> find(const std::string& ns, const std::string& store_id,
                                    const std::string& id, FileBatch& ended);
  void post(const std::shared_ptr<Run>& run);
  void step(const std::shared_ptr<Run>& run);
  bool attach_next(Run& run, std::size_t i);
  void end(const std::shared_ptr<Run>& run);
  Status save(Run& run) const;
  void save_unfinished();

  Services& services_;
  mutable std::mutex mu_;
  std::condition_variable idle_;
  std::map<Key, std::shared_ptr<Run>> runs_;  // guarded by mu_; not ended
  std::size_t stepping_ = 0;                  // guarded by mu_
  bool stopping_ = false;                     // guarded by mu_
  std::mutex unfinished_mu_;                  // held while their record is written
};

}  // namespace quire
