// This file implements lists of documents, the index that finds them by term, and their numbers.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "base/log.h"
#include "cachestore/format/metadata.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

constexpr std::size_t kHeadsPerWrite = 1000;

void count(const DocumentManifest& m, int sign, NamespaceStats* n) {
  const auto step = static_cast<std::uint64_t>(static_cast<std::int64_t>(sign));
  n->documents += step;
  n->tokens += step * m.num_tokens;
  n->text_bytes += step * m.text_bytes;
  if (m.status == DocumentStatus::kReady) n->ready += step;
  if (m.status == DocumentStatus::kFailed) n->failed += step;
}

}  // namespace

bool is_expired(const DocumentManifest& m, std::int64_t now_ms) {
  const auto end = m.effective_expiry_ms();
  return end && *end <= now_ms;
}

// ---- numbers ----

void StoreImpl::count_document(const DocumentManifest& m, int sign) {
  std::lock_guard lock(mu_);
  auto it = namespaces_.find(m.ns);
  if (it == namespaces_.end()) {
    it = namespaces_.emplace(m.ns, NamespaceStats()).first;
    it->second.name = m.ns;
  }
  count(m, sign, &it->second);
  if (it->second.documents == 0) namespaces_.erase(it);
}

std::vector<NamespaceStats> StoreImpl::namespaces() {
  std::lock_guard lock(mu_);
  std::vector<NamespaceStats> out;
  for (const auto& [name, stats] : namespaces_) out.push_back(stats);
  return out;
}

Result<NamespaceStats> StoreImpl::namespace_stats(std::string_view ns) {
  NamespaceStats n;
  {
    std::lock_guard lock(mu_);
    if (const auto it = namespaces_.find(ns); it != namespaces_.end()) n = it->second;
  }
  n.name = ns;
  if (n.documents == 0) return n;
  const std::int64_t now = now_ms();
  const std::string prefix = catalog_key(kHeadKind, ns, "");
  for (const std::string& key : expiries_.due(now, SIZE_MAX)) {
    if (!key.starts_with(prefix)) continue;
    const auto m = read_head(ns, std::string_view(key).substr(prefix.size()));
    if (m.ok() && is_expired(*m, now)) count(*m, -1, &n);
    if (!m.ok() && m.code() != Code::kNotFound && m.code() != Code::kCorruption) return m.status();
  }
  return n;
}

// ---- the index ----

void StoreImpl::change_terms(const DocumentManifest* old, const DocumentManifest* next,
                             std::vector<RecordWrite>* batch) {
  if (old && next && old->status == next->status && old->metadata_json == next->metadata_json)
    return;
  const auto before = old ? document_terms(*old) : std::vector<std::string>(),
             after = next ? document_terms(*next) : std::vector<std::string>();
  const DocumentManifest& m = old ? *old : *next;
  const auto key = [&](const std::string& term) { return term_key(m.ns, term) + m.id; };
  for (const std::string& term : before) {
    if (!std::ranges::binary_search(after, term))
      batch->push_back({Family::kCatalog, key(term), std::nullopt});
  }
  for (const std::string& term : after) {
    if (!std::ranges::binary_search(before, term))
      batch->push_back({Family::kCatalog, key(term), std::string()});
  }
}

/// Enters all documents of a store that has no index yet.
Status StoreImpl::index_documents() {
  std::string begin(1, kHeadKind);
  for (;;) {
    std::vector<RecordWrite> batch;
    std::size_t heads = 0;
    std::string last;
    QUIRE_RETURN_IF_ERROR(disk_->scan(Family::kCatalog, begin, std::string(1, kHeadKind + 1), false,
                                      [&](std::string_view key, std::string_view value) {
                                        last = key;
                                        if (const auto m = record::decode_head(value); m.ok())
                                          change_terms(nullptr, &*m, &batch);
                                        return ++heads < kHeadsPerWrite;
                                      }));
    if (heads == 0) break;
    QUIRE_RETURN_IF_ERROR(disk_->write(batch, Sync::kNo));
    begin = last + '\0';
  }
  // The log keeps its order: after a crash the index is whole, or this record is missing.
  const RecordWrite complete{Family::kCatalog, std::string(1, kIndexKind),
                             record::encode_opaque(kIndexVersion)};
  QUIRE_RETURN_IF_ERROR(disk_->write(std::span(&complete, 1), Sync::kNo));
  indexed_ = true;
  return {};
}

/// The ids of one condition, which are those of one term or of either of two, in the order of a
/// list. It reads ahead: more, the longer it is read without gaps.
class StoreImpl::TermCursor {
 public:
  TermCursor(StoreImpl& store, std::string_view ns, std::vector<std::string> terms, bool descending)
      : store_(store), descending_(descending) {
    for (const std::string& term : terms) lists_.push_back({term_key(ns, term), {}, {}, false, 0});
  }

  /// Returns the first id that is not before `from`; with `beyond` the first after it. Empty: none.
  /// Calls go forward.
  Result<std::string> seek(const std::string& from, bool beyond) {
    std::string best;
    for (List& list : lists_) {
      QUIRE_RETURN_IF_ERROR(advance(list, from, beyond));
      if (list.ids.empty()) continue;
      if (best.empty() || before(list.ids.front(), best)) best = list.ids.front();
    }
    return best;
  }

 private:
  static constexpr std::size_t kFirstPage = 4, kMostPage = 256;
  struct List {
    std::string prefix;
    std::deque<std::string> ids;  // read ahead
    std::string last;             // the last id that was read
    bool at_end = false;
    std::size_t page = 0;
  };

