#include "cachestore/disk/rocksdb_gaps.h"

#include <rocksdb/write_batch.h>

#include <algorithm>

#include "cachestore/disk/log/log_gaps.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/format/record.h"

namespace quire::rocksdb_internal {
namespace {

std::string_view view(const ::rocksdb::Slice& s) { return {s.data(), s.size()}; }

class Changes final : public ::rocksdb::WriteBatch::Handler {
 public:
  explicit Changes(const ChangeFn& fn) : fn_(fn) {}
  ::rocksdb::Status PutCF(std::uint32_t family, const ::rocksdb::Slice& key,
                          const ::rocksdb::Slice& value) override {
    fn_(family, view(key), view(value));
    return ::rocksdb::Status::OK();
  }
  ::rocksdb::Status DeleteCF(std::uint32_t family, const ::rocksdb::Slice& key) override {
    fn_(family, view(key), std::nullopt);
    return ::rocksdb::Status::OK();
  }

 private:
  const ChangeFn& fn_;
};

/// Whether both heads go with the same text and tokens.
bool have_same_text(const DocumentManifest& a, const DocumentManifest& b) {
  return a.content_hash == b.content_hash && a.text_name == b.text_name &&
         a.text_bytes == b.text_bytes && a.chunks == b.chunks;
}

}  // namespace

bool follow_one_another(const std::vector<std::string>& records) {
  std::optional<std::uint64_t> expected;
  return std::ranges::all_of(records, [&](const std::string& record) {
    const auto batch = BatchNumbers::of(record);
    const bool follows = batch && (!expected || batch->first == *expected);
    if (batch) expected = batch->next();
    return follows;
  });
}

void put_in_order(std::vector<std::string>* records) {
  const auto begin = records->empty() ? std::nullopt : BatchNumbers::of(records->front());
  // An older batch is of another log, and would hide what is newer.
  std::erase_if(*records, [&](const std::string& record) {
    const auto batch = BatchNumbers::of(record);
    return !batch || (begin && batch->first < begin->first);
  });
  // A batch without changes has the number of the one behind it.
  const auto place = [](const std::string& record) {
    const auto batch = BatchNumbers::of(record);
    return std::pair(batch->first, batch->count > 0);
  };
  std::ranges::stable_sort(*records, {}, place);
  const auto is_again = [&](const std::string& a, const std::string& b) {
    return place(a) == place(b);
  };
  records->erase(std::unique(records->begin(), records->end(), is_again), records->end());
}

void for_each_change(const std::string& record, const ChangeFn& fn) {
  Changes changes(fn);
  (void)::rocksdb::WriteBatch(record).Iterate(&changes);
}

StopAtGap::WalProcessingOption StopAtGap::LogRecordFound(unsigned long long, const std::string&,
                                                         const ::rocksdb::WriteBatch& batch,
                                                         ::rocksdb::WriteBatch*, bool*) {
  const auto numbers = BatchNumbers::of(batch.Data());
  if (!numbers || (expected_ && numbers->first != *expected_))
    return WalProcessingOption::kStopReplay;
  expected_ = numbers->next();
  return WalProcessingOption::kContinueProcessing;
}

void DocumentsOverGaps::add(const std::vector<std::string>& records) {
  for (const std::string& record : records) {
    const auto batch = BatchNumbers::of(record);
    if (!batch) continue;
    if (expected_ && batch->first > *expected_) {
      missing_ += batch->first - *expected_;
      for (auto& [name, document] : known_) document.before_gap = true;
    }
    expected_ = batch->next();
    heads_.clear();
    tokens_.clear();
    for_each_change(record, [this](std::uint32_t, std::string_view key,
                                   std::optional<std::string_view> value) { read(key, value); });
    for (auto& [name, head] : heads_) {
      if (!head) {
        known_.erase(name);
        continue;
      }
      const bool whole = tokens_.contains(catalog_key(kTokensKind, name.first, name.second));
      const auto it = known_.find(name);
      // Without a gap it goes with what was there before.
      bool unsure = it == known_.end() ? missing_ > 0 : it->second.unsure;
      if (it != known_.end() && it->second.before_gap)
        unsure = it->second.unsure || !have_same_text(it->second.head, *head);
      known_.insert_or_assign(name, Known{std::move(*head), false, unsure && !whole});
    }
  }
}

std::set<std::pair<std::string, std::string>> DocumentsOverGaps::unsure() const {
  std::set<Name> out;
  for (const auto& [name, document] : known_)
    if (document.unsure) out.insert(name);
  return out;
}

/// Keys of other families may begin alike: a head says itself of what document it is.
void DocumentsOverGaps::read(std::string_view key, std::optional<std::string_view> value) {
  if (key.starts_with(kTokensKind) && value) tokens_.emplace(key);
  if (!key.starts_with(kHeadKind)) return;
  if (value) {
    auto head = record::decode_head(*value);
    if (head.ok() && catalog_key(kHeadKind, head->ns, head->id) == key)
      heads_.insert_or_assign(Name(head->ns, head->id), std::move(*head));
    return;
  }
  const auto end = key.find('\0');
  if (end != std::string_view::npos)
    heads_.insert_or_assign(Name(key.substr(1, end - 1), key.substr(end + 1)), std::nullopt);
}

}  // namespace quire::rocksdb_internal
