#include "cachestore/remote/remote_leases.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/log.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

/// Pauses between two looks at a lease that another replica has.
constexpr milliseconds kFirstPause{20}, kLongestPause{200};
/// Leases held, and contexts that wait; beyond it contexts are computed without a lease.
constexpr std::size_t kMaxHeld = 256, kMaxWaiting = 1024;
/// A lease is renewed so often within its time, so that one lost renewal does not end it.
constexpr int kRenewals = 3;
/// Contexts that are looked at between two renewals, which may take all the time where the tier is
/// slow to answer. Where one is late by half of the pause between renewals, they take turns.
constexpr int kLooksBetween = 64;
/// Longest time of a lease with all renewals: whoever holds it longer has forgotten it.
constexpr auto kLongestHold = std::chrono::minutes(10);

/// Returns a text that no other replica has.
std::string new_token() {
  std::random_device random;
  std::string out;
  constexpr char kDigits[] = "0123456789abcdef";
  for (int i = 0; i < 32; ++i) out += kDigits[random() % 16];
  return out;
}

}  // namespace

RemoteLeases::RemoteLeases(const RemoteOptions& options, RemoteTier& tier)
    : options_(options), tier_(tier), token_(new_token()), thread_([this] { run(); }) {}

std::optional<RemoteTurn> RemoteLeases::take_held(const std::string& lease,
                                                  const std::string& segment) {
  const std::lock_guard lock(mu_);
  const auto it = held_.find(lease);
  if (it == held_.end() || it->second.segments.empty()) return std::nullopt;
  // Of two callers for one segment, what computes for the first serves both.
  if (!it->second.segments.insert(segment).second) return RemoteTurn::kNone;
  it->second.end_at = Clock::now() + kLongestHold;
  ++own_;
  return RemoteTurn::kOwn;
}

void RemoteLeases::take(std::string lease, std::string segment, Clock::time_point until, Done done,
                        std::stop_token unwanted) {
  if (const auto turn = take_held(lease, segment)) return done(*turn);
  bool refused = true;
  {
    const std::lock_guard lock(mu_);
    const bool full = waiting_.size() >= kMaxWaiting || held_.size() >= kMaxHeld;
    if (full) ++unavailable_;
    if (!stopping_ && !full) {
      waiting_.push_back({std::move(lease), std::move(segment), until, Clock::now(), kFirstPause,
                          done, std::move(unwanted)});
      refused = false;
    }
  }
  if (refused) return done(RemoteTurn::kNone);
  changed_.notify_all();
}

bool RemoteLeases::holds(const std::string& lease, const std::string& segment) const {
  const std::lock_guard lock(mu_);
  const auto it = held_.find(lease);
  return it != held_.end() && it->second.segments.contains(segment);
}

void RemoteLeases::end(const std::string& lease, const std::string& segment) {
  {
    const std::lock_guard lock(mu_);
    const auto it = held_.find(lease);
    if (it == held_.end() || it->second.segments.erase(segment) == 0) return;
  }
  changed_.notify_all();
}

void RemoteLeases::run() {
  std::unique_lock lock(mu_);
  int looks = 0;         // before the next renewal
  bool renewed = false;  // the last thing that was done was a renewal
  while (!stopping_) {
    const auto now = Clock::now();
    auto next = now + std::chrono::seconds(1);
    // Renewals come first: whatever waits has some time, a lease that ends has none.
    const auto due = std::ranges::find_if(held_, [&](const auto& h) {
      return !h.second.segments.empty() && h.second.renew_at <= now;
    });
    const auto ending = std::ranges::find_if(
        held_, [](const auto& h) { return h.second.segments.empty(); });
    const auto ready = std::ranges::find_if(waiting_,
                                            [&](const Waiting& w) { return w.next <= now; });
    const bool is_late = due != held_.end() &&
                         now - due->second.renew_at > options_.lease / (2 * kRenewals);
    if (due != held_.end() && (looks == 0 || ready == waiting_.end() || (is_late && !renewed))) {
      looks = kLooksBetween;
      renewed = true;
      const std::string lease = due->first;
      lock.unlock();
      renew(lease);
      lock.lock();
    } else if (ending != held_.end()) {
      const std::string lease = ending->first;
      held_.erase(ending);
      lock.unlock();
      give_back(lease, soon());
      lock.lock();
    } else if (ready != waiting_.end()) {
      looks = std::max(0, looks - 1);
      renewed = false;
      Waiting one = std::move(*ready);
      waiting_.erase(ready);
      attempting_ = true;
      lock.unlock();
      const bool over = attempt(one);
      lock.lock();
      attempting_ = false;
      if (over) continue;
      one.next = std::min(Clock::now() + one.pause, one.until);
      one.pause = std::min(2 * one.pause, kLongestPause);
      waiting_.push_back(std::move(one));
    } else {
      for (const auto& [lease, h] : held_) next = std::min(next, h.renew_at);
      for (const Waiting& w : waiting_) next = std::min(next, w.next);
      changed_.wait_until(lock, next);
    }
  }
}

