// This file implements the repair of a store: what can be read of a damaged record, in a new one.
#include <rocksdb/db.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/folder/untold_losses.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/repair.h"
#include "cachestore/disk/rocksdb_copy.h"
#include "cachestore/disk/rocksdb_gaps.h"
#include "cachestore/disk/rocksdb_old_record.h"
#include "cachestore/disk/rocksdb_options.h"
#include "cachestore/disk/store_folder.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/format/metadata.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/record.h"

namespace quire {
namespace {

using namespace rocksdb_internal;  // NOLINT: the settings of the tier
namespace fs = std::filesystem;
namespace json = boost::json;
using ::rocksdb::Slice;

using Database = RepairDatabase;
using Kind = Database::Kind;
using enum Database::Kind;
constexpr auto& kNames = Database::kNames;
constexpr std::size_t kBatchBytes = 4 << 20;
/// The copy's ledger has a write this much later than the record's at most.
constexpr std::int64_t kCopyLateMs = 60'000;

std::string_view view(const Slice& s) { return {s.data(), s.size()}; }

/// Namespace and id of a key that has them after its first byte.
std::optional<std::pair<std::string, std::string>> document_of(std::string_view key) {
  const auto end = key.find('\0');
  if (key.size() < 2 || end == std::string_view::npos) return std::nullopt;
  std::string_view id = key.substr(end + 1);
  if (key.front() == kTermKind) {
    if (id.size() <= kTermBytes) return std::nullopt;
    id.remove_prefix(kTermBytes);
  }
  if (id.empty()) return std::nullopt;
  return std::pair(std::string(key.substr(1, end - 1)), std::string(id));
}

/// Returns whether a record is whole and belongs into the new database.
bool is_good(Kind family, std::string_view key, std::string_view value, bool keep_kv) {
  if (key.empty()) return false;
  // Keys of placements are numbers, which begin with a zero byte as well.
  if (family != kPlaces && WriteLedger::is_slot_key(key)) return false;
  // Marks of a copy say nothing of the new record.
  if (family == kMeta && !is_client_record(Family::kMeta, key)) return false;
  // What is lost here is read anew from the shared catalog.
  if (family == kMeta && key == kCatalogPositionRecord) return false;
  if (family == kPlaces) return keep_kv && record::decode_placement(value).ok();
  if (family == kCatalog) {
    // The index of documents is made anew.
    if (key.front() == kTermKind || key.front() == kIndexKind) return false;
    if (key.front() == kSegmentKind && !keep_kv) return false;
  }
  return record::check_envelope(value).ok();
}

class Salvage {
 public:
  /// `found` is damage that is known already.
  Salvage(const StoreFolder& folder, const RepairOptions& options, std::vector<std::string> found)
      : folder_(folder), options_(options), work_(folder.work()) {
    report_.damage = std::move(found);
  }

  Result<RepairReport> run();

 private:
  Status open_new();
  std::unique_ptr<RecordDatabase> open_copy();
  Status take_copy(RecordDatabase& copy);
  void copy_family(Database& from, Kind family);
  Status copy_tables(const std::string& folder);
  void make_changes_again();
  void take(Kind family, std::string_view key, std::string_view value, bool only_if_missing);
  Status flush_batch();
  Status check_documents();
  void check_document(const DocumentManifest& head, std::vector<std::string>* drop);
  void keep_text(const std::string& ns, const std::string& id, const DocumentManifest* head,
                 std::string_view text, std::string reason);
  Status install();
  Status write_report();
  std::optional<std::string> new_record(std::string_view key) {
    std::string value;
    const auto s = new_.db->Get(::rocksdb::ReadOptions(), new_.handles[kCatalog],
                                Slice(key.data(), key.size()), &value);
    return s.ok() ? std::optional(std::move(value)) : std::nullopt;
  }

