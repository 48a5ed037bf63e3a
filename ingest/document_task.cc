#include "ingest/document_task.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "ingest/document/metadata.h"
#include "ingest/names.h"

namespace quire {
namespace {

constexpr int kMostTries = 100;
/// How long a document waits for the index to be complete, after which it sees no related chunks.
constexpr auto kIndexWait = std::chrono::seconds(60);
constexpr auto kIndexPause = std::chrono::milliseconds(50);

/// Runs `step` and returns what it threw as a failure.
template <class Step>
Status caught(const Step& step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    return Status::exhausted("there is not enough memory to process this document");
  } catch (const std::exception& e) {
    return Status::internal(e.what());
  }
  return {};
}

}  // namespace

void DocumentTask::begin() {
  guarded([this] {
    chunking_ = work_.settings->chunking;
    if (work_.cancelled.stop_requested()) return end_cancelled();
    if (const Status s = context_.table.begin(work_); !s.ok()) return fail(s, path(""));
    context_.table.set_status(work_, DocumentStatus::kTokenizing);
    work_.type == JobType::kWarm ? begin_warm() : begin_ingest();
  });
}

/// Runs a step of the work. An exception ends the document alone: if it ended the process, the job,
/// which is durable, would end it again after every start.
void DocumentTask::guarded(const std::function<void()>& step) {
  const Status failure = caught(step);
  if (failure.ok()) return;
  log_error("the work on a document was ended by an exception",
            {{"job_id", work_.job_id},
             {"document_id", work_.item.view.id},
             {"error", failure.to_string()}});
  if (ended_) return;
  if (!prefills_.fail(failure)) return;  // the last prefill ends the document
  chunks_ = {};                          // makes room
  const ItemError error = to_item_error(failure, path(""));
  const Status failed = caught([&] {
    if (committing_) return fail(error, /*keep_document=*/false);
    fail(failure, path(""));
  });
  if (failed.ok() || ended_) return;
  ItemOutcome outcome;
  outcome.error = error;
  end(std::move(outcome));
}

std::string DocumentTask::path(std::string_view field) const {
  return join_path(item_path(*work_.settings, work_.item.view.index), field);
}

// -------------------------------------------------------------------------------------------------
// What is there already

void DocumentTask::begin_ingest() {
  const std::int32_t index = work_.item.view.index;
  auto saved = context_.table.saved_input(work_.job_id, work_.item.pack, index);
  if (!saved.ok())
    return fail(saved.status().with_context("the saved input could not be read"), path(""));
  const auto settled = synchronize_without_work(*saved);
  if (!settled.ok())
    return fail(settled.status(), settled.status().field() == "pinned" ? "pinned" : path(""));
  if (*settled) return;
  if (saved->text_apart) text_name_ = input_text_name(work_.job_id, index);
  auto input = context_.table.with_text(work_.job_id, std::move(*saved), index);
  if (!input.ok())
    return fail(input.status().with_context("the saved text could not be read"), path(""));
  title_ = input->title;
  metadata_json_ = input->metadata_json;
  marks_ = std::move(input->marks);
  text_ = prepare_text(std::move(*input));
  auto chunks = cut(context_.engine, work_.ns, title_, text_, chunking_,
                    chunk_limits(context_.engine, context_.options));
  if (!chunks.ok()) return fail_cut(chunks.status());
  chunks_ = std::move(*chunks);
  if (const Status s = check_quota(); !s.ok())
    return fail(ItemError{"cache_full", s.message(), path("")}, /*keep_document=*/false);
  see_related(text_.text, chunking_, &DocumentTask::ingest_behind_related);
}

void DocumentTask::ingest_behind_related() {
  if (same_but_related_ && sees_what_it_saw()) {
    DocumentInput described;
    described.title = title_;
    described.metadata_json = metadata_json_;
    chunks_.clear();
    const Status kept = keep_existing(described);
    if (kept.code() != Code::kNotFound) {
      if (!kept.ok()) fail(kept, kept.field() == "pinned" ? "pinned" : path(""));
      return;
    }
    existing_.reset();  // it expired meanwhile, so this is a new document
    existing_ready_ = same_but_related_ = false;
    return begin_ingest();
  }
  std::uint64_t num_tokens = 0;
  for (const Chunk& c : chunks_) num_tokens += c.token_ids.size();
  if (const Status s = ask_for_pin(num_tokens); !s.ok())
    return fail(ItemError{"cache_full", s.message(), "pinned"}, /*keep_document=*/false);
  if (work_.settings->kv == KvPolicy::kEager)
    for (std::size_t i = 0; i < chunks_.size(); ++i) prefills_.add(i);
  prefill_all();
}

