#include "server/access/idempotency.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/format/byte_io.h"

namespace quire {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::chrono::hours kPurgeEvery{1};
/// A longer reply is not shared: its request runs again at another replica.
constexpr std::size_t kMostSharedBytes = 4u << 20;
constexpr std::size_t kLeastEntryBytes = 4 + 32 + 8 + 2 + 4 + 2 + 4;

std::size_t bytes_of(const HttpResponse& reply) { return reply.body.size() + 512; }

void write_reply(ByteWriter& w, const HttpResponse& reply) {
  w.number(static_cast<std::uint16_t>(reply.status));
  w.text32(reply.content_type);
  w.number(static_cast<std::uint16_t>(reply.headers.fields().size()));
  for (const auto& [name, value] : reply.headers.fields()) {
    w.text32(name);
    w.text32(value);
  }
  w.text32(reply.body);
}

HttpResponse read_reply(ByteReader& r) {
  HttpResponse reply;
  reply.status = r.number<std::uint16_t>();
  reply.content_type = r.text32();
  const auto headers = r.number<std::uint16_t>();
  for (std::uint16_t i = 0; i < headers && r.ok(); ++i) {
    std::string name = r.text32();
    reply.headers.add(std::move(name), r.text32());
  }
  reply.body = r.text32();
  return reply;
}

/// Another replica took the request, as this one was not heard of. What that one replies counts.
bool is_another_ones(const Status& status) { return status.code() == Code::kFailedPrecondition; }

std::string encoded(const HttpResponse& reply) {
  ByteWriter w;
  w.number(kVersion);
  write_reply(w, reply);
  return w.take();
}

Result<HttpResponse> decoded(std::string_view bytes) {
  ByteReader r(bytes);
  const bool known = r.number<std::uint8_t>() == kVersion;
  HttpResponse reply = read_reply(r);
  if (!known || !r.ok() || !r.at_end())
    return Status(Code::kCorruption, "the shared reply to an Idempotency-Key cannot be read");
  return reply;
}

}  // namespace

void IdempotencyStore::share(SharedReplies* shared) {
  std::lock_guard lock(mu_);
  shared_ = shared;
}

Result<IdempotencyStore::Lookup> IdempotencyStore::begin(const std::string& slot,
                                                         const Digest& body, Keep keep) {
  const Lookup here = begin_here(slot, body, keep);
  SharedReplies* shared = nullptr;
  bool reported = true;
  {
    std::lock_guard lock(mu_);
    if (keep == Keep::kRestart) shared = shared_;
    if (const auto it = entries_.find(slot); it != entries_.end()) reported = it->second.reported;
  }
  if (shared == nullptr) return here;
  if (here.outcome == Outcome::kReplay && !reported) {
    const Status s = report(*shared, slot);
    if (is_another_ones(s)) return begin(slot, body, keep);
    QUIRE_RETURN_IF_ERROR(s);
  }
  if (here.outcome != Outcome::kFirst) return here;
  if (const Status s = check_unreported(); !s.ok()) {
    forget(slot);
    return s;
  }

  const std::shared_lock together(catalog_mu_);
  const auto found = shared->begin(sha256(slot), body, options_.keep);
  Lookup there;
  if (found.ok() && found->outcome == SharedReply::Outcome::kFirst) {
    std::lock_guard lock(mu_);
    unreported_.erase(slot);
    if (const auto it = entries_.find(slot); it != entries_.end()) it->second.shared = true;
    there.shared = true;
    return there;
  }
  if (found.ok() && found->outcome == SharedReply::Outcome::kReplay) {
    auto reply = decoded(found->reply);
    if (reply.ok()) {
      (void)complete(slot, std::move(*reply));  // it was not begun here, so nothing is reported
      return begin_here(slot, body, keep);
    }
    forget(slot);
    return reply.status();
  }
  forget(slot);
  if (!found.ok()) {
    std::lock_guard lock(mu_);
    unreported_.insert(slot);  // it may have begun
    return found.status();
  }
  there.outcome = found->outcome == SharedReply::Outcome::kMismatch ? Outcome::kMismatch
                                                                    : Outcome::kInProgress;
  return there;
}

