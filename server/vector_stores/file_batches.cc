#include "server/vector_stores/file_batches.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/store_admin.h"
#include "ingest/ingest_service.h"
#include "server/service/services.h"
#include "server/support/problem.h"
#include "server/vector_stores/vector_stores.h"

namespace quire {
namespace {

constexpr std::string_view kUnfinishedRecord = "server/file_batches";
constexpr std::size_t kFilesOfAStep = 16;  // then other calls have their turn on the worker
constexpr std::size_t kMostCutting = 8;    // files of a batch that are cut again at once
constexpr std::chrono::milliseconds kFullQueue{200};
constexpr std::chrono::milliseconds kAwayPause{1000};  // until an answer may come again
constexpr std::chrono::seconds kLongestWait{60};       // for news of a job
constexpr std::size_t kMostRemembered = 1u << 17;      // batches of which something is known here

using Clock = std::chrono::steady_clock;
using Record = std::optional<std::string>;

std::string record_name(const std::string& ns, const std::string& id) {
  return "server/file_batches/" + ns + "/" + id;
}

/// Returns the code that OpenAI has for one of ours.
std::string_view openai_code(std::string_view code) {
  if (code == "unsupported_media_type") return "unsupported_file";
  return problem_kind(code).status >= 500 ? "server_error" : "invalid_file";
}

/// Returns whether what one replica knows of a file comes before what another knows.
bool comes_before(BatchFileState a, BatchFileState b) {
  const auto rank = [](BatchFileState s) {
    return s == BatchFileState::kInProgress  ? 0
           : s == BatchFileState::kCancelled ? 1
           : s == BatchFileState::kFailed    ? 2
                                             : 3;
  };
  return rank(a) > rank(b);
}

/// Adds what another replica knows of a batch.
void merge(FileBatch& batch, FileBatch theirs) {
  batch.cancelled |= theirs.cancelled;
  const std::size_t n = std::min(batch.files.size(), theirs.files.size());
  for (std::size_t i = 0; i < n; ++i)
    if (comes_before(theirs.files[i].state, batch.files[i].state))
      batch.files[i] = std::move(theirs.files[i]);
}

void cancel_files(FileBatch& batch) {
  batch.cancelled = true;
  for (BatchFile& f : batch.files)
    if (f.state == BatchFileState::kInProgress) f.state = BatchFileState::kCancelled;
}

}  // namespace

/// A batch that has not ended.
struct FileBatches::Run {
  explicit Run(std::string name_space) : ns(std::move(name_space)) {}
  const std::string ns;
  std::mutex mu;
  FileBatch batch;                  // guarded by mu
  std::vector<bool> begun;          // by file; guarded by mu
  bool changed = false;             // since it was saved; guarded by mu
  bool gone = false;                // its vector store was deleted; guarded by mu
  Subscription waiting;             // guarded by mu
  std::uint64_t turn = 0;           // number of the step; guarded by mu
  std::vector<FileToAttach> files;  // of the one step that runs
  std::size_t next = 0;             // the same, as all that follow
  std::size_t cutting = 0;          // files that are being cut again
  bool waits = false;               // a file is not done
  std::string job_id;               // of the first such file; empty: the catalog is away