/// Returns true if the item ended, or continues with the stored version. Sets existing_.
Result<bool> DocumentTask::synchronize_without_work(const SavedInput& saved) {
  const DocumentInput& input = saved.input;
  const std::string& id = work_.item.view.id;
  const JobSettings& settings = *work_.settings;
  QUIRE_RETURN_IF_ERROR(context_.store.refresh_document(work_.ns, id));
  auto head = context_.store.get_document_head(work_.ns, id);
  if (head.ok()) {
    existing_ = std::move(*head);
    existing_ready_ = existing_->status == DocumentStatus::kReady;
  } else if (head.code() != Code::kNotFound && head.code() != Code::kCorruption) {
    return head.status();
  }
  // A restart may repeat an item that a later job has replaced, and a later job may have begun
  // first. One with a condition is refused by what the later one has made. Names of jobs tell their
  // order only where one replica made both; the shared catalog knows it for the others.
  const bool unconditional = !settings.if_match && !settings.if_none_match_any &&
                             settings.if_exists == IfExists::kUpsert;
  if (unconditional && existing_ready_ && existing_->job_id > work_.job_id &&
      context_.store.shared_jobs() == nullptr && context_.table.knows(existing_->job_id)) {
    end(good(ItemResult::kUpdated, *existing_));
    return true;
  }
  // Equal documents without ids in one call are one document; the last one's metadata count.
  const bool twice = !work_.item.given_id;
  const bool described_anew = twice && settings.if_exists == IfExists::kUpsert && existing_ready_ &&
                              existing_->metadata_json != input.metadata_json;
  if (existing_ready_ && existing_->job_id == work_.job_id && !described_anew &&
      existing_->content_hash == work_.item.content_hash) {
    const bool new_then = existing_->created_ms >= work_.job_created_ms;
    end(good(twice      ? ItemResult::kUnchanged
             : new_then ? ItemResult::kCreated
                        : ItemResult::kUpdated,
             *existing_));
    return true;
  }
  if (settings.if_match &&
      (!existing_ready_ ||
       !tags_match(*settings.if_match, document_tag(*existing_), existing_->content_hash))) {
    fail(ItemError{"precondition_failed",
                   existing_ready_
                       ? "the document has changed: its tag is " + document_tag(*existing_)
                       : "the document does not exist",
                   "If-Match"},
         false);
    return true;
  }
  if (settings.if_none_match_any && existing_ready_) {
    fail(ItemError{"precondition_failed", "the document exists", "If-None-Match"}, false);
    return true;
  }
  if (!existing_ready_) return false;
  if (settings.if_exists == IfExists::kSkip) {
    QUIRE_RETURN_IF_ERROR(context_.table.settle(work_.ns, id, work_.job_id));
    end(good(ItemResult::kSkipped, *existing_));
    return true;
  }
  if (settings.if_exists == IfExists::kError) {
    fail(ItemError{"document_exists",
                   "document " + id + " exists; use if_exists upsert to replace it", path("id")},
         false);
    return true;
  }
  chunking_ = settings.chunking;
  const auto has_settings = [&] {
    return existing_->chunking ==
           settings_text(chunking_, input.chunks.has_value() || saved.chunk_bytes.has_value(),
                         input.title, input.marks, settings.kv);
  };
  if (existing_->content_hash != work_.item.content_hash ||
      existing_->salt_digest != settings.salt_digest ||
      existing_->fingerprint != context_.engine.document_fingerprint(work_.ns))
    return false;
  if (!has_settings()) {
    // Who did not ask for another reading does not pay for it when the default moves.
    if (settings.lead_in_by_default) chunking_.lead_in = !chunking_.lead_in.value_or(false);
    if (!settings.lead_in_by_default || !has_settings()) {
      chunking_ = settings.chunking;
      return false;
    }
  }
  same_but_related_ = settings.chunking.related_tokens > 0;
  if (same_but_related_) return false;
  const Status kept = keep_existing(input);
  if (kept.code() == Code::kNotFound) {  // it expired meanwhile, so this is a new document
    existing_.reset();
    existing_ready_ = false;
    return false;
  }
  // Another replica changed it meanwhile, so this version is made anew.
  if (kept.code() == Code::kFailedPrecondition) return false;
  QUIRE_RETURN_IF_ERROR(kept);
  return true;
}

