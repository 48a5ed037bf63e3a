/// All jobs of the process: the queue of waiting documents, the work in flight, progress,
/// listeners, and the records on disk. JobTable does not know how a document is cached.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/store.h"
#include "ingest/document/job.h"
#include "ingest/document/job_record.h"
#include "ingest/ingest_service.h"
#include "ingest/job_board.h"

namespace quire {

/// Work is one document handed to a worker.
struct Work {
  std::string job_id, ns;
  JobType type = JobType::kIngest;
  std::int64_t job_created_ms = 0;
  ItemRecord item;  ///< the item when the work began
  std::shared_ptr<const JobSettings> settings;
  /// Once requested, the worker gives up soon, then calls finish() or requeue().
  std::stop_token cancelled;
};

/// ItemOutcome is the result of one item.
struct ItemOutcome {
  ItemResult result = ItemResult::kFailed;
  DocumentStatus status = DocumentStatus::kFailed;
  std::uint64_t tokens = 0, blocks = 0, written_tokens = 0, deduplicated_tokens = 0;
  std::optional<ItemError> error;
};

/// PendingDocument is a document that a job is working on (the latest, if several wait for the same
/// id).
struct PendingDocument {
  std::string job_id, id, content_hash;
  std::int64_t job_created_ms = 0;
  std::int32_t index = 0;
  std::uint32_t pack = 0;
  std::uint64_t input_bytes = 0, tokens_total = 0;
  JobType type = JobType::kIngest;
  DocumentStatus status = DocumentStatus::kQueued;
  double progress = 0;
  std::shared_ptr<const JobSettings> settings;
  bool elsewhere = false;  ///< another replica works on it, and its input is not here
};

/// Threads: every method may be called from any thread. Those marked (disk) write or read job
/// records.
class JobTable final : public JobBoard {
 public:
  JobTable(Store& store, const IngestOptions& options);
  ~JobTable() override;

  // ---- life ----
  /// Reads jobs back, queues unfinished items, drops unneeded inputs and starts the notifier.
  /// (disk)
  Status start();
  /// Makes add() refuse and next() return none from now on, and asks all work in flight to give up.
  void begin_stop();
  /// Waits until nothing is in flight, saves changes and ends the notifier. (disk)
  void finish_stop();
  bool stopping() const;

  // ---- queue ----
  /// Makes the job durable and queues its items. (disk) `record` comes without id.
  Result<JobSnapshot> add(JobRecord record, std::vector<SavedPack> packs);
  /// Returns the next document whose id no other work holds, if the limit of work in flight allows
  /// one more. None while the shared catalog is away, as nothing could be committed. A document of
  /// a job that processes have not survived comes alone, so that it ends no other's work.
  std::optional<Work> next();

  // ---- reports of the worker ----
  /// Comes before all else: a process that dies after this is an attempt of the job. (disk)
  /// Errors: catalog_is_away(), job_taken_over().
  Status begin(const Work& work);
  void set_status(const Work& work, DocumentStatus status);
  void set_tokens_total(const Work& work, std::uint64_t tokens);
  void set_tokens_done(const Work& work, std::uint64_t tokens);
  /// Returns false if the item was cancelled in the meantime and must not be committed. Otherwise,
  /// until finish(), the item counts as done for cancellation. Waits for a CommitHold.
  bool begin_commit(const Work& work);
  void finish(const Work& work, ItemOutcome outcome);  // (disk)
  /// Puts the item back for the next start, at a stop, or for later while the shared catalog is
  /// away. Returns false if it was cancelled in the meantime; the caller then calls finish().
  bool requeue(const Work& work);
  /// Has an item that waits leave its room to others. Returns false if many do so already.
  bool set_aside();
  /// Ends that, if the limit of work in flight allows or at a stop. Returns false: not yet.
  bool take_back();
  /// Ends that for an item that is about to end.
  void take_back_to_end();
  /// Makes next() return none until the next start: nothing can be computed any more.
  void halt();
  /// Returns what ties the commit of a document to its item; none without shared jobs.
  std::optional<JobFence> fence(const Work& work, const ItemOutcome& outcome) const;
  /// Leaves the job to the replica that has it by now. The caller then calls finish().
  void lose(const Work& work);

