#include "cachestore/store_impl.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/log.h"
#include "cachestore/disk/repair.h"
#include "cachestore/disk/rocksdb_disk_tier.h"
#include "cachestore/disk/store_folder.h"
#include "cachestore/remote/remote_tiers.h"

namespace quire {
namespace {

std::int64_t system_clock_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

std::string mib(std::uint64_t bytes) {
  return bytes >= 10u << 20 ? std::to_string(bytes >> 20) + " MiB"
                            : std::to_string((bytes + 1023) >> 10) + " KiB";
}

Status check_record(std::string_view name, std::string_view value) {
  if (name.empty() || name.size() > 1024)
    return Status::invalid("name", "must have 1 to 1024 bytes");
  if (value.size() > 2 * kMaxTextBytes)
    return Status::invalid("value", "is longer than " + mib(2 * kMaxTextBytes));
  return {};
}

}  // namespace

Status check_store_options(const StoreOptions& o) {
  if (o.max_bytes != 0 && o.max_bytes < kMinStoreBytes) {
    return Status::invalid("disk.max_bytes", "is " + mib(o.max_bytes) + "; at least " +
                                                 mib(kMinStoreBytes) +
                                                 " are needed, or 0 for no limit");
  }
  if (o.io_threads < 1 || o.io_threads > 64)
    return Status::invalid("store.io_threads", "must be 1 to 64");
  if (!o.copy_path.empty()) {
    const auto whole = [](const std::string& path) {
      std::error_code ec;
      auto out = std::filesystem::weakly_canonical(std::filesystem::absolute(path, ec), ec);
      // The disk of the copy may be gone.
      if (ec) out = std::filesystem::absolute(path, ec).lexically_normal();
      return out.has_filename() ? out : out.parent_path();
    };
    const auto store = whole(o.path), copy = whole(o.copy_path);
    if (std::ranges::mismatch(store, copy).in1 == store.end() ||
        std::ranges::mismatch(copy, store).in1 == copy.end())
      return Status::invalid(
          "disk.copy_path", "'" + o.copy_path + "' must lie neither in the folder of the store, '" +
                                o.path +
                                "', nor around it: what happens to one must not happen "
                                "to the other");
  }
  return {};
}

Result<StorePolicy> parse_store_policy(std::string_view name) {
  if (name == "lru") return StorePolicy::kLru;
  if (name == "s3fifo") return StorePolicy::kS3Fifo;
  return Status::invalid("policy",
                         "unknown eviction policy '" + std::string(name) + "'; use lru or s3fifo");
}

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kNone:
      return "none";
    case Tier::kGpu:
      return "gpu";
    case Tier::kDram:
      return "dram";
    case Tier::kDisk:
      return "disk";
    case Tier::kRemote:
      return "remote";
  }
  return "none";
}

Result<std::unique_ptr<Store>> open_store(StoreOptions options) {
  QUIRE_ASSIGN_OR_RETURN(auto store, open_admin_store(std::move(options)));
  return std::unique_ptr<Store>(std::move(store));
}

Result<OnDamage> parse_on_damage(std::string_view name) {
  if (name == "refuse") return OnDamage::kRefuse;
  if (name == "salvage") return OnDamage::kSalvage;
  if (name == "text_only") return OnDamage::kTextOnly;
  return Status::invalid("disk.on_damage", "'" + std::string(name) +
                                               "' is no choice; use refuse, salvage or text_only");
}

