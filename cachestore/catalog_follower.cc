#include "cachestore/catalog_follower.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/format/byte_io.h"
#include "cachestore/format/record.h"

namespace quire {
namespace {

constexpr std::size_t kNamesAtOnce = 500;
/// Texts that are held in memory at once; a longer one comes alone.
constexpr std::uint64_t kBytesAtOnce = 8u << 20;
constexpr std::size_t kBodiesAtOnce = 64;
/// Documents without room that are remembered, and that are fetched at once.
constexpr std::size_t kMostMissing = 100'000, kMissingAtOnce = 16;
constexpr std::chrono::seconds kFetchMissingEvery{1};
constexpr std::chrono::seconds kUpkeepEvery{5};
constexpr std::chrono::hours kTrimEvery{1};
constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{2000};

struct SavedPosition {
  CatalogPosition position{};
  CatalogWriters writers{};
};

std::string encode_position(const CatalogPosition& position, const CatalogWriters& writers) {
  ByteWriter w;
  for (const std::uint64_t number : position) w.number<std::uint64_t>(number);
  for (const std::string& writer : writers) w.text32(writer);
  return w.take();
}

std::optional<SavedPosition> decode_position(std::string_view bytes) {
  SavedPosition out;
  ByteReader r(bytes);
  for (std::uint64_t& number : out.position) number = r.number<std::uint64_t>();
  // Earlier programs saved no writers.
  if (r.ok() && r.at_end()) return out;
  for (std::string& writer : out.writers) writer = r.text32();
  if (!r.ok() || !r.at_end()) return std::nullopt;
  return out;
}

Status other_history() {
  return Status(Code::kFailedPrecondition,
                "the shared catalog lacks changes that were read from it before, as after going "
                "back to a backup, or to a standby that lagged; start every replica with an empty "
                "folder disk.path",
                "catalog.url");
}

}  // namespace

CatalogFollower::CatalogFollower(SharedCatalog& catalog, CatalogCopy& copy,
                                 std::chrono::milliseconds poll,
                                 std::function<std::int64_t()> clock_ms)
    : catalog_(catalog), copy_(copy), poll_(poll), clock_ms_(std::move(clock_ms)) {}

Status CatalogFollower::start() {
  const Status first = step();
  set_state(first);
  const bool known = copy_.load(kCatalogPositionRecord).ok();
  if (!first.ok() && !(known && catalog_is_away(first))) return first;
  thread_ = std::thread([this] { loop(); });
  return {};
}

void CatalogFollower::stop() {
  stop_ = true;
  catalog_.stop();
  if (thread_.joinable()) thread_.join();
}

void CatalogFollower::loop() {
  auto pause = kFirstPause;
  while (!stop_) {
    const Status s = step();
    if (stop_) return;
    set_state(s);
    if (s.ok()) {
      pause = kFirstPause;
      catalog_.wait(poll_);
    } else {
      catalog_.wait(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

void CatalogFollower::set_state(const Status& status) {
  bool changed = false;
  {
    const std::lock_guard lock(mu_);
    changed = status.ok() != state_.ok();
    if (changed) since_ms_ = status.ok() ? 0 : clock_ms_();
    state_ = status;
  }
  if (!changed) return;
  if (status.ok())
    log_info("the shared catalog is followed again");
  else
    log_warning(
        "the shared catalog is not followed: documents stay as they are here, and cannot "
        "be changed",
        {{"reason", status.message()}});
}

CatalogStats CatalogFollower::stats() const {
  CatalogStats s;
  s.shared = true;
  s.behind = behind_;
  s.applied = applied_;
  s.whole_reads = whole_reads_;
  s.not_here = not_here_;
  const std::lock_guard lock(mu_);
  s.up = state_.ok();
  s.reason = state_.message();
  s.away_since_ms = since_ms_;
  return s;
}

Status CatalogFollower::step() {
  if (!joined_) QUIRE_RETURN_IF_ERROR(join());
  QUIRE_RETURN_IF_ERROR(follow());
  if ((!missing_.empty() || too_many_missing_) && Clock::now() >= next_fetch_)
    QUIRE_RETURN_IF_ERROR(fetch_missing());
  if (Clock::now() >= next_upkeep_) {
    const Status shared = copy_.share_uses();
    // Without room for a copy the catalog hears of them later.
    if (shared.code() != Code::kResourceExhausted) QUIRE_RETURN_IF_ERROR(shared);
    next_upkeep_ = Clock::now() + kUpkeepEvery;
  }
  if (Clock::now() >= next_trim_) {
    // A role that may not delete changes keeps them all, which does no harm.
    (void)catalog_.trim();
    next_trim_ = Clock::now() + kTrimEvery;
  }
  return {};
}

Status CatalogFollower::join() {
  QUIRE_ASSIGN_OR_RETURN(const std::string identity, catalog_.identity());
  const auto known = copy_.load(kCatalogIdentityRecord);
  if (!known.ok() && known.code() != Code::kNotFound) return known.status();
  if (known.ok() && *known != identity)
    return Status(Code::kFailedPrecondition,
                  "the store in disk.path has the documents of another shared catalog than the one "
                  "of catalog.url; name that one, or use an empty folder",
                  "catalog.url");
  // Before the first copy, so that a start without the catalog knows that there are some.
  if (!known.ok()) QUIRE_RETURN_IF_ERROR(copy_.save(kCatalogIdentityRecord, identity));
  const auto saved = copy_.load(kCatalogPositionRecord);
  if (!saved.ok() && saved.code() != Code::kNotFound) return saved.status();
  const auto position = saved.ok() ? decode_position(*saved) : std::nullopt;
  if (position) {
    position_ = position->position;
    writers_ = position->writers;
  } else {
    QUIRE_RETURN_IF_ERROR(copy_.share_own());
    QUIRE_RETURN_IF_ERROR(compare());
  }
  joined_ = true;
  return {};
}

Status CatalogFollower::apply(const CatalogEntry& entry, const CatalogBody* body) {
  const Status s = copy_.apply(entry, body);
  if (s.code() != Code::kResourceExhausted) {
    QUIRE_RETURN_IF_ERROR(s);
    ++applied_;
    set_here(entry.name);
    return {};
  }
  const CatalogName& name = entry.name;
  set_missing({catalog_shard(name.ns, name.id), entry.revision.number, name}, s);
  return body == nullptr ? Status() : copy_.apply_removal(name, entry.revision.number);
}

void CatalogFollower::set_missing(const CatalogChange& change, const Status& why) {
  if (missing_.empty())
    log_warning(
        "there is no room for documents of the shared catalog: they are not here until there is",
        {{"namespace", change.name.ns},
         {"document_id", change.name.id},
         {"reason", why.message()}});
  if (missing_.size() < kMostMissing || missing_.contains(change.name)) {
    missing_[change.name] = change.number;
  } else {
    too_many_missing_ = true;
  }
  not_here_ = missing_.size();
  next_fetch_ = Clock::now() + kFetchMissingEvery;
}

void CatalogFollower::set_here(const CatalogName& name) {
  if (missing_.erase(name) == 0) return;
  not_here_ = missing_.size();
  if (missing_.empty() && !too_many_missing_)
    log_info("there is room again: all documents of the shared catalog are here");
}

Status CatalogFollower::fetch_missing() {
  while (!missing_.empty()) {
    // Where one has no room others may have, so each has its turn.
    std::vector<CatalogChange> some;
    auto it = missing_.upper_bound(tried_);
    if (it == missing_.end()) it = missing_.begin();
    for (; it != missing_.end() && some.size() < kMissingAtOnce; ++it)
      some.push_back({catalog_shard(it->first.ns, it->first.id), it->second, it->first});
    tried_ = some.back().name;
    next_fetch_ = {};
    QUIRE_RETURN_IF_ERROR(fetch(some));
    if (next_fetch_ != Clock::time_point()) return {};  // one of them had no room
    // What was changed here meanwhile, or once more in the log ahead, is not missing either.
    for (const CatalogChange& c : some) set_here(c.name);
  }
  if (!too_many_missing_) return save_position();
  too_many_missing_ = false;
  const Status s = compare();
  if (!s.ok()) too_many_missing_ = true;
  return s;
}

Status CatalogFollower::save_position() {
  if (missing_.empty() && !too_many_missing_)
    QUIRE_RETURN_IF_ERROR(copy_.save(kCatalogPositionRecord, encode_position(position_, writers_)));
  copy_.passed(position_);
  return {};
}

Status CatalogFollower::follow() {
  while (!stop_) {
    QUIRE_ASSIGN_OR_RETURN(const CatalogChanges found, catalog_.changes(position_, kNamesAtOnce));
    std::uint64_t behind = 0;
    bool lost = found.lost, learned = false;
    for (std::uint32_t shard = 0; shard < kCatalogShards; ++shard) {
      std::string& known = writers_[shard];
      const std::string& there = found.before[shard];
      // Numbers go on from what is left, so one may name another change by now.
      lost = lost || found.end[shard] < position_[shard] ||
             (!known.empty() && !there.empty() && known != there);
      if (known.empty() && !there.empty()) {
        known = there;
        learned = true;
      }
      behind += found.end[shard] - position_[shard];
    }
    if (lost) {
      joined_ = false;
      return other_history();
    }
    behind_ = behind;
    if (learned) (void)save_position();  // else it is saved with the next change
    if (behind == 0) return {};
    CatalogPosition next = position_;
    CatalogWriters writers = writers_;
    for (const CatalogChange& c : found.changes) {
      if (c.number != next[c.shard] + 1) continue;
      next[c.shard] = c.number;
      writers[c.shard] = c.writer;
    }
    // In a part that goes on, the log begins right behind the position unless it was cut.
    for (std::uint32_t shard = 0; shard < kCatalogShards; ++shard)
      if (found.end[shard] > position_[shard] && next[shard] == position_[shard]) {
        log_info("the log of the shared catalog no longer has all changes: it is compared whole");
        QUIRE_RETURN_IF_ERROR(compare());
        next = position_;
        break;
      }
    if (next == position_) continue;
    QUIRE_RETURN_IF_ERROR(fetch(found.changes));
    position_ = next;
    writers_ = std::move(writers);
    QUIRE_RETURN_IF_ERROR(save_position());
  }
  return {};
}

Status CatalogFollower::fetch(std::span<const CatalogChange> changes) {
  for (; !changes.empty(); changes = changes.subspan(std::min(changes.size(), kNamesAtOnce))) {
    const auto some = changes.first(std::min(changes.size(), kNamesAtOnce));
    std::vector<CatalogName> names;
    for (const CatalogChange& c : some)
      if (copy_.copied(c.name).number < c.number) names.push_back(c.name);
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::vector<CatalogEntry> entries;
    if (!names.empty()) {
      QUIRE_ASSIGN_OR_RETURN(entries, catalog_.heads(names));
    }
    std::ranges::sort(entries, {}, &CatalogEntry::name);
    for (const CatalogChange& c : some) {
      if (!std::ranges::binary_search(names, c.name) ||
          std::ranges::binary_search(entries, c.name, {}, &CatalogEntry::name))
        continue;
      applied_ += copy_.copied(c.name).number > 0;
      QUIRE_RETURN_IF_ERROR(copy_.apply_removal(c.name, c.number));
      set_here(c.name);
    }
    for (std::size_t i = 0; i < entries.size();) {
      std::vector<CatalogName> wanted;
      std::vector<const CatalogEntry*> whole;
      for (std::uint64_t bytes = 0;
           i < entries.size() && bytes < kBytesAtOnce && wanted.size() < kBodiesAtOnce; ++i) {
        const CatalogRevision here = copy_.copied(entries[i].name);
        if (here.number >= entries[i].revision.number) continue;
        if (here.number != 0 && here.body == entries[i].revision.body) {
          QUIRE_RETURN_IF_ERROR(apply(entries[i], nullptr));
          continue;
        }
        QUIRE_ASSIGN_OR_RETURN(const DocumentManifest head, record::decode_head(entries[i].head));
        bytes += head.text_bytes + 2 * head.num_tokens;
        wanted.push_back(entries[i].name);
        whole.push_back(&entries[i]);
      }
      if (wanted.empty()) continue;
      QUIRE_ASSIGN_OR_RETURN(auto bodies, catalog_.bodies(wanted));
      std::ranges::sort(bodies, {}, &CatalogBody::name);
      for (const CatalogEntry* entry : whole) {
        const auto body = std::ranges::lower_bound(bodies, entry->name, {}, &CatalogBody::name);
        // Changed since the head was read: the change that did that comes later in the log.
        if (body == bodies.end() || body->name != entry->name || body->body != entry->revision.body)
          continue;
        QUIRE_RETURN_IF_ERROR(apply(*entry, &*body));
      }
    }
    if (stop_) return catalog_away("the service stops");
  }
  return {};
}

Status CatalogFollower::compare() {
  ++whole_reads_;
  // What changes from here on is in the log behind this.
  QUIRE_ASSIGN_OR_RETURN(const CatalogPosition end, catalog_.end());
  CatalogName after;
  std::uint64_t seen = 0, told = 0;
  for (bool more = true; more;) {
    QUIRE_ASSIGN_OR_RETURN(const auto page, catalog_.list(after, kNamesAtOnce));
    more = page.size() == kNamesAtOnce;
    const CatalogName last = more ? page.back().name : CatalogName{};
    std::vector<CatalogChange> changes;
    for (const CatalogEntry& e : page)
      changes.push_back({catalog_shard(e.name.ns, e.name.id), e.revision.number, e.name});
    QUIRE_RETURN_IF_ERROR(fetch(changes));
    QUIRE_ASSIGN_OR_RETURN(const auto here, copy_.copies(after, last));
    for (const CatalogEntry& e : here)
      if (!std::ranges::binary_search(page, e.name, {}, &CatalogEntry::name))
        QUIRE_RETURN_IF_ERROR(
            copy_.apply_removal(e.name, end[catalog_shard(e.name.ns, e.name.id)]));
    seen += page.size();
    if (seen - told >= 10'000) {
      told = seen;
      log_info("documents of the shared catalog are compared with those here",
               {{"documents", std::to_string(seen)}});
    }
    after = last;
  }
  position_ = end;
  writers_ = {};  // they are learned with the next look
  QUIRE_RETURN_IF_ERROR(save_position());
  log_info("the store has the documents of the shared catalog",
           {{"documents", std::to_string(seen)}, {"fetched", std::to_string(applied_.load())}});
  return {};
}

}  // namespace quire
