// Measures search by meaning over very many chunks: documents are stored, their vectors computed
// and indexed, questions asked, and the store is opened again. The vectors are mixtures of real
// ones, because a million real ones take hours to compute; the questions are real.
//   quire_vectors_bench --vectors FILE --questions FILE [--dimension N] [--sizes N,N,...]
//                       [--memory-mib N] [--dir FOLDER] [--half report|choose]
// Both files hold rows of f32. Questions of odd rank are reported; --half choose takes the others,
// for whoever chooses anything. `recall_10` is the part of the ten nearest chunks that a search
// finds.
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
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "cachestore/store.h"
#include "ingest/search/embedding_index.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Settings {
  std::string vectors, questions, dir = fs::temp_directory_path();
  std::size_t dimension = 384;
  std::vector<std::uint64_t> sizes = {10'000, 100'000, 1'000'000};
  std::int64_t memory_mib = 512;
  bool choose = false;
};

constexpr std::uint64_t kChunks = 10;  ///< of a document
constexpr std::size_t kLimit = 10, kMostQuestions = 200, kChanged = 100;
constexpr int kWriters = 4;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

std::vector<float> read_rows(const std::string& path, std::size_t dimension) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::size_t row = dimension * sizeof(float);
  if (!in.is_open() || bytes.empty() || bytes.size() % row != 0)
    die(path + " does not hold rows of " + std::to_string(dimension) + " f32 values");
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// Chunk `n` is a real vector with a part of a second and some noise, of length 1.
class Mixture {
 public:
  Mixture(std::vector<float> real, std::size_t dimension)
      : real_(std::move(real)), dimension_(dimension), rows_(real_.size() / dimension) {}

  void vector(std::uint64_t n, float* out) const {
    std::mt19937_64 rng(n);
    const float* first = real_.data() + n % rows_ * dimension_;
    const float* second = real_.data() + rng() % rows_ * dimension_;
    // The first rows are the real ones themselves.
    const float part = n < rows_ ? 0.0f : 0.2f + 0.6f * static_cast<float>(rng() % 1000) / 1000;
    std::normal_distribution<float> noise(0, 0.2f / std::sqrt(static_cast<float>(dimension_)));
    float square = 0;
    for (std::size_t i = 0; i < dimension_; ++i) {
      out[i] = first[i] + part * second[i] + (n < rows_ ? 0.0f : noise(rng));
      square += out[i] * out[i];
    }
    for (std::size_t i = 0; i < dimension_; ++i) out[i] /= std::sqrt(square);
  }
  std::size_t dimension() const { return dimension_; }

 private:
  const std::vector<float> real_;
  const std::size_t dimension_, rows_;
};

/// Texts are the numbers of their vectors.
class MixtureEmbedder final : public Embedder {
 public:
  explicit MixtureEmbedder(const Mixture& mixture) : mixture_(mixture) {}
  Digest fingerprint() const override { return sha256("mixture"); }
  Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts, EmbedRole,
                                                const EmbedLimits&) override {
    std::vector<std::vector<float>> out;
    for (const std::string& text : texts) {
      out.emplace_back(mixture_.dimension());
      mixture_.vector(std::strtoull(text.c_str(), nullptr, 10), out.back().data());
    }
    return out;
  }

 private:
  const Mixture& mixture_;
};

std::string id_of(std::uint64_t document) { return "document-" + std::to_string(document); }

void commit(Store& store, std::uint64_t document, int version) {
  DocumentManifest m;
  m.ns = "default";
  m.id = id_of(document);
  m.status = DocumentStatus::kReady;
  std::string text;
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    DocumentChunk c;
    c.byte_begin = text.size();
    text += std::to_string(document * kChunks + chunk);
    c.byte_end = text.size();
    c.block_tokens = 32;
    c.token_ids = {1};
    m.chunks.push_back(std::move(c));
  }
  m.content_hash = "sha256:" + sha256(text + std::to_string(version)).hex();
  must(store.commit_document(std::move(m), text).status());
}