namespace {

/// Opens a store of which the whole record can be read.
Result<std::unique_ptr<AdminStore>> open_whole(StoreOptions options) {
  QUIRE_RETURN_IF_ERROR(check_store_options(options));
  QUIRE_ASSIGN_OR_RETURN(StoreFolder folder, StoreFolder::open(options.path, options.read_only));
  RocksDbTierOptions tier_options{.direct_io = options.direct_io,
                                  .read_only = options.read_only,
                                  .max_bytes = options.max_bytes,
                                  .copy_path = options.copy_path};
  if (options.direct_io && !folder.supports_direct_io()) {
    log_info("the file system has no direct I/O: the store reads through the page cache",
             {{"path", options.path}});
    tier_options.direct_io = options.direct_io = false;
  }
  if (!options.read_only && folder.free_bytes() < kFreeMarginBytes) {
    return Status(Code::kResourceExhausted,
                  "the disk of '" + options.path + "' is full: " + mib(folder.free_bytes()) +
                      " are free, at least " + mib(kFreeMarginBytes) + " are needed",
                  "disk.path");
  }
  QUIRE_ASSIGN_OR_RETURN(auto disk, open_rocksdb_tier(std::move(folder), tier_options));
  RemoteCache::Tiers shared;
  std::unique_ptr<SharedCatalog> catalog;
  if (!options.read_only) {
    QUIRE_ASSIGN_OR_RETURN(shared, open_remote_tiers(options.remote));
    QUIRE_ASSIGN_OR_RETURN(catalog, open_shared_catalog(options.catalog));
  }
  return open_store_on(std::move(options), std::move(disk), std::move(shared), std::move(catalog));
}

/// Returns text as one word of a POSIX shell.
std::string shell_word(std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' ||
           c == '.' || c == '_' || c == '-';
  });
  if (plain && !text.empty()) return std::string(text);
  std::string word = "'";
  for (const char c : text) {
    // Between single quotes nothing is special, so a quote itself stands outside of them.
    word += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  }
  return word + "'";
}

/// Returns the command that says what can be saved of a damaged store, for any working directory.
std::string repair_command(const StoreOptions& options) {
  std::error_code ec;
  const auto whole = [&ec](const std::string& path) {
    return shell_word(std::filesystem::absolute(path, ec).lexically_normal().string());
  };
  return "quire store repair --path " + whole(options.path) +
         (options.copy_path.empty() ? "" : " --copy " + whole(options.copy_path));
}

}  // namespace

Result<std::unique_ptr<AdminStore>> open_admin_store(StoreOptions options) {
  auto store = open_whole(options);
  if (store.code() != Code::kCorruption) return store;
  if (options.read_only || options.on_damage == OnDamage::kRefuse)
    return Status(Code::kCorruption,
                  store.status().message() +
                      "; a start with disk.on_damage = \"salvage\" saves what can be saved, and so "
                      "does this command, which only tells of it without --apply: " +
                      repair_command(options),
                  "disk.path");
  log_error("the record of the store is damaged: what can be read of it is put into a new one",
            {{"path", options.path}, {"reason", store.status().to_string()}});
  QUIRE_ASSIGN_OR_RETURN(
      const RepairReport report,
      repair_store({options.path, /*dry_run=*/false, options.on_damage == OnDamage::kSalvage,
                    options.copy_path}));
  for (const auto& d : report.lost)
    log_error("a document is lost", {{"namespace", d.ns}, {"document_id", d.id}});
  for (const auto& d : report.texts)
    log_error("of a document only the text could be read; post it again",
              {{"namespace", d.ns}, {"document_id", d.id}});
  const std::string line = summary(report);
  log_error("the record of the store was repaired",
            {{"result", line}, {"damaged_record", report.kept_folder}});
  auto repaired = open_whole(options);
  if (repaired.ok()) static_cast<StoreImpl&>(**repaired).set_salvaged(line);
  return repaired;
}

Result<std::unique_ptr<AdminStore>> open_store_on(StoreOptions options,
                                                  std::unique_ptr<DiskTier> disk,
                                                  RemoteCache::Tiers shared,
                                                  std::unique_ptr<SharedCatalog> catalog) {
  QUIRE_RETURN_IF_ERROR(check_store_options(options));
  if (!options.clock_ms) options.clock_ms = system_clock_ms;
  auto store = std::make_unique<StoreImpl>(std::move(options), std::move(disk), std::move(shared),
                                           std::move(catalog));
  QUIRE_RETURN_IF_ERROR(store->recover());
  QUIRE_RETURN_IF_ERROR(store->start_catalog());
  QUIRE_RETURN_IF_ERROR(store->resume_removals());
  return std::unique_ptr<AdminStore>(std::move(store));
}

