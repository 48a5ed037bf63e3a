#include "cachestore/remote/remote_cache.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/remote/remote_keys.h"

namespace quire {
namespace {

/// Segments that wait to be written; each is pinned in this store meanwhile.
constexpr std::size_t kMaxWrites = 256;
/// Deletions that wait. They are short, and a namespace is deleted at once, while a tier takes one
/// after the other.
constexpr std::size_t kMaxRemovals = 1u << 18;
/// How long deletions rest after one that a tier did not carry out, at first and at most.
constexpr std::chrono::milliseconds kFirstRest{500}, kLongestRest{60'000};
/// Keys remembered per tier; beyond it all are forgotten, which costs only writes.
constexpr std::size_t kMaxKnown = 1u << 20;
constexpr std::size_t kMaxDistrusted = 1u << 16;
/// A tier that was too slow is tried again after this time.
constexpr auto kTryAgain = std::chrono::seconds(15);
/// Longest time of writing one segment, however slow the tier.
constexpr auto kWriteTime = std::chrono::seconds(60);
/// Weight of the newest transfer in the moving average of speeds.
constexpr double kNewest = 0.3;
/// Shortest transfer whose speed is measured.
constexpr std::uint64_t kMeasuredBytes = 4u << 20;
/// The most that sketches may have besides the values: a record that claims more is wrong.
constexpr std::uint64_t kMaxSketchBytes = 256u << 20;
/// A fingerprint is part of the names in a tier, and a record bounds it.
constexpr std::size_t kMaxFingerprintBytes = 256;

/// The outcome of a read that another source was first to answer, or that nobody waits for any
/// more. The tier has answered, too.
Status overtaken() { return Status::exhausted("another source was faster"); }

}  // namespace

RemoteCache::RemoteCache(const RemoteOptions& options, Tiers tiers, TenantQuotas quotas)
    : options_(options), quotas_(std::move(quotas)) {
  for (auto& t : tiers) tiers_.push_back(std::unique_ptr<Tier>(new Tier{.tier = std::move(t)}));
  const auto with_accounts = std::ranges::find_if(
      tiers_, [](const auto& t) { return t->tier->has_accounts(); });
  if (with_accounts != tiers_.end()) accounts_ = with_accounts->get();
  const auto with_leases = std::ranges::find_if(
      tiers_, [](const auto& t) { return t->tier->has_leases(); });
  // Others would wait in vain for a replica that writes nothing.
  if (options_.mode == RemoteMode::kReadWrite && options_.lease.count() > 0 &&
      with_leases != tiers_.end())
    leases_ = std::make_unique<RemoteLeases>(options_, *(*with_leases)->tier);
  std::vector<bool> second_way;
  for (const auto& tier : tiers_) {
    sources_.push_back(tier.get());
    second_way.push_back(false);
    auto other = options_.hedged_reads ? tier->tier->second_way() : nullptr;
    if (!other) continue;
    second_ways_.push_back(
        std::unique_ptr<Tier>(new Tier{.tier = std::move(other), .first_way = tier.get()}));
    sources_.push_back(second_ways_.back().get());
    second_way.push_back(true);
  }
  reads_ = std::make_unique<HedgedReads>(std::move(second_way), options_.hedged_reads);
  if (writes()) writer_ = std::thread([this] { run_writer(); });
}

void RemoteCache::stop() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (leases_) leases_->stop();
  for (const Tier* source : sources_) source->tier->stop();
  if (writer_.joinable()) writer_.join();
  reads_->stop();
  std::deque<Write> gone, stays;
  {
    const std::lock_guard lock(mu_);
    gone.swap(queue_);
    stays.swap(removals_);
    settled_ = queued_;
  }
  changed_.notify_all();
}

// -------------------------------------------------------------------------------------------------
// Reading

void RemoteCache::recall(RemoteWanted wanted, Done done) {
  if (!reads() || stopping_) return done(Status::not_found("the shared tiers are not read"));
  const auto deadline = wanted.deadline;
  auto shared = std::make_shared<const RemoteWanted>(std::move(wanted));
  const Status s = reads_->start(
      deadline,
      [this, shared](std::size_t source, const HedgedReads::Alive& alive) {
        return ask(*sources_[source], *shared, alive);
      },
      done);
  if (!s.ok()) done(s);
}

std::optional<Result<RecalledSegment>> RemoteCache::ask(Tier& tier, const RemoteWanted& wanted,
                                                        const HedgedReads::Alive& alive) {
  if (stopping_) return Status::unavailable("the store is closing");
  const auto now = Clock::now();
  const auto is_wanted = [&] { return !wanted.is_wanted || wanted.is_wanted(); };
  if (!is_wanted() || !tier.breaker.allow(now)) return std::nullopt;
  Result<RecalledSegment> out = Status::exhausted("not enough memory for a shared segment");
  try {
    out = read_from(tier, wanted, [&](bool answer) { return alive(answer) && is_wanted(); });
  } catch (const std::bad_alloc&) {  // it says so itself
  }
  settle(tier, now, out.status());
  return out;
}

/// Enters the outcome of a call into breaker, counts and log. Who has little time may find none
/// in a tier that is well, so waits count as a failure only once they sum up to the time limit.
void RemoteCache::settle(Tier& tier, Clock::time_point begun, const Status& status) {
  const bool answered = status.ok() || status.code() == Code::kNotFound ||
                        status.code() == Code::kCorruption ||
                        status.code() == Code::kResourceExhausted;
  const auto now = Clock::now();
  const bool late = status.code() == Code::kDeadlineExceeded;
  bool failed = !answered && !late;
  {
    const std::lock_guard lock(tier.mu);
    tier.silent_ms = late ? tier.silent_ms + ms_between(begun, now) : 0;
    if (late && tier.silent_ms >= static_cast<double>(options_.timeout.count())) {
      failed = true;
      tier.silent_ms = 0;
    }
  }
  if (late) ++tier.timeouts;
  if (!answered) ++tier.failures;
  if (answered && tier.breaker.succeeded())
    log_info("a shared tier answers again", {{"tier", std::string(tier.tier->kind())}});
  if (failed && tier.breaker.failed(now))
    log_warning("a shared tier fails again and again and is left alone for a while",
                {{"tier", std::string(tier.tier->kind())}, {"reason", status.to_string()}});
}

/// Returns whether so many bytes can arrive in time. What was measured long ago does not count, so
/// that a tier which became faster is noticed.
bool RemoteCache::worth_reading(Tier& tier, std::uint64_t bytes, Clock::time_point deadline) {
  const std::lock_guard lock(tier.mu);
  const auto now = Clock::now();
  if (tier.bytes_per_ms <= 0 || now - tier.measured_at > kTryAgain) return true;
  return static_cast<double>(bytes) / tier.bytes_per_ms <= ms_between(now, deadline);
}

void RemoteCache::remember(Tier& tier, const ContextKey& key, bool has) {
  const std::lock_guard lock(tier.mu);
  if (!has) {
    tier.known.erase(key);
    return;
  }
  if (tier.known.size() >= kMaxKnown) tier.known.clear();
  tier.known.insert(key);
}

const RemoteKeys::Key* RemoteCache::key_for(std::string_view tenant) const {
  return options_.keys ? options_.keys->find(tenant) : nullptr;
}

std::string RemoteCache::name_of(const ContextKey& key, std::string_view fingerprint,
                                 std::string_view tenant) const {
  const RemoteKeys::Key* const by = key_for(tenant);
  return remote_name(key, fingerprint, by ? by->id : 0);
}

/// Counts and deletes a segment of which something is wrong.
void RemoteCache::distrust(Tier& tier, const std::string& name, const Status& why) {
  ++tier.bad;
  log_error(
      "bad KV in a shared tier: it is deleted there and computed again",
      {{"tier", std::string(tier.tier->kind())}, {"segment", name}, {"reason", why.to_string()}});
  if (options_.mode == RemoteMode::kRead) return;
  if (Status s = tier.tier->remove(name, Clock::now() + options_.timeout); !s.ok())
    log_warning(
        "bad KV in a shared tier was not deleted",
        {{"tier", std::string(tier.tier->kind())}, {"segment", name}, {"reason", s.to_string()}});
}

Result<RecalledSegment> RemoteCache::read_from(Tier& tier, const RemoteWanted& wanted,
                                               const HedgedReads::Alive& alive) {
  Tier& first_way = tier.first_way ? *tier.first_way : tier;
  const std::string name = name_of(wanted.key, wanted.fingerprint, wanted.tenant);
  const auto bad = [&](const Status& why) {
    distrust(first_way, name, why);
    const std::lock_guard lock(first_way.mu);
    first_way.known.erase(wanted.key);
    if (first_way.distrusted.size() >= kMaxDistrusted) first_way.distrusted.clear();
    first_way.distrusted.insert(wanted.key);
    return Status::corruption(why.message());
  };
  const auto bytes = tier.tier->get_record(
      name, std::min(wanted.deadline, Clock::now() + options_.timeout));
  // A second way may lack what the first one has.
  if (bytes.code() == Code::kNotFound && !tier.first_way) {
    ++tier.misses;
    remember(tier, wanted.key, false);
  }
  QUIRE_RETURN_IF_ERROR(bytes.status());
  if (!alive(true)) return overtaken();
  RecalledSegment out;
  auto record = decode_remote_record(*bytes);
  if (!record.ok()) return bad(record.status());
  out.record = std::move(*record);
  const RemoteRecord& r = out.record;
  if (r.key != wanted.key || r.fingerprint != wanted.fingerprint)
    return bad(Status::corruption("the record is of another context"));
  if (r.layout.num_blocks != wanted.layout.num_blocks ||
      r.layout.values_per_block != wanted.layout.values_per_block ||
      r.value_bytes() != wanted.value_bytes || r.sketch_bytes() > kMaxSketchBytes)
    return bad(Status::corruption("the record has another layout than its context"));
  // A value without the encryption that its namespace asks for may be anybody's.
  const RemoteKeys::Key* const key = key_for(wanted.tenant);
  if (r.key_id != (key ? key->id : 0))
    return bad(Status::corruption(
        r.key_id == 0 ? "the segment is not encrypted, but its namespace has a key"
        : key         ? "the segment is encrypted with another key than that of its namespace"
                      : "the segment is encrypted, but its namespace has no key"));
  if (!worth_reading(tier, r.stored_bytes(), wanted.deadline)) {
    ++tier.too_slow;
    return Status::not_found("computing the context is faster than reading it");
  }
  const auto begun = Clock::now();
  out.values.resize(to_size(r.num_stored()));
  bool over = false, first = true;
  std::shared_ptr<ValueBuffer> placed;  // for the value that comes next
  const auto place = [&](std::uint64_t position, std::size_t size) -> std::span<std::byte> {
    const auto slot = r.sizes.find(position);
    if (key || !slot || size != record::kValueHeaderBytes + slot->payload_bytes) return {};
    placed = std::make_shared<ValueBuffer>(slot->payload_bytes);
    return placed->stored();
  };
  const Status read = tier.tier->get_values_into(
      name, r, wanted.deadline, place, [&](std::uint64_t position, std::string_view stored) {
        over = !alive(std::exchange(first, false));
        if (over) return overtaken();
        if (stopping_) return Status::unavailable("the store is closing");
        const auto slot = r.sizes.find(position);
        if (!slot || out.values[position] != nullptr)
          return Status::corruption("the tier sent value " + std::to_string(position) +
                                    " that nobody asked for");
        if (stored.size() != r.bytes_beside() + slot->payload_bytes)
          return Status::corruption("value " + std::to_string(position) + " has " +
                                    std::to_string(stored.size()) + " bytes in place of " +
                                    std::to_string(r.bytes_beside() + slot->payload_bytes));
        tier.read_bytes += stored.size();
        const record::ValueName value = remote_value_name(r.key, r.fingerprint, r.layout, position);
        std::string opened;
        if (key) {
          QUIRE_ASSIGN_OR_RETURN(opened, open_value(*key, r.key, value, stored));
          stored = opened;
        }
        std::shared_ptr<ValueBuffer> buffer = std::exchange(placed, nullptr);
        if (!buffer || reinterpret_cast<const char*>(buffer->stored().data()) != stored.data()) {
          buffer = std::make_shared<ValueBuffer>(slot->payload_bytes);
          std::memcpy(buffer->stored().data(), stored.data(), stored.size());
        }
        QUIRE_RETURN_IF_ERROR(record::check_value(value, buffer->stored()));
        out.values[position] = std::move(buffer);
        return Status();
      });
  if (over) return read;
  // A replica may lag behind the one that had the record.
  if (read.code() == Code::kNotFound && tier.first_way) return read;
  if (read.code() == Code::kNotFound || read.code() == Code::kCorruption) return bad(read);
  const double ms = ms_between(begun, Clock::now());
  std::uint64_t arrived = 0;
  for (const auto& v : out.values) arrived += v ? v->stored().size() : 0;
  // A short transfer measures how long an answer takes, not how fast bytes come.
  if (read.code() == Code::kDeadlineExceeded || (read.ok() && arrived >= kMeasuredBytes)) {
    const std::lock_guard lock(tier.mu);
    const double rate = static_cast<double>(arrived) / std::max(ms, 0.01);
    tier.bytes_per_ms = tier.bytes_per_ms <= 0
                            ? rate
                            : tier.bytes_per_ms + kNewest * (rate - tier.bytes_per_ms);
    tier.measured_at = Clock::now();
  }
  QUIRE_RETURN_IF_ERROR(read);
  for (std::size_t i = 0; i < out.values.size(); ++i)
    if (!out.values[i])
      return bad(Status::corruption("value " + std::to_string(i) + " is missing"));
  ++tier.hits;
  remember(first_way, wanted.key, true);
  return out;
}

// -------------------------------------------------------------------------------------------------
// Writing

bool RemoteCache::knows(const ContextKey& key) const {
  return std::ranges::any_of(tiers_, [&](const auto& tier) {
    const std::lock_guard lock(tier->mu);
    return tier->known.contains(key);
  });
}

void RemoteCache::write(SegmentHandle segment, ReadPayload read) {
  if (!writes() || segment->fingerprint.size() > kMaxFingerprintBytes) return;
  const ContextKey key = segment->key;
  const bool all_have = std::ranges::all_of(tiers_, [&](const auto& tier) {
    const std::lock_guard lock(tier->mu);
    return tier->known.contains(key);
  });
  if (all_have) return;
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
    if (queue_.size() >= kMaxWrites) {
      ++dropped_;
      return;
    }
    queue_.push_back({.kind = Write::Kind::kPut,
                      .segment = std::move(segment),
                      .read = std::move(read),
                      .key = key,
                      .number = ++queued_});
  }
  changed_.notify_all();
}

