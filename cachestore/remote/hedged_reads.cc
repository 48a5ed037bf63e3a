#include "cachestore/remote/hedged_reads.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace quire {
namespace {

constexpr int kReaders = 8;
constexpr std::size_t kMaxReads = 1024;
/// Reads that ask a second source at once. Further ones wait: a tier that is slow as a whole must
/// not get twice the load.
constexpr int kHedges = 2;
constexpr double kPercentile = 0.95, kTimes = 3;
/// When a read that has to wait for its second source is looked at again.
constexpr auto kLookAgain = std::chrono::milliseconds(5);

}  // namespace

void AnswerTimes::add(double ms) {
  const std::lock_guard lock(mu_);
  last_[added_++ % kKept] = static_cast<float>(ms);
}

double AnswerTimes::patience_ms() const {
  std::array<float, kKept> sorted{};
  std::size_t count = 0;
  {
    const std::lock_guard lock(mu_);
    if (added_ < kEnough) return kUnknownMs;
    count = std::min(added_, kKept);
    sorted = last_;
  }
  const auto at = static_cast<std::size_t>(kPercentile * static_cast<double>(count - 1));
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(at);
  std::nth_element(sorted.begin(), nth, sorted.begin() + static_cast<std::ptrdiff_t>(count));
  return std::max(kLeastMs, kTimes * static_cast<double>(*nth));
}

struct HedgedReads::Read {
  Clock::time_point deadline{};
  Ask ask{};
  Done done{};
  std::mutex mu{};
  std::size_t next = 0;          // guarded by mu; sources before this one were taken
  std::vector<bool> answered{};  // guarded by mu; by source: it said that it has none
  int askers = 1;                // guarded by mu
  bool over = false;             // guarded by mu
  std::size_t source = 0;        // guarded by mu; that was taken last
  Clock::time_point heard{};     // guarded by mu; the last sign of life
  Status last = Status::not_found("no shared tier has this context");  // guarded by mu
};

HedgedReads::HedgedReads(std::vector<bool> second_way, bool hedges)
    : second_way_(std::move(second_way)),
      watches_(hedges && second_way_.size() > 1),
      times_(second_way_.size()),
      readers_(kReaders, kMaxReads),
      hedges_(kHedges, kHedges) {
  if (watches_) watcher_ = std::thread([this] { watch(); });
}

void HedgedReads::stop() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  readers_.stop();
  hedges_.stop();
}

Status HedgedReads::start(Clock::time_point deadline, Ask ask, Done done) {
  auto read = std::make_shared<Read>();
  read->deadline = deadline;
  read->ask = std::move(ask);
  read->done = std::move(done);
  read->answered.resize(second_way_.size());
  std::vector<IoPool::Task> tasks;
  tasks.push_back({[this, read] { run(read, false); }, 1});
  return readers_.post_all(std::move(tasks));
}

std::optional<std::size_t> HedgedReads::next_source(const Read& read) const {
  for (std::size_t i = read.next; i < second_way_.size(); ++i)
    if (!second_way_[i] || i == 0 || !read.answered[i - 1]) return i;
  return std::nullopt;
}

std::optional<std::size_t> HedgedReads::take_source(Read& read) {
  std::optional<std::size_t> source;
  {
    const std::lock_guard lock(read.mu);
    if (!read.over) source = next_source(read);
    if (!source) return source;
    const auto now = Clock::now();
    if (now >= read.deadline) {
      read.last = Status::deadline("computing the context again is faster than waiting for it");
      return std::nullopt;
    }
    read.next = *source + 1;
    read.source = *source;
    read.heard = now;
  }
  // Its patience may be shorter than that of the one before.
  { const std::lock_guard lock(mu_); }
  changed_.notify_one();
  return source;
}

void HedgedReads::run(const std::shared_ptr<Read>& read, bool hedge) {
  if (!hedge) {
    const std::lock_guard lock(mu_);
    if (watches_ && !stopping_) watched_.push_back(read);
  }
  bool asked = false;
  while (const auto source = take_source(*read)) {
    auto heard = Clock::now();
    auto found = read->ask(*source, [&](bool answer) {
      const auto now = Clock::now();
      if (answer) times_[*source].add(ms_between(heard, now));
      heard = now;
      const std::lock_guard lock(read->mu);
      read->heard = now;
      return !read->over;
    });
    if (!found) continue;
    if (hedge && found->code() != Code::kNotFound && !std::exchange(asked, true)) ++hedged_;
    std::unique_lock lock(read->mu);
    if (read->over) break;
    if (found->ok()) {
      read->over = true;
      if (hedge) ++won_;
      lock.unlock();
      read->done(std::move(*found));
      break;
    }
    const Code code = found->code();
    read->answered[*source] = code == Code::kNotFound || code == Code::kCorruption;
    if (!second_way_[*source]) read->last = found->status();
  }
  leave(*read);
  const std::lock_guard lock(mu_);
  if (hedge)
    --hedges_under_way_;
  else
    watched_.remove(read);
}

void HedgedReads::leave(Read& read) {
  std::unique_lock lock(read.mu);
  bool none = true;
  for (std::size_t i = 0; i < second_way_.size(); ++i)
    none = none && (second_way_[i] || read.answered[i]);
  if ((--read.askers > 0 && !none) || std::exchange(read.over, true)) return;
  const Status last = read.last;
  lock.unlock();
  read.done(last);
}

std::optional<Clock::time_point> HedgedReads::due(const Read& read) const {
  const double ms = times_[read.source].patience_ms();
  const auto at = read.heard + std::chrono::microseconds(static_cast<std::int64_t>(1000 * ms));
  if (read.next == 0 || read.over || !next_source(read) || at >= read.deadline) return std::nullopt;
  return at;
}

void HedgedReads::watch() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    std::optional<Clock::time_point> first;
    const auto now = Clock::now();
    for (auto it = watched_.begin(); it != watched_.end();) {
      const std::shared_ptr<Read> read = *it++;
      const std::lock_guard of_read(read->mu);
      auto at = due(*read);
      if (at && *at <= now) {
        std::vector<IoPool::Task> tasks;
        tasks.push_back({[this, read] { run(read, true); }, 1});
        if (hedges_under_way_ < kHedges && hedges_.post_all(std::move(tasks)).ok()) {
          ++hedges_under_way_;
          ++read->askers;
          watched_.erase(std::prev(it));
          continue;
        }
        at = now + kLookAgain;
      }
      if (at) first = std::min(first.value_or(*at), *at);
    }
    if (first)
      changed_.wait_until(lock, *first);
    else
      changed_.wait(lock);
  }
}

}  // namespace quire