  const StoreFolder& folder_;
  const RepairOptions& options_;
  const std::string work_;
  const RocksDbTierOptions tier_options_{.direct_io = false};
  std::optional<StoreFolder> copy_folder_;
  CopyMark copy_mark_;
  bool copy_is_sure_ = false;  ///< the copy has all that the damaged record had
  bool copy_is_known_ = true;  ///< something says that the record did not go on without it
  Database new_;
  ::rocksdb::WriteBatch batch_;
  Status write_error_;
  RepairReport report_;
  std::map<std::uint32_t, Kind> families_;  ///< by their numbers in tables and logs
  OldRecord old_{folder_, work_, tier_options_, report_};
  /// Documents whose head may be of another version than their tokens.
  std::set<std::pair<std::string, std::string>> unsure_;
  std::set<std::pair<std::string, std::string>> seen_;  ///< every document with any record
  std::map<std::string, std::string> texts_;            ///< NDJSON by namespace
};

Status Salvage::open_new() {
  ::rocksdb::DBOptions o = db_options(tier_options_);
  o.error_if_exists = true;
  std::vector<::rocksdb::ColumnFamilyDescriptor> families;
  const auto cache = record_cache();
  families.emplace_back("default", record_options(tier_options_, cache));
  for (const char* name : {"catalog", "jobs", "meta", "extents"})
    families.emplace_back(name, record_options(tier_options_, cache));
  ::rocksdb::DB* db = nullptr;
  QUIRE_RETURN_IF_ERROR(folder_.make_work_folder(work_ + "/db"));
  const auto status = ::rocksdb::DB::Open(o, work_ + "/db", families, &new_.all, &db);
  if (!status.ok()) return to_status(status, "make a new record");
  new_.db.reset(db);
  for (std::size_t f = 0; f < kKinds; ++f) new_.handles[f] = new_.all[f + 1];
  return {};
}

Status Salvage::flush_batch() {
  if (batch_.Count() > 0)
    QUIRE_RETURN_IF_ERROR(
        to_status(new_.db->Write(::rocksdb::WriteOptions(), &batch_), "write the new record"));
  batch_.Clear();
  return {};
}

void Salvage::take(Kind family, std::string_view key, std::string_view value,
                   bool only_if_missing) {
  if (family == kCatalog && !key.empty() &&
      std::string_view{"dkti"}.find(key.front()) != std::string_view::npos) {
    if (auto document = document_of(key)) seen_.insert(std::move(*document));
  }
  if (!write_error_.ok() || !is_good(family, key, value, options_.keep_kv)) return;
  const Slice k(key.data(), key.size()), v(value.data(), value.size());
  if (only_if_missing) {
    write_error_ = flush_batch();
    std::string there;
    if (!write_error_.ok() ||
        new_.db->Get(::rocksdb::ReadOptions(), new_.handles[family], k, &there).ok())
      return;
    report_.may_be_older = true;
  }
  (void)batch_.Put(new_.handles[family], k, v);
  if (batch_.GetDataSize() > kBatchBytes) write_error_ = flush_batch();
}

/// Reads forwards to the first damage, then backwards to the last.
template <class Take>
::rocksdb::Status read_around(::rocksdb::Iterator& it, Take&& take) {
  std::string last;
  for (it.SeekToFirst(); it.Valid(); it.Next()) {
    last = it.key().ToString();
    take(view(it.key()), view(it.value()));
  }
  const auto status = it.status();
  if (status.ok()) return status;
  for (it.SeekToLast(); it.Valid() && it.key().ToString() > last; it.Prev())
    take(view(it.key()), view(it.value()));
  return status;
}

/// Opens the second copy of the record; null: there is none that is whole.
std::unique_ptr<RecordDatabase> Salvage::open_copy() {
  if (options_.copy_path.empty()) return nullptr;
  std::optional<CopyMark> mark;  // of the damaged record, if it can be read
  std::string stored;
  const Database& old = old_.database();
  const bool read = old.db && old.handles[kMeta] &&
                    old.db
                        ->Get(::rocksdb::ReadOptions(), old.handles[kMeta],
                              std::string(CopyMark::kMark), &stored)
                        .ok();
  if (const auto text = record::decode_opaque(stored); read && text.ok())
    mark = CopyMark::parse(*text);
  const std::int64_t newest = newest_in_ledger(folder_);
  std::string why;
  auto folder = StoreFolder::open(options_.copy_path, /*read_only=*/true);
  if (folder.ok()) {
    copy_folder_.emplace(std::move(*folder));
    std::int64_t last_ms = 0;
    auto copy = open_whole_copy(*copy_folder_, &why, &last_ms);
    const auto of_copy = copy != nullptr ? CopyMark::of(*copy) : std::optional<CopyMark>();
    if (copy != nullptr && mark &&
        (mark->state == CopyMark::State::kBehind || mark->id != (*of_copy)->id)) {
      why = "it is behind, or of another record";
      copy.reset();
    }
    // A record whose mark is lost may have gone on without its copy.
    if (copy != nullptr && !mark && newest > last_ms + kCopyLateMs) {
      why = "the record has newer writes";
      copy.reset();
    }
    if (copy != nullptr) {
      copy_mark_ = {(*of_copy)->id, 0, CopyMark::State::kOpen};
      copy_is_known_ = mark || newest > 0;
      copy_is_sure_ = copy_is_known_ && copy->torn_writes() == 0;
      note_damage(report_, "the record is taken from its copy in '" + options_.copy_path +
                               "', whose last write is of Unix millisecond " +
                               std::to_string(last_ms));
      if (copy->torn_writes() > 0)
        note_damage(report_, "the end of the copy's log is torn, with " +
                                 std::to_string(copy->torn_writes()) + " writes");
      return copy;
    }
  } else {
    why = folder.status().message();
  }
  note_damage(report_,
              "the copy of the record in '" + options_.copy_path + "' is of no use: " + why);
  return nullptr;
}

/// Takes all records of the copy, and a mark by which the next open knows what it is of; no mark
/// where the record may have gone on without it.
Status Salvage::take_copy(RecordDatabase& copy) {
  for (const Kind kind : {kCatalog, kJobs, kMeta}) {
    const auto it = copy.iterate(static_cast<Family>(kind));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      take(kind, view(it->key()), view(it->value()), /*only_if_missing=*/false);
    }
    QUIRE_RETURN_IF_ERROR(to_status(it->status(), "read the copy of the record"));
  }
  if (!copy_is_known_) return {};  // the next open puts it aside
  const RecordWrite mark = copy_mark_.write();
  (void)batch_.Put(new_.handles[kMeta], mark.key, *mark.value);
  return {};
}

void Salvage::copy_family(Database& from, Kind family) {
  if (!from.handles[family]) return;
  ::rocksdb::ReadOptions o;
  o.fill_cache = false;
  const std::unique_ptr<::rocksdb::Iterator> it(from.db->NewIterator(o, from.handles[family]));
  const auto status = read_around(*it, [&](std::string_view key, std::string_view value) {
    take(family, key, value, /*only_if_missing=*/false);
  });
  if (status.ok()) return;
  report_.may_lack_documents = true;
  note_damage(report_, "family " + std::string(kNames[family]) + ": " + status.ToString());
}

/// Reads the tables of a folder that RocksDB's repair gave up, one by one.
Status Salvage::copy_tables(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto all, files_in(folder));
  std::vector<std::string> files;
  for (const fs::path& file : all)
    if (file.extension() == ".sst") files.push_back(file.string());
  std::sort(files.rbegin(), files.rend());  // newer tables have larger numbers
  for (const std::string& file : files) {
    const std::string name = fs::path(file).filename().string();
    ::rocksdb::Options o(db_options(tier_options_), record_options(tier_options_, record_cache()));
    ::rocksdb::SstFileReader reader(o);
    if (const auto s = reader.Open(file); !s.ok()) {
      report_.may_lack_documents = true;
      note_damage(report_, "table " + name + " cannot be opened: " + s.ToString());
      continue;
    }
    const auto properties = reader.GetTableProperties();
    const auto family = std::ranges::find_if(
        kNames, [&](const char* n) { return properties && properties->column_family_name == n; });
    if (family == kNames.end()) {
      note_damage(report_, "table " + name + " does not say what it holds");
      continue;
    }
    const auto kind = static_cast<Kind>(family - kNames.begin());
    families_.insert_or_assign(static_cast<std::uint32_t>(properties->column_family_id), kind);
    if (is_another_table(file, tier_options_)) continue;  // that one is read as well
    const std::unique_ptr<::rocksdb::Iterator> it(reader.NewIterator(::rocksdb::ReadOptions()));
    const auto status = read_around(*it, [&](std::string_view key, std::string_view value) {
      take(kind, key, value, /*only_if_missing=*/true);
    });
    if (!status.ok()) report_.may_lack_documents = true;
    note_damage(report_, "table " + name + ": " +
                             (status.ok() ? "left out by the repair" : status.ToString()));
  }
  return {};
}