RemoteRemoval RemoteCache::removal_of(const SegmentInfo& segment) const {
  return {segment.key, name_of(segment.key, segment.fingerprint, segment.tenant), segment.tenant};
}

void RemoteCache::remove(const SegmentInfo& segment) { remove(removal_of(segment), {}, {}); }

void RemoteCache::remove(RemoteRemoval segment, std::function<bool()> is_wanted,
                         std::function<void()> settled) {
  if (!writes() || (is_wanted && is_wanted())) {
    if (settled) settled();
    return;
  }
  // A write that is queued after this must not find that the tiers have it.
  for (const auto& tier : tiers_) remember(*tier, segment.key, false);
  const std::string name = segment.name;
  Write removal{.kind = Write::Kind::kRemove, .key = segment.key};
  removal.removal = std::move(segment);
  removal.is_wanted = std::move(is_wanted);
  bool first = false;
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
    // What is not wanted in any case may be written anew next, which then comes after this.
    const bool in_order = !removal.is_wanted;
    std::deque<Write>& queue = in_order ? queue_ : removals_;
    if (queue.size() < kMaxRemovals) {
      removal.number = in_order ? ++queued_ : queued_;
      removal.settled = std::move(settled);
      queue.push_back(std::move(removal));
      return changed_.notify_all();
    }
    first = !std::exchange(removals_lost_, true);
  }
  ++dropped_;
  if (settled) settled();
  if (first)
    log_warning("KV of deleted documents stays in the shared tiers, as too many deletions wait",
                {{"segment", name}});
}