StoreImpl::StoreImpl(StoreOptions options, std::unique_ptr<DiskTier> disk,
                     RemoteCache::Tiers shared, std::unique_ptr<SharedCatalog> catalog)
    : options_(std::move(options)),
      disk_(std::move(disk)),
      segments_(std::make_shared<SegmentTable>(options_.disk_policy, options_.quotas)),
      read_slots_(options_.io_threads),
      catalog_(std::move(catalog)) {
  dram_ = std::make_unique<DramTier>(
      options_.dram_bytes, options_.dram_policy,
      [table = segments_](SegmentId id) { return table->is_pinned_by_document(id); },
      options_.quotas, options_.value_memory);
  // Twice as many threads as reads in flight: while some wait for the disk, others check values.
  pool_ = std::make_unique<IoPool>(2 * options_.io_threads, options_.max_queued_reads);
  if (!options_.read_only) {
    if (!shared.empty())
      remote_ = std::make_unique<RemoteCache>(options_.remote, std::move(shared), options_.quotas);
    segments_->set_callback([this] { pool_->post_background([this] { reap(); }); });
  }
}

StoreImpl::~StoreImpl() {
  if (follower_) follower_->stop();
  if (remote_) remote_->stop();
  pool_->stop();
  segments_->clear_callback();
  if (options_.read_only) return;
  if (Status s = flush_uses(); !s.ok())
    log_warning("usage counts were not written", {{"reason", s.to_string()}});
  reap();
  // The log is emptied: the next open is quick, and a torn log tail then always means a crash.
  if (Status s = disk_->flush_records(); !s.ok())
    log_warning("the catalog was not flushed", {{"reason", s.to_string()}});
}

Status StoreImpl::recover() {
  std::unordered_map<SegmentId, StoredSegment> files;
  SegmentId next = 1;
  QUIRE_ASSIGN_OR_RETURN(const auto stored, disk_->list_segments());
  for (const auto& s : stored) {
    files.emplace(s.id, s);
    next = std::max(next, s.id + 1);
  }
  segments_->reserve(stored.size());
  const auto index = disk_->get(Family::kCatalog, std::string(1, kIndexKind));
  if (!index.ok() && index.code() != Code::kNotFound) return index.status();
  const auto index_version = index.ok() ? record::decode_opaque(*index) : index.status();
  indexed_ = index_version.ok() && *index_version == kIndexVersion;
  // References are read first, because they decide which segments stay.
  QUIRE_RETURN_IF_ERROR(disk_->scan(
      Family::kCatalog, std::string(1, kHeadKind), std::string(1, kHeadKind + 1), false,
      [&](std::string_view, std::string_view value) {
        auto m = record::decode_head(value);
        if (!m.ok()) {
          ++integrity_failures_;
          heads_damaged_ = true;
          log_error(
              "a document record is damaged; the document cannot be read until it is posted again",
              {{"reason", m.status().to_string()}});
          return true;
        }
        segments_->add_refs(*m, m->last_used_ms);
        count_document(*m, 1);
        expiries_.set(catalog_key(kHeadKind, m->ns, m->id), m->effective_expiry_ms());
        return true;
      }));
  // What other parts of the service read of the record must be readable, or be salvaged here.
  const auto readable = [this](Family family, const std::string& begin, const std::string& end) {
    return options_.read_only
               ? Status()
               : disk_->scan(family, begin, end, false,
                             [](std::string_view, std::string_view) { return true; });
  };
  for (const Family family : {Family::kJobs, Family::kMeta})
    QUIRE_RETURN_IF_ERROR(readable(family, {}, {}));
  for (const char kind : {kRevisionKind, kWaitingKind})
    QUIRE_RETURN_IF_ERROR(
        readable(Family::kCatalog, std::string(1, kind), std::string(1, kind + 1)));
  const auto followed = disk_->get(Family::kMeta, kCatalogIdentityRecord);
  if (!followed.ok() && followed.code() != Code::kNotFound) return followed.status();
  follows_ = followed.ok();
  QUIRE_RETURN_IF_ERROR(find_last_removal());
  std::vector<RecordWrite> stale;
  QUIRE_RETURN_IF_ERROR(
      disk_->scan(Family::kCatalog, std::string(1, kSegmentKind), std::string(1, kSegmentKind + 1),
                  false, [&](std::string_view key, std::string_view value) {
                    auto info = record::decode_segment(value);
                    bool keep = info.ok() && segment_record_key(info->id) == key;
                    if (!keep) ++integrity_failures_;
                    if (keep) {
                      next = std::max(next, info->id + 1);
                      // A crash came between the end of its last document and its own.
                      if (!heads_damaged_ && !segments_->is_referenced(info->key))
                        (void)note_removal(*info, &stale);
                      auto it = files.find(info->id);
                      keep = it != files.end() && it->second.has_values &&
                             (it->second.has_sketches || info->layout.num_sketches == 0);
                      if (keep) {
                        info->disk_bytes = it->second.disk_bytes;
                        const SegmentId id = info->id;
                        keep = segments_->restore(std::move(*info));
                        if (keep) files.erase(id);
                      }
                    }
                    if (!keep) stale.push_back({Family::kCatalog, std::string(key), std::nullopt});
                    return true;
                  }));
  segments_->set_next_id(next);
  if (options_.read_only) return {};
  // Delete what a crash or an unfinished delete left behind.
  if (!stale.empty()) QUIRE_RETURN_IF_ERROR(disk_->write(stale, Sync::kNo));
  if (!indexed_) QUIRE_RETURN_IF_ERROR(index_documents());
  for (const auto& [id, s] : files) QUIRE_RETURN_IF_ERROR(disk_->delete_segment(id));
  if (!files.empty())
    log_info("freed segments that no document references",
             {{"segments", std::to_string(files.size())}});
  segments_->enforce_quotas();
  move_in_background();
  // The budget may be smaller than at the last open
  if (auto room = reserve(0, "the store's folder"); !room.ok()) {
    log_warning("the store is over its byte budget: only reads and deletes work",
                {{"reason", room.status().to_string()}});
  }
  return {};
}