/// Makes the changes of the logs again over what single tables have: they are newer, and tell what
/// was deleted.
void Salvage::make_changes_again() {
  for (std::size_t f = 0; f < kKinds; ++f) {
    const bool known = std::ranges::any_of(families_, [&](const auto& e) { return e.second == f; });
    if (!known) families_.emplace(new_.handles[f]->GetID(), static_cast<Kind>(f));
  }
  for (const std::string& batch : old_.batches()) {
    for_each_change(batch, [this](std::uint32_t family, std::string_view key,
                                  std::optional<std::string_view> value) {
      const auto kind = families_.find(family);
      if (kind == families_.end()) return;
      if (value) return take(kind->second, key, *value, /*only_if_missing=*/false);
      if (kind->second == kCatalog && key.starts_with(kHeadKind)) {
        if (const auto document = document_of(key)) seen_.erase(*document);
      }
      (void)batch_.Delete(new_.handles[kind->second], Slice(key.data(), key.size()));
    });
  }
}

void Salvage::keep_text(const std::string& ns, const std::string& id, const DocumentManifest* head,
                        std::string_view text, std::string reason) {
  if (tokenizer_internal::valid_utf8_prefix(text) < text.size()) {
    report_.lost.push_back({ns, id, std::move(reason)});
    return;
  }
  json::object line;
  line["id"] = id;
  if (head && !head->title.empty()) line["title"] = head->title;
  line["text"] = text;
  if (head && !head->metadata_json.empty()) {
    boost::system::error_code wrong;
    if (auto metadata = json::parse(head->metadata_json, wrong); !wrong && metadata.is_object())
      line["metadata"] = std::move(metadata);
  }
  texts_[ns] += json::serialize(line) + "\n";
  report_.texts.push_back({ns, id, std::move(reason)});
}