void commit_range(Store& store, std::uint64_t first, std::uint64_t last) {
  std::atomic<std::uint64_t> next{first};
  std::vector<std::thread> threads;
  for (int t = 0; t < kWriters; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t n; (n = next++) < last;) commit(store, n, 0);
    });
  }
  for (auto& t : threads) t.join();
}

/// Returns the numbers of the nearest chunks of each question, best first.
std::vector<std::vector<std::uint64_t>> nearest(const Mixture& mixture,
                                                const std::vector<float>& questions,
                                                std::uint64_t chunks) {
  const std::size_t d = mixture.dimension(), n = questions.size() / d;
  std::vector<std::vector<std::pair<float, std::uint64_t>>> best(n);
  std::vector<float> vector(d);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    mixture.vector(chunk, vector.data());
    // As the index keeps them.
    for (float& v : vector) v = f16_to_f32(f32_to_f16(v));
    for (std::size_t q = 0; q < n; ++q) {
      float score = 0;
      for (std::size_t i = 0; i < d; ++i) score += vector[i] * questions[q * d + i];
      auto& heap = best[q];
      const std::pair<float, std::uint64_t> entry{-score, chunk};
      if (heap.size() == kLimit && entry >= heap.front()) continue;
      if (heap.size() == kLimit) {
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end());
    }
  }
  std::vector<std::vector<std::uint64_t>> out(n);
  for (std::size_t q = 0; q < n; ++q) {
    std::sort_heap(best[q].begin(), best[q].end());
    for (const auto& [score, chunk] : best[q]) out[q].push_back(chunk);
  }
  return out;
}

double percentile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<std::size_t>(p * static_cast<double>(v.size())))];
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

