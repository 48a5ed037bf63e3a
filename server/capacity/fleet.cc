#include "server/capacity/fleet.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/index.h"
#include "server/capacity/arrivals.h"
#include "server/capacity/engine_queue.h"
#include "server/capacity/local_store.h"
#include "server/capacity/seen_filter.h"

namespace quire::capacity {
namespace {

/// What the simulation keeps for a key of a tier: nodes of two hash tables and of a list.
constexpr double kBytesPerKey = 180;
/// Memory holds a context in so many parts at most.
constexpr std::uint32_t kMostParts = 32;
constexpr double kPeakSeconds = 10;
/// Outcomes that count towards those of contexts that are not simulated; older ones fade. More
/// would lag behind tiers that fill, fewer are noise.
constexpr double kRecent = 1000;

std::uint64_t threshold(double share) {
  return share >= 1 ? UINT64_MAX : static_cast<std::uint64_t>(std::ldexp(share, 64));
}

std::uint64_t scaled(std::uint64_t bytes, double share) {
  if (bytes == 0 || share >= 1) return bytes;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(bytes) * share));
}

double percentile_of(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  const auto n = static_cast<double>(values.size());
  const auto rank = std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(share * n)), 1,
                                            values.size());
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at);
}

double mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// Shares of recent outcomes of the contexts that are simulated, to draw those of the others. A few
/// contexts may be asked over very often, and the sample has too many or too few of them. As
/// SHARDS-adj does, questions that the sample lacks of its share count as found in the first place.
class Outcomes {
 public:
  /// `share` of the contexts are simulated.
  explicit Outcomes(double share) : share_(share), keep_(1 - share / kRecent) {}
  /// Counts a look-up of any context.
  void add() {
    for (double* sum : {&all_, &sampled_, &first_, &second_}) *sum *= keep_;
    ++all_;
  }
  /// Counts what a simulated one found, in parts of it. add() comes before.
  void found(double first, double second) {
    ++sampled_;
    first_ += first;
    second_ += second;
  }
  /// Returns the share of look-ups of contexts that are not simulated which find them in the first,
  /// or the second place.
  double first() const { return part((first_ + share_ * all_ - sampled_) / share_ - first_); }
  double second() const { return part(second_ / share_ - second_); }
  /// Returns the share of simulated look-ups that were found in the first place.
  double sampled_first() const { return sampled_ > 0 ? first_ / sampled_ : 0; }

 private:
  double part(double of_others) const {
    const double others = all_ - sampled_;
    return others > 0 ? std::clamp(of_others / others, 0.0, 1.0) : 0;
  }
  double share_, keep_;
  double all_ = 0, sampled_ = 0, first_ = 0, second_ = 0;
};

class Fleet {
 public:
  Fleet(const Trace& trace, const Rates& rates, const FleetOptions& options);
  FleetResult run();

 private:
  struct Replica {
    LocalStore store;
    EngineQueue engine;
    double transfers_free_at = 0;
    std::uint32_t version = 0;
    bool was_busy = false;
  };
  struct Computed {
    std::uint64_t key;
    std::uint32_t tokens;
  };
  /// A question from its arrival to its first token.
  struct Flight {
    double arrived = 0, alone = 0, work = 0;
    std::uint32_t replica = 0, answer_tokens = 1;
    bool counted = true;
    std::vector<Computed> computed{};
  };
  struct Event {
    double seconds;
    std::uint64_t order;
    std::uint64_t flight;  ///< of a question whose KV has come; else kEngine
    std::uint32_t replica, version;
    bool operator>(const Event& other) const {
      return seconds != other.seconds ? seconds > other.seconds : order > other.order;
    }
  };
  static constexpr std::uint64_t kEngine = UINT64_MAX;
  /// Where the tokens of one context are.
  struct Place {
    double dram = 0, disk = 0, remote = 0, computed = 0;
  };

  static FleetOptions checked(FleetOptions options);
  LocalStore::Options store_options() const;
  void arrive(const Arrivals::Arrival& arrival);
  Place look_up(Replica& replica, std::uint64_t key, std::uint32_t tokens, bool counted);
  Place look_up_remote(Replica& replica, std::uint64_t key, std::uint32_t tokens, bool counted,
                       bool seen);
  void charge(const Place& place, std::uint32_t tokens, Flight& flight, double& transfer);
  void begin_computing(std::uint64_t key, std::uint32_t tokens, bool counted);
  void ready(std::uint64_t flight);
  void first_token(std::uint64_t flight);
  void touch_engine(std::uint32_t replica, const std::function<void(EngineQueue&)>& change);
  void collect(std::uint32_t replica);
  void schedule(std::uint32_t replica);
  void network(double bytes);
  double draw();