/// Chooses what the chunks see of other texts and goes on with `next`, later where the index of
/// words is not complete yet. `text` must live until then.
void DocumentTask::see_related(std::string_view text, const ChunkingOptions& options, Step next) {
  if (work_.cancelled.stop_requested()) return end_cancelled();
  const Status chosen = choose_related(text, options);
  if (chosen.code() == Code::kUnavailable) {
    if (!index_until_) index_until_ = Clock::now() + kIndexWait;
    if (Clock::now() < *index_until_) return wait_for_index(text, options, next);
  } else if (!chosen.ok()) {
    return fail(chosen.with_context("related chunks could not be read"),
                work_.type == JobType::kWarm ? "id" : path(""));
  }
  // Others may have its room by now, and then it looks again once there is some.
  if (aside_ && !context_.table.take_back()) return wait_for_index(text, options, next);
  aside_ = false;
  if (!chosen.ok()) {
    log_warning(
        "a document sees no related chunks, because the index is not complete; post it again",
        {{"namespace", work_.ns}, {"document_id", work_.item.view.id}});
  }
  (this->*next)();
}

/// Holds neither a thread nor the room of a document in flight meanwhile.
void DocumentTask::wait_for_index(std::string_view text, const ChunkingOptions& options,
                                  Step next) {
  if (!aside_ && context_.table.set_aside()) {
    aside_ = true;
    context_.pump();
  }
  const bool posted = context_.pool.post_after(
      kIndexPause, [self = shared_from_this(), text, options, next] {
        self->guarded([&] { self->see_related(text, options, next); });
      });
  if (!posted) end_cancelled();
}

/// An item that ends or is put back counts as one in flight.
void DocumentTask::come_back() {
  if (std::exchange(aside_, false)) context_.table.take_back_to_end();
}

/// Chooses what the chunks see of other texts, which may take the room that the largest chunk and
/// what is before it leave in the window. Errors: kUnavailable (the index is not complete; only the
/// lead-in is chosen), those of reading it.
Status DocumentTask::choose_related(std::string_view text, const ChunkingOptions& options) {
  related_.clear();
  const bool warm = work_.type == JobType::kWarm;
  if (!warm && work_.settings->kv == KvPolicy::kTextOnly) return {};
  std::int64_t room = context_.engine.info().max_model_len - 1, largest = 0;
  for (std::size_t i = 0; i < chunks_.size(); ++i)
    largest = std::max(largest,
                       count_of(chunks_[i].token_ids) + count_of(left_context(chunks_, i)));
  room -= largest;
  if (options.lead_in.value_or(false)) {
    QUIRE_ASSIGN_OR_RETURN(RelatedChunk first, lead_in(context_.engine.prompt_format_of(work_.ns)));
    if (count_of(first.token_ids) <= room) {
      room -= count_of(first.token_ids);
      related_.push_back(std::move(first));
    }
  }
  if (options.related_tokens < 1) return {};
  DocumentManifest document;
  document.ns = work_.ns;
  document.id = work_.item.view.id;
  document.title = warm ? existing_->title : title_;
  document.salt_digest = warm ? existing_->salt_digest : work_.settings->salt_digest;
  document.fingerprint = context_.engine.document_fingerprint(work_.ns);
  const RelatedChunks related(context_.store, context_.options.find_chunks, may_be_seen);
  QUIRE_ASSIGN_OR_RETURN(auto chosen,
                         related.choose(document, text, chunks_.size(),
                                        std::min<std::int64_t>(room, options.related_tokens)));
  std::ranges::move(chosen, std::back_inserter(related_));
  return {};
}

/// Returns whether the stored version has seen the chunks that were just chosen.
bool DocumentTask::sees_what_it_saw() {
  const auto whole = context_.store.get_document(work_.ns, work_.item.view.id);
  return whole.ok() && same_chunks(whole->related, related_);
}

/// Returns the tokens that a chunk attends to.
std::vector<std::int32_t> DocumentTask::left_of(std::size_t chunk) const {
  std::vector<std::int32_t> ids = related_tokens(related_);
  const auto own = left_context(chunks_, chunk);
  ids.insert(ids.end(), own.begin(), own.end());
  return ids;
}