/// Counts a document that is whole. Of another one the keys to delete go to `drop`.
void Salvage::check_document(const DocumentManifest& head, std::vector<std::string>* drop) {
  if (head.status != DocumentStatus::kReady) {  // it has no text
    ++report_.documents;
    return;
  }
  const std::string tokens_key = catalog_key(kTokensKind, head.ns, head.id);
  const auto text_record = new_record(text_key(head));
  auto text = text_record ? record::decode_text(*text_record)
                          : Result<std::string>(Status::corruption("is missing"));
  if (text.ok() && text->size() != head.text_bytes)
    text = Status::corruption("is that of another version");
  const auto tokens_record = new_record(tokens_key);
  DocumentManifest whole = head;
  Status tokens = tokens_record ? record::decode_tokens(*tokens_record, &whole)
                                : Status::corruption("are missing");
  if (unsure_.contains({head.ns, head.id})) {
    tokens = Status::corruption("may be of another version");
    // A text that has a name of its own is that of this version.
    if (head.text_name.empty()) text = tokens;
  }
  if (text.ok() && tokens.ok()) {
    ++report_.documents;
    return;
  }
  if (text.ok())
    keep_text(head.ns, head.id, &head, *text, "its tokens cannot be read");
  else
    report_.lost.push_back({head.ns, head.id, "its text cannot be read"});
  drop->push_back(catalog_key(kHeadKind, head.ns, head.id));
  drop->push_back(tokens_key);
  drop->push_back(text_key(head));
}