  const Trace& trace_;
  const Rates& rates_;
  const FleetOptions options_;
  const std::uint64_t local_below_, remote_below_;
  Arrivals arrivals_;
  Router router_;
  ContextBytes bytes_;
  std::vector<Replica> replicas_;
  TierCache remote_;
  SeenFilter seen_;
  Outcomes local_outcomes_, remote_outcomes_;
  std::vector<int> busy_of_host_;
  std::unordered_map<std::uint64_t, int> being_computed_;
  std::vector<Flight> flights_;
  std::vector<std::uint64_t> free_flights_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0, draws_ = 0;
  double now_ = 0, last_first_token_ = 0, last_arrival_ = 0;
  std::vector<float> ttft_, wait_;
  std::vector<double> network_;
  FleetResult result_;
};

FleetOptions Fleet::checked(FleetOptions options) {
  options.sample = std::min(options.sample, 1.0);
  options.sample_remote = std::min(options.sample_remote, options.sample);
  return options;
}

Fleet::Fleet(const Trace& trace, const Rates& rates, const FleetOptions& options)
    : trace_(trace),
      rates_(rates),
      options_(checked(options)),
      local_below_(threshold(options_.sample)),
      remote_below_(threshold(options_.sample_remote)),
      arrivals_(trace, options.copies, options.speed),
      router_(options.routing, options.replicas),
      bytes_{rates.bytes_per_token, rates.stored_bytes_per_token, rates.stored_bytes_per_context},
      remote_(scaled(options.remote_bytes, options_.sample_remote), options.policy),
      seen_(options_.sample_remote < 1 ? trace.distinct_contexts() * options.copies : 0),
      local_outcomes_(options_.sample),
      remote_outcomes_(1),
      busy_of_host_((options.replicas + options.per_host - 1) / options.per_host) {
  const LocalStore::Options store = store_options();
  replicas_.reserve(options.replicas);
  for (std::uint32_t i = 0; i < options.replicas; ++i)
    replicas_.push_back({LocalStore(store), EngineQueue(rates_, options.max_running)});
}

LocalStore::Options Fleet::store_options() const {
  LocalStore::Options o;
  o.dram_bytes = scaled(options_.dram_bytes, options_.sample);
  o.policy = options_.policy;
  o.bytes = bytes_;
  if (options_.disk_bytes > 0) {
    const double kv = static_cast<double>(options_.disk_bytes) - rates_.disk_bytes_beside;
    o.disk_bytes = scaled(static_cast<std::uint64_t>(std::max(kv, 1.0)), options_.sample);
  }
  // Where memory holds few contexts, it matters that it loses them by values.
  const double mean = rates_.bytes_per_token * static_cast<double>(trace_.distinct_tokens()) /
                      std::max<double>(1, static_cast<double>(trace_.distinct_contexts()));
  const double held = static_cast<double>(o.dram_bytes) / std::max(mean, 1.0);
  o.parts = held >= 64 ? 1 : kMostParts;
  return o;
}

/// Returns a number from 0 to 1 that depends on nothing but how many were drawn before.
double Fleet::draw() { return std::ldexp(static_cast<double>(mix(++draws_) >> 11), -53); }

void Fleet::network(double bytes) {
  const auto slot = static_cast<std::size_t>(now_ / kPeakSeconds);
  if (network_.size() <= slot) network_.resize(slot + 1);
  network_[slot] += bytes;
}

Fleet::Place Fleet::look_up(Replica& replica, std::uint64_t key, std::uint32_t tokens,
                            bool counted) {
  const double all = tokens;
  const bool exact = remote_below_ == UINT64_MAX;
  const bool seen = exact || seen_.add(key);
  if (seen) local_outcomes_.add();
  if (key <= local_below_) {
    const LocalStore::Found found = replica.store.read(key, tokens);
    if (seen) local_outcomes_.found(found.dram / all, found.disk / all);
    if (found.any()) return {found.dram, found.disk, 0, 0};
  } else if (seen) {
    const double u = draw();
    const double in_dram = local_outcomes_.first();
    if (u < in_dram) return {all, 0, 0, 0};
    if (u < in_dram + local_outcomes_.second()) return {0, all, 0, 0};
  }
  return look_up_remote(replica, key, tokens, counted, seen);
}

