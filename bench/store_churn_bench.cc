// Measures a store that is full all the time: writers post documents and delete others, and the
// budget evicts the KV of more. Every second the folder is measured as `du` does, and every minute
// gives a row: documents a second, processor time of one, bytes written by the process for each
// byte of values, and the largest share of the budget that the folder took.
//   quire_store_churn_bench [--quick] [--dir FOLDER] [--minutes N] [--budget-mib N]
//                           [--segment-kib N] [--writers N]
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cachestore/store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Settings {
  std::string dir = fs::temp_directory_path();
  double minutes = 10;
  std::uint64_t budget_bytes = 2048ull << 20;
  std::size_t segment_bytes = 256 << 10;
  int writers = 4;
};

constexpr std::uint32_t kBlocks = 4, kTokens = 110;
constexpr std::size_t kSketchBytes = 2000;
/// The KV of all documents together, as a share of the budget: some is always evicted.
constexpr double kLiveShare = 1.5;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

std::string id_of(std::uint64_t n) { return "document-" + std::to_string(n); }
ContextKey key_of(std::uint64_t n) { return sha256("context " + std::to_string(n)); }

/// The writers: each posts the next document, and deletes one once there are enough.
class Churn {
 public:
  Churn(Store& store, const Settings& set)
      : store_(store), block_bytes_(set.segment_bytes / kBlocks) {
    bytes_.resize(block_bytes_ + kSketchBytes + 4096);
    std::mt19937_64 rng(1);
    for (auto& b : bytes_) b = static_cast<std::byte>(rng());
    while (text_.size() < 600) text_ += "the store keeps what was read once ";
    most_live_ = static_cast<std::size_t>(kLiveShare * static_cast<double>(set.budget_bytes) /
                                          static_cast<double>(set.segment_bytes));
  }

  void work(std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    while (!stop) {
      const std::uint64_t n = next_++;
      post(n);
      value_bytes += kBlocks * block_bytes_ + kSketchBytes;
      ++posts;
      if (const auto gone = replace(n, rng)) must(store_.delete_document("default", id_of(*gone)));
      // A query now and then, so that what is used stays longer.
      if (n % 4 == 0) read(rng);
    }
  }

  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> posts{0}, value_bytes{0};

 private:
  void post(std::uint64_t n) {
    auto writer = store_.begin_segment(key_of(n), {kBlocks, 1, 1},
                                       kBlocks * block_bytes_ + kSketchBytes, "default", "m");
    must(writer.status());
    const auto* from = bytes_.data() + n % 4096;
    for (std::uint32_t b = 0; b < kBlocks; ++b)
      must((*writer)->put_value(b, 0, {from, block_bytes_}));
    must((*writer)->put_sketch(0, {from, kSketchBytes}));
    auto handle = (*writer)->finish();
    must(handle.status());
    DocumentManifest m;
    m.ns = "default";
    m.id = id_of(n);
    m.title = m.id;
    m.metadata_json = R"({"source":"bench"})";
    m.status = DocumentStatus::kReady;
    m.fingerprint = "m";
    DocumentChunk c;
    c.byte_end = text_.size();
    c.block_tokens = 32;
    c.key = key_of(n);
    for (std::uint32_t t = 0; t < kTokens; ++t)
      c.token_ids.push_back(static_cast<std::int32_t>((n * 31 + t * 7) % 49152));
    m.chunks.push_back(std::move(c));
    must(store_.commit_document(std::move(m), text_, {&*handle, 1}).status());
  }
  /// Enters a document; returns another one that is to be deleted.
  std::optional<std::uint64_t> replace(std::uint64_t n, std::mt19937_64& rng) {
    std::lock_guard lock(mu_);
    live_.push_back(n);
    if (live_.size() <= most_live_) return std::nullopt;
    std::swap(live_[rng() % (live_.size() - 1)], live_.back());
    const std::uint64_t gone = live_.back();
    live_.pop_back();
    return gone;
  }
  void read(std::mt19937_64& rng) {
    std::uint64_t n;
    {
      std::lock_guard lock(mu_);
      n = live_[rng() % live_.size()];
    }
    const auto handle = store_.find_segment(key_of(n));
    if (handle) must(store_.read_value(*handle, 1, 0).status());
  }

  Store& store_;
  const std::size_t block_bytes_;
  std::vector<std::byte> bytes_;
  std::string text_;
  std::size_t most_live_ = 0;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mu_;
  std::vector<std::uint64_t> live_;  // guarded by mu_
};

std::uint64_t folder_bytes(const std::string& path) {
  std::uint64_t bytes = 0;
  std::error_code gone;
  struct stat st;
  if (::lstat(path.c_str(), &st) == 0) bytes += static_cast<std::uint64_t>(st.st_blocks) * 512;
  for (fs::recursive_directory_iterator it(path, gone), end; it != end; it.increment(gone)) {
    if (::lstat(it->path().c_str(), &st) == 0)
      bytes += static_cast<std::uint64_t>(st.st_blocks) * 512;
  }
  return bytes;
}

/// Returns the bytes that the process has had written to storage.
std::uint64_t written_bytes() {
  std::ifstream in("/proc/self/io");
  std::string name;
  for (std::uint64_t value; in >> name >> value;) {
    if (name == "write_bytes:") return value;
  }
  die("/proc/self/io does not tell how much was written");
}

/// Returns the processor time of the process. On a machine that does other work it tells better
/// than the rate whether a document costs more than before.
double cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return s(u.ru_utime) + s(u.ru_stime);
}