Status Salvage::check_documents() {
  std::vector<std::string> drop;
  std::set<std::pair<std::string, std::string>> found;
  std::set<std::string> named_texts;
  const std::unique_ptr<::rocksdb::Iterator> it(
      new_.db->NewIterator(::rocksdb::ReadOptions(), new_.handles[kCatalog]));
  for (it->Seek(std::string(1, kHeadKind)); it->Valid() && it->key()[0] == kHeadKind; it->Next()) {
    const auto head = record::decode_head(view(it->key()).empty() ? "" : view(it->value()));
    const auto document = document_of(view(it->key()));
    if (!head.ok() || !document || head->ns != document->first || head->id != document->second) {
      drop.push_back(it->key().ToString());
      continue;
    }
    found.insert(*document);
    if (!head->text_name.empty()) named_texts.insert(head->text_name);
    check_document(*head, &drop);
  }
  QUIRE_RETURN_IF_ERROR(to_status(it->status(), "read the new record"));
  // Tables that are read one by one do not tell what was deleted. A text that a document has does
  // not wait: it would be dropped with the job that it waited for.
  for (const std::string& name : named_texts)
    if (new_record(named_key(kWaitingKind, name))) drop.push_back(named_key(kWaitingKind, name));
  // Texts without a head: under a document's own name, then under names of jobs.
  for (const char kind : {kTextKind, kNamedTextKind}) {
    for (it->Seek(std::string(1, kind)); it->Valid() && it->key()[0] == kind; it->Next()) {
      const std::string_view key = view(it->key());
      const auto text = record::decode_text(view(it->value()));
      if (kind == kTextKind) {
        const auto document = document_of(key);
        if (document && found.contains(*document)) continue;
        if (document && text.ok()) {
          keep_text(document->first, document->second, nullptr, *text, "its head cannot be read");
          found.insert(*document);
        }
        drop.emplace_back(key);
        continue;
      }
      const std::string name(key.substr(1));
      if (named_texts.contains(name) || new_record(named_key(kWaitingKind, name))) continue;
      if (text.ok())
        keep_text("unknown", "salvaged-" + name, nullptr, *text, "its head cannot be read");
      drop.emplace_back(key);
    }
    QUIRE_RETURN_IF_ERROR(to_status(it->status(), "read the new record"));
  }
  for (it->Seek(std::string(1, kTokensKind)); it->Valid() && it->key()[0] == kTokensKind;
       it->Next()) {
    const auto document = document_of(view(it->key()));
    if (!document || !found.contains(*document)) drop.push_back(it->key().ToString());
  }
  for (it->Seek(std::string(1, kSegmentKind)); it->Valid() && it->key()[0] == kSegmentKind;
       it->Next())
    ++report_.segments;
  for (const auto& document : seen_)
    if (!found.contains(document))
      report_.lost.push_back({document.first, document.second, "its record cannot be read"});
  for (const std::string& key : drop) (void)batch_.Delete(new_.handles[kCatalog], key);
  QUIRE_RETURN_IF_ERROR(flush_batch());
  for (const Kind family : {kJobs, kMeta}) {
    const std::unique_ptr<::rocksdb::Iterator> all(
        new_.db->NewIterator(::rocksdb::ReadOptions(), new_.handles[family]));
    for (all->SeekToFirst(); all->Valid(); all->Next()) ++report_.records;
  }
  const auto order = [](const RepairReport::Document& a, const RepairReport::Document& b) {
    return std::tie(a.ns, a.id) < std::tie(b.ns, b.id);
  };
  std::sort(report_.texts.begin(), report_.texts.end(), order);
  std::sort(report_.lost.begin(), report_.lost.end(), order);
  return {};
}

Status Salvage::install() {
  char stamp[32];
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  (void)std::strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &tm);
  QUIRE_ASSIGN_OR_RETURN(report_.kept_folder, folder_.make_aside(std::string("damaged-") + stamp));
  Status status = write_report();
  if (status.ok()) status = folder_.replace_record(report_.kept_folder, options_.keep_kv);
  if (status.ok() || folder_.is_replacing()) return status;
  std::error_code ec;
  fs::remove_all(report_.kept_folder, ec);  // it tells of a repair that was not made
  return status;
}

/// Writes what was found to the folder to which the damaged record goes.
Status Salvage::write_report() {
  for (const auto& [ns, lines] : texts_) {
    const std::string path = report_.kept_folder + "/texts-" + ns + ".ndjson";
    QUIRE_RETURN_IF_ERROR(write_private_file(path, lines));
    report_.text_files.push_back(path);
  }
  std::string text = summary(report_) + "\n";
  for (const auto& line : report_.damage) text += "damage: " + line + "\n";
  for (const auto& d : report_.texts)
    text += "text only: " + d.ns + " " + d.id + ": " + d.reason + "\n";
  for (const auto& d : report_.lost) text += "lost: " + d.ns + " " + d.id + ": " + d.reason + "\n";
  return write_private_file(report_.kept_folder + "/report.txt", text);
}