void RemoteLeases::renew(const std::string& lease) {
  const auto now = Clock::now();
  const auto mine = tier_.renew_lease(lease, token_, options_.lease, soon());
  mine.ok() ? (void)breaker_.succeeded() : failed(mine.status());
  const std::lock_guard lock(mu_);
  const auto it = held_.find(lease);
  if (it == held_.end()) return;
  Held& held = it->second;
  // A tier that gave no answer is asked again; the lease may still stand.
  held.renew_at = now + options_.lease / kRenewals;
  if (now < held.end_at && (!mine.ok() || *mine)) return;
  ++lost_;
  held_.erase(it);
}

void RemoteLeases::give_back(const std::string& lease, Clock::time_point deadline) {
  if (const Status s = tier_.end_lease(lease, token_, deadline); !s.ok()) failed(s);
}

bool RemoteLeases::attempt(const Waiting& waiting) {
  const auto now = Clock::now();
  const auto over = [&](RemoteTurn turn, std::atomic<std::uint64_t>* count) {
    if (count != nullptr) ++*count;
    waiting.done(turn);
    return true;
  };
  // The pauses are short, so a stop request need not wake the thread.
  if (waiting.unwanted.stop_requested()) return over(RemoteTurn::kNone, nullptr);
  if (const auto turn = take_held(waiting.lease, waiting.segment)) return over(*turn, nullptr);
  if (!breaker_.allow(now)) return over(RemoteTurn::kNone, &unavailable_);
  const auto mine = tier_.take_lease(waiting.lease, token_, options_.lease, soon());
  if (!mine.ok()) {
    failed(mine.status());
    return over(RemoteTurn::kNone, &unavailable_);
  }
  breaker_.succeeded();
  // Whoever has or had the lease writes each segment before it ends it.
  if (tier_.get_record(waiting.segment, soon()).ok()) {
    if (*mine) give_back(waiting.lease, soon());
    return over(RemoteTurn::kStored, &spared_);
  }
  if (!*mine) return now >= waiting.until && over(RemoteTurn::kNone, &given_up_);
  {
    const std::lock_guard lock(mu_);
    held_.insert_or_assign(
        waiting.lease,
        Held{now + options_.lease / kRenewals, now + kLongestHold, {waiting.segment}});
  }
  return over(RemoteTurn::kOwn, &own_);
}

void RemoteLeases::failed(const Status& why) {
  if (!breaker_.failed(Clock::now())) return;
  log_warning("no leases of a shared tier: every replica computes documents for itself",
              {{"tier", std::string(tier_.kind())}, {"reason", why.to_string()}});
}

RemoteLeaseStats RemoteLeases::stats() const {
  RemoteLeaseStats out;
  out.enabled = true;
  out.own = own_;
  out.spared = spared_;
  out.given_up = given_up_;
  out.unavailable = unavailable_;
  out.lost = lost_;
  const std::lock_guard lock(mu_);
  out.held = held_.size();
  out.waiting = waiting_.size() + (attempting_ ? 1 : 0);
  return out;
}

void RemoteLeases::stop() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::map<std::string, Held> held;
  std::deque<Waiting> waiting;
  {
    const std::lock_guard lock(mu_);
    held.swap(held_);
    waiting.swap(waiting_);
  }
  // Others need not wait for leases that nobody works under.
  const auto deadline = soon();
  for (const auto& [lease, h] : held)
    if (Clock::now() < deadline && breaker_.closed()) give_back(lease, deadline);
  for (const Waiting& w : waiting) w.done(RemoteTurn::kNone);
}

}  // namespace quire