std::string run(const Settings& set) {
  const std::string path = set.dir + "/quire_store_churn." + std::to_string(::getpid());
  StoreOptions options;
  options.path = path;
  options.max_bytes = set.budget_bytes;
  options.dram_bytes = 0;
  auto store = open_store(options);
  must(store.status());
  Churn churn(**store, set);
  std::vector<std::thread> writers;
  for (int t = 0; t < set.writers; ++t)
    writers.emplace_back([&churn, t] { churn.work(static_cast<std::uint64_t>(t) + 1); });
  const auto sample = [&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return static_cast<double>(folder_bytes(path)) / static_cast<double>(set.budget_bytes);
  };
  // Filling up is not measured.
  double fullest = 0;
  while ((*store)->stats().segments_evicted_budget == 0) fullest = std::max(fullest, sample());
  std::string rows;
  std::vector<double> rates, costs;
  std::uint64_t samples = 0, exceeded = 0;
  const std::uint64_t posts_0 = churn.posts, values_0 = churn.value_bytes,
                      written_0 = written_bytes(),
                      evicted_0 = (*store)->stats().segments_evicted_budget;
  const auto start = Clock::now();
  while (seconds_since(start) < set.minutes * 60) {
    const auto minute = Clock::now();
    const std::uint64_t posts = churn.posts, values = churn.value_bytes, written = written_bytes();
    const double cpu = cpu_seconds();
    double largest = 0, smallest = 10;
    const double length = std::min(60.0, set.minutes * 60);
    while (seconds_since(minute) < length) {
      const double share = sample();
      largest = std::max(largest, share);
      smallest = std::min(smallest, share);
      ++samples;
      exceeded += share > 1;
    }
    const double seconds = seconds_since(minute);
    rates.push_back(static_cast<double>(churn.posts - posts) / seconds);
    costs.push_back((cpu_seconds() - cpu) * 1e3 / static_cast<double>(churn.posts - posts));
    fullest = std::max(fullest, largest);
    char row[400];
    std::snprintf(row, sizeof row,
                  "{\"minute\": %zu, \"documents_s\": %.0f, \"cpu_ms_a_document\": %.3f, "
                  "\"write_amplification\": %.3f, \"largest_share_of_budget\": %.4f, "
                  "\"smallest_share_of_budget\": %.4f}",
                  rates.size(), rates.back(), costs.back(),
                  static_cast<double>(written_bytes() - written) /
                      static_cast<double>(churn.value_bytes - values),
                  largest, smallest);
    std::fprintf(stderr, "%s\n", row);
    rows += (rows.empty() ? "" : ",\n  ") + std::string(row);
  }
  churn.stop = true;
  for (auto& t : writers) t.join();
  // What the kernel still holds belongs to what was posted.
  ::sync();
  const StoreStats stats = (*store)->stats();
  const std::size_t third = std::max<std::size_t>(1, rates.size() / 3);
  const auto mean = [](const double* from, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += from[i];
    return sum / static_cast<double>(n);
  };
  const auto last_of_first = [&](const std::vector<double>& v) {
    return mean(v.data() + v.size() - third, third) / mean(v.data(), third);
  };
  char row[600];
  std::snprintf(
      row, sizeof row,
      "{\"minutes\": %.1f, \"posted\": %llu, \"values_gb\": %.2f, \"written_gb\": %.2f, "
      "\"write_amplification\": %.3f, \"last_third_of_first\": %.3f, \"cpu_last_third_of_first\": "
      "%.3f, "
      "\"largest_share_of_budget\": %.4f, \"samples\": %llu, \"samples_over_budget\": %llu, "
      "\"evicted\": %llu, \"documents\": %llu, \"segments\": %llu}",
      seconds_since(start) / 60, static_cast<unsigned long long>(churn.posts - posts_0),
      static_cast<double>(churn.value_bytes - values_0) / 1e9,
      static_cast<double>(written_bytes() - written_0) / 1e9,
      static_cast<double>(written_bytes() - written_0) /
          static_cast<double>(churn.value_bytes - values_0),
      last_of_first(rates), last_of_first(costs), fullest, static_cast<unsigned long long>(samples),
      static_cast<unsigned long long>(exceeded),
      static_cast<unsigned long long>(stats.segments_evicted_budget - evicted_0),
      static_cast<unsigned long long>(stats.documents),
      static_cast<unsigned long long>(stats.segments));
  std::fprintf(stderr, "%s\n", row);
  rows += ",\n  " + std::string(row);
  store->reset();
  std::error_code ignored;
  fs::remove_all(path, ignored);
  return rows;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Settings set;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (a == "--quick") {
      set.minutes = 0.25;
      set.budget_bytes = 256ull << 20;
    } else if (a == "--dir") {
      set.dir = value();
    } else if (a == "--minutes") {
      set.minutes = std::strtod(value().c_str(), nullptr);
    } else if (a == "--budget-mib") {
      set.budget_bytes = std::strtoull(value().c_str(), nullptr, 10) << 20;
    } else if (a == "--segment-kib") {
      set.segment_bytes = std::strtoull(value().c_str(), nullptr, 10) << 10;
    } else if (a == "--writers") {
      set.writers = std::atoi(value().c_str());
    } else {
      std::fprintf(stderr,
                   "usage: quire_store_churn_bench [--quick] [--dir FOLDER] [--minutes N] "
                   "[--budget-mib N] [--segment-kib N] [--writers N]\n");
      return 2;
    }
  }
  if (set.minutes <= 0 || set.writers < 1 || set.segment_bytes < 4096) {
    std::fprintf(stderr, "error: --minutes, --writers and --segment-kib must be positive\n");
    return 2;
  }
  const std::string rows = quire::run(set);
  std::printf(
      "{\"settings\": {\"writers\": %d, \"segment_bytes\": %zu, \"budget_bytes\": %llu},\n "
      "\"rows\": [\n  %s\n ]}\n",
      set.writers, set.segment_bytes, static_cast<unsigned long long>(set.budget_bytes),
      rows.c_str());
}