/// Keeps a version with the same content and settings: writes what may have changed and computes
/// lost KV again.
Status DocumentTask::keep_existing(const DocumentInput& input) {
  const JobSettings& s = *work_.settings;
  std::optional<std::uint64_t> ttl = s.ttl_seconds;
  if (!ttl && context_.options.default_ttl_seconds > 0) ttl = context_.options.default_ttl_seconds;
  const bool described = existing_->metadata_json == input.metadata_json &&
                         existing_->title == input.title;
  const bool kept = described && existing_->pinned == s.pinned && existing_->ttl_seconds == ttl &&
                    existing_->ttl_anchor == s.ttl_anchor && !existing_->expires_at_ms &&
                    !ttl;  // a TTL starts again
  kept_result_ = described ? ItemResult::kUnchanged : ItemResult::kUpdated;
  QUIRE_RETURN_IF_ERROR(ask_for_pin(existing_->num_tokens));
  CommitOptions options;
  options.fence = context_.table.fence(work_, good(kept_result_, *existing_));
  if (!kept) {
    auto updated = context_.store.update_document(
        work_.ns, existing_->id,
        [&](DocumentManifest& m) {
          const DocumentManifest& e = *existing_;
          if (m.content_hash != e.content_hash || m.salt_digest != e.salt_digest ||
              m.fingerprint != e.fingerprint || m.chunking != e.chunking ||
              m.status != DocumentStatus::kReady)
            return Status::precondition("another replica has changed the document");
          m.metadata_json = input.metadata_json;
          m.title = input.title;
          m.pinned = s.pinned;
          m.ttl_seconds = ttl;
          m.ttl_anchor = s.ttl_anchor;
          m.ttl_start_ms = context_.options.now_ms();
          m.expires_at_ms.reset();
          // After a restart an earlier job sees from it that a later one has set all this.
          m.job_id = work_.job_id;
          return Status();
        },
        options);
    if (!updated.ok()) return updated.status();
  } else {
    QUIRE_RETURN_IF_ERROR(context_.table.settle(work_.ns, existing_->id, work_.job_id));
    if (options.fence)
      QUIRE_RETURN_IF_ERROR(context_.store.confirm_document(*existing_, *options.fence));
  }
  keep_version_ = true;
  find_missing();
  return {};
}

void DocumentTask::begin_warm() {
  auto head = context_.store.get_document_head(work_.ns, work_.item.view.id);
  if (!head.ok()) return fail(head.status(), "id");
  if (head->status != DocumentStatus::kReady)
    return fail(ItemError{"document_not_ready", "the document is not ready", "id"}, false);
  if (kv_policy(*head) == KvPolicy::kTextOnly)
    return fail(ItemError{"invalid_value",
                          "the document is text_only, so no KV of it is kept; post it again with "
                          "kv eager or lazy",
                          "id"},
                false);
  existing_ = std::move(*head);
  existing_ready_ = true;
  kept_result_ = ItemResult::kWarmed;
  auto whole = context_.store.get_document(work_.ns, existing_->id);
  const RelatedChunks related(context_.store, context_.options.find_chunks, may_be_seen);
  const auto current = whole.ok() ? related.are_current(*whole) : Result<bool>(true);
  if (!current.ok()) return fail(current.status(), "id");
  if (*current && existing_->fingerprint == context_.engine.document_fingerprint(work_.ns)) {
    keep_version_ = true;
    return find_missing();
  }
  auto text = context_.store.get_text(work_.ns, existing_->id);
  if (!text.ok()) return fail(text.status(), "id");
  // The new version keeps the places; its token ids are made anew.
  if (whole.ok()) existing_->marks = std::move(whole->marks);
  auto chunks = retokenise(context_.engine, *existing_, *text,
                           chunk_limits(context_.engine, context_.options));
  if (!chunks.ok()) return fail_cut(chunks.status());
  chunks_ = std::move(*chunks);
  ChunkingOptions seen;
  set_what_is_seen(*existing_, seen);
  warm_text_ = std::move(*text);
  see_related(warm_text_, seen, &DocumentTask::warm_behind_related);
}

void DocumentTask::warm_behind_related() {
  std::string().swap(warm_text_);
  for (std::size_t i = 0; i < chunks_.size(); ++i) prefills_.add(i);
  prefill_all();
}

/// Gives the chunks the keys under which this model finds their KV, where they have others: the
/// document was imported while another model was loaded, or a setting changed that names depend on.
/// Returns whether it did.
bool DocumentTask::rename_chunks(DocumentManifest& m) {
  const bool ours = m.status == DocumentStatus::kReady && kv_policy(m) != KvPolicy::kTextOnly &&
                    m.fingerprint == context_.engine.document_fingerprint(m.ns);
  if (!ours || has_keys_of(context_.engine, context_.options, m)) return false;
  for (const DocumentChunk& c : m.chunks) names_before_.push_back(c.key);
  for (std::size_t i = 0; i < m.chunks.size(); ++i) {
    DocumentChunk& c = m.chunks[i];
    c.key = key_of(context_.engine, context_.options, m, i);
    c.block_tokens = static_cast<std::uint32_t>(
        context_.engine.names().block_tokens_for(count_of(c.token_ids)));
  }
  return true;
}