  /// Cancels a file, or lets it be. The caller holds mu.
  void cancel(std::size_t i) {
    if (batch.files[i].state != BatchFileState::kInProgress || begun[i]) return;
    batch.files[i].state = BatchFileState::kCancelled;
    changed = true;
  }
};

FileBatches::FileBatches(Services& services, std::chrono::milliseconds take_over_after)
    : services_(services), take_over_after_(take_over_after) {}

FileBatches::~FileBatches() { stop(); }

void FileBatches::stop() {
  std::vector<Subscription> dropped;
  std::unique_lock lock(mu_);
  stopping_ = true;
  idle_.wait(lock, [this] { return stepping_ == 0; });
  const auto runs = runs_;
  lock.unlock();  // a listener that runs now may want it, and so may whoever holds a run
  for (const auto& [_, run] : runs) {
    const std::lock_guard run_lock(run->mu);
    dropped.push_back(std::move(run->waiting));
  }
}

// -------------------------------------------------------------------------------------------------
// Records

bool FileBatches::is_shared() const { return services_.store->shared_jobs() != nullptr; }

/// Saves what has changed, and takes over what other replicas have saved.
Status FileBatches::save(Run& run) const {
  // The lock is held while it is written, so that a deletion comes after it or prevents it.
  const std::lock_guard lock(run.mu);
  if (run.gone || !run.changed) return {};
  QUIRE_RETURN_IF_ERROR(services_.store->update_shared_meta(
      record_name(run.ns, run.batch.id), [&](const Record& before) -> Result<Record> {
        run.gone = !before;
        if (run.gone) return Record();
        // One that cannot be read is replaced.
        if (auto theirs = read_file_batch_record(*before); theirs.ok())
          merge(run.batch, std::move(*theirs));
        return Record(file_batch_text(run.batch));
      }));
  run.changed = false;
  if (run.gone)
    for (std::size_t i = 0; i < run.batch.files.size(); ++i) run.cancel(i);
  return {};
}

/// Takes over what other replicas have saved of a batch that is carried out here. Returns whether
/// nothing is left to do by their account.
bool FileBatches::look_again(Run& run) const {
  if (!is_shared()) return false;
  const std::lock_guard lock(run.mu);
  const auto text = services_.store->get_shared_meta(record_name(run.ns, run.batch.id));
  if (text.code() == Code::kNotFound) {
    run.gone = true;
    for (std::size_t i = 0; i < run.batch.files.size(); ++i) run.cancel(i);
    return true;
  }
  if (!text.ok()) return false;
  auto theirs = read_file_batch_record(*text);
  if (!theirs.ok()) return false;
  const bool ended = theirs->ended();
  merge(run.batch, std::move(*theirs));
  return ended;
}

Status FileBatches::drop_record(const std::string& ns, const std::string& id) {
  return services_.store->update_shared_meta(
      record_name(ns, id), [](const Record&) -> Result<Record> { return Record(); });
}

/// Writes which batches have not ended. A batch too many is read again at the next start and found
/// to have ended; so a failure is no loss.
void FileBatches::save_unfinished() {
  const std::lock_guard writing(unfinished_mu_);
  std::vector<UnfinishedBatch> batches;
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
    for (const auto& [key, _] : runs_) batches.push_back({key.first, key.second});
  }
  const std::string name(kUnfinishedRecord);
  const Status s = batches.empty()
                       ? services_.store->delete_meta(name)
                       : services_.store->put_meta(name, unfinished_batches_text(batches));
  if (!s.ok())
    log_warning("the list of unfinished file batches could not be written",
                {{"reason", s.to_string()}});
}

void FileBatches::resume() {
  const auto text = services_.store->get_meta(std::string(kUnfinishedRecord));
  if (text.code() == Code::kNotFound) return;
  auto listed = text.ok() ? read_unfinished_batches(*text)
                          : Result<std::vector<UnfinishedBatch>>(text.status());
  if (!listed.ok()) {
    log_error("file batches that had not ended go on only once they are asked for",
              {{"reason", listed.status().to_string()}});
    return;
  }
  for (const UnfinishedBatch& b : *listed) {
    const auto record = services_.store->get_shared_meta(record_name(b.ns, b.id));
    if (record.code() == Code::kNotFound) continue;  // it ended, or its vector store is gone
    auto batch = record.ok() ? read_file_batch_record(*record) : Result<FileBatch>(record.status());
    if (batch.ok() && !batch->ended())
      adopt(b.ns, std::move(*batch));
    else if (!batch.ok())
      log_error("a file batch cannot go on",
                {{"namespace", b.ns}, {"batch", b.id}, {"reason", batch.status().to_string()}});
  }
  save_unfinished();
}

// -------------------------------------------------------------------------------------------------
// What callers ask for