void IoClock::add(double seconds) {
  std::size_t i = 0;
  while (i < IoTimes::kBounds.size() && seconds > IoTimes::kBounds[i]) ++i;
  counts_[i].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(static_cast<std::uint64_t>(seconds * 1e9), std::memory_order_relaxed);
}

IoTimes IoClock::times() const {
  IoTimes t;
  for (std::size_t i = 0; i < counts_.size(); ++i)
    t.counts[i] = counts_[i].load(std::memory_order_relaxed);
  t.sum_seconds = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
  return t;
}

Status StoreImpl::check_writable() const {
  if (options_.read_only) return Status::precondition("the store was opened read-only");
  return {};
}

Result<StoreImpl::Reservation> StoreImpl::reserve(std::uint64_t bytes, std::string_view what,
                                                  bool may_move) {
  const std::uint64_t free = disk_->free_bytes();
  std::uint64_t promised = 0;
  {
    std::lock_guard lock(mu_);
    promised = reserved_bytes_;
  }
  if (bytes > 0 && free < bytes + promised + kFreeMarginBytes) {
    return Status::exhausted("the disk is full: " + std::string(what) + " needs " + mib(bytes) +
                             ", " + mib(free) + " are free at '" + options_.path + "' and " +
                             mib(kFreeMarginBytes) + " stay reserved; free some disk space");
  }
  for (int waits = 0;;) {
    std::uint64_t epoch;
    {
      std::lock_guard lock(mu_);
      epoch = release_epoch_;
    }
    const DiskUsage usage = disk_->usage();
    const std::uint64_t used = usage.total() + usage.headroom_bytes;
    {
      std::unique_lock lock(mu_);
      // A reservation became a file during the measurement: measure again
      if (release_epoch_ != epoch) continue;
      if (options_.max_bytes == 0 || used + reserved_bytes_ + bytes <= options_.max_bytes) {
        reserved_bytes_ += bytes;
        return Reservation(this, bytes);
      }
      promised = reserved_bytes_;
    }
    if (reap() > 0) continue;
    bool may_wait;
    {
      std::unique_lock lock(mu_);
      may_wait = !reaping_.empty();
      if (may_wait)
        changed_.wait_for(lock, std::chrono::milliseconds(200),
                          [this] { return reaping_.empty(); });
    }
    if (may_wait && ++waits < 100) continue;
    // Bytes of deleted segments that a file system without holes keeps until a file is rewritten.
    // The working room is larger than such a file.
    if (may_move && usage.pending_delete_bytes > 0 && ++waits < 100) {
      MoveReport report;
      if (const auto moved = move_some(&report, /*reserves=*/false); moved.ok() && *moved > 0)
        continue;
    }
    if (segments_->evict_one()) continue;
    return Status::exhausted(
        "the store's byte budget is used up: " + std::string(what) + " needs " + mib(bytes) +
        ", but " + mib(usage.catalog_bytes) + " of texts and catalog, " + mib(usage.segment_bytes) +
        " of KV in use or pinned, " + mib(promised) + " promised to writers and " +
        mib(usage.headroom_bytes) + " of working room leave too little of " +
        mib(options_.max_bytes) + "; delete or unpin documents, or raise disk.max_bytes");
  }
}