void RemoteCache::take_turn(Turn turn, Clock::time_point until, RemoteLeases::Done done,
                            std::stop_token unwanted) {
  leases_->take(std::move(turn.lease), std::move(turn.segment), until, std::move(done),
                std::move(unwanted));
}

bool RemoteCache::has_turn(const Turn& turn) const {
  return leases_ && leases_->holds(turn.lease, turn.segment);
}

void RemoteCache::end_turn(Turn turn) {
  if (!leases_) return;
  {
    const std::lock_guard lock(mu_);
    if (!stopping_ && queue_.size() < 2 * kMaxWrites) {
      queue_.push_back(
          {.kind = Write::Kind::kEndTurn, .turn = std::move(turn), .number = ++queued_});
      changed_.notify_all();
      return;
    }
  }
  leases_->end(turn.lease, turn.segment);
}

void RemoteCache::wait_written() {
  std::unique_lock lock(mu_);
  const std::uint64_t until = queued_;
  changed_.wait(lock, [&] { return settled_ >= until || stopping_; });
}

/// Returns whether a deletion may be carried out now.
bool RemoteCache::may_remove() const {
  return !removals_.empty() && Clock::now() >= removals_rest_until_;
}

/// Returns what comes next; a write, or a deletion that may be carried out, must wait. A deletion
/// comes after all that was queued before it, and takes turns with what was queued later, as
/// somebody may wait for that.
RemoteCache::Write RemoteCache::take_next() {
  const bool comes_next = queue_.empty() ||
                          (may_remove() && removals_.front().number < queue_.front().number);
  const bool removes = comes_next && (queue_.empty() || !removed_last_);
  removed_last_ = removes;
  std::deque<Write>& from = removes ? removals_ : queue_;
  Write write = std::move(from.front());
  from.pop_front();
  return write;
}

