// Measures the cost of recomputing a part of cached documents against a full prefill of their
// concatenation, per recomputer, and how long the longest step blocks others. It uses random
// weights of a published shape. Stored KV is right in layer 0, where a pass checks it, and random
// above. Prints {"settings", "rows"}.
//   quire_recompute_bench [--quick] [--documents N] [--tokens N] [--rounds N]
#include <ctime>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/machine_rates.h"
#include "bench/model_shapes.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "engine/recompute/recomputer.h"
#include "engine/record/kv_layout.h"
#include "engine/select/selector.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

constexpr std::int32_t kBlock = 64;
constexpr std::int64_t kChunk = 512;

struct Options {
  bool quick = false;
  int documents = 6, tokens = 1344, rounds = 1;  // 21 blocks each, so three anchors are a seventh
};

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::exit(1);
}
template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

/// Wall time and CPU time of the process; on a busy machine only the second is comparable.
struct Times {
  double wall_s = 0, cpu_s = 0;
};
class Stopwatch {
 public:
  Times read() const {
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_).count(),
            static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC};
  }

 private:
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
  std::clock_t cpu_ = std::clock();
};

/// Stored values of all documents.
class Stored final : public StoredKv {
 public:
  Stored(KvLayout layout, int documents)
      : layout_(std::move(layout)), values_(static_cast<std::size_t>(documents)) {
    for (auto& document : values_) {
      for (std::int32_t b = 0; b < layout_.num_blocks(); ++b) {
        for (std::int32_t g = 0; g < layout_.num_groups(); ++g)
          document.emplace_back(static_cast<std::size_t>(layout_.value_bytes(b, g)));
      }
    }
  }
  std::vector<std::byte>& value(std::int32_t context, std::int32_t block, std::int32_t layer) {
    return values_[static_cast<std::size_t>(context)][static_cast<std::size_t>(
        block * layout_.num_groups() + layout_.group_of(layer))];
  }
  const KvLayout& layout() const { return layout_; }
  Result<RawKvView> block(std::int32_t context, std::int32_t block,
                          std::int32_t layer) const override {
    return layout_.view(const_cast<Stored*>(this)->value(context, block, layer), block, layer);
  }

 private:
  KvLayout layout_;
  std::vector<std::vector<std::vector<std::byte>>> values_;  ///< [document][block * groups + group]
};

/// Stores layer 0 of a document and ends the pass.
class Layer0 final : public ForwardHook {
 public:
  Layer0(Stored& stored, std::int32_t context, std::int64_t first)
      : stored_(stored), context_(context), first_(first) {}
  Status after_projection(LayerPass& pass) override {
    const KvLayout& layout = stored_.layout();
    for (std::int64_t row = 0; row < pass.qkv.rows; row += kBlock) {
      const auto block = static_cast<std::int32_t>((first_ + row) / kBlock);
      QUIRE_RETURN_IF_ERROR(kv_pack(
          {.k = pass.qkv.k + row * pass.qkv.ld,
           .v = pass.qkv.v + row * pass.qkv.ld,
           .rows = layout.tokens_in(block),
           .ldk = pass.qkv.ld,
           .ldv = pass.qkv.ld,
           .num_kv_heads = layout.shape().num_kv_heads,
           .head_dim = layout.shape().head_dim,
           .dtype = layout.shape().dtype,
           .out = stored_.value(context_, block, 0).data() + layout.layer_offset(block, 0)}));
    }
    std::fill(pass.write->begin(), pass.write->end(), std::uint8_t{0});
    std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }

 private:
  Stored& stored_;
  std::int32_t context_;
  std::int64_t first_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), shape_(options.quick ? kQwen05B : kLlama1B) {
    const ModelConfig config = take(parse_model_config(shape_.config));
    const std::int64_t window = 16 + std::int64_t{options.documents} * options.tokens;
    model_ = take(make_random_model(
        config, {.weights = WeightFormat::kBF16, .kv_dtype = DType::kF16, .max_positions = window},
        1));
    const KvShape shape{config.num_layers, config.num_kv_heads, config.head_dim, DType::kF16};
    stored_ = std::make_unique<Stored>(KvLayout(shape, options.tokens, kBlock), options.documents);
    pool_ = std::make_unique<PagePool>(
        PageFormat{config.num_kv_heads, config.head_dim, DType::kF16}, 0);
    std::mt19937 random(7);
    for (int d = 0; d < options.documents; ++d) {
      auto& ids = documents_.emplace_back(static_cast<std::size_t>(options.tokens));
      for (auto& id : ids)
        id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(config.vocab_size));
      contexts_.push_back({documents_.back(),
                           1 + std::int64_t{d} * options.tokens,
                           kBlock,
                           stored_->layout().num_blocks(),
                           false,
                           {}});
      store(d, random);
    }
    for (int d = 0; d < options.documents; ++d)
      contexts_[static_cast<std::size_t>(d)].token_ids = documents_[static_cast<std::size_t>(d)];
  }

  std::string run() {
    const Selection everything = select("all"), sparse = select("anchors");
    struct Case {
      const char* recomputer;
      const Selection* selection;
      std::optional<double> ratio;
    };
    const Case cases[] = {{"samkv_overwrite", &sparse, {}},
                          {"samkv_fusion", &sparse, {}},
                          {"epic", &everything, 0.143},
                          {"cacheblend", &everything, 0.143}};
    std::string rows;
    for (int round = 0; round < options_.rounds; ++round) {
      const Times whole = prefill();
      rows += row("recompute", whole, whole, whole.wall_s, 1, 1);
      for (const Case& c : cases) {
        double longest = 0;
        RecomputeReport report;
        const Times t = recompute(c.recomputer, *c.selection, c.ratio, longest, report);
        const double pairs = static_cast<double>(model_->config().num_layers) * options_.documents *
                             options_.tokens;
        rows += row(c.recomputer, t, whole, longest, static_cast<double>(report.replaced) / pairs,
                    static_cast<double>(report.projected) / pairs);
      }
    }
    rows.erase(rows.rfind(','));
    return "{\"settings\": {\"shape\": \"" + std::string(shape_.name) +
           "\", \"weights\": \"random bf16\", \"kv_dtype\": \"f16\", \"documents\": " +
           std::to_string(options_.documents) +
           ", \"tokens_per_document\": " + std::to_string(options_.tokens) +
           ", \"block\": 64, \"chunk\": 512, \"threads\": " + std::to_string(num_threads()) +
           ", \"isa\": \"" + cpu_isa() + "\"}, \"rows\": [\n  " + rows + "]}";
  }

 private:
  void store(int d, std::mt19937& random) {
    for (std::int32_t b = 0; b < stored_->layout().num_blocks(); ++b) {
      for (std::int32_t layer = 0; layer < model_->config().num_layers; ++layer) {
        auto& value = stored_->value(d, b, layer);
        auto* halves = reinterpret_cast<std::uint16_t*>(value.data());
        // Values are around one, of either sign.
        for (std::size_t i = 0; i < value.size() / 2; ++i)
          halves[i] = static_cast<std::uint16_t>((random() & 0x8000u) | 0x3800u |
                                                 (random() & 0x7ffu));
      }
    }
    const auto& ids = documents_[static_cast<std::size_t>(d)];
    for (std::int64_t first = 0; first < options_.tokens; first += kChunk) {
      const std::int64_t n = std::min<std::int64_t>(kChunk, options_.tokens - first);
      WorkingCache cache(*pool_, model_->config().num_layers);
      Layer0 hook(*stored_, d, first);
      forward_chunk(
          cache,
          std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
          first, &hook);
    }
  }
  void forward_chunk(WorkingCache& cache, std::span<const std::int32_t> ids, std::int64_t first,
                     ForwardHook* hook = nullptr) {
    std::vector<std::int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = hook;
    check(forward(*model_, request, workspace_));
  }
  Selection select(std::string_view name) const {
    std::vector<SelectableContext> contexts;
    for (const auto& c : contexts_)
      contexts.push_back({options_.tokens, c.offset, kBlock, c.num_blocks, false});
    SelectionInput input;
    input.contexts = contexts;
    input.num_layers = model_->config().num_layers;
    return take(take(selectors().make(name))->select(input));
  }
  Times prefill() {
    WorkingCache cache(*pool_, model_->config().num_layers);
    std::vector<std::int32_t> ids = {1};
    for (const auto& d : documents_) ids.insert(ids.end(), d.begin(), d.end());
    const Stopwatch watch;
    for (std::size_t first = 0; first < ids.size(); first += kChunk) {
      forward_chunk(
          cache, std::span(ids).subspan(first, std::min<std::size_t>(kChunk, ids.size() - first)),
          static_cast<std::int64_t>(first));
    }
    return watch.read();
  }
  Times recompute(std::string_view name, const Selection& selection, std::optional<double> ratio,
                  double& longest, RecomputeReport& report) {
    const ModelConfig& c = model_->config();
    WorkingCache cache(*pool_, c.num_layers);
    forward_chunk(cache, std::vector<std::int32_t>{1}, 0);
    for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
      for (std::int32_t d = 0; d < options_.documents; ++d) {
        for (const std::int32_t b : selection.kept(layer, d)) {
          const RawKvView raw = take(stored_->block(d, b, layer));
          std::vector<std::int32_t> positions(static_cast<std::size_t>(raw.num_rows));
          std::iota(positions.begin(), positions.end(),
                    static_cast<std::int32_t>(contexts_[static_cast<std::size_t>(d)].offset) +
                        b * kBlock);
          check(cache.place(layer, model_->rope(), raw, take(cache.add_rows(layer, positions))));
        }
      }
    }
    RecomputeInput input;
    input.contexts = contexts_;
    input.num_layers = c.num_layers;
    input.num_heads = c.num_heads;
    input.num_kv_heads = c.num_kv_heads;
    input.head_dim = c.head_dim;
    input.recompute_ratio = ratio;
    input.selection = &selection;
    input.stored = stored_.get();
    input.cache = &cache;
    input.rope = &model_->rope();
    const Stopwatch watch;
    const auto recomputer = take(recomputers().make(name));
    const auto pass = take(recomputer->prepare(input));
    while (!pass->done()) {
      const Stopwatch step;
      check(pass->step(*model_, cache, workspace_, kChunk));
      longest = std::max(longest, step.read().wall_s);
    }
    report = pass->report();
    return watch.read();
  }
  static std::string row(const char* name, const Times& t, const Times& whole, double longest,
                         double replaced, double projected) {
    char text[400];
    std::snprintf(
        text, sizeof text,
        "{\"recomputer\": \"%s\", \"recompute_ratio\": %.4f, \"projected_ratio\": %.4f, "
        "\"wall_s\": %.2f, \"cpu_s\": %.2f, "
        "\"of_prefill_wall\": %.4f, \"of_prefill_cpu\": %.4f, \"longest_step_s\": %.2f},\n  ",
        name, replaced, projected, t.wall_s, t.cpu_s, t.wall_s / whole.wall_s,
        t.cpu_s / whole.cpu_s, longest);
    std::fprintf(stderr, "%s", text);
    return text;
  }

  const Options options_;
  const ModelShape shape_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Stored> stored_;
  std::unique_ptr<PagePool> pool_;
  std::vector<std::vector<std::int32_t>> documents_;
  std::vector<RecomputableContext> contexts_;
  ForwardWorkspace workspace_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    int* number = arg == "--documents" ? &options.documents
                  : arg == "--tokens"  ? &options.tokens
                  : arg == "--rounds"  ? &options.rounds
                                       : nullptr;
    if (arg == "--quick") {
      options.quick = true;
      options.documents = 3;
    } else if (number && value) {
      *number = std::clamp(std::atoi(value), 1, 8192);
      ++i;
    } else {
      std::fprintf(
          stderr,
          "usage: quire_recompute_bench [--quick] [--documents N] [--tokens N] [--rounds N]\n");
      return 2;
    }
  }
  std::printf("%s\n", quire::bench::Bench(options).run().c_str());
  return 0;
}