void DocumentTask::find_missing() {
  auto whole = context_.store.get_document(work_.ns, work_.item.view.id);
  if (!whole.ok()) return fail(whole.status(), path(""));
  existing_ = std::move(*whole);
  related_ = existing_->related;
  renamed_ = rename_chunks(*existing_);
  for (const DocumentChunk& c : existing_->chunks) {
    chunks_.push_back({{to_size(c.byte_begin), to_size(c.byte_end)}, c.token_ids, c.left_chunks});
    if (!c.key.is_zero() && context_.store.find_segment(c.key)) {
      skipped_tokens_ += c.num_tokens;
    } else if (work_.type == JobType::kWarm || work_.settings->kv == KvPolicy::kEager) {
      prefills_.add(chunks_.size() - 1);
    }
  }
  prefill_all();
}

/// Reserves what the document takes of the quota until it is committed.
Status DocumentTask::check_quota() {
  const EngineInfo& info = context_.engine.info();
  RoomNeed need;
  if (existing_) need.replaced = existing_->text_bytes + kv_bytes(info, existing_->num_tokens);
  need.wanted = text_.text.size();
  for (const Chunk& c : chunks_) need.wanted += kv_bytes(info, c.token_ids.size());
  room_ = NamespaceRoom::Grant();
  QUIRE_ASSIGN_OR_RETURN(room_, reserve_room(context_.store, info, context_.room, work_.ns,
                                             context_.options.namespace_bytes, need));
  return {};
}

/// Asks before anything is computed, so it estimates the KV from the number of tokens.
Status DocumentTask::ask_for_pin(std::uint64_t num_tokens) {
  if (!work_.settings->pinned) return {};
  if (existing_ready_ && existing_->pinned)
    num_tokens -= std::min(num_tokens, existing_->num_tokens);
  if (num_tokens == 0) return {};
  const std::uint64_t bytes = kv_bytes(context_.engine.info(), num_tokens);
  QUIRE_ASSIGN_OR_RETURN(pin_,
                         context_.pins.grant({bytes, work_.settings->tier == "dram" ? bytes : 0}));
  return {};
}

// -------------------------------------------------------------------------------------------------
// Prefill

void DocumentTask::prefill_all() {
  std::uint64_t total = 0;
  for (const Chunk& c : chunks_) total += c.token_ids.size();
  context_.table.set_tokens_total(work_, total);
  tokens_done_ = static_cast<std::int64_t>(skipped_tokens_);
  if (prefills_.empty()) return prefilled();
  context_.table.set_status(work_, DocumentStatus::kPrefilling);
  // With two, the next chunk waits when one ends, and goes on from its rows.
  const int window = std::max(2, context_.options.max_prefills_in_flight /
                                     std::max(1, context_.options.max_documents_in_flight));
  prefills_.start(shared_from_this(), to_size(window), work_.cancelled);
}

PrefillRequest DocumentTask::request_of(std::size_t chunk) {
  PrefillRequest request;
  request.token_ids = chunks_[chunk].token_ids;
  request.left_context = left_of(chunk);
  request.tenant = context_.options.tenant(work_.ns);
  request.salt_digest = to_bytes(work_.settings->salt_digest);
  if (keep_version_) request.salt_digest = to_bytes(existing_->salt_digest);
  // A warm-up restores KV that a document had and a caller wants again.
  if (work_.type == JobType::kWarm) request.priority = PrefillPriority::kRecompute;
  return request;
}

void DocumentTask::add_tokens_done(std::int64_t tokens) {
  const std::int64_t sum = tokens_done_.fetch_add(tokens) + tokens;
  context_.table.set_tokens_done(work_, static_cast<std::uint64_t>(sum));
}

void DocumentTask::post(std::function<void()> step) {
  context_.pool.post([self = shared_from_this(), step = std::move(step)] { self->guarded(step); });
}

void DocumentTask::prefilled() {
  if (work_.cancelled.stop_requested()) return end_cancelled();
  if (const Status failure = prefills_.failure(); !failure.ok()) return fail(failure, path(""));
  context_.table.set_status(work_, DocumentStatus::kStoring);
  if (!context_.table.begin_commit(work_)) return end_cancelled();
  committing_ = true;
  keep_version_ ? commit_missing() : commit();
}

// -------------------------------------------------------------------------------------------------
// Commit