Fleet::Place Fleet::look_up_remote(Replica& replica, std::uint64_t key, std::uint32_t tokens,
                                   bool counted, bool seen) {
  const double all = tokens;
  bool found = false;
  if (key <= remote_below_) {
    found = options_.remote && remote_.touch(key);
    if (seen) {
      remote_outcomes_.add();
      remote_outcomes_.found(found ? 1 : 0, 0);
    }
  } else if (seen) {
    found = draw() < remote_outcomes_.sampled_first();
  }
  if (!found) return {0, 0, 0, all};
  const auto stored = static_cast<double>(bytes_.stored(tokens));
  network(stored);
  double written = stored;
  if (key <= local_below_) written = static_cast<double>(replica.store.write(key, tokens));
  if (counted) {
    result_.disk_written += written;
    result_.remote_read += stored;
  }
  return {0, 0, all, 0};
}

/// Adds what a context costs: of the engine, and before it, while its KV is on its way.
void Fleet::charge(const Place& place, std::uint32_t tokens, Flight& flight, double& transfer) {
  if (place.computed > 0) {
    flight.work += rates_.prefill_ms(tokens) / 1000;
    return;
  }
  flight.work += rates_.dram.ms(1, tokens) / 1000;
  const auto beyond = [&](const PlaceRate& tier, double of) {
    if (of <= 0) return;
    const double share = of / tokens;
    transfer += std::max(0.0, tier.ms(share, of) - rates_.dram.ms(share, of)) / 1000;
  };
  beyond(rates_.disk, place.disk);
  beyond(rates_.remote, place.remote);
}

void Fleet::begin_computing(std::uint64_t key, std::uint32_t tokens, bool counted) {
  const double seconds = rates_.prefill_ms(tokens) / 1000;
  if (counted) result_.prefill_seconds += seconds;
  if (key > remote_below_) return;
  if (being_computed_[key]++ == 0 || !counted) return;
  ++result_.computed_twice;
  result_.computed_twice_seconds += seconds;
}

void Fleet::arrive(const Arrivals::Arrival& arrival) {
  const Trace::Entry& e = *arrival.entry;
  std::uint64_t id = flights_.size();
  if (free_flights_.empty()) {
    flights_.emplace_back();
  } else {
    id = free_flights_.back();
    free_flights_.pop_back();
  }
  Flight& f = flights_[id];
  f.arrived = now_;
  f.counted = now_ >= options_.warmup_seconds;
  f.answer_tokens = e.answer_tokens;
  f.replica = router_.pick(Arrivals::salted(e.affinity, arrival.salt));
  f.computed.clear();
  f.work = (rates_.request_ms + rates_.question_ms_per_token * e.question_tokens) / 1000;
  Replica& replica = replicas_[f.replica];
  double transfer = 0;
  const TraceContext* contexts = trace_.contexts(e);
  for (std::uint32_t i = 0; i < e.num_contexts; ++i) {
    const std::uint64_t key = Arrivals::salted(contexts[i].key, arrival.salt);
    const std::uint32_t tokens = contexts[i].tokens;
    const Place p = look_up(replica, key, tokens, f.counted);
    charge(p, tokens, f, transfer);
    if (p.computed > 0) {
      begin_computing(key, tokens, f.counted);
      f.computed.push_back({key, tokens});
    }
    if (!f.counted) continue;
    result_.dram_tokens += p.dram;
    result_.disk_tokens += p.disk;
    result_.remote_tokens += p.remote;
    result_.computed_tokens += p.computed;
    result_.dram_read += p.dram * rates_.bytes_per_token;
    result_.disk_read += p.disk * rates_.bytes_per_token;
    if (p.computed == 0) result_.saved_prefill_seconds += rates_.prefill_ms(tokens) / 1000;
  }
  f.alone = transfer + f.work;
  if (f.counted) ++result_.requests;
  if (transfer <= 0) return ready(id);
  // A replica's transfers follow one another.
  replica.transfers_free_at = std::max(replica.transfers_free_at, now_) + transfer;
  events_.push({replica.transfers_free_at, ++order_, id, f.replica, 0});
}