  // ---- JobBoard ----
  Result<JobSnapshot> job(std::string_view ns, std::string_view job_id) override;
  Result<JobListPage> list_jobs(std::string_view ns, const JobListOptions& options) override;
  Result<JobSnapshot> cancel_job(std::string_view ns, std::string_view job_id) override;
  Result<Subscription> subscribe(std::string_view ns, std::string_view job_id,
                                 JobListener listener) override;
  Subscription when_synchronized(std::string_view ns, std::span<const std::string> ids,
                                 std::function<void()> done) override;

  /// Returns whether this table has, or made within the retention, a job of this name.
  bool knows(std::string_view job_id) const;

  // ---- documents of unfinished jobs ----
  enum class Which : std::uint8_t { kAny, kPosts };
  /// While one lives, no item of this id is committed here.
  class CommitHold;
  /// Cancels every item that waits or works for this id, for which the caller has a CommitHold. Of
  /// the jobs concerned none is saved until the returned object is released, which saves the oldest
  /// first. (disk)
  class Cancelled;
  Cancelled cancel_document(std::string_view ns, std::string_view id);
  std::optional<PendingDocument> pending(std::string_view ns, std::string_view id);
  /// Returns it if another replica of the shared catalog works on it. (catalog) Errors:
  /// catalog_is_away().
  Result<std::optional<PendingDocument>> pending_elsewhere(std::string_view ns, std::string_view id,
                                                           Which which = Which::kAny);
  /// Returns the last post of it that is not done, here or at another replica: its commit replaces
  /// what is changed meanwhile. (catalog) Errors: catalog_is_away().
  Result<std::optional<PendingDocument>> pending_post(std::string_view ns, std::string_view id);
  std::vector<PendingDocument> pending_in(std::string_view ns);
  /// Returns up to `limit` of them after `after` (exclusive; empty: from the start) in order of id.
  std::vector<PendingDocument> pending_after(std::string_view ns, std::string_view after,
                                             bool descending, std::size_t limit);
  /// Reads the input of a pending document, of an item without its text, and the text of the
  /// latter. (disk) Errors: kNotFound (its job has ended), kCorruption, kIo.
  Result<DocumentInput> input(const PendingDocument& pending);
  Result<SavedInput> saved_input(std::string_view job_id, std::uint32_t pack, std::int32_t index);
  Result<DocumentInput> with_text(std::string_view job_id, SavedInput saved, std::int32_t index);

  // ---- records ----
  /// Saves every job that changed, oldest first. (disk)
  Status flush() { return flush(/*skip_held=*/false); }
  /// Saves them except jobs held back by a Cancelled, which a holder must not wait for. (disk)
  Status flush_others() { return flush(/*skip_held=*/true); }
  /// Removes jobs that ended longer ago than the retention. (disk)
  Status purge(std::int64_t now_ms);
  /// With shared jobs: tells the other replicas that this one is alive, takes jobs of those that
  /// are not, gives up those that were taken, and tells listeners of jobs elsewhere. It is called
  /// every second, and does nothing where nothing is due. (disk)
  Status sync_shared();
  void fill(IngestStats& stats) const;
  /// Returns whether a job with an item of this id is not saved as it is.
  bool has_unsaved(std::string_view ns, std::string_view id) const;
  /// Saves how jobs other than `except` ended for this id. A change that leaves no name of a job at
  /// the document comes after this: else a start could repeat an older item over it. (disk)
  Status settle(std::string_view ns, std::string_view id, std::string_view except);

 private:
  using Key = std::pair<std::string, std::string>;  // namespace, id
  /// A job that so many processes in a row had begun when they died is worked on alone: others that
  /// are worked on beside it die with it, and are taken for the reason, too.
  static constexpr std::uint64_t kAttemptsTogether = 2;
  /// After so many, without one of its items done, the job is most likely the reason.
  static constexpr std::uint64_t kMostAttempts = 10;
  enum class Stage : std::uint8_t { kQueued, kWorking, kCommitting, kDone };
  struct ItemState {
    Stage stage = Stage::kDone;
    std::uint64_t tokens_total = 0, tokens_done = 0;  // 0: not known yet
    std::stop_source cancelled{std::nostopstate};     // of one that is not done
    std::uint64_t place = 0;                          // in the order of submission
  };
  struct ListenerBox {
    JobListener call;
  };
  struct Job {
    JobRecord record;
    std::shared_ptr<const JobSettings> settings;
    std::vector<ItemState> states;
    JobSnapshot summary;  // for a finished job, without results
    bool dirty = false, persisting = false, published = false, spilled = false,
         progress_due = false;
    bool has_inputs = false;     // saved inputs are still there
    bool lost = false;           // another replica has it: nothing of it is seen or saved here
    std::uint64_t attempts = 0;  // by processes before this one
    bool begun_here = false;     // and that is noted
    bool sharing = false, share_due = false;  // its record goes, or has to go, to the replicas
    std::chrono::steady_clock::time_point shared_at{};
    int save_holds = 0;
    std::int64_t tokens_before = 0;  // done in an earlier process
    std::optional<std::chrono::steady_clock::time_point> begun, ended;
    std::vector<std::weak_ptr<ListenerBox>> listeners;
  };
  using JobPtr = std::shared_ptr<Job>;
  struct ItemRef {
    JobPtr job;
    std::size_t item = 0;
  };
  struct ActiveKey {
    std::deque<ItemRef> refs;  // in order of submission
    bool busy = false;
  };
  struct Waiter {
    std::set<Key> keys;
    std::function<void()> done;
  };
  /// A listener of a job that another replica has.
  struct Foreign {
    std::string ns, job_id;
    std::weak_ptr<ListenerBox> listener;
  };