DocumentManifest DocumentTask::draft(DocumentStatus status) const {
  if (work_.type == JobType::kWarm) {
    DocumentManifest m = *existing_;
    m.fingerprint = context_.engine.document_fingerprint(work_.ns);
    m.chunks.clear();
    m.companions.clear();
    return m;
  }
  const JobSettings& s = *work_.settings;
  DocumentManifest m;
  m.ns = work_.ns;
  m.id = work_.item.view.id;
  m.title = title_;
  m.metadata_json = metadata_json_;
  m.content_hash = work_.item.content_hash;
  m.status = status;
  m.pinned = s.pinned;
  m.ttl_seconds = s.ttl_seconds;
  if (!m.ttl_seconds && context_.options.default_ttl_seconds > 0)
    m.ttl_seconds = context_.options.default_ttl_seconds;
  m.ttl_anchor = s.ttl_anchor;
  m.chunking = settings_text(chunking_, !text_.given.empty(), title_, marks_, s.kv);
  m.marks = marks_;
  if (marks_.empty() && text_.given.empty() && s.chunking.strategy == ChunkStrategy::kMarkdown)
    m.marks = markdown_marks(text_.text);
  m.fingerprint = context_.engine.document_fingerprint(work_.ns);
  m.salt_digest = s.salt_digest;
  m.job_id = work_.job_id;
  if (existing_) {  // uses belong to the document, not to the version
    m.hits = existing_->hits;
    m.last_used_ms = existing_->last_used_ms;
  }
  return m;
}

void DocumentTask::commit() {
  DocumentManifest m = draft(DocumentStatus::kReady);
  m.related = related_;
  const std::span<const ChunkPrefills::Item> prefills = prefills_.items();  // of all, or of none
  std::vector<SegmentHandle> segments;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    DocumentChunk c;
    c.byte_begin = chunks_[i].range.begin;
    c.byte_end = chunks_[i].range.end;
    c.block_tokens = static_cast<std::uint32_t>(
        context_.engine.names().block_tokens_for(count_of(chunks_[i].token_ids)));
    const auto* computed = i < prefills.size() ? &*prefills[i].result : nullptr;
    if (computed)
      c.key = computed->key;
    else if (work_.settings->kv == KvPolicy::kLazy)
      c.key = context_.engine.names().context_key(
          chunks_[i].token_ids, context_.options.tenant(work_.ns),
          to_bytes(work_.settings->salt_digest), left_of(i));
    c.num_tokens = static_cast<std::uint32_t>(chunks_[i].token_ids.size());
    c.left_chunks = chunks_[i].left_chunks;
    c.token_ids = chunks_[i].token_ids;  // the left context of those behind it
    m.chunks.push_back(std::move(c));
    if (!computed) continue;
    if (computed->segment) segments.push_back(computed->segment);
    if (const SegmentHandle& companion = computed->companion) {
      m.companions.push_back(companion->key);
      segments.push_back(companion);
    }
  }
  CommitOptions options;
  const bool warm = work_.type == JobType::kWarm;
  // Where only this process makes documents, nothing comes in between.
  const bool replaces = work_.settings->if_exists == IfExists::kUpsert ||
                        context_.store.shared_jobs() == nullptr;
  if (work_.settings->if_match || work_.settings->if_none_match_any || (!replaces && !warm))
    options.expected_version = existing_ ? existing_->version : 0;
  const ItemResult result = warm              ? ItemResult::kWarmed
                            : existing_ready_ ? ItemResult::kUpdated
                                              : ItemResult::kCreated;
  for (const DocumentChunk& c : m.chunks) m.num_tokens += c.num_tokens;
  options.fence = context_.table.fence(work_, good(result, m));
  const auto stored = warm ? store_anew(m, segments, options)
                           : store_document(m, segments, options);
  const bool conditional = work_.settings->if_match || work_.settings->if_none_match_any;
  if (stored.code() == Code::kFailedPrecondition && !replaces && !warm && !conditional) {
    // Another replica made it meanwhile. Anything else would fail again.
    if (version_now() != *options.expected_version) return try_again();
  }
  if (!stored.ok()) return fail(stored.status(), path(""));
  end(good(result, *stored));
}

/// Commits a version of the stored text whose KV was made anew, and keeps what was changed while it
/// was made. Errors: kFailedPrecondition (the document was replaced meanwhile).
Result<DocumentManifest> DocumentTask::store_anew(DocumentManifest m,
                                                  std::span<const SegmentHandle> segments,
                                                  CommitOptions options) {
  for (int i = 0;; ++i) {
    options.expected_version = m.version;
    auto stored = context_.store.commit_document(m, std::nullopt, segments, options);
    if (stored.code() != Code::kFailedPrecondition || i == kMostTries) return stored;
    const auto now = context_.store.get_document_head(work_.ns, m.id);
    if (!now.ok() || !is_what_was_read(*now)) return stored;
    m.version = now->version;
    m.title = now->title;
    m.metadata_json = now->metadata_json;
    m.pinned = now->pinned;
    m.ttl_seconds = now->ttl_seconds;
    m.ttl_anchor = now->ttl_anchor;
    m.ttl_start_ms = now->ttl_start_ms;
    m.expires_at_ms = now->expires_at_ms;
    if (renamed_) m.companions = renamed_companions(now->companions);
  }
}

