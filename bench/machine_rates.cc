#include "bench/machine_rates.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "kernels/parallel.h"

namespace quire::bench {
namespace {

typedef std::uint64_t Lane __attribute__((vector_size(32)));

#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
std::uint64_t
read_all(const std::byte* data, std::int64_t bytes, std::int64_t ahead) {
  Lane a{}, b{}, c{}, d{};
  for (std::int64_t i = 0; i + 128 <= bytes; i += 128) {
    __builtin_prefetch(data + i + ahead, 0, 3);
    __builtin_prefetch(data + i + ahead + 64, 0, 3);
    const auto* v = reinterpret_cast<const Lane*>(data + i);
    a ^= v[0];
    b ^= v[1];
    c ^= v[2];
    d ^= v[3];
  }
  const Lane all = (a ^ b) ^ (c ^ d);
  return all[0] ^ all[1] ^ all[2] ^ all[3];
}

}  // namespace

bool uses_cpu_time() { return num_threads() == 1; }

double now_seconds() {
  timespec t{};
  clock_gettime(uses_cpu_time() ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

ReadRate::ReadRate(std::int64_t bytes) : part_(bytes / num_threads() / 4096 * 4096) {
  constexpr std::size_t kHuge = std::size_t{1} << 21;
  buffer_ = static_cast<std::byte*>(
      std::aligned_alloc(kHuge, (static_cast<std::size_t>(bytes) / kHuge + 1) * kHuge));
  if (!buffer_) throw std::bad_alloc();
  // Huge pages, as packed weights have them; a refusal costs only speed.
  (void)::madvise(buffer_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  parallel_for(num_threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      std::memset(buffer_ + t * part_, static_cast<int>(t) + 1, static_cast<std::size_t>(part_));
  });
  double best = 0;
  for (std::int64_t ahead : {512, 1024, 2048, 4096}) {
    const double rate = measure_at(ahead);
    if (rate > best) ahead_ = ahead;
    best = std::max(best, rate);
  }
}

ReadRate::~ReadRate() { std::free(buffer_); }

double ReadRate::measure() const { return measure_at(ahead_); }

double ReadRate::measure_at(std::int64_t ahead) const {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(num_threads()));
  const double start = now_seconds();
  parallel_for(num_threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      sums[static_cast<std::size_t>(t)] = read_all(buffer_ + t * part_, part_, ahead);
  });
  const double seconds = (now_seconds() - start);
  for (volatile std::uint64_t sum : sums) (void)sum;  // the reads must not be optimised away
  return static_cast<double>(part_ * num_threads()) / seconds;
}

struct OneDnnRate::State {
  dnnl::engine cpu{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{cpu};
  dnnl::matmul product;
  dnnl::memory x, y;
  std::vector<dnnl::memory> weights;
  double flops = 0;
};

OneDnnRate::OneDnnRate(std::int64_t m, std::int64_t k, std::int64_t n, int num_weights) {
  using dnnl::memory;
  using Tag = memory::format_tag;
  using Type = memory::data_type;
  // oneDNN uses as many threads as the kernels that it is compared with.
  omp_set_num_threads(num_threads());
  try {
    auto s = std::make_unique<State>();
    const memory::desc xd({m, k}, Type::bf16, Tag::ab), wd({k, n}, Type::bf16, Tag::any),
        yd({m, n}, Type::f32, Tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(xd, wd, yd), s->cpu);
    s->product = dnnl::matmul(plan);
    const auto zeroed = [&](const memory::desc& desc) {
      memory out(desc, s->cpu);
      std::memset(out.get_data_handle(), 0, desc.get_size());
      return out;
    };
    s->x = zeroed(plan.src_desc());
    s->y = zeroed(plan.dst_desc());
    for (int i = 0; i < num_weights; ++i) s->weights.push_back(zeroed(plan.weights_desc()));
    s->flops = 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n) *
               num_weights;
    state_ = std::move(s);
    (void)measure();
  } catch (const dnnl::error&) {
    state_.reset();
  }
}

OneDnnRate::~OneDnnRate() = default;

double OneDnnRate::measure() const {
  if (!state_) return 0;
  const double start = now_seconds();
  for (dnnl::memory& weight : state_->weights) {
    state_->product.execute(
        state_->stream,
        {{DNNL_ARG_SRC, state_->x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, state_->y}});
  }
  state_->stream.wait();
  return state_->flops / (now_seconds() - start);
}

}  // namespace quire::bench