/// Makes a run of a saved batch and begins it, unless there is one.
std::shared_ptr<FileBatches::Run> FileBatches::adopt(const std::string& ns, FileBatch batch) {
  auto run = std::make_shared<Run>(ns);
  for (const BatchFile& f : batch.files)
    run->files.push_back({.id = f.id,
                          .attributes = f.attributes.empty() ? batch.attributes : f.attributes,
                          .chunking = f.chunking ? f.chunking : batch.chunking});
  run->begun.resize(batch.files.size());
  const Key key{ns, batch.id};
  run->batch = std::move(batch);
  {
    const std::lock_guard lock(mu_);
    const auto [it, fresh] = runs_.emplace(key, run);
    if (!fresh) return it->second;
  }
  post(run);
  return run;
}

Status FileBatches::begin(const std::string& ns, FileBatch batch) {
  QUIRE_RETURN_IF_ERROR(services_.store->update_shared_meta(
      record_name(ns, batch.id),
      [&](const Record&) -> Result<Record> { return Record(file_batch_text(batch)); }));
  std::string forgotten;
  const Status entered = change_vector_stores(
      services_, ns, [&](std::vector<VectorStore>& stores) -> Status {
        const auto it = std::ranges::find(stores, batch.store_id, &VectorStore::id);
        if (it == stores.end()) return Status::not_found("no such vector store");
        forgotten.clear();  // another replica may have been first
        if (it->batches.size() >= kMostOfAStore) {
          const auto old = std::ranges::find_if(
              it->batches, [&](const std::string& id) { return has_ended(ns, id); });
          if (old == it->batches.end())
            return Status::exhausted("the vector store has " + std::to_string(kMostOfAStore) +
                                     " file batches that have not ended; wait for one")
                .with_field("file_batches");
          forgotten = *old;
          it->batches.erase(old);
        }
        if (std::ranges::find(it->batches, batch.id) == it->batches.end())
          it->batches.push_back(batch.id);
        return Status();
      });
  if (!entered.ok()) {
    (void)drop_record(ns, batch.id);
    return entered;
  }
  if (!forgotten.empty()) (void)drop_record(ns, forgotten);
  adopt(ns, std::move(batch));
  save_unfinished();
  return {};
}

std::shared_ptr<FileBatches::Run> FileBatches::running(const Key& key) const {
  const std::lock_guard lock(mu_);
  const auto it = runs_.find(key);
  return it == runs_.end() ? nullptr : it->second;
}

/// Returns whether the record of another replica's batch has not changed for so long that the
/// replica may be gone.
bool FileBatches::is_left(const Key& key, const std::string& text) {
  if (!is_shared()) return true;  // a crash has left it out of the record of unfinished ones
  const auto now = Clock::now();
  const std::lock_guard lock(mu_);
  if (elsewhere_.size() >= kMostRemembered) elsewhere_.clear();
  const std::size_t hash = std::hash<std::string>()(text);
  const auto [it, fresh] = elsewhere_.try_emplace(key, Seen{hash, now});
  if (!fresh && it->second.hash != hash) it->second = {hash, now};
  if (now - it->second.since < take_over_after_) return false;
  elsewhere_.erase(it);
  return true;
}

bool FileBatches::has_ended(const std::string& ns, const std::string& id) {
  const Key key{ns, id};
  {
    const std::lock_guard lock(mu_);
    if (runs_.contains(key)) return false;
    if (!is_shared() || ended_.contains(key)) return true;
  }
  const auto text = services_.store->get_shared_meta(record_name(ns, id));
  if (!text.ok()) return text.code() == Code::kNotFound;
  const auto batch = read_file_batch_record(*text);
  return !batch.ok() || batch->ended();
}

/// Returns the run of a batch; null: it has ended or another replica carries it out, and
/// `elsewhere` is what is known of it.
Result<std::shared_ptr<FileBatches::Run>> FileBatches::find(const std::string& ns,
                                                            const std::string& store_id,
                                                            const std::string& id,
                                                            FileBatch& elsewhere) {
  const Key key{ns, id};
  std::shared_ptr<Run> run = running(key);
  if (!run) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text,
                           services_.store->get_shared_meta(record_name(ns, id)));
    QUIRE_ASSIGN_OR_RETURN(elsewhere, read_file_batch_record(text));
    if (elsewhere.store_id != store_id) return Status::not_found("no such file batch");
    if (elsewhere.ended()) {
      const std::lock_guard lock(mu_);
      elsewhere_.erase(key);
      if (ended_.size() >= kMostRemembered) ended_.clear();
      ended_.insert(key);
    } else if (is_left(key, text)) {
      run = adopt(ns, elsewhere);
      save_unfinished();
    }
    return run;
  }
  if (look_again(*run)) end(run);
  const std::lock_guard lock(run->mu);
  if (run->batch.store_id != store_id) return Status::not_found("no such file batch");
  return run;
}