/// Returns what the document has besides its chunks' KV, once these have their new names: the
/// draft's KV that was made here, and what it has by now, but for the draft's under old names,
/// which nothing finds. Those are told from KV of further models by the draft's fingerprint. All
/// stay unless each chunk has got the draft's KV anew: a setting that changed may leave its names
/// alone.
std::vector<ContextKey> DocumentTask::renamed_companions(std::vector<ContextKey> named) const {
  std::vector<ContextKey> made;
  std::string draft;
  for (const ChunkPrefills::Item& c : prefills_.items()) {
    if (!c.result || !c.result->companion) continue;
    made.push_back(c.result->companion->key);
    draft = c.result->companion->fingerprint;
  }
  if (made.size() == chunks_.size()) {
    std::erase_if(named, [&](const ContextKey& key) {
      const auto segment = context_.store.peek_segment(key);
      return segment && (*segment)->fingerprint == draft;
    });
  }
  for (const ContextKey& key : made)
    if (std::ranges::find(named, key) == named.end()) named.push_back(key);
  return named;
}

/// Returns whether the KV was made for this state of the document.
bool DocumentTask::is_what_was_read(const DocumentManifest& now) const {
  if (!has_same_chunks(now, *existing_)) return false;
  if (!renamed_) return true;
  // Another replica may have given it these names, too.
  return std::ranges::equal(now.chunks, names_before_, {}, &DocumentChunk::key) ||
         std::ranges::equal(now.chunks, existing_->chunks, {}, &DocumentChunk::key,
                            &DocumentChunk::key);
}

/// Returns the version that the store has; 0: none.
std::uint64_t DocumentTask::version_now() {
  const auto now = context_.store.get_document_head(work_.ns, work_.item.view.id);
  return now.ok() ? now->version : 0;
}

/// Commits with the text that waits in the store, or that an earlier version saved with the input.
Result<DocumentManifest> DocumentTask::store_document(DocumentManifest manifest,
                                                      std::span<const SegmentHandle> segments,
                                                      CommitOptions options) {
  std::optional<std::string_view> text;
  options.waiting_text = text_name_;
  if (text_name_.empty()) text = text_.text;
  return context_.store.commit_document(std::move(manifest), text, segments, options);
}

void DocumentTask::commit_missing() {
  std::vector<SegmentHandle> segments;
  for (const ChunkPrefills::Item& c : prefills_.items()) {
    if (c.result && c.result->segment) segments.push_back(c.result->segment);
    if (c.result && c.result->companion) segments.push_back(c.result->companion);
  }
  if (renamed_) {
    // Renditions name theirs without a new version.
    const auto now = context_.store.get_document_head(work_.ns, existing_->id);
    const bool same = now.ok() && now->version == existing_->version;
    existing_->companions = renamed_companions(same ? now->companions : existing_->companions);
    CommitOptions options;
    options.fence = context_.table.fence(work_, good(kept_result_, *existing_));
    const auto stored = store_anew(*existing_, segments, options);
    // A post states the whole document, so it begins again with what is there now.
    if (stored.code() == Code::kFailedPrecondition && work_.type == JobType::kIngest &&
        version_now() != existing_->version)
      return try_again();
    if (!stored.ok()) return fail(stored.status(), path(""));
    return end(good(kept_result_, *stored));
  }
  if (!segments.empty()) {
    const auto kept = context_.store.commit_segments(segments);
    if (!kept.ok()) return fail(kept.status(), path(""));
  }
  end(good(kept_result_, *existing_));
}

ItemOutcome DocumentTask::good(ItemResult result, const DocumentManifest& manifest) const {
  ItemOutcome o{result, DocumentStatus::kReady, manifest.num_tokens, count_blocks(manifest),
                0,      skipped_tokens_,        std::nullopt};
  for (const ChunkPrefills::Item& c : prefills_.items()) {
    if (!c.result) continue;
    const auto tokens = static_cast<std::uint64_t>(c.result->tokens);
    (c.result->already_cached ? o.deduplicated_tokens : o.written_tokens) += tokens;
  }
  const bool all_there = prefills_.empty() && skipped_tokens_ == 0;
  if (all_there && work_.settings->kv == KvPolicy::kEager)
    o.deduplicated_tokens = manifest.num_tokens;
  return o;
}