void RemoteCache::run_writer() {
  std::unique_lock lock(mu_);
  for (;;) {
    while (!stopping_ && queue_.empty() && !may_remove()) {
      if (removals_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, removals_rest_until_);
      }
    }
    if (stopping_) return;
    bool is_counted = false;
    {
      Write write = take_next();
      is_counted = !removed_last_;
      lock.unlock();
      if (write.kind == Write::Kind::kEndTurn) leases_->end(write.turn.lease, write.turn.segment);
      if (write.kind == Write::Kind::kPut && count_in(write)) {
        for (const auto& tier : tiers_) write_to(*tier, write);
        const SegmentInfo& info = write.segment.info();
        if (!knows(info.key))
          count_out(info.tenant, name_of(info.key, info.fingerprint, info.tenant));
      }
      if (write.kind == Write::Kind::kRemove && !carry_out_removal(write) && write.settled)
        try_again(std::move(write));
    }
    lock.lock();
    if (!is_counted) continue;
    ++settled_;
    changed_.notify_all();
  }
}

/// Returns false if a tier may still have the segment.
bool RemoteCache::carry_out_removal(const Write& write) {
  if (!write.is_wanted || !write.is_wanted()) {
    bool removed = true;
    for (const auto& tier : tiers_) {
      remember(*tier, write.key, false);
      removed = remove_from(*tier, write.removal.name) && removed;
    }
    if (!removed) return false;
    count_out(write.removal.tenant, write.removal.name);
  }
  if (!write.settled) return true;
  write.settled();
  const std::lock_guard lock(mu_);
  removals_rest_ = {};
  return true;
}