  // These must be called under mu_.
  Status admit(std::size_t items, std::uint64_t bytes) const;
  /// Returns a job that this replica has.
  JobPtr find(std::string_view ns, std::string_view job_id) const;
  JobPtr find_work(const Work& work) const;  // also one that was lost meanwhile
  void enqueue(const JobPtr& job);
  void offer(const ActiveKey& active);
  void restore(JobRecord record);
  static ItemOutcome cancelled_outcome();
  static void apply(const ItemOutcome& outcome, ItemRecord* item);
  void cancel_item(const JobPtr& job, std::size_t i);
  void set_unsaved(const JobPtr& job);
  void end_item(const JobPtr& job, std::size_t i, ItemOutcome outcome);
  static JobStatus end_status(const JobRecord& record);  // once all items are done
  bool end_job_if_done(const JobPtr& job);
  void release_key(const JobPtr& job, std::size_t i, bool was_working);
  void mark_progress(const JobPtr& job);
  JobSnapshot make_snapshot(const Job& job, bool with_results) const;
  JobProgress make_progress(const Job& job) const;
  PendingDocument describe(const ItemRef& ref) const;
  std::optional<PendingDocument> latest(const ActiveKey& active, Which which = Which::kAny) const;
  void lose(const JobPtr& job);
  /// Forgets a lost job that nothing works on. If this returns true, drop_records() must follow:
  /// until then the job is not adopted again, as its records would go with those of before.
  bool forget_if_idle(const JobPtr& job);

  Status load();                                           // (disk)
  Status count_attempts();                                 // (disk)
  Status give_up(const std::string& id);                   // (disk)
  void note_stop();                                        // (disk)
  Status forget_attempts(const std::string& id);           // (disk)
  Status drop_stale_inputs();                              // (disk)
  Status drop_stale_texts();                               // (disk)
  Status flush(bool skip_held);                            // (disk)
  Status save(const JobPtr& job, bool skip_held = false);  // (disk)
  // (disk) saves ended jobs, drops their inputs, notifies listeners
  void conclude(const std::vector<JobPtr>& ended);
  void drop_inputs(const JobRecord& record);  // (disk)
  void refuse_here(JobRecord record);
  Status end_refused();                            // (disk)
  void drop_inputs_once_saved(const JobPtr& job);  // (disk)
  void notify_loop();

  // With shared jobs, in job_table_shared.cc. (disk)
  Status share(const JobPtr& job, bool soon);  // its record, if it is due
  Status take_name();
  Status add_shared(const JobRecord& record, std::span<const NamedText> parts);
  Status adopt(const OwnJob& own);
  Status end_unseen(const std::string& id, const ItemOutcome& outcome);
  Status add_marks(JobRecord* record);  // enters which items are done
  void refuse(const std::string& id);
  void forget_refused(std::chrono::steady_clock::time_point asked);
  Status call_off(const std::string& id);
  Status adopt_inputs(const JobRecord& record);
  Status tell_foreign();
  void keep_alive();  // runs on a thread of its own
  void end_keep_alive();
  void drop_records(const JobPtr& job);
  Result<JobSnapshot> foreign_job(std::string_view ns, std::string_view job_id);
  Result<JobSnapshot> cancel_foreign(std::string_view ns, std::string_view job_id);
  Result<JobListPage> list_all(std::string_view ns, const JobListOptions& options);
  JobSnapshot view_of(JobRecord record, bool with_results) const;
  Result<JobRecord> merged(const SharedJob& job);  // with the marks of its items

