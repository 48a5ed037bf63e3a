// Measures cold block reads through the store against raw O_DIRECT reads of a flat file: same
// bytes, same order, same two threads, same run, in alternating rounds. Also measures writing a
// segment (checksum, file, sync) against a flat O_DIRECT write with fsync, in turns to new files of
// each, and reads from the DRAM tier. Values are read in random order, and as a query reads them:
// contexts in random order, each from its first block to its last.
//   quire_store_bench [--quick] [--dir FOLDER] [--mib N] [--threads N] [--value-kib N]
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cachestore/store.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Settings {
  std::string dir = std::filesystem::temp_directory_path();
  std::size_t mib = 2048;
  int threads = 2, rounds = 7, write_rounds = 5;
  std::vector<std::size_t> value_kib = {1024, 512, 256, 64};
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

/// Returns bytes that, like KV, do not compress. They are made once and shifted per value.
std::vector<std::byte> random_bytes(std::size_t n) {
  std::vector<std::byte> out(n);
  std::mt19937_64 rng(1);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    const std::uint64_t v = rng();
    std::memcpy(out.data() + i, &v, 8);
  }
  return out;
}

double cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return s(u.ru_utime) + s(u.ru_stime);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

class FlatFile {
 public:
  FlatFile(std::string path, std::size_t value_bytes, std::size_t num_values)
      : path_(std::move(path)), value_bytes_(value_bytes), num_values_(num_values) {}
  ~FlatFile() { ::unlink(path_.c_str()); }

  double write(const std::vector<std::byte>& source) {
    const int fd = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_DIRECT, 0600);
    if (fd < 0) die("cannot write " + path_ + " with O_DIRECT: choose another --dir");
    auto* buffer = static_cast<std::byte*>(std::aligned_alloc(4096, value_bytes_));
    const auto start = Clock::now();
    for (std::size_t i = 0; i < num_values_; ++i) {
      std::memcpy(buffer, source.data() + (i * 64) % value_bytes_, value_bytes_);
      if (::write(fd, buffer, value_bytes_) != static_cast<ssize_t>(value_bytes_))
        die("write failed");
    }
    ::fsync(fd);
    const double s = seconds_since(start);
    ::close(fd);
    std::free(buffer);
    return s;
  }
  double read(const std::vector<std::size_t>& order, int threads) {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECT);
    if (fd < 0) die("cannot read " + path_);
    std::atomic<std::size_t> next{0};
    const auto start = Clock::now();
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&] {
        auto* buffer = static_cast<std::byte*>(std::aligned_alloc(4096, value_bytes_));
        for (std::size_t i; (i = next++) < order.size();) {
          if (::pread(fd, buffer, value_bytes_, static_cast<off_t>(order[i] * value_bytes_)) !=
              static_cast<ssize_t>(value_bytes_))
            die("read failed");
        }
        std::free(buffer);
      });
    }
    for (auto& t : pool) t.join();
    const double s = seconds_since(start);
    ::close(fd);
    return s;
  }

 private:
  std::string path_;
  std::size_t value_bytes_, num_values_;
};

constexpr std::size_t kBlocksPerSegment = 32;

double write_store(Store& store, const std::vector<std::byte>& source, std::size_t value_bytes,
                   std::size_t num_values, std::vector<SegmentHandle>* handles) {
  DocumentManifest m;
  m.ns = "bench";
  m.id = "d";
  double seconds = 0;
  for (std::size_t first = 0; first < num_values; first += kBlocksPerSegment) {
    const ContextKey key = sha256("context " + std::to_string(first));
    auto writer = store.begin_segment(key, {kBlocksPerSegment, 1, 0},
                                      kBlocksPerSegment * value_bytes, "bench", "m");
    must(writer.status());
    for (std::uint32_t b = 0; b < kBlocksPerSegment; ++b) {
      must((*writer)->put_value(b, 0,
                                {source.data() + ((first + b) * 64) % value_bytes, value_bytes}));
    }
    const auto start = Clock::now();
    auto handle = (*writer)->finish();
    seconds += seconds_since(start);
    must(handle.status());
    handles->push_back(*handle);
    DocumentChunk c;
    c.key = key;
    m.chunks.push_back(c);
  }
  const auto start = Clock::now();
  must(store.commit_document(m, "", *handles).status());
  return seconds + seconds_since(start);
}