/// What has begun in the catalog, or may have, must be ended there. So that this has a bound, no
/// more begins while too much of it waits.
Status IdempotencyStore::check_unreported() {
  bool first = false;
  std::size_t waiting = 0;
  {
    std::lock_guard lock(mu_);
    waiting = unreported_.size();
    if (waiting < options_.max_unreported) return {};
    first = !std::exchange(unreported_said_, true);
  }
  if (first)
    log_warning(
        "requests with an Idempotency-Key are refused until the shared catalog knows how earlier "
        "ones ended",
        {{"requests", std::to_string(waiting)}});
  return catalog_away("it does not know yet how " + std::to_string(waiting) +
                      " earlier requests ended");
}

IdempotencyStore::Lookup IdempotencyStore::begin_here(const std::string& slot, const Digest& body,
                                                      Keep keep) {
  const auto now = now_();
  std::lock_guard lock(mu_);
  shrink(now);
  if (const auto it = entries_.find(slot); it != entries_.end()) {
    const Entry& e = it->second;
    if (e.body != body) return {Outcome::kMismatch, nullptr};
    if (!e.reply) return {Outcome::kInProgress, nullptr};
    return {Outcome::kReplay, e.reply};
  }
  Entry e;
  e.body = body;
  e.at = now;
  e.keep = keep;
  (void)insert(slot, std::move(e));  // begin() has just looked it up
  return {Outcome::kFirst, nullptr};
}

/// Inserts an entry as the newest. Returns false if the slot has one.
bool IdempotencyStore::insert(const std::string& slot, Entry entry) {
  const auto [it, fresh] = entries_.try_emplace(slot, std::move(entry));
  if (!fresh) return false;
  ages_.push_back(slot);
  it->second.age = std::prev(ages_.end());
  it->second.bytes = slot.size() + 256 + (it->second.reply ? bytes_of(*it->second.reply) : 0);
  bytes_ += it->second.bytes;
  return true;
}

Status IdempotencyStore::complete(const std::string& slot, HttpResponse reply) {
  auto kept = std::make_shared<const HttpResponse>(std::move(reply));
  SharedReplies* shared = nullptr;
  {
    std::lock_guard lock(mu_);
    const auto it = entries_.find(slot);
    if (it == entries_.end()) return {};
    const std::size_t size = bytes_of(*kept);
    it->second.bytes += size;
    bytes_ += size;
    it->second.reply = std::move(kept);
    if (it->second.shared) shared = shared_;
    if (shared != nullptr) {
      it->second.reported = false;
      unreported_.insert(slot);
    }
    shrink(now_());
  }
  return shared == nullptr ? Status() : report(*shared, slot);
}

void IdempotencyStore::forget(const std::string& slot) {
  std::lock_guard lock(mu_);
  const auto it = entries_.find(slot);
  if (it == entries_.end() || it->second.reply) return;
  if (it->second.shared) unreported_.insert(slot);
  erase(it);
}

/// Reports to the catalog how a request ended.
Status IdempotencyStore::report(SharedReplies& shared, const std::string& slot) {
  std::shared_ptr<const HttpResponse> reply;
  std::unique_lock alone(catalog_mu_, std::defer_lock);
  for (bool looked = false; !looked;) {
    {
      std::lock_guard lock(mu_);
      if (!unreported_.contains(slot)) return {};
      const auto it = entries_.find(slot);
      if (it != entries_.end()) {
        reply = it->second.reply;
        if (!reply) return {};  // a repetition that is being carried out tells of itself
      }
      looked = reply || alone.owns_lock();
    }
    if (!looked) alone.lock();  // the slot is to be freed, so nobody may begin it meanwhile
  }
  const bool keeps = reply && bytes_of(*reply) <= kMostSharedBytes;
  const Status s = keeps ? shared.complete(sha256(slot), encoded(*reply))
                         : shared.forget(sha256(slot));
  if (!s.ok() && !is_another_ones(s)) return s;
  std::lock_guard lock(mu_);
  unreported_.erase(slot);
  const auto it = entries_.find(slot);
  if (it == entries_.end()) return s;
  it->second.reported = true;
  if (is_another_ones(s)) erase(it);
  return s;
}

