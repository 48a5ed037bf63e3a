// Measures ceilings of this machine and how near the CPU kernels come to them.
//   quire_kernels_bench [--quick] [--threads N] [--only SUBSTRING] [--cpu-time]
// --cpu-time counts the CPU seconds of one thread instead of the clock, for busy machines. Memory
// is read with prefetch over a pool larger than the caches. Products and attention are compared
// with oneDNN on the same shapes. Everything runs in the same process and in turns, so that ratios
// hold when other work disturbs the machine.
#include <omp.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/norm.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace {

using namespace quire;
using Clock = std::chrono::steady_clock;

struct Options {
  bool quick = false;
  std::string only;
};

struct Row {
  std::string name, unit;
  double work;  ///< work of one run, in `unit` * seconds / 1e9
  std::function<void()> run;
  std::vector<double> seconds;
};

bool g_cpu_time = false;  // set once by main

double now_seconds() {
  timespec t{};
  clock_gettime(g_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double time_of(const std::function<void()>& fn) {
  const double start = now_seconds();
  fn();
  return now_seconds() - start;
}

/// Measures a group of alternatives in turns and prints one JSON row each.
class Runner {
 public:
  explicit Runner(Options options) : options_(std::move(options)) {}

  void group(std::vector<Row> rows) {
    if (!options_.only.empty()) {
      std::erase_if(rows,
                    [&](const Row& r) { return r.name.find(options_.only) == std::string::npos; });
    }
    for (Row& r : rows) r.run();  // warms up
    const double budget = (options_.quick ? 0.15 : 1.0) * static_cast<double>(rows.size());
    const auto start = Clock::now();
    do {
      for (Row& r : rows) r.seconds.push_back(time_of(r.run));
    } while (std::chrono::duration<double>(Clock::now() - start).count() < budget ||
             (!rows.empty() && rows[0].seconds.size() < 5));
    for (Row& r : rows) print(r);
  }

 private:
  void print(Row& r) {
    std::sort(r.seconds.begin(), r.seconds.end());
    const double median = r.seconds[r.seconds.size() / 2], best = r.seconds.front();
    const double p99 = r.seconds[std::min(r.seconds.size() - 1, r.seconds.size() * 99 / 100)];
    std::printf(
        "%s{\"name\": \"%s\", \"unit\": \"%s\", \"median\": %.4g, \"best\": %.4g, \"median_ms\": "
        "%.4g, \"p99_ms\": %.4g, \"runs\": %zu}",
        first_ ? "\n" : ",\n", r.name.c_str(), r.unit.c_str(), r.work / median / 1e9,
        r.work / best / 1e9, median * 1e3, p99 * 1e3, r.seconds.size());
    std::fflush(stdout);
    first_ = false;
  }
  Options options_;
  bool first_ = true;
};

std::vector<std::uint16_t> some_bf16(std::int64_t n, float scale) {
  std::vector<std::uint16_t> out;
  out.reserve(static_cast<std::size_t>(n));
  // Use huge pages, as packed weights do; the advice must come before the first touch.
  const auto first = (reinterpret_cast<std::uintptr_t>(out.data()) + 4095) & ~std::uintptr_t{4095};
  if (n > (1 << 21))
    (void)madvise(reinterpret_cast<void*>(first), static_cast<std::size_t>(n) * 2 - 4096,
                  MADV_HUGEPAGE);
  out.resize(static_cast<std::size_t>(n));
  std::uint32_t state = 12345;
  for (auto& x : out) {
    state = state * 1664525u + 1013904223u;
    x = f32_to_bf16((static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * scale);
  }
  return out;
}

std::vector<float> some_floats(std::int64_t n) {
  const auto bits = some_bf16(n, 1.0f);
  std::vector<float> out(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) out[i] = bf16_to_f32(bits[i]);
  return out;
}

/// Sums a buffer with prefetch, which gives the highest read rate of this machine.
std::uint64_t read_all(const std::vector<std::uint16_t>& pool) {
  std::vector<std::uint64_t> sums(64, 0);
  const auto lines = static_cast<std::int64_t>(pool.size() / 32);
  parallel_tasks(64, [&](std::int64_t task) {
    const auto* p = reinterpret_cast<const std::uint64_t*>(pool.data()) + lines * task / 64 * 8;
    const auto* end = reinterpret_cast<const std::uint64_t*>(pool.data()) +
                      lines * (task + 1) / 64 * 8;
    std::uint64_t a = 0, b = 0, c = 0, d = 0;
    for (; p < end; p += 8) {
      __builtin_prefetch(p + 256);
      a += p[0] ^ p[1];
      b += p[2] ^ p[3];
      c += p[4] ^ p[5];
      d += p[6] ^ p[7];
    }
    sums[static_cast<std::size_t>(task)] = a + b + c + d;
  });
  std::uint64_t total = 0;
  for (const std::uint64_t s : sums) total += s;
  return total;
}

/// oneDNN's bf16 matmul with its own packing. Unlike our kernel it takes bf16 instead of f32
/// inputs, which is its best case.
class OneDnn {
 public:
  OneDnn(std::int64_t m, std::int64_t n, std::int64_t k, const std::vector<std::uint16_t>& w) {
    using namespace dnnl;
    omp_set_num_threads(num_threads());  // uses as many oneDNN threads as ours
    using T = memory::data_type;
    const memory::desc x({m, k}, T::bf16, memory::format_tag::ab),
        y({m, n}, T::f32, memory::format_tag::ab);
    const matmul::primitive_desc pd(
        matmul::desc(x, memory::desc({k, n}, T::bf16, memory::format_tag::any), y), engine_);
    weights_ = memory(pd.weights_desc(), engine_);
    memory plain(memory::desc({k, n}, T::bf16, memory::format_tag::ba), engine_,
                 const_cast<std::uint16_t*>(w.data()));
    reorder(plain, weights_).execute(stream_, plain, weights_);
    x_ = memory(x, engine_);
    y_ = memory(y, engine_);
    std::memset(x_.get_data_handle(), 0, x.get_size());
    stream_.wait();
    product_ = matmul(pd);
  }
  void run() {
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::memory weights_, x_, y_;
  dnnl::matmul product_;
};

/// Returns null if oneDNN has no bf16 product for this CPU.
std::unique_ptr<OneDnn> one_dnn(std::int64_t m, std::int64_t n, std::int64_t k,
                                const std::vector<std::uint16_t>& w) {
  try {
    return std::make_unique<OneDnn>(m, n, k, w);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

std::unique_ptr<PackedMatrix> packed(const std::vector<std::uint16_t>& w, std::int64_t n,
                                     std::int64_t k, WeightFormat format) {
  const WeightPart part{w.data(), n, std::nullopt};
  auto result = pack_weights({&part, 1}, k, DType::kBF16, format);
  if (!result.ok()) std::abort();
  return std::move(result).value();
}

void check(const Status& s) {
  if (!s.ok()) {
    std::fprintf(stderr, "%s\n", s.to_string().c_str());
    std::exit(1);
  }
}

void bench_memory_and_decode(Runner& runner, const Options& options) {
  constexpr std::int64_t kN = 4096, kK = 4096;
  const int matrices = options.quick ? 8 : 16;  // 32 MiB each
  const auto pool = some_bf16(kN * kK * matrices, 0.02f);
  const auto w = some_bf16(kN * kK, 0.02f);
  std::map<WeightFormat, std::vector<std::unique_ptr<PackedMatrix>>> all;
  for (const auto format : {WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kF32,
                            WeightFormat::kW4, WeightFormat::kW8}) {
    for (int i = 0; i < matrices; ++i) all[format].push_back(packed(w, kN, kK, format));
  }
  std::vector<std::unique_ptr<OneDnn>> libs;
  for (int i = 0; i < matrices; ++i) libs.push_back(one_dnn(1, kN, kK, w));
  const auto x = some_floats(16 * kK);
  std::vector<float> y(16 * kN);
  volatile std::uint64_t sink = 0;
  std::vector<Row> rows;
  rows.push_back({"memory read",
                  "GB/s",
                  static_cast<double>(pool.size()) * 2,
                  [&] { sink = sink + read_all(pool); },
                  {}});
  const auto decode = [&](WeightFormat format, const char* name, std::int64_t m) {
    double bytes = 0;
    for (const auto& matrix : all[format]) bytes += static_cast<double>(matrix->bytes());
    rows.push_back({std::string("decode ") + name + " m=" + std::to_string(m),
                    "GB/s",
                    bytes,
                    [&, format, m] {
                      for (const auto& matrix : all[format])
                        check(matrix->multiply(x.data(), m, kK, nullptr, y.data(), kN));
                    },
                    {}});
  };
  for (const std::int64_t m : {1, 4, 16}) decode(WeightFormat::kBF16, "bf16", m);
  for (const std::int64_t m : {1, 16}) decode(WeightFormat::kInt8, "int8", m);
  for (const std::int64_t m : {1, 4, 16}) decode(WeightFormat::kW4, "w4", m);
  for (const std::int64_t m : {1, 16}) decode(WeightFormat::kW8, "w8", m);
  decode(WeightFormat::kF32, "f32", 1);
  if (libs.front() != nullptr)
    rows.push_back({"decode oneDNN bf16 m=1",
                    "GB/s",
                    2.0 * kN * kK * matrices,
                    [&] {
                      for (const auto& lib : libs) lib->run();
                    },
                    {}});
  runner.group(std::move(rows));
}

void bench_products(Runner& runner) {
  struct Shape {
    const char* name;
    std::int64_t m, n, k;
  };
  const Shape shapes[] = {{"4096x4096", 512, 4096, 4096},    {"4096x4096", 64, 4096, 4096},
                          {"0.5B qkv", 512, 1152, 896},      {"0.5B gate+up", 512, 9728, 896},
                          {"0.5B down", 512, 896, 4864},     {"1B qkv", 512, 3072, 2048},
                          {"1B gate+up", 512, 16384, 2048},  {"1B down", 512, 2048, 8192},
                          {"small 256x256", 512, 256, 256},  {"small 256x256", 16, 256, 256},
                          {"small 1024x256", 512, 1024, 256}};
  for (const Shape& s : shapes) {
    const auto w = some_bf16(s.n * s.k, 0.02f);
    const auto x = some_floats(s.m * s.k);
    std::vector<float> y(static_cast<std::size_t>(s.m * s.n));
    const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                         static_cast<double>(s.k);
    const auto bf16 = packed(w, s.n, s.k, WeightFormat::kBF16),
               int8 = packed(w, s.n, s.k, WeightFormat::kInt8),
               f32 = packed(w, s.n, s.k, WeightFormat::kF32),
               w4 = packed(w, s.n, s.k, WeightFormat::kW4),
               w8 = packed(w, s.n, s.k, WeightFormat::kW8);
    const auto lib = one_dnn(s.m, s.n, s.k, w);
    const std::string tail = std::string(" ") + s.name + " m=" + std::to_string(s.m);
    const auto ours = [&](const PackedMatrix& matrix) {
      return [&] { check(matrix.multiply(x.data(), s.m, s.k, nullptr, y.data(), s.n)); };
    };
    std::vector<Row> rows;
    if (lib != nullptr)
      rows.push_back({"product oneDNN bf16" + tail, "GFLOP/s", flops, [&] { lib->run(); }, {}});
    rows.insert(rows.end(), {{"product bf16" + tail, "GFLOP/s", flops, ours(*bf16), {}},
                             {"product int8" + tail, "GFLOP/s", flops, ours(*int8), {}},
                             {"product w4" + tail, "GFLOP/s", flops, ours(*w4), {}},
                             {"product w8" + tail, "GFLOP/s", flops, ours(*w8), {}},
                             {"product f32" + tail, "GFLOP/s", flops, ours(*f32), {}}});
    runner.group(std::move(rows));
  }
}

struct AttentionCase {
  const char* name;
  std::int64_t rows, kv_rows;
  std::int32_t kv_heads, group, dim;
};

void bench_attention(Runner& runner, const Options& options) {
  const AttentionCase cases[] = {{"decode", 1, 16384, 8, 1, 128},  {"decode", 1, 16384, 8, 4, 128},
                                 {"decode", 1, 4096, 2, 7, 64},    {"prefill", 512, 512, 2, 7, 64},
                                 {"prefill", 512, 8192, 2, 7, 64}, {"prefill", 512, 4096, 8, 4, 64},
                                 {"prefill", 512, 4096, 8, 4, 128}};
  for (const AttentionCase& c : cases) {
    std::vector<Row> group;
    std::vector<std::shared_ptr<void>> keep;
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const auto e = static_cast<std::int64_t>(dtype_bytes(dtype));
      const std::string name = std::string("attention ") + c.name + " " +
                               std::string(dtype_name(dtype)) + " rows=" + std::to_string(c.rows) +
                               " keys=" + std::to_string(c.kv_rows) +
                               " kv_heads=" + std::to_string(c.kv_heads) +
                               " group=" + std::to_string(c.group) +
                               " dim=" + std::to_string(c.dim);
      if (name.find(options.only) == std::string::npos) continue;
      const std::int64_t pages = (c.kv_rows + kPageTokens - 1) / kPageTokens,
                         page_bytes = 2 * kPageTokens * c.kv_heads * c.dim * e;
      // Decode reads different memory every time, as layers do.
      const int copies = c.rows == 1 ? 8 : 1;
      // Use huge pages.
      auto memory = std::make_shared<std::vector<std::uint16_t>>(
          some_bf16(pages * page_bytes * copies / 2, 0.0f));
      const auto values = some_floats(4096);
      for (std::int64_t i = 0; i < pages * page_bytes * copies / e; ++i)
        store_f32(memory->data(), dtype, i, values[i % 4093]);
      auto tables = std::make_shared<std::vector<std::vector<const void*>>>(copies);
      for (int copy = 0; copy < copies; ++copy) {
        for (std::int64_t p = 0; p < pages; ++p)
          (*tables)[copy].push_back(memory->data() + (copy * pages + p) * page_bytes / 2);
      }
      auto positions = std::make_shared<std::vector<std::int32_t>>();
      for (std::int64_t r = 0; r < c.kv_rows; ++r)
        positions->push_back(static_cast<std::int32_t>(r));
      const std::int64_t width = std::int64_t{c.kv_heads} * c.group * c.dim;
      auto q = std::make_shared<std::vector<float>>(some_floats(c.rows * width));
      auto out = std::make_shared<std::vector<float>>(q->size());
      auto turn = std::make_shared<int>(0);
      keep.push_back(memory);
      const auto run = [=] {
        const auto& table = (*tables)[static_cast<std::size_t>((*turn)++ % copies)];
        const KvView kv{
            table.data(),   positions->data(),       c.kv_rows, c.kv_heads, c.dim, dtype,
            page_bytes / 2, kPageTokens * c.dim * e, c.dim * e, true};
        check(attention({q->data(), positions->data() + (c.kv_rows - c.rows), c.rows, width,
                         c.kv_heads * c.group, 1.0f / std::sqrt(static_cast<float>(c.dim)), kv,
                         out->data(), width, nullptr}));
      };
      double pairs = 0;
      for (std::int64_t r = 0; r < c.rows; ++r)
        pairs += static_cast<double>(c.kv_rows - c.rows + r + 1);
      const bool decode = c.rows == 1;
      const double work = decode ? static_cast<double>(pages * page_bytes)
                                 : 4.0 * pairs * static_cast<double>(width);
      group.push_back({name, decode ? "GB/s" : "GFLOP/s", work, run, {}});
    }
    runner.group(std::move(group));
  }
}

void bench_rows(Runner& runner) {
  const std::int64_t rows = 512, dim = 4864;
  const auto x = some_floats(rows * 2 * dim), weight = some_floats(dim);
  std::vector<float> out(static_cast<std::size_t>(rows * dim));
  runner.group({{"swiglu 512x4864",
                 "GB/s",
                 12.0 * rows * dim,
                 [&] {
                   check(swiglu({x.data(), out.data(), rows, dim}));
                 },
                 {}},
                {"rms_norm 512x4864",
                 "GB/s",
                 8.0 * rows * dim,
                 [&] {
                   check(rms_norm({x.data(), weight.data(), out.data(), rows, dim, 1e-6f}));
                 },
                 {}}});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick")
      options.quick = true;
    else if (arg == "--cpu-time") {
      g_cpu_time = true;
      set_num_threads(1);
    } else if (arg == "--threads" && i + 1 < argc)
      set_num_threads(std::atoi(argv[++i]));
    else if (arg == "--only" && i + 1 < argc)
      options.only = argv[++i];
    else {
      std::fprintf(
          stderr,
          "usage: quire_kernels_bench [--quick] [--threads N] [--only SUBSTRING] [--cpu-time]\n");
      return 2;
    }
  }
  std::printf("{\"settings\": {\"isa\": \"%s\", \"threads\": %d, \"quick\": %s}, \"rows\": [",
              cpu_isa(), num_threads(), options.quick ? "true" : "false");
  Runner runner(options);
  const auto wanted = [&](const char* text) {
    return options.only.empty() || std::string(text).find(options.only) != std::string::npos ||
           options.only.find(text) != std::string::npos;
  };
  if (wanted("memory read") || wanted("decode")) bench_memory_and_decode(runner, options);
  if (wanted("product")) bench_products(runner);
  if (wanted("attention")) bench_attention(runner, options);
  if (wanted("swiglu") || wanted("rms_norm")) bench_rows(runner);
  std::printf("\n]}\n");
  return 0;
}