Result<FileBatch> FileBatches::get(const std::string& ns, const std::string& store_id,
                                   const std::string& id) {
  FileBatch batch;
  QUIRE_ASSIGN_OR_RETURN(const auto run, find(ns, store_id, id, batch));
  if (!run) return batch;
  const std::lock_guard lock(run->mu);
  return run->batch;
}

Result<FileBatch> FileBatches::cancel(const std::string& ns, const std::string& store_id,
                                      const std::string& id) {
  FileBatch batch;
  QUIRE_ASSIGN_OR_RETURN(const auto run, find(ns, store_id, id, batch));
  if (!run) {
    if (batch.ended()) return batch;
    // The replica that carries it out finds this before its next step.
    QUIRE_RETURN_IF_ERROR(services_.store->update_shared_meta(
        record_name(ns, id), [&](const Record& before) -> Result<Record> {
          if (!before) return Status::not_found("no such file batch");
          QUIRE_ASSIGN_OR_RETURN(batch, read_file_batch_record(*before));
          if (batch.ended()) return before;
          cancel_files(batch);
          return Record(file_batch_text(batch));
        }));
    return batch;
  }
  {
    const std::lock_guard lock(run->mu);
    if (!run->batch.ended()) {
      run->batch.cancelled = run->changed = true;
      for (std::size_t i = 0; i < run->batch.files.size(); ++i) run->cancel(i);
    }
    batch = run->batch;
  }
  QUIRE_RETURN_IF_ERROR(save(*run));
  // A run that waits for documents has nothing to wait for any more.
  if (batch.ended()) end(run);
  return batch;
}

void FileBatches::forget(const std::string& ns, const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    if (const auto run = running({ns, id})) {
      {
        const std::lock_guard lock(run->mu);
        run->gone = true;
        for (std::size_t i = 0; i < run->batch.files.size(); ++i) run->cancel(i);
      }
      end(run);
    }
    if (const Status s = drop_record(ns, id); !s.ok())
      log_warning("the record of a file batch could not be deleted",
                  {{"namespace", ns}, {"batch", id}, {"reason", s.to_string()}});
  }
}

std::vector<std::string> FileBatches::waiting(const std::string& ns, const std::string& store_id,
                                              const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  const auto add = [&](const FileBatch& batch) {
    for (const BatchFile& f : batch.files)
      if (f.state == BatchFileState::kInProgress) out.push_back(f.id);
  };
  for (const std::string& id : ids) {
    {
      const std::lock_guard lock(mu_);
      if (!runs_.contains({ns, id}) && (!is_shared() || ended_.contains({ns, id}))) continue;
    }
    const auto batch = get(ns, store_id, id);
    if (batch.ok()) add(*batch);
  }
  return out;
}

// -------------------------------------------------------------------------------------------------
// Steps

void FileBatches::post(const std::shared_ptr<Run>& run) {
  if (services_.workers->post([this, run] { step(run); })) return;
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
  }
  post_later(run, kFullQueue);
}

void FileBatches::post_later(const std::shared_ptr<Run>& run, std::chrono::milliseconds after) {
  services_.timers->at(TimerQueue::Clock::now() + after, [this, run] { post(run); });
}