/// Puts a deletion behind the others, so that one that a tier refuses does not keep them.
void RemoteCache::try_again(Write removal) {
  const std::lock_guard lock(mu_);
  removals_rest_ = std::clamp(2 * removals_rest_, kFirstRest, kLongestRest);
  removals_rest_until_ = Clock::now() + removals_rest_;
  removal.number = queued_;
  removals_.push_back(std::move(removal));
}

namespace {

/// Names a tenant's account, which does not tell the name of the tenant.
std::string account_of(const std::string& tenant) {
  return sha256("quire account " + tenant).hex().substr(0, 32);
}

}  // namespace

/// Counts a segment for its tenant, if that has a quota, and removes what must go for it. Returns
/// whether the segment may be written.
bool RemoteCache::count_in(const Write& write) {
  const SegmentInfo& info = write.segment.info();
  const std::uint64_t limit = quotas_.of(info.tenant).remote_bytes;
  if (limit == 0) return true;
  const std::string name = name_of(info.key, info.fingerprint, info.tenant);
  const RemoteTier::Entry entry{account_of(info.tenant), name,
                                info.value_bytes + info.sketch_bytes};
  const auto begun = Clock::now();
  if (entry.bytes > limit || accounts_ == nullptr || !accounts_->breaker.allow(begun)) {
    ++quota_refused_;
    return false;
  }
  const auto gone = accounts_->tier->count_in(entry, limit, tiers_.size() == 1,
                                              begun + options_.timeout);
  settle_account(begun, gone.status());
  if (!gone.ok() && !std::exchange(accounts_failed_, true))
    log_warning(
        "KV of namespaces with a quota is not shared: it cannot be counted",
        {{"tier", std::string(accounts_->tier->kind())}, {"reason", gone.status().to_string()}});
  if (!gone.ok()) {
    ++quota_refused_;
    return false;
  }
  accounts_failed_ = false;
  for (const std::string& segment : *gone) {
    ++quota_removed_;
    for (const auto& tier : tiers_)
      if (!remove_from(*tier, segment))
        log_warning("KV beyond the quota of its namespace was not deleted in a shared tier",
                    {{"tier", std::string(tier->tier->kind())}, {"segment", segment}});
  }
  return true;
}