Status IdempotencyStore::settle() {
  std::vector<std::string> slots;
  SharedReplies* shared = nullptr;
  bool purge = false;
  {
    std::lock_guard lock(mu_);
    shared = shared_;
    if (shared == nullptr) return {};
    slots.assign(unreported_.begin(), unreported_.end());
    purge = now_() >= next_purge_;
  }
  for (const std::string& slot : slots)
    if (Status s = report(*shared, slot); !s.ok() && !is_another_ones(s)) return s;
  {
    std::lock_guard lock(mu_);
    unreported_said_ = false;
  }
  if (!purge) return {};
  QUIRE_RETURN_IF_ERROR(shared->purge(options_.keep));
  std::lock_guard lock(mu_);
  next_purge_ = now_() + kPurgeEvery;
  return {};
}

std::size_t IdempotencyStore::size() const {
  std::lock_guard lock(mu_);
  return entries_.size();
}

std::string IdempotencyStore::save(std::int64_t unix_ms, std::size_t max_bytes) const {
  std::lock_guard lock(mu_);
  std::vector<const std::string*> slots;  // newest first
  std::size_t bytes = 0;
  for (auto age = ages_.rbegin(); age != ages_.rend(); ++age) {
    const Entry& e = entries_.at(*age);
    if (!e.reply || e.keep != Keep::kRestart) continue;
    bytes += e.bytes;
    if (bytes > max_bytes) break;
    slots.push_back(&*age);
  }
  const auto now = now_();
  ByteWriter w;
  w.number(kVersion);
  w.number(unix_ms);
  w.number(static_cast<std::uint32_t>(slots.size()));
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    const Entry& e = entries_.at(**slot);
    w.text32(**slot);
    w.digest(e.body);
    w.number(static_cast<std::int64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - e.at).count()));
    write_reply(w, *e.reply);
  }
  return w.take();
}

Status IdempotencyStore::restore(std::string_view saved, std::int64_t unix_ms) {
  ByteReader r(saved);
  const bool known = r.number<std::uint8_t>() == kVersion;
  const std::int64_t then_ms = r.number<std::int64_t>();
  // A clock that was set back must not make replies younger than they are. One far ahead only makes
  // them too old.
  const std::int64_t passed_ms = then_ms >= 0 && unix_ms > then_ms ? unix_ms - then_ms : 0;
  const std::int64_t keep_ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.keep)
                                   .count();
  const auto now = now_();
  std::vector<std::pair<std::string, Entry>> entries;
  const std::uint32_t count = r.count(kLeastEntryBytes);
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    std::string slot = r.text32();
    Entry e;
    e.body = r.digest();
    const std::int64_t age_ms = r.number<std::int64_t>();
    e.reply = std::make_shared<const HttpResponse>(read_reply(r));
    e.keep = Keep::kRestart;
    if (age_ms < 0 || age_ms > keep_ms || passed_ms > keep_ms - age_ms) continue;
    e.at = now - std::chrono::milliseconds(age_ms + passed_ms);
    entries.emplace_back(std::move(slot), std::move(e));
  }
  if (!known || !r.ok() || !r.at_end())
    return Status(Code::kCorruption, "the saved idempotency records are damaged");
  std::lock_guard lock(mu_);
  // A request that came in the meantime takes precedence.
  for (auto& [slot, entry] : entries) (void)insert(slot, std::move(entry));
  shrink(now);
  return {};
}

void IdempotencyStore::erase(std::unordered_map<std::string, Entry>::iterator it) {
  bytes_ -= it->second.bytes;
  ages_.erase(it->second.age);
  entries_.erase(it);
}

void IdempotencyStore::shrink(Clock::time_point now) {
  // Running entries are never dropped: a second request with the same key would run concurrently.
  for (auto age = ages_.begin(); age != ages_.end();) {
    const auto it = entries_.find(*age++);
    if (!it->second.reply) continue;
    const bool old = now - it->second.at > options_.keep;
    if (!old && entries_.size() <= options_.max_entries && bytes_ <= options_.max_bytes) break;
    erase(it);
  }
}

}  // namespace quire