double read_store(Store& store, const std::vector<SegmentHandle>& handles,
                  const std::vector<std::size_t>& order, Tier want) {
  std::vector<ReadRequest> requests;
  for (std::size_t i : order)
    requests.push_back(
        {handles[i / kBlocksPerSegment], static_cast<std::uint32_t>(i % kBlocksPerSegment), 0});
  std::mutex mu;
  std::condition_variable done;
  std::size_t left = order.size();
  const auto start = Clock::now();
  must(store.fetch_async(std::move(requests), [&](std::size_t, Result<PinnedBytes> r, Tier tier) {
    must(r.status());
    if (tier != want) die("a read was answered by another tier");
    std::lock_guard lock(mu);
    if (--left == 0) done.notify_one();
  }));
  std::unique_lock lock(mu);
  done.wait(lock, [&] { return left == 0; });
  return seconds_since(start);
}

std::vector<std::size_t> contexts_in_random_order(std::size_t num_values, std::mt19937_64& rng) {
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < num_values; i += kBlocksPerSegment) first.push_back(i);
  std::shuffle(first.begin(), first.end(), rng);
  std::vector<std::size_t> order;
  for (const std::size_t f : first) {
    for (std::size_t b = 0; b < kBlocksPerSegment; ++b) order.push_back(f + b);
  }
  return order;
}

struct WriteTimes {
  std::vector<double> flat_s, store_s, ratios;
};

/// Writes new flat files and new stores in turns.
WriteTimes write_in_turns(const Settings& set, const std::string& path,
                          const std::vector<std::byte>& source, std::size_t value_bytes,
                          std::size_t num_values) {
  WriteTimes times;
  for (int round = 0; round < set.write_rounds; ++round) {
    double flat_s = 0, store_s = 0;
    for (int step = 0; step < 2; ++step) {
      if ((round + step) % 2 != 0) {
        FlatFile flat(path + ".flat", value_bytes, num_values);
        flat_s = flat.write(source);
      } else {
        StoreOptions options;
        options.path = path;
        options.dram_bytes = 0;
        options.io_threads = set.threads;
        std::vector<SegmentHandle> handles;
        {
          auto store = open_store(options);
          must(store.status());
          store_s = write_store(**store, source, value_bytes, num_values, &handles);
          handles.clear();
        }
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
      }
      ::sync();  // the freed space of one is not the other's time
    }
    times.flat_s.push_back(flat_s);
    times.store_s.push_back(store_s);
    times.ratios.push_back(flat_s / store_s);
  }
  return times;
}