void StoreImpl::release(std::uint64_t bytes) {
  std::lock_guard lock(mu_);
  reserved_bytes_ -= bytes;
  ++release_epoch_;
}

StoreImpl::Reaping::Reaping(StoreImpl& store) : store_(store) {
  const std::lock_guard lock(store_.mu_);
  number_ = ++store_.last_reaping_;
  store_.reaping_.insert(number_);
}

StoreImpl::Reaping::~Reaping() {
  {
    const std::lock_guard lock(store_.mu_);
    store_.reaping_.erase(number_);
  }
  store_.changed_.notify_all();
}

std::size_t StoreImpl::reap() {
  std::optional<Reaping> reaping(std::in_place, *this);
  const auto items = segments_->take_reapable();
  std::vector<RecordWrite> records;
  std::vector<std::string> removals(items.size());  // empty: the shared tiers keep it
  std::vector<ContextKey> evicted;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    dram_->erase_segment(item.info->id);
    if (!item.committed) continue;
    records.push_back({Family::kCatalog, segment_record_key(item.info->id), std::nullopt});
    // What is deleted here must not stay readable elsewhere. A replica that still has the document
    // computes its KV again.
    if (item.reason == FreeReason::kUnreferenced) {
      removals[i] = note_removal(*item.info, &records);
    } else {
      note_evicted(*item.info, &records);
      evicted.push_back(item.info->key);
    }
  }
  // The record is deleted first. The next open collects files without a record, but a record
  // without files would be wrong.
  if (!records.empty()) {
    if (Status s = disk_->write(records, Sync::kNo); !s.ok()) {
      ++delete_errors_;
      log_warning("segment records were not deleted; the next open collects them",
                  {{"reason", s.to_string()}});
    }
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    // It is counted first: whoever finds the room that it leaves finds it counted, too.
    if (item.reason == FreeReason::kBudget) {
      ++evicted_budget_;
      evicted_bytes_ += item.info->disk_bytes;
    } else if (item.reason == FreeReason::kRequested) {
      ++evicted_request_;
      evicted_request_bytes_ += item.info->disk_bytes;
    } else if (item.reason == FreeReason::kUnreferenced) {
      ++freed_delete_;
    }
    if (Status s = delete_clock_.time([&] { return disk_->delete_segment(item.info->id); });
        !s.ok()) {
      ++delete_errors_;
      log_warning("a segment's files were not deleted; the next gc collects them",
                  {{"reason", s.to_string()}});
    }
    if (!removals[i].empty())
      remove_shared(remote_->removal_of(*item.info), std::move(removals[i]));
  }
  remove_evicted(evicted);  // what was deleted between its eviction and the record of that
  reaping.reset();
  if (!items.empty()) move_in_background();
  return items.size();
}

std::size_t StoreImpl::reap_all() {
  const std::size_t freed = reap();
  std::unique_lock lock(mu_);
  const std::uint64_t before = last_reaping_;
  changed_.wait(lock, [&] { return reaping_.empty() || *reaping_.begin() > before; });
  return freed;
}

Status StoreImpl::write_with_room(std::span<const RecordWrite> writes, std::string_view what,
                                  Sync sync, bool* reached) {
  std::uint64_t payload = 0;
  for (const auto& w : writes) payload += w.key.size() + (w.value ? w.value->size() : 0);
  QUIRE_ASSIGN_OR_RETURN(const Reservation room, reserve(room_for(payload), what));
  if (reached) *reached = true;
  QUIRE_RETURN_IF_ERROR(disk_->write(writes, sync));
  if (payload > 1u << 20) {  // the log's copy is removed before its room is released
    if (Status s = disk_->flush_records(); !s.ok())
      log_warning("the catalog was not flushed", {{"reason", s.to_string()}});
  }
  return {};
}

