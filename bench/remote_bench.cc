// Measures how fast contexts come from a shared tier: a cache fills the tier with made-up KV, and
// then reads all of it, several contexts at a time as for a query. Every byte is checked, as in the
// service. bench/remote.sh starts Redis for it and reads the same values with redis-benchmark.
//   quire_remote_bench --url URL [--contexts N] [--values N] [--value-kib N] [--rounds N]
//                      [--passes N]
// URL is as in remote.url. Each row is a round of so many passes over all contexts.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/remote/remote_cache.h"
#include "cachestore/remote/remote_tiers.h"

namespace quire {
namespace {

constexpr const char* kFingerprint = "bench";

struct Settings {
  std::string url;
  std::uint32_t contexts = 24, values = 96, value_kib = 128;
  int rounds = 5, passes = 8;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

ContextKey key_of(std::uint32_t n) { return sha256("context " + std::to_string(n)); }

SegmentLayout layout_of(const Settings& set) {
  return {.num_blocks = set.values, .values_per_block = 1, .num_sketches = 0};
}

void fill(RemoteTier& tier, const Settings& set) {
  std::vector<std::byte> payload(std::size_t{set.value_kib} << 10);
  std::mt19937_64 rng(1);
  for (auto& b : payload) b = static_cast<std::byte>(rng());
  for (std::uint32_t n = 0; n < set.contexts; ++n) {
    RemoteRecord record{
        .key = key_of(n), .fingerprint = kFingerprint, .layout = layout_of(set), .sizes = {}};
    const auto value = [&](std::uint64_t position) -> Result<std::string> {
      payload[0] = static_cast<std::byte>(position + n);
      std::string stored(record::kValueHeaderBytes + payload.size(), '\0');
      std::memcpy(stored.data() + record::kValueHeaderBytes, payload.data(), payload.size());
      record::write_value_header(
          remote_value_name(record.key, record.fingerprint, record.layout, position), payload,
          reinterpret_cast<std::byte*>(stored.data()));
      record.sizes.add(static_cast<std::uint32_t>(payload.size()));
      return stored;
    };
    must(tier.put(remote_name(record.key, kFingerprint), set.values,
                  set.values * (payload.size() + record::kValueHeaderBytes),
                  Clock::now() + std::chrono::minutes(2), value,
                  [&] { return encode_remote_record(record); }));
  }
}

/// The newest contexts, as a memory tier keeps them: what goes makes room for what comes.
class Newest {
 public:
  void add(RecalledSegment segment) {
    const std::lock_guard lock(mu_);
    newest_.push_back(std::move(segment));
    if (newest_.size() > kKept) newest_.pop_front();
  }

 private:
  static constexpr std::size_t kKept = 8;
  std::mutex mu_;
  std::deque<RecalledSegment> newest_;  // guarded by mu_
};

/// Reads all contexts so often, asked for at once, and returns the seconds.
double read_all(RemoteCache& cache, Newest& newest, const Settings& set, int passes) {
  std::mutex mu;
  std::condition_variable changed;
  const std::uint32_t asked = set.contexts * static_cast<std::uint32_t>(passes);
  std::uint32_t found = 0;
  const auto begun = Clock::now();
  for (std::uint32_t n = 0; n < asked; ++n) {
    RemoteWanted wanted;
    wanted.key = key_of(n % set.contexts);
    wanted.tenant = "default";
    wanted.fingerprint = kFingerprint;
    wanted.layout = layout_of(set);
    wanted.value_bytes = std::uint64_t{set.values} * set.value_kib << 10;
    wanted.deadline = begun + std::chrono::minutes(2);
    cache.recall(wanted, [&](Result<RecalledSegment> segment) {
      must(segment.status());
      newest.add(std::move(*segment));
      const std::lock_guard lock(mu);
      ++found;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mu);
  changed.wait(lock, [&] { return found == asked; });
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

int run(const Settings& set) {
  RemoteOptions options;
  options.url = set.url;
  options.timeout = std::chrono::seconds(10);
  auto tiers = open_remote_tiers(options);
  must(tiers.status());
  if (tiers->empty()) die("--url names no tier; use --url redis://127.0.0.1:6379");
  for (const auto& tier : *tiers) fill(*tier, set);
  RemoteCache cache(options, std::move(*tiers));
  const double bytes = 1024.0 * set.passes * set.contexts * set.values * set.value_kib;
  Newest newest;
  (void)read_all(cache, newest, set, 1);  // connections, pages
  std::printf(
      "{\"settings\": {\"contexts\": %u, \"values\": %u, \"value_kib\": %u, \"passes\": %d}, "
      "\"rows\": [",
      set.contexts, set.values, set.value_kib, set.passes);
  for (int round = 0; round < set.rounds; ++round) {
    const double seconds = read_all(cache, newest, set, set.passes);
    std::printf("%s\n  {\"seconds\": %.4f, \"mib_per_s\": %.1f}", round == 0 ? "" : ",", seconds,
                bytes / seconds / (1 << 20));
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Settings set;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    const auto number = [&] { return value ? std::strtoul(value, nullptr, 10) : 0; };
    if (option == "--url" && value)
      set.url = value;
    else if (option == "--contexts" && number() > 0)
      set.contexts = static_cast<std::uint32_t>(number());
    else if (option == "--values" && number() > 0)
      set.values = static_cast<std::uint32_t>(number());
    else if (option == "--value-kib" && number() > 0)
      set.value_kib = static_cast<std::uint32_t>(number());
    else if (option == "--passes" && number() > 0)
      set.passes = static_cast<int>(number());
    else if (option == "--rounds" && number() > 0)
      set.rounds = static_cast<int>(number());
    else
      quire::die("unknown option or missing value: " + std::string(option));
  }
  return quire::run(set);
}