void Fleet::ready(std::uint64_t flight) {
  Flight& f = flights_[flight];
  touch_engine(f.replica, [&](EngineQueue& engine) {
    const double after_pause = rates_.idle_ms(engine.idle_seconds()) / 1000;
    f.work += after_pause;
    f.alone += after_pause;
    engine.add(flight, f.work, f.answer_tokens);
  });
}

/// Changes what an engine has to do, and all that follows for the replicas of its host.
void Fleet::touch_engine(std::uint32_t replica, const std::function<void(EngineQueue&)>& change) {
  const std::uint32_t host = replica / options_.per_host;
  const std::uint32_t first = host * options_.per_host,
                      end = std::min(first + options_.per_host, options_.replicas);
  replicas_[replica].engine.advance(now_);
  change(replicas_[replica].engine);
  Replica& r = replicas_[replica];
  if (r.engine.busy() == r.was_busy) return schedule(replica);
  busy_of_host_[host] += r.engine.busy() ? 1 : -1;
  r.was_busy = r.engine.busy();
  const double speed = rates_.host_share(busy_of_host_[host]);
  for (std::uint32_t i = first; i < end; ++i) {
    replicas_[i].engine.advance(now_);
    replicas_[i].engine.set_speed(speed);
    schedule(i);
  }
}

void Fleet::schedule(std::uint32_t replica) {
  Replica& r = replicas_[replica];
  ++r.version;
  const double at = r.engine.next_event();
  if (at < EngineQueue::kNever) events_.push({at, ++order_, kEngine, replica, r.version});
}

void Fleet::first_token(std::uint64_t flight) {
  Flight& f = flights_[flight];
  Replica& replica = replicas_[f.replica];
  last_first_token_ = now_;
  for (const Computed& c : f.computed) {
    const auto stored = static_cast<double>(bytes_.stored(c.tokens));
    double written = stored;
    if (c.key <= local_below_) written = static_cast<double>(replica.store.write(c.key, c.tokens));
    if (f.counted) result_.disk_written += written;
    if (c.key <= remote_below_) {
      const auto it = being_computed_.find(c.key);
      if (--it->second == 0) being_computed_.erase(it);
    }
    if (!options_.remote) continue;
    if (c.key <= remote_below_) {
      if (remote_.contains(c.key)) continue;
      remote_.insert(c.key, bytes_.stored(c.tokens));
    }
    network(stored);
    if (f.counted) result_.remote_written += stored;
  }
  if (f.counted) {
    const double ttft = now_ - f.arrived;
    ttft_.push_back(static_cast<float>(ttft));
    wait_.push_back(static_cast<float>(std::max(0.0, ttft - f.alone)));
  }
  free_flights_.push_back(flight);
}

void Fleet::collect(std::uint32_t replica) {
  std::vector<std::uint64_t> done;
  touch_engine(replica, [&](EngineQueue& engine) {
    engine.collect([&](std::uint64_t id) { done.push_back(id); });
  });
  for (const std::uint64_t id : done) first_token(id);
}