  bool before(const std::string& a, const std::string& b) const {
    return descending_ ? a > b : a < b;
  }
  bool passed(const std::string& id, const std::string& from, bool beyond) const {
    return !from.empty() && (before(id, from) || (beyond && id == from));
  }

  Status advance(List& list, const std::string& from, bool beyond) {
    while (!list.ids.empty() && passed(list.ids.front(), from, beyond)) list.ids.pop_front();
    if (!list.ids.empty() || list.at_end) return {};
    // What was read ahead ended just before: read on, and more. Else the ids in between are
    // skipped.
    const bool goes_on = !list.last.empty() && !passed(list.last, from, false);
    list.page = goes_on ? std::min(kMostPage, 2 * list.page) : kFirstPage;
    std::string begin = list.prefix, end = list.prefix;
    ++end.back();  // terms have a fixed length, so no other key lies in between
    if (end.back() == 0) end = list.prefix + std::string(kMaxIdBytes + 1, '\xff');
    const std::string& at = from.empty() || goes_on ? list.last : from;
    const bool after = goes_on || beyond;
    if (!at.empty())
      (descending_ ? end : begin) = list.prefix + at +
                                    (after == descending_ ? "" : std::string(1, '\0'));
    std::size_t read = 0;
    QUIRE_RETURN_IF_ERROR(store_.disk_->scan(Family::kCatalog, begin, end, descending_,
                                             [&](std::string_view key, std::string_view) {
                                               list.last = key.substr(list.prefix.size());
                                               list.ids.push_back(list.last);
                                               return ++read < list.page;
                                             }));
    list.at_end = read < list.page;
    while (!list.ids.empty() && passed(list.ids.front(), from, beyond)) list.ids.pop_front();
    return list.ids.empty() && !list.at_end ? advance(list, from, beyond) : Status();
  }

  StoreImpl& store_;
  const bool descending_;
  std::vector<List> lists_;
};

// ---- lists ----

bool StoreImpl::add_to_page(const ListOptions& options, DocumentManifest m, std::int64_t now,
                            DocumentList* list) {
  add_pending_use(catalog_key(kHeadKind, m.ns, m.id), &m);
  // The head may have been read before a writer put uses into it that were pending until then.
  if (m.ttl_anchor == TtlAnchor::kLastUsed && is_expired(m, now)) {
    if (auto again = read_head(m.ns, m.id); again.ok()) m = std::move(*again);
  }
  if (is_expired(m, now) || (options.status && m.status != *options.status) ||
      !metadata_matches(m.metadata_json, options.metadata) ||
      (options.filter && !options.filter(m)))
    return true;
  if (list->documents.size() >= options.limit) {
    list->has_more = true;
    return false;
  }
  list->documents.push_back(std::move(m));
  return true;
}

Result<DocumentList> StoreImpl::list_documents(std::string_view ns, const ListOptions& options) {
  std::vector<TermCursor> conditions;
  for (const MetadataCondition& condition : options.metadata) {
    auto terms = filter_terms(condition);
    if (!terms.empty()) conditions.emplace_back(*this, ns, std::move(terms), options.descending);
  }
  if (options.status)
    conditions.emplace_back(*this, ns, std::vector{status_term(*options.status)},
                            options.descending);
  if (!indexed_ || conditions.empty()) return list_all(ns, options);
  DocumentList list;
  const std::int64_t now = now_ms();
  std::string id = options.after;
  bool beyond = true;
  for (;;) {
    // Each condition moves on to the first id that it has, until all have the same.
    QUIRE_ASSIGN_OR_RETURN(id, conditions.front().seek(id, beyond));
    beyond = false;
    std::size_t same = 1;
    while (!id.empty() && same < conditions.size()) {
      QUIRE_ASSIGN_OR_RETURN(std::string next, conditions[same].seek(id, false));
      if (next != id) break;
      ++same;
      id = std::move(next);
    }
    if (id.empty()) return list;
    if (same < conditions.size()) {
      QUIRE_ASSIGN_OR_RETURN(id, conditions[same].seek(id, false));
      if (id.empty()) return list;
      continue;
    }
    auto head = read_stored_head(ns, id);
    beyond = true;
    // Deleted in between, or damaged: it is left out, as in a list of all.
    if (head.code() == Code::kNotFound || head.code() == Code::kCorruption) continue;
    QUIRE_RETURN_IF_ERROR(head.status());
    if (!add_to_page(options, std::move(*head), now, &list)) return list;
  }
}

Result<DocumentList> StoreImpl::list_all(std::string_view ns, const ListOptions& options) {
  const std::string prefix = catalog_key(kHeadKind, ns, "");
  std::string begin = prefix, end = prefix;
  end.back() = '\1';
  if (!options.after.empty())
    (options.descending ? end : begin) = prefix + options.after +
                                         (options.descending ? "" : std::string(1, '\0'));
  DocumentList list;
  const std::int64_t now = now_ms();
  QUIRE_RETURN_IF_ERROR(disk_->scan(Family::kCatalog, begin, end, options.descending,
                                    [&](std::string_view, std::string_view value) {
                                      auto m = record::decode_head(value);
                                      if (!m.ok()) {
                                        ++integrity_failures_;
                                        log_error(
                                            "a document record is damaged and left out of the list",
                                            {{"namespace", std::string(ns)}});
                                        return true;
                                      }
                                      return add_to_page(options, std::move(*m), now, &list);
                                    }));
  return list;
}

}  // namespace quire