Status StoreImpl::put_record(Family family, std::string_view name, std::string_view value,
                             Sync sync) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(check_record(name, value));
  const RecordWrite w{family, std::string(name), record::encode_opaque(value)};
  return write_with_room(std::span(&w, 1), "a record", sync);
}

Result<std::string> StoreImpl::get_record(Family family, std::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, disk_->get(family, name));
  return record::decode_opaque(bytes);
}

Status StoreImpl::delete_record(Family family, std::string_view name, Sync sync) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  const RecordWrite w{family, std::string(name), std::nullopt};
  return disk_->write(std::span(&w, 1), sync);
}

Status StoreImpl::put_job_and_texts(std::string_view name, std::string_view value,
                                    std::span<const NamedText> texts, Durable when) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(check_record(name, value));
  std::vector<RecordWrite> batch;
  for (const NamedText& t : texts) {
    if (t.name.empty() || t.name.size() > kMaxNamespaceBytes || t.name.find('\0') != t.name.npos)
      return Status::invalid("name", "must have 1 to 128 bytes without NUL");
    if (t.text.size() > kMaxTextBytes)
      return Status::invalid("text", "is longer than " + mib(kMaxTextBytes));
    batch.push_back(
        {Family::kCatalog, named_key(kNamedTextKind, t.name), record::encode_text(t.text)});
    batch.push_back({Family::kCatalog, named_key(kWaitingKind, t.name),
                     record::encode_opaque(std::to_string(t.text.size()))});
  }
  batch.push_back({Family::kJobs, std::string(name), record::encode_opaque(value)});
  return write_with_room(batch, "a job", sync_of(when));
}

Result<std::string> StoreImpl::get_waiting_text(std::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes,
                         disk_->get(Family::kCatalog, named_key(kNamedTextKind, name)));
  auto text = record::decode_text(bytes);
  if (!text.ok()) ++integrity_failures_;
  return text;
}

Status StoreImpl::delete_waiting_texts(std::span<const std::string> names, Durable when) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  std::vector<RecordWrite> batch;
  for (const std::string& name : names) {
    const auto waits = disk_->get(Family::kCatalog, named_key(kWaitingKind, name));
    if (waits.code() == Code::kNotFound) continue;
    QUIRE_RETURN_IF_ERROR(waits.status());
    for (const char kind : {kNamedTextKind, kWaitingKind})
      batch.push_back({Family::kCatalog, named_key(kind, name), std::nullopt});
  }
  return batch.empty() ? Status() : disk_->write(batch, sync_of(when));
}

Result<std::vector<std::string>> StoreImpl::list_waiting_texts(std::string_view after,
                                                               std::size_t limit) {
  std::vector<std::string> out;
  std::string begin = named_key(kWaitingKind, after);
  if (!after.empty()) begin += '\0';
  QUIRE_RETURN_IF_ERROR(disk_->scan(Family::kCatalog, begin, std::string(1, kWaitingKind + 1),
                                    false, [&](std::string_view key, std::string_view) {
                                      if (out.size() >= limit) return false;
                                      out.emplace_back(key.substr(1));
                                      return true;
                                    }));
  return out;
}

Result<std::vector<NamedRecord>> StoreImpl::list_jobs(std::string_view after, std::size_t limit) {
  std::vector<NamedRecord> out;
  std::string begin(after);
  if (!after.empty()) begin += '\0';
  QUIRE_RETURN_IF_ERROR(disk_->scan(
      Family::kJobs, begin, {}, false, [&](std::string_view key, std::string_view value) {
        if (out.size() >= limit) return false;
        auto decoded = record::decode_opaque(value);
        if (decoded.ok()) {
          out.push_back({std::string(key), std::move(*decoded)});
        } else {
          ++integrity_failures_;
          log_error("a job record is damaged and left out", {{"job", std::string(key)}});
        }
        return true;
      }));
  return out;
}

}  // namespace quire
