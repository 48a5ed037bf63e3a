// Measures whether the store stays as quick while it grows: documents of one small context each are
// posted up to every size of a list, and at each size the rate of posts, the time of one durable
// post, of a read and of a start, memory and files are measured. At the end a share of the
// documents is deleted. KV is made up; text, token ids and sketches are there as in the service.
//   quire_store_growth_bench [--quick] [--dir FOLDER] [--sizes N,N,...] [--segment-kib N]
//                            [--writers N]
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
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
  std::vector<std::uint64_t> sizes = {1000, 10'000, 100'000};
  std::size_t segment_bytes = 64 << 10;
  int writers = 4;
};

constexpr std::uint32_t kBlocks = 4, kTokens = 110;
constexpr std::uint64_t kWindow = 2000, kSingles = 300, kReads = 500;
constexpr std::size_t kSketchBytes = 2000;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

/// What is the same for all documents.
struct Material {
  std::vector<std::byte> bytes;
  std::string text;
  std::size_t block_bytes;
  explicit Material(const Settings& set) : block_bytes(set.segment_bytes / kBlocks) {
    bytes.resize(block_bytes + kSketchBytes + 4096);
    std::mt19937_64 rng(1);
    for (auto& b : bytes) b = static_cast<std::byte>(rng());
    while (text.size() < 600) text += "the store keeps what was read once ";
  }
};

std::string id_of(std::uint64_t n) { return "document-" + std::to_string(n); }
ContextKey key_of(std::uint64_t n) { return sha256("context " + std::to_string(n)); }

/// Stores document `n` with its KV, as ingest does; durable on return.
void post(Store& store, const Material& material, std::uint64_t n) {
  auto writer = store.begin_segment(key_of(n), {kBlocks, 1, 1},
                                    kBlocks * material.block_bytes + kSketchBytes, "default", "m");
  must(writer.status());
  const auto* from = material.bytes.data() + n % 4096;
  for (std::uint32_t b = 0; b < kBlocks; ++b)
    must((*writer)->put_value(b, 0, {from, material.block_bytes}));
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
  c.byte_end = material.text.size();
  c.block_tokens = 32;
  c.key = key_of(n);
  for (std::uint32_t t = 0; t < kTokens; ++t)
    c.token_ids.push_back(static_cast<std::int32_t>((n * 31 + t * 7) % 49152));
  m.chunks.push_back(std::move(c));
  must(store.commit_document(std::move(m), material.text, {&*handle, 1}).status());
}

/// Posts documents [first, last) with several writers; returns seconds.
double post_range(Store& store, const Material& material, std::uint64_t first, std::uint64_t last,
                  int writers) {
  std::atomic<std::uint64_t> next{first};
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < writers; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t n; (n = next++) < last;) post(store, material, n);
    });
  }
  for (auto& t : threads) t.join();
  return seconds_since(start);
}

double percentile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<std::size_t>(p * static_cast<double>(v.size())))];
}

std::uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

struct Folder {
  std::uint64_t files = 0, bytes = 0;
};
Folder measure(const std::string& path) {
  Folder f;
  std::error_code gone;
  for (fs::recursive_directory_iterator it(path, gone), end; it != end; it.increment(gone)) {
    struct stat st;
    if (::lstat(it->path().c_str(), &st) != 0) continue;
    f.files += S_ISREG(st.st_mode);
    f.bytes += static_cast<std::uint64_t>(st.st_blocks) * 512;
  }
  return f;
}

std::unique_ptr<Store> open(const std::string& path) {
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  auto store = open_store(options);
  must(store.status());
  return std::move(*store);
}

void drop_page_cache() {
  ::sync();
  std::ofstream("/proc/sys/vm/drop_caches") << "3\n";  // only root may; else the start is warm
}