  Store& store_;
  const IngestOptions& options_;
  SharedJobs* const shared_;  // null: all jobs are this process's own

  mutable std::mutex mu_;
  std::condition_variable changed_;                  // signals commits, saves and work in flight
  std::condition_variable notify_;                   // wakes the notifier
  std::map<std::string, JobPtr, std::less<>> jobs_;  // guarded by mu_, like all members below
  /// Jobs that are not saved as they are, also while they are being saved.
  std::map<std::string, JobPtr, std::less<>> unsaved_;
  /// By place: of each id that nothing works on the first item.
  std::map<std::uint64_t, ItemRef> queue_;
  std::uint64_t last_place_ = 0;
  std::map<Key, ActiveKey> active_;
  std::map<Key, int> commit_holds_;
  std::size_t queued_items_ = 0;
  std::uint64_t queued_bytes_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t aside_ = 0;              // of those in flight
  ItemRef alone_{};                    // of those in flight: one of a job with many attempts
  std::deque<std::string> unspilled_;  // finished jobs whose results are in memory
  std::string last_id_;
  bool stopping_ = true, notifier_stop_ = false;
  bool halted_ = false;
  /// After a commit that found the catalog away: it is not asked again and again.
  std::chrono::steady_clock::time_point none_before_{};
  std::vector<std::weak_ptr<Waiter>> waiters_;
  std::vector<std::shared_ptr<Waiter>> settled_;  // calls due by the notifier
  std::vector<JobPtr> ended_;                     // jobs that the notifier has yet to report
  std::set<std::string, std::less<>> adding_;     // jobs that are shared and not in jobs_ yet
  /// Jobs whose callers were told that none was taken, and since when. The catalog may have them,
  /// and until some time later they may still come there.
  std::map<std::string, std::chrono::steady_clock::time_point, std::less<>> refused_jobs_;
  bool refused_lost_ = false;  // there were too many, and that was said
  /// Without shared jobs: jobs whose record could not be written, as their callers know. The disk
  /// may have it all the same, and a start would find it, so it is written as cancelled later.
  std::map<std::string, JobRecord, std::less<>> refused_here_;
  std::set<std::string, std::less<>> dropping_;  // jobs between these two calls
  std::vector<Foreign> foreign_;
  bool named_ = false;   // the replica's name is saved, and its earlier jobs are its own
  bool synced_ = false;  // which of the jobs here are this replica's is known
  bool any_progress_ = false;
  IngestStats totals_;
  std::thread notifier_;
  std::thread alive_;
  std::mutex alive_mu_;
  std::condition_variable alive_wake_;
  bool alive_stop_ = false;  // guarded by alive_mu_
  std::atomic<std::chrono::steady_clock::time_point> last_sync_{};
  std::mutex sync_mu_;  // of sync_shared(), held before mu_
  std::chrono::steady_clock::time_point next_sync_{}, next_purge_{};  // guarded by sync_mu_
  std::set<std::string, std::less<>> unreadable_;                     // jobs; guarded by sync_mu_
  std::map<std::string, std::chrono::steady_clock::time_point, std::less<>>
      set_aside_;  // jobs that others shall take, until when; guarded by sync_mu_
  bool name_failure_logged_ = false;  // that take_name() fails; guarded by sync_mu_
  bool stands_alone_ = false;         // guarded by sync_mu_
};

class JobTable::CommitHold {
 public:
  /// Waits for an item that is being committed.
  CommitHold(JobTable& table, std::string_view ns, std::string_view id);
  ~CommitHold();
  CommitHold(const CommitHold&) = delete;
  CommitHold& operator=(const CommitHold&) = delete;

 private:
  JobTable& table_;
  const Key key_;
};

class JobTable::Cancelled {
 public:
  explicit Cancelled(JobTable& table) : table_(table) {}
  Cancelled(Cancelled&&) = default;  // the moved-from object then holds nothing
  Cancelled& operator=(Cancelled&&) = delete;
  ~Cancelled() { release(); }
  std::size_t num_items() const { return num_items_; }
  /// Allows the jobs to be saved, and ends those that have no item left. (disk)
  void release();

 private:
  friend class JobTable;
  JobTable& table_;
  std::size_t num_items_ = 0;
  std::vector<JobPtr> held_, ended_;
};

}  // namespace quire