/// Enters the outcome of a call for an account. A refusal says nothing of the tier, as the user may
/// have no right to such commands.
void RemoteCache::settle_account(Clock::time_point begun, const Status& status) {
  const bool refused = status.code() == Code::kIo || status.code() == Code::kFailedPrecondition;
  settle(*accounts_, begun, refused ? Status() : status);
}

/// Counts a segment that is in no tier no more.
void RemoteCache::count_out(const std::string& tenant, const std::string& name) {
  if (quotas_.of(tenant).remote_bytes == 0 || accounts_ == nullptr) return;
  const auto begun = Clock::now();
  if (!accounts_->breaker.allow(begun)) return;
  // What stays counted goes once newer KV of the tenant needs its room.
  settle_account(begun,
                 accounts_->tier->count_out({account_of(tenant), name}, begun + options_.timeout));
}

bool RemoteCache::remove_from(Tier& tier, const std::string& name) {
  const auto begun = Clock::now();
  if (!tier.breaker.allow(begun)) return false;
  const Status s = tier.tier->remove(name, begun + options_.timeout);
  settle(tier, begun, s);
  return s.ok();
}

/// Returns whether the tier has this segment already, as another replica has written it. To ask
/// costs less than to send. What was found to be wrong there is sent in any case.
bool RemoteCache::has(Tier& tier, const std::string& name, const SegmentInfo& info,
                      std::uint64_t key_id) {
  {
    const std::lock_guard lock(tier.mu);
    if (tier.distrusted.erase(info.key) > 0) return false;
  }
  const auto bytes = tier.tier->get_record(name, Clock::now() + options_.timeout);
  if (!bytes.ok()) return false;
  const auto record = decode_remote_record(*bytes);
  return record.ok() && record->key == info.key && record->fingerprint == info.fingerprint &&
         record->key_id == key_id && record->layout.num_blocks == info.layout.num_blocks &&
         record->layout.values_per_block == info.layout.values_per_block &&
         record->value_bytes() == info.value_bytes;
}