/// Takes a file one step further. Returns whether the batch must wait for it; it notes for what.
bool FileBatches::attach_next(Run& run, std::size_t i) {
  std::string store_id;
  {
    const std::lock_guard lock(run.mu);
    if (run.batch.files[i].state != BatchFileState::kInProgress) return false;
    run.begun[i] = true;
    store_id = run.batch.store_id;
  }
  FileToAttach& file = run.files[i];
  const auto may_cut = run.cutting < kMostCutting ? MayCut::kYes : MayCut::kNo;
  const AttachStep s = attach_file_to(services_, run.ns, store_id, file, may_cut);
  const bool cutting = s.at == AttachStep::At::kWorking && !file.cut_job.empty();
  run.cutting += cutting;
  const std::lock_guard lock(run.mu);
  BatchFile& state = run.batch.files[i];
  switch (s.at) {
    case AttachStep::At::kAttached:
      state.state = BatchFileState::kCompleted;
      run.changed = true;
      return false;
    case AttachStep::At::kFailed:
      if (s.catalog_away) break;
      state.state = BatchFileState::kFailed;
      state.error_code = openai_code(s.code);
      state.error_message = s.message;
      run.changed = true;
      return false;
    case AttachStep::At::kWorking:
    case AttachStep::At::kLater:
      break;
  }
  run.begun[i] = cutting;
  if (run.batch.cancelled || run.gone) run.cancel(i);
  if (state.state != BatchFileState::kInProgress) return false;
  if (!run.waits) run.job_id = s.job_id;
  return true;
}

void FileBatches::step(const std::shared_ptr<Run>& run) {
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
    ++stepping_;
  }
  std::uint64_t turn = 0;
  {
    const std::lock_guard lock(run->mu);
    turn = ++run->turn;
  }
  struct Leaving {
    FileBatches& all;
    ~Leaving() {
      const std::lock_guard lock(all.mu_);
      --all.stepping_;
      all.idle_.notify_all();
    }
  } const leaving{*this};

  (void)look_again(*run);
  bool all = true;
  for (std::size_t done = 0; run->next < run->files.size(); ++run->next, ++done) {
    all = done < kFilesOfAStep;
    if (!all) break;
    if (attach_next(*run, run->next)) run->waits = true;
  }
  const Status saved = save(*run);
  if (!saved.ok() && !catalog_is_away(saved))
    log_error("a file batch could not be saved; a restart repeats a part of it",
              {{"namespace", run->ns}, {"reason", saved.to_string()}});
  if (!all) return post(run);
  run->next = run->cutting = 0;
  const std::string job_id = std::exchange(run->job_id, {});
  bool ended = !std::exchange(run->waits, false);
  {
    const std::lock_guard lock(run->mu);
    ended = ended || run->batch.ended();  // the rest was cancelled
  }
  // From here on the next step may run, and wait in its turn.
  if (catalog_is_away(saved) || (!ended && job_id.empty())) return post_later(run, kAwayPause);
  if (ended) return end(run);
  // The first of some causes begins the one next step: the job has done more documents, of which
  // one may be a file's, or it has ended. It may be another replica's, and may be forgotten there
  // unseen.
  auto begin = [this, weak = std::weak_ptr(run),
                begun = std::make_shared<std::atomic<bool>>(false)] {
    const auto again = weak.lock();
    if (again && !begun->exchange(true)) post(again);
  };
  auto subscribed = services_.ingest->jobs().subscribe(
      run->ns, job_id,
      [begin, seen = std::int64_t{-1}](JobEvent event, const JobSnapshot& job) mutable {
        const std::int64_t done = job.counts.completed + job.counts.failed + job.counts.cancelled;
        const bool more = seen >= 0 && done != seen;  // the first event says how it stands
        seen = done;
        if (more || event == JobEvent::kDone) begin();
      });
  if (!subscribed.ok()) return post_later(run, kAwayPause);
  services_.timers->at(TimerQueue::Clock::now() + kLongestWait, begin);
  Subscription waiting = std::move(*subscribed);
  const std::lock_guard lock(run->mu);
  if (run->turn == turn) std::swap(run->waiting, waiting);
}

void FileBatches::end(const std::shared_ptr<Run>& run) {
  Subscription dropped;
  std::string id;
  {
    const std::lock_guard lock(run->mu);
    id = run->batch.id;
    dropped = std::exchange(run->waiting, Subscription());
  }
  {
    const std::lock_guard lock(mu_);
    const auto it = runs_.find({run->ns, id});
    if (it == runs_.end() || it->second != run) return;
    runs_.erase(it);
  }
  save_unfinished();
}

}  // namespace quire
