// Measures the scoring of blocks for selection: the plain product over block means against FAISS
// IndexFlatIP, for one layer of one request.
//   quire_select_bench [--quick]
// Block means differ for every request, so an index is filled before each search; `faiss search`
// excludes the filling.
#include <faiss/IndexFlat.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "engine/select/block_scores.h"
#include "kernels/choice/topk.h"

namespace {

double median_us(bool quick, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> us;
  const auto start = Clock::now();
  do {
    const auto from = Clock::now();
    run();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - from).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < (quick ? 0.1 : 1.0) ||
           us.size() < 5);
  std::nth_element(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2), us.end());
  return us[us.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  omp_set_num_threads(1);
  std::printf("{\"settings\": {\"threads\": 1, \"top\": \"a sixth of the blocks\"}, \"rows\": [");
  bool first = true;
  // HK * d of Qwen2.5-0.5B, Llama-3.2-1B and Llama-3.1-8B.
  for (const std::int64_t dim : {std::int64_t{128}, std::int64_t{512}, std::int64_t{1024}}) {
    for (const std::int64_t blocks :
         {std::int64_t{64}, std::int64_t{512}, std::int64_t{4096}, std::int64_t{32768}}) {
      std::mt19937 rng(1);
      std::normal_distribution<float> normal;
      std::vector<float> means(static_cast<std::size_t>(blocks * dim)),
          query(static_cast<std::size_t>(dim)), scores(static_cast<std::size_t>(blocks));
      for (float& x : means) x = normal(rng);
      for (float& x : query) x = normal(rng);
      const std::int64_t top = blocks / 6;
      std::vector<float> best(static_cast<std::size_t>(top));
      std::vector<faiss::Index::idx_t> ids(static_cast<std::size_t>(top));
      faiss::IndexFlatIP index(dim);
      index.add(blocks, means.data());
      const double plain = median_us(quick, [&] {
        quire::block_scores(query, means, scores);
        (void)quire::top_k(scores, top);
      });
      const double search = median_us(
          quick, [&] { index.search(1, query.data(), top, best.data(), ids.data()); });
      const double whole = median_us(quick, [&] {
        faiss::IndexFlatIP fresh(dim);
        fresh.add(blocks, means.data());
        fresh.search(1, query.data(), top, best.data(), ids.data());
      });
      std::printf(
          "%s\n  {\"dim\": %lld, \"blocks\": %lld, \"plain_us\": %.1f, \"faiss_search_us\": %.1f, "
          "\"faiss_us\": %.1f}",
          first ? "" : ",", static_cast<long long>(dim), static_cast<long long>(blocks), plain,
          search, whole);
      std::fflush(stdout);
      first = false;
    }
  }
  std::printf("\n]}\n");
  return 0;
}