// -------------------------------------------------------------------------------------------------
// Ends

/// Puts the document back into the queue: it was acknowledged, so it is committed once the shared
/// catalog answers. If the commit was made, and only its answer was lost, it is found then.
void DocumentTask::wait_for_catalog(const Status& status) {
  log_warning("a document waits for the shared catalog", {{"job_id", work_.job_id},
                                                          {"document_id", work_.item.view.id},
                                                          {"reason", status.message()}});
  try_again();
}

/// Puts the document back for the next start, without which nothing can be computed. It was
/// acknowledged, so it does not fail for that.
void DocumentTask::wait_for_start(const Status& status) {
  log_warning("a document waits until the service is started again",
              {{"job_id", work_.job_id},
               {"document_id", work_.item.view.id},
               {"reason", status.to_string()}});
  context_.table.halt();
  try_again();
}

void DocumentTask::try_again() {
  ended_ = true;
  come_back();
  release_kv();
  if (!context_.table.requeue(work_)) end_cancelled();
}

void DocumentTask::fail(const Status& status, std::string param) {
  if (catalog_is_away(status)) return wait_for_catalog(status);
  if (status.code() == Code::kDeviceLost) return wait_for_start(status);
  if (is_job_taken_over(status)) {
    context_.table.lose(work_);
    return end_cancelled();
  }
  if (is_change_overtaken(status)) {
    const auto now = context_.store.get_document_head(work_.ns, work_.item.view.id);
    return now.ok() ? end(good(ItemResult::kUpdated, *now)) : end_cancelled();
  }
  ItemError error = to_item_error(status, param);
  if (status.code() == Code::kCancelled)
    error = {"loading", "the engine stopped before the document was cached; post it again",
             std::move(param)};
  const bool ours = status.code() == Code::kInternal || status.code() == Code::kIo ||
                    status.code() == Code::kCorruption;
  log_line(ours ? LogLevel::kError : LogLevel::kWarning, "a document could not be cached",
           {{"job_id", work_.job_id},
            {"namespace", work_.ns},
            {"document_id", work_.item.view.id},
            {"error", status.to_string()}});
  fail(std::move(error), /*keep_document=*/true);
}

void DocumentTask::fail_cut(const Status& status) {
  const std::string& field = status.field();
  const bool too_long = field == "text" || field.starts_with("chunks");
  const std::string param = field.starts_with("chunking") ? field : path(field);
  if (status.code() != Code::kInvalidArgument) return fail(status, param);
  fail(ItemError{too_long ? "document_too_long" : "invalid_value", status.message(), param},
       /*keep_document=*/true);
}

/// Ends the item with an error. `keep_document` stores a failed document without its text, unless
/// a ready version exists or it was deleted in the meantime.
void DocumentTask::fail(ItemError error, bool keep_document) {
  if (work_.cancelled.stop_requested()) return end_cancelled();
  const bool worth = keep_document && work_.type == JobType::kIngest && !existing_ready_ &&
                     !text_.text.empty();
  if (worth && context_.table.begin_commit(work_)) {
    DocumentManifest m = draft(DocumentStatus::kFailed);
    m.marks.clear();  // it has no text
    m.error_code = error.code;
    m.error_message = error.message;
    CommitOptions options;
    ItemOutcome outcome;
    outcome.error = error;
    options.fence = context_.table.fence(work_, outcome);
    const auto stored = context_.store.commit_document(std::move(m), std::string_view(), {},
                                                       options);
    if (is_job_taken_over(stored.status())) {
      context_.table.lose(work_);
    } else if (!stored.ok() && !is_change_overtaken(stored.status())) {
      log_warning("a failed document could not be kept",
                  {{"document_id", work_.item.view.id}, {"error", stored.status().to_string()}});
    }
  }
  ItemOutcome outcome;
  outcome.error = std::move(error);
  end(std::move(outcome));
}

void DocumentTask::end_cancelled() {
  ended_ = true;
  come_back();
  // The item continues at the next start.
  if (context_.table.stopping() && context_.table.requeue(work_)) return;
  end({ItemResult::kCancelled, DocumentStatus::kFailed, 0, 0, 0, 0, std::nullopt});
}

/// Lets go of the KV and of what was reserved for it.
void DocumentTask::release_kv() {
  prefills_.release();
  pin_ = PinGate::Grant();
  room_ = NamespaceRoom::Grant();
}

void DocumentTask::end(ItemOutcome outcome) {
  ended_ = true;
  come_back();
  // Uncommitted segments are released before readers learn that the item has ended.
  release_kv();
  context_.table.finish(work_, std::move(outcome));
  context_.pump();
}

}  // namespace quire
