/// DocumentTask takes one document through a job: input, chunks, prefill of each chunk, one commit.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/admission/admission.h"
#include "ingest/document/chunk_prefills.h"
#include "ingest/document/chunker.h"
#include "ingest/job_table.h"
#include "ingest/prepared_text.h"
#include "ingest/task_pool.h"

namespace quire {

/// TaskContext is shared by all tasks and outlives them.
struct TaskContext {
  Store& store;
  Engine& engine;
  JobTable& table;
  TaskPool& pool;
  const IngestOptions& options;
  PinGate& pins;
  NamespaceRoom& room;
  std::function<void()> pump;  ///< called when a document has ended, so that the next may begin
};

/// Steps run on the pool one after another. Only prefill callbacks run on the engine's threads, and
/// they only post.
class DocumentTask : public ChunkPrefills::Owner,
                     public std::enable_shared_from_this<DocumentTask> {
 public:
  DocumentTask(TaskContext& context, Work work)
      : context_(context), work_(std::move(work)), prefills_(context.engine) {}
  /// Starts the task on a pool thread. The task keeps itself alive until it has reported to the
  /// table.
  void begin();

 private:
  void guarded(const std::function<void()>& step);
  void begin_ingest();
  void begin_warm();
  using Step = void (DocumentTask::*)();
  void see_related(std::string_view text, const ChunkingOptions& options, Step next);
  void wait_for_index(std::string_view text, const ChunkingOptions& options, Step next);
  void come_back();
  void ingest_behind_related();
  void warm_behind_related();
  Status choose_related(std::string_view text, const ChunkingOptions& options);
  bool sees_what_it_saw();
  std::vector<std::int32_t> left_of(std::size_t chunk) const;
  Result<bool> synchronize_without_work(const SavedInput& saved);
  Status keep_existing(const DocumentInput& input);
  Status check_quota();
  Status ask_for_pin(std::uint64_t num_tokens);
  bool rename_chunks(DocumentManifest& m);
  void find_missing();
  void prefill_all();
  PrefillRequest request_of(std::size_t chunk) override;
  void add_tokens_done(std::int64_t tokens) override;
  void post(std::function<void()> step) override;
  void prefilled() override;
  void release_kv();
  void commit();
  Result<DocumentManifest> store_document(DocumentManifest manifest,
                                          std::span<const SegmentHandle> segments,
                                          CommitOptions options);
  Result<DocumentManifest> store_anew(DocumentManifest m, std::span<const SegmentHandle> segments,
                                      CommitOptions options);
  std::vector<ContextKey> renamed_companions(std::vector<ContextKey> named) const;
  bool is_what_was_read(const DocumentManifest& now) const;
  std::uint64_t version_now();
  void commit_missing();
  void fail(const Status& status, std::string param);
  void wait_for_catalog(const Status& status);
  void wait_for_start(const Status& status);
  void try_again();
  void fail_cut(const Status& status);
  void fail(ItemError error, bool keep_document);
  void end_cancelled();
  void end(ItemOutcome outcome);
  ItemOutcome good(ItemResult result, const DocumentManifest& manifest) const;
  DocumentManifest draft(DocumentStatus status) const;
  std::string path(std::string_view field) const;

  TaskContext& context_;
  const Work work_;
  /// Those of the job, but for the lead-in of a version that stays: a default changes none.
  ChunkingOptions chunking_;
  std::string title_, metadata_json_;
  std::vector<TextMark> marks_;
  std::string text_name_;  // of the text that waits in the store; empty: none does
  PreparedText text_;
  std::optional<DocumentManifest> existing_;  // head of the current version
  bool existing_ready_ = false;
  bool same_but_related_ = false;  // the stored version is the same unless its related chunks are
  std::vector<Chunk> chunks_;
  std::vector<RelatedChunk> related_;
  std::optional<Clock::time_point> index_until_;  // when waiting for the index of words ends
  bool aside_ = false;                            // it waits, and others have its room
  std::string warm_text_;      // of a document that is made anew, until it has its related chunks
  ChunkPrefills prefills_;     // of chunks that have no KV, by their place in chunks_
  PinGate::Grant pin_;         // held until the document is committed
  NamespaceRoom::Grant room_;  // held until the document is committed
  bool keep_version_ = false;  // only KV is missing, so there is no new version
  bool renamed_ = false;       // only KV is missing, under keys that the version does not name yet
  std::vector<ContextKey> names_before_;  // where renamed_: the keys that the version names
  bool committing_ = false;               // the store may have this version already
  bool ended_ = false;                    // the table has been told, or is being told
  ItemResult kept_result_ = ItemResult::kUnchanged;
  std::uint64_t skipped_tokens_ = 0;  // tokens of chunks that need no prefill
  std::atomic<std::int64_t> tokens_done_{0};
};

}  // namespace quire