Result<RepairReport> Salvage::run() {
  std::error_code ec;
  fs::remove_all(work_, ec);
  QUIRE_RETURN_IF_ERROR(folder_.make_work_folder(work_));
  struct Cleanup {
    Salvage& salvage;
    ~Cleanup() {
      salvage.old_.close();
      salvage.new_.close();
      std::error_code ignored;
      // The next open puts the record in it in its place.
      if (!salvage.folder_.is_replacing()) fs::remove_all(salvage.work_, ignored);
    }
  } const cleanup{*this};
  QUIRE_RETURN_IF_ERROR(open_new());
  QUIRE_RETURN_IF_ERROR(old_.read_logs());
  unsure_ = old_.unsure();
  if (const Status s = old_.open(new_); !s.ok()) note_damage(report_, s.message());
  Database& old = old_.database();
  if (const auto copy = open_copy(); copy != nullptr) {
    QUIRE_RETURN_IF_ERROR(take_copy(*copy));
    if (old.db) copy_family(old, kPlaces);
    unsure_.clear();  // the copy ends before its first gap
    report_.may_be_older = !copy_is_known_;
    report_.may_lack_documents = !copy_is_sure_;
    // What only the record has may be newer than the copy, or deleted in it: nobody knows.
    if (!copy_is_known_) QUIRE_RETURN_IF_ERROR(copy_tables(folder_.db()));
  } else {
    QUIRE_RETURN_IF_ERROR(old_.compare_ledger());
    if (old.db) {
      for (std::size_t f = 0; f < kKinds; ++f) copy_family(old, static_cast<Kind>(f));
      QUIRE_RETURN_IF_ERROR(copy_tables(old_.given_up()));
    } else {
      QUIRE_RETURN_IF_ERROR(copy_tables(folder_.db()));
      make_changes_again();
    }
  }
  QUIRE_RETURN_IF_ERROR(write_error_);
  QUIRE_RETURN_IF_ERROR(flush_batch());
  QUIRE_RETURN_IF_ERROR(check_documents());
  ::rocksdb::FlushOptions flush;
  QUIRE_RETURN_IF_ERROR(to_status(new_.db->Flush(flush, {new_.handles.begin(), new_.handles.end()}),
                                  "write the new record"));
  new_.close();
  old_.close();
  if (!options_.dry_run) QUIRE_RETURN_IF_ERROR(install());
  return std::move(report_);
}

/// Says what a repair would do, from a copy of what it would read.
Result<RepairReport> look_at(const StoreFolder& folder, const RepairOptions& options) {
  struct Cleanup {
    const StoreFolder& folder;
    ~Cleanup() {
      std::error_code ignored;
      fs::remove_all(folder.work(), ignored);
    }
  } const cleanup{folder};
  std::vector<std::string> found;
  QUIRE_ASSIGN_OR_RETURN(const StoreFolder copy, folder.make_mended_copy(&found));
  QUIRE_ASSIGN_OR_RETURN(RepairReport report, Salvage(copy, options, std::move(found)).run());
  for (std::string& line : report.damage) {
    // The copy is gone by then.
    for (auto at = line.find(copy.root()); at != line.npos; at = line.find(copy.root(), at))
      line.replace(at, copy.root().size(), folder.root());
  }
  return report;
}

}  // namespace

Result<RepairReport> repair_store(const RepairOptions& options) {
  const FolderUse use = options.dry_run ? FolderUse::kLook : FolderUse::kRepair;
  QUIRE_ASSIGN_OR_RETURN(const StoreFolder folder,
                         StoreFolder::open(options.path, /*read_only=*/false, use));
  UntoldLosses untold;
  untold.open(folder.lost_writes());
  QUIRE_ASSIGN_OR_RETURN(RepairReport report, options.dry_run ? look_at(folder, options)
                                                              : Salvage(folder, options, {}).run());
  report.untold = untold.shown();
  return report;
}

std::string summary(const RepairReport& r) {
  return std::to_string(r.documents) + " documents and the KV of " + std::to_string(r.segments) +
         " contexts are whole; of " + std::to_string(r.texts.size()) +
         " documents only the text could be read; " + std::to_string(r.lost.size()) +
         " documents are lost" +
         (r.may_lack_documents ? ", and there may be more of which not even the id is left" : "") +
         (r.may_be_older ? "; some may be back that were deleted, or in an older version" : "");
}

}  // namespace quire