std::string run(const Settings& set, std::size_t value_bytes) {
  const std::size_t num_values = std::max<std::size_t>(
      kBlocksPerSegment, (set.mib << 20) / value_bytes / kBlocksPerSegment * kBlocksPerSegment);
  const double gb = static_cast<double>(num_values * value_bytes) / 1e9;
  const std::string path = set.dir + "/quire_store_bench." + std::to_string(::getpid());
  const auto source = random_bytes(2 * value_bytes);
  FlatFile flat(path + ".flat", value_bytes, num_values);
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  options.io_threads = set.threads;
  std::vector<double> ratios, context_ratios, flat_s, store_s, warm_s, flat_cpu, store_cpu;
  const WriteTimes writes = write_in_turns(set, path + ".writes", source, value_bytes, num_values);
  {
    auto store = open_store(options);
    must(store.status());
    std::vector<SegmentHandle> handles;
    flat.write(source);
    write_store(**store, source, value_bytes, num_values, &handles);
    std::vector<std::size_t> order(num_values);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 rng(7);
    // The first round warms up: it opens files but does not read their bytes.
    for (int round = -1; round < set.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), rng);
      double f = 0, s = 0, f_cpu = 0, s_cpu = 0;
      for (int step = 0; step < 2; ++step) {
        const double cpu = cpu_seconds();
        if ((round + step) % 2) {
          f = flat.read(order, set.threads);
          f_cpu = cpu_seconds() - cpu;
        } else {
          s = read_store(**store, handles, order, Tier::kDisk);
          s_cpu = cpu_seconds() - cpu;
        }
      }
      if (round < 0) continue;
      flat_cpu.push_back(f_cpu / gb);
      store_cpu.push_back(s_cpu / gb);
      flat_s.push_back(f);
      store_s.push_back(s);
      ratios.push_back(f / s);
      const auto by_context = contexts_in_random_order(num_values, rng);
      const double flat_again = flat.read(by_context, set.threads);
      context_ratios.push_back(flat_again / read_store(**store, handles, by_context, Tier::kDisk));
    }
  }
  {  // the DRAM tier, with at most a gigabyte
    options.dram_bytes = 2ull << 30;
    auto store = open_store(options);
    must(store.status());
    std::vector<SegmentHandle> handles;
    std::vector<std::size_t> order;
    for (std::size_t first = 0; first < num_values && order.size() * value_bytes < (1ull << 30);
         first += kBlocksPerSegment) {
      handles.push_back(*(*store)->find_segment(sha256("context " + std::to_string(first))));
      for (std::size_t b = 0; b < kBlocksPerSegment; ++b) order.push_back(first + b);
    }
    read_store(**store, handles, order, Tier::kDisk);
    for (int round = 0; round < set.rounds; ++round)
      warm_s.push_back(read_store(**store, handles, order, Tier::kDram) /
                       static_cast<double>(order.size()));
  }
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  char row[640];
  std::snprintf(row, sizeof row,
                "{\"value_bytes\": %zu, \"values\": %zu, \"threads\": %d, \"flat_read_gb_s\": "
                "%.3f, \"store_cold_read_gb_s\": %.3f, "
                "\"cold_read_ratio\": %.3f, \"cold_read_ratio_worst\": %.3f, "
                "\"cold_read_ratio_by_context\": %.3f, "
                "\"flat_cpu_s_per_gb\": %.3f, \"store_cpu_s_per_gb\": %.3f, "
                "\"flat_write_gb_s\": %.3f, \"store_write_gb_s\": %.3f, \"write_ratio\": %.3f, "
                "\"write_ratio_worst\": %.3f, \"dram_hit_us\": %.2f}",
                value_bytes, num_values, set.threads, gb / median(flat_s), gb / median(store_s),
                median(ratios), *std::min_element(ratios.begin(), ratios.end()),
                median(context_ratios), median(flat_cpu), median(store_cpu),
                gb / median(writes.flat_s), gb / median(writes.store_s), median(writes.ratios),
                *std::min_element(writes.ratios.begin(), writes.ratios.end()),
                median(warm_s) * 1e6);
  return row;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Settings set;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (a == "--quick") {
      set.mib = 256;
      set.rounds = set.write_rounds = 3;
    } else if (a == "--dir") {
      set.dir = value();
    } else if (a == "--mib") {
      set.mib = std::strtoull(value().c_str(), nullptr, 10);
    } else if (a == "--threads") {
      set.threads = std::atoi(value().c_str());
    } else if (a == "--value-kib") {
      set.value_kib = {std::strtoull(value().c_str(), nullptr, 10)};
    } else {
      std::fprintf(stderr,
                   "usage: quire_store_bench [--quick] [--dir FOLDER] [--mib N] [--threads N] "
                   "[--value-kib N]\n");
      return 2;
    }
  }
  std::string rows;
  for (const std::size_t kib : set.value_kib) {
    rows += (rows.empty() ? "" : ",\n  ") + quire::run(set, kib << 10);
  }
  std::printf(
      "{\"settings\": {\"mib\": %zu, \"threads\": %d, \"rounds\": %d, \"direct_io\": true},\n "
      "\"rows\": [\n  %s\n ]}\n",
      set.mib, set.threads, set.rounds, rows.c_str());
}