FleetResult Fleet::run() {
  Arrivals::Arrival next;
  bool more = arrivals_.next(next);
  while (more || !events_.empty()) {
    if (more && (events_.empty() || next.seconds <= events_.top().seconds)) {
      now_ = last_arrival_ = next.seconds;
      arrive(next);
      more = arrivals_.next(next);
      continue;
    }
    const Event e = events_.top();
    events_.pop();
    if (e.flight == kEngine && e.version != replicas_[e.replica].version) continue;
    now_ = e.seconds;
    if (e.flight == kEngine)
      collect(e.replica);
    else
      ready(e.flight);
  }
  FleetResult& r = result_;
  r.seconds = std::max(arrivals_.period() - options_.warmup_seconds, 1e-9);
  r.backlog_seconds = std::max(0.0, last_first_token_ - last_arrival_);
  r.ttft_mean = mean_of(ttft_);
  r.wait_mean = mean_of(wait_);
  r.ttft_p50 = percentile_of(ttft_, 0.5);
  r.ttft_p95 = percentile_of(ttft_, 0.95);
  r.ttft_p99 = percentile_of(ttft_, 0.99);
  r.wait_p50 = percentile_of(wait_, 0.5);
  r.wait_p95 = percentile_of(wait_, 0.95);
  const double until = std::max(now_, arrivals_.period());
  for (const Replica& replica : replicas_) {
    const double share = std::min(1.0, replica.engine.busy_seconds() / until);
    r.utilisation += share / options_.replicas;
    r.highest_utilisation = std::max(r.highest_utilisation, share);
    r.dram_used += static_cast<double>(replica.store.dram().used_bytes()) / options_.sample;
    r.disk_used += static_cast<double>(replica.store.disk().used_bytes()) / options_.sample;
    r.evictions += replica.store.disk().evictions();
  }
  for (const double bytes : network_)
    r.network_peak = std::max(r.network_peak, bytes / std::min(kPeakSeconds, until));
  r.remote_used = static_cast<double>(remote_.used_bytes()) / options_.sample_remote;
  r.remote_contexts = static_cast<std::uint64_t>(static_cast<double>(remote_.size()) /
                                                 options_.sample_remote);
  r.evictions = static_cast<std::uint64_t>(static_cast<double>(r.evictions) / options_.sample);
  r.remote_evictions = static_cast<std::uint64_t>(static_cast<double>(remote_.evictions()) /
                                                  options_.sample_remote);
  r.computed_twice = static_cast<std::uint64_t>(static_cast<double>(r.computed_twice) /
                                                options_.sample_remote);
  r.computed_twice_seconds /= options_.sample_remote;
  r.contexts_seen = trace_.distinct_contexts() * options_.copies;
  return r;
}

}  // namespace

void choose_samples(const Trace& trace, const Rates& rates, std::uint64_t memory_bytes,
                    FleetOptions& options) {
  const double contexts = static_cast<double>(trace.distinct_contexts()) *
                          static_cast<double>(options.copies);
  const double tokens = static_cast<double>(trace.distinct_tokens()) /
                        std::max<double>(1, static_cast<double>(trace.distinct_contexts()));
  const double bytes = std::max(
      1.0, tokens * rates.stored_bytes_per_token + rates.stored_bytes_per_context);
  const auto held = [&](std::uint64_t budget) {
    return budget == 0 ? contexts : std::min(contexts, static_cast<double>(budget) / bytes);
  };
  // Without a limit, all replicas together hold what they were asked for: each context at least
  // once, and where questions go round, at every replica that was asked.
  const double asked = static_cast<double>(trace.context_tokens()) / std::max(tokens, 1.0) *
                       static_cast<double>(options.copies);
  const double local = std::min(asked, held(options.disk_bytes) * options.replicas) +
                       std::min(asked, held(std::max<std::uint64_t>(options.dram_bytes, 1)) *
                                           options.replicas);
  const double room = static_cast<double>(memory_bytes) / 2 / kBytesPerKey;
  options.sample = std::min(1.0, room / std::max(local, 1.0));
  options.sample_remote = options.remote
                              ? std::min(options.sample,
                                         room / std::max(held(options.remote_bytes), 1.0))
                              : options.sample;
}

Result<FleetResult> simulate_fleet(const Trace& trace, const Rates& rates,
                                   const FleetOptions& options) {
  if (trace.entries().empty()) return Status::invalid("trace", "the trace has no request");
  if (options.replicas < 1 || options.replicas > 100'000)
    return Status::invalid("replicas", "replicas must be 1 to 100000");
  if (options.per_host < 1) return Status::invalid("per-host", "per-host must be 1 at least");
  if (options.max_running < 1)
    return Status::invalid("max-running", "max-running must be 1 at least");
  if (options.copies < 1 || options.copies > 10'000'000)
    return Status::invalid("copies", "copies must be 1 to 10000000");
  if (!(options.speed > 0)) return Status::invalid("speed", "speed must be above 0");
  if (!(options.sample > 0) || !(options.sample_remote > 0))
    return Status::invalid("sample", "sample must be above 0, and at most 1");
  if (!(options.warmup_seconds >= 0) || options.warmup_seconds >= trace.period() / options.speed)
    return Status::invalid("warmup", "warmup must be shorter than the trace, which takes " +
                                         std::to_string(trace.period() / options.speed) + " s");
  return Fleet(trace, rates, options).run();
}

}  // namespace quire::capacity