void RemoteCache::write_to(Tier& tier, const Write& write) {
  {
    const std::lock_guard lock(tier.mu);
    if (tier.known.contains(write.key)) return;
  }
  const auto begun = Clock::now();
  if (!tier.breaker.allow(begun)) {
    ++tier.write_failures;
    return;
  }
  const SegmentInfo& info = write.segment.info();
  const RemoteKeys::Key* const key = key_for(info.tenant);
  const std::string segment = name_of(info.key, info.fingerprint, info.tenant);
  bool there = false;
  try {
    there = has(tier, segment, info, key ? key->id : 0);
  } catch (const std::bad_alloc&) {  // it is sent, then
  }
  if (there) {
    settle(tier, begun, {});
    remember(tier, info.key, true);
    return;
  }
  RemoteRecord record{info.key, info.fingerprint, info.layout, {}, key ? key->id : 0};
  Status local;  // an error of this store, which says nothing of the tier
  const auto value = [&](std::uint64_t position) -> Result<std::string> {
    if (stopping_) return local = Status::unavailable("the store is closing");
    const record::ValueName name = remote_value_name(record.key, record.fingerprint, record.layout,
                                                     position);
    record::ValueName own = name;
    own.segment = info.id;
    auto payload = write.read(own);
    if (!payload.ok()) return local = payload.status();
    std::string stored(record::kValueHeaderBytes + payload->size(), '\0');
    std::memcpy(stored.data() + record::kValueHeaderBytes, payload->data(), payload->size());
    record::write_value_header(name, payload->bytes(), reinterpret_cast<std::byte*>(stored.data()));
    record.sizes.add(static_cast<std::uint32_t>(payload->size()));
    if (key) return seal_value(*key, record.key, name, stored);
    return stored;
  };
  const std::uint64_t bytes = info.value_bytes + info.sketch_bytes +
                              record.num_stored() * record.bytes_beside();
  Status s = Status::exhausted("not enough memory to write a shared segment");
  try {
    s = tier.tier->put(segment, record.num_stored(), bytes, Clock::now() + kWriteTime, value,
                       [&] { return encode_remote_record(record); });
  } catch (const std::bad_alloc&) {  // it says so itself
    local = s;
  }
  if (local.ok()) settle(tier, begun, s);
  if (!s.ok()) {
    ++tier.write_failures;
    if (!stopping_)
      log_warning("KV was not written to a shared tier", {{"tier", std::string(tier.tier->kind())},
                                                          {"segment", segment},
                                                          {"reason", s.to_string()}});
    // A part of it is of no use, and a full tier needs the room. One that gives no answer is not
    // asked again.
    if (!stopping_ && s.code() != Code::kUnavailable && s.code() != Code::kDeadlineExceeded)
      (void)tier.tier->remove(segment, Clock::now() + options_.timeout);
    return;
  }
  ++tier.written;
  tier.written_bytes += bytes;
  remember(tier, info.key, true);
}

RemoteStats RemoteCache::stats() const {
  RemoteStats out;
  for (const auto& t : tiers_) {
    RemoteTierStats s;
    s.kind = t->tier->kind();
    s.up = t->breaker.closed();
    s.hits = t->hits;
    s.misses = t->misses;
    s.failures = t->failures;
    s.timeouts = t->timeouts;
    s.bad = t->bad;
    s.too_slow = t->too_slow;
    s.read_bytes = t->read_bytes;
    s.written = t->written;
    s.written_bytes = t->written_bytes;
    s.write_failures = t->write_failures;
    {
      const std::lock_guard lock(t->mu);
      s.read_bytes_per_second = 1000 * t->bytes_per_ms;
    }
    for (const auto& other : second_ways_) {
      if (other->first_way != t.get()) continue;
      s.hits += other->hits;
      s.second_way_hits = other->hits;
      s.bad += other->bad;
      s.read_bytes += other->read_bytes;
    }
    out.tiers.push_back(std::move(s));
  }
  const HedgedReads::Counts hedges = reads_->counts();
  out.hedged_reads = hedges.hedged;
  out.hedges_won = hedges.won;
  if (leases_) out.leases = leases_->stats();
  const std::lock_guard lock(mu_);
  out.queued_writes = queue_.size() + removals_.size();
  out.dropped_writes = dropped_;
  out.quota_refused = quota_refused_;
  out.quota_removed = quota_removed_;
  return out;
}

}  // namespace quire