std::string run(const Settings& set) {
  const Material material(set);
  const std::string path = set.dir + "/quire_store_growth." + std::to_string(::getpid());
  auto store = open(path);
  const std::uint64_t resident_empty = resident_bytes();
  std::uint64_t count = 0;
  std::string rows;
  std::mt19937_64 rng(5);
  for (const std::uint64_t size : set.sizes) {
    if (size > count) {
      post_range(*store, material, count, size, set.writers);
      count = size;
    }
    const double window_s = post_range(*store, material, count, count + kWindow, set.writers);
    count += kWindow;
    std::vector<double> singles, reads;
    for (std::uint64_t i = 0; i < kSingles; ++i) {
      const auto start = Clock::now();
      post(*store, material, count++);
      singles.push_back(seconds_since(start));
    }
    for (std::uint64_t i = 0; i < kReads; ++i) {
      const auto start = Clock::now();
      const auto handle = store->find_segment(key_of(rng() % count));
      if (!handle) die("a context is missing");
      must(store->read_sketch(*handle, 0).status());
      must(store->read_value(*handle, 1, 0).status());
      reads.push_back(seconds_since(start));
    }
    const std::uint64_t resident = resident_bytes() - resident_empty;
    const Folder folder = measure(path);
    store.reset();
    drop_page_cache();
    const auto start = Clock::now();
    store = open(path);
    const double start_s = seconds_since(start);
    char row[640];
    std::snprintf(
        row, sizeof row,
        "{\"documents\": %llu, \"segment_bytes\": %zu, \"documents_s\": %.0f, "
        "\"post_ms_p50\": %.2f, \"post_ms_p99\": %.2f, \"read_ms_p50\": %.3f, \"start_s\": %.2f, "
        "\"resident_bytes_a_block\": %.0f, \"resident_mib\": %.0f, \"files\": %llu, "
        "\"disk_gb\": %.2f, \"disk_share_of_payload\": %.3f}",
        static_cast<unsigned long long>(size), set.segment_bytes,
        static_cast<double>(kWindow) / window_s, percentile(singles, 0.5) * 1e3,
        percentile(singles, 0.99) * 1e3, percentile(reads, 0.5) * 1e3, start_s,
        static_cast<double>(resident) / static_cast<double>(count * kBlocks),
        static_cast<double>(resident) / (1 << 20), static_cast<unsigned long long>(folder.files),
        static_cast<double>(folder.bytes) / 1e9,
        static_cast<double>(folder.bytes) /
            static_cast<double>(count * (set.segment_bytes + kSketchBytes)));
    std::fprintf(stderr, "%s\n", row);
    rows += (rows.empty() ? "" : ",\n  ") + std::string(row);
  }
  // Every second document goes, so that what stays lies between holes.
  const std::uint64_t before = measure(path).bytes,
                      gone = std::min<std::uint64_t>(count / 2, 100'000);
  const auto start = Clock::now();
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < set.writers; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t n; (n = next++) < gone;)
        must(store->delete_document("default", id_of(2 * n)));
    });
  }
  for (auto& t : threads) t.join();
  const double acknowledged_s = seconds_since(start);
  const auto wanted = static_cast<double>(gone * set.segment_bytes) * 0.98;
  double freed_s = 0;
  while (static_cast<double>(before) - static_cast<double>(measure(path).bytes) < wanted) {
    freed_s = seconds_since(start);
    if (freed_s > 300) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  freed_s = seconds_since(start);
  char row[320];
  std::snprintf(row, sizeof row,
                "{\"deleted\": %llu, \"segment_bytes\": %zu, \"acknowledged_s\": %.2f, "
                "\"bytes_back_s\": %.2f, \"freed_gb\": %.2f, \"files\": %llu}",
                static_cast<unsigned long long>(gone), set.segment_bytes, acknowledged_s, freed_s,
                static_cast<double>(before - measure(path).bytes) / 1e9,
                static_cast<unsigned long long>(measure(path).files));
  std::fprintf(stderr, "%s\n", row);
  rows += ",\n  " + std::string(row);
  store.reset();
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
      set.sizes = {1000, 5000};
    } else if (a == "--dir") {
      set.dir = value();
    } else if (a == "--sizes") {
      set.sizes.clear();
      std::stringstream list(value());
      for (std::string n; std::getline(list, n, ',');)
        set.sizes.push_back(std::strtoull(n.c_str(), nullptr, 10));
    } else if (a == "--segment-kib") {
      set.segment_bytes = std::strtoull(value().c_str(), nullptr, 10) << 10;
    } else if (a == "--writers") {
      set.writers = std::atoi(value().c_str());
    } else {
      std::fprintf(stderr,
                   "usage: quire_store_growth_bench [--quick] [--dir FOLDER] [--sizes N,N,...] "
                   "[--segment-kib N] [--writers N]\n");
      return 2;
    }
  }
  std::printf(
      "{\"settings\": {\"writers\": %d, \"segment_bytes\": %zu},\n \"rows\": [\n  %s\n ]}\n",
      set.writers, set.segment_bytes, quire::run(set).c_str());
}