void wait_until_indexed(const EmbeddingIndex& index) {
  while (index.stats().pending > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

struct Searches {
  double recall = 0;
  std::vector<double> seconds;
};
Searches search_all(const EmbeddingIndex& index, const std::vector<float>& questions,
                    std::size_t dimension, const std::vector<std::vector<std::uint64_t>>& truth) {
  Searches out;
  std::size_t found = 0, wanted = 0;
  for (std::size_t q = 0; q < truth.size(); ++q) {
    const auto start = Clock::now();
    const auto hits = index.search("default", {questions.data() + q * dimension, dimension},
                                   {.limit = kLimit});
    out.seconds.push_back(seconds_since(start));
    must(hits.status());
    std::set<std::uint64_t> numbers;
    for (const ChunkHit& hit : *hits)
      numbers.insert(std::strtoull(hit.id.c_str() + std::strlen("document-"), nullptr, 10) *
                         kChunks +
                     static_cast<std::uint64_t>(hit.chunk));
    for (const std::uint64_t chunk : truth[q]) found += numbers.count(chunk);
    wanted += truth[q].size();
  }
  out.recall = static_cast<double>(found) / static_cast<double>(wanted);
  return out;
}

std::string run(const Settings& set) {
  const Mixture mixture(read_rows(set.vectors, set.dimension), set.dimension);
  const std::vector<float> asked = read_rows(set.questions, set.dimension);
  std::vector<float> questions;
  for (std::size_t q = set.choose ? 0 : 1;
       (q + 1) * set.dimension <= asked.size() && q < kMostQuestions; q += 2)
    questions.insert(questions.end(), asked.data() + q * set.dimension,
                     asked.data() + (q + 1) * set.dimension);
  const std::string path = set.dir + "/quire_vectors." + std::to_string(::getpid());
  const EmbeddingOptions options{.max_bytes = set.memory_mib << 20};
  const auto embedder = std::make_shared<MixtureEmbedder>(mixture);
  std::string rows;
  auto store = open(path);
  auto index = std::make_unique<EmbeddingIndex>(options, *store, embedder);
  index->start();
  std::uint64_t documents = 0;
  for (const std::uint64_t size : set.sizes) {
    const std::uint64_t before = documents;
    const auto index_start = Clock::now();
    documents = size / kChunks;
    commit_range(*store, before, documents);
    for (std::uint64_t n = before; n < documents; ++n) index->changed("default", id_of(n));
    wait_until_indexed(*index);
    const double index_s = seconds_since(index_start);
    const auto truth = nearest(mixture, questions, documents * kChunks);
    drop_page_cache();
    const Searches cold = search_all(*index, questions, set.dimension, truth);
    const Searches warm = search_all(*index, questions, set.dimension, truth);
    const auto change_start = Clock::now();
    for (std::uint64_t n = 0; n < kChanged; ++n) {
      commit(*store, n * documents / kChanged, static_cast<int>(size));
      index->changed("default", id_of(n * documents / kChanged));
    }
    wait_until_indexed(*index);
    const double change_s = seconds_since(change_start);
    const EmbeddingStats stats = index->stats();
    index.reset();
    store.reset();
    drop_page_cache();
    const auto open_start = Clock::now();
    store = open(path);
    index = std::make_unique<EmbeddingIndex>(options, *store, embedder);
    index->start();
    wait_until_indexed(*index);
    const double open_s = seconds_since(open_start);
    if (index->stats().chunks != documents * kChunks) die("chunks are missing after a restart");
    char row[512];
    std::snprintf(row, sizeof row,
                  "{\"chunks\": %llu, \"indexed_s\": %.1f, \"search_ms_p50\": %.1f, "
                  "\"search_ms_p99\": %.1f, \"cold_search_ms_p50\": %.1f, \"recall_10\": %.4f, "
                  "\"change_ms\": %.2f, \"restart_s\": %.1f, \"memory_mib\": %.0f, "
                  "\"disk_mib\": %.0f}",
                  static_cast<unsigned long long>(documents * kChunks), index_s,
                  percentile(warm.seconds, 0.5) * 1e3, percentile(warm.seconds, 0.99) * 1e3,
                  percentile(cold.seconds, 0.5) * 1e3, warm.recall, change_s * 1e3 / kChanged,
                  open_s, static_cast<double>(stats.memory_bytes) / (1 << 20),
                  static_cast<double>(stats.disk_bytes) / (1 << 20));
    std::fprintf(stderr, "%s\n", row);
    rows += (rows.empty() ? "" : ",\n") + std::string(row);
  }
  index.reset();
  store.reset();
  fs::remove_all(path);
  return "{\"settings\": {\"dimension\": " + std::to_string(set.dimension) +
         ", \"chunks_a_document\": " + std::to_string(kChunks) +
         ", \"questions\": " + std::to_string(questions.size() / set.dimension) +
         ", \"memory_mib\": " + std::to_string(set.memory_mib) + "},\n\"rows\": [\n" + rows +
         "\n]}\n";
}

Settings parse(int argc, char** argv) {
  Settings set;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (++i == argc) die(name + " needs a value");
    const std::string value = argv[i];
    if (name == "--vectors") {
      set.vectors = value;
    } else if (name == "--questions") {
      set.questions = value;
    } else if (name == "--dir") {
      set.dir = value;
    } else if (name == "--half") {
      if (value != "report" && value != "choose") die("--half is report or choose");
      set.choose = value == "choose";
    } else if (name == "--dimension") {
      set.dimension = std::stoull(value);
    } else if (name == "--memory-mib") {
      set.memory_mib = std::stoll(value);
    } else if (name == "--sizes") {
      set.sizes.clear();
      std::istringstream in(value);
      for (std::string part; std::getline(in, part, ',');) set.sizes.push_back(std::stoull(part));
    } else {
      die("unknown option " + name);
    }
  }
  if (set.vectors.empty() || set.questions.empty()) die("--vectors and --questions are needed");
  return set;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  std::fputs(quire::run(quire::parse(argc, argv)).c_str(), stdout);
  return 0;
}
