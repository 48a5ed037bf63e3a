// Measures what a draft costs and saves until the first token: look-ahead with SamKV over cached
// documents, SpecPC before a long plain prompt, and sparse prefill of it. With random weights,
// Qwen2.5-0.5B's shape drafts for Llama-3.2-1B's, with one vocabulary. Prints {"settings", "rows"}.
//   quire_draft_speed_bench [--quick] [--parts lookahead,specpc,sparse] [--tokens N,N] [--documents
//   N] [--rounds N] [--draft-weights F] [--model-dir DIR with tokenizer]
// --tokens: lengths of plain prompts (8192,16384); SpecPC takes the first. --draft-weights: same,
// int8 or w8a8.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cached_documents.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

using Given = std::map<std::string, std::string, std::less<>>;

struct Options {
  std::string parts = "lookahead,specpc,sparse", draft_weights = "same";
  std::vector<std::int64_t> tokens = {8192, 16384};
  int documents = 10, tokens_per_document = 400, rounds = 3;
  std::string tokenizer_dir = default_tokenizer_dir();
};

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", x);
  return text;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), folder_("quire-draft") {
    DocumentsOptions documents{.shape = kLlama1B,
                               .tokenizer_dir = options.tokenizer_dir,
                               .store_path = folder_.path() / "store"};
    documents.max_positions = std::max<std::int64_t>(longest() + 256, 8192);
    documents.draft = kLlamaDraft;
    documents.draft_weights = options.draft_weights;
    documents.draft_document_kv = wants("lookahead");
    cached_ = std::make_unique<CachedDocuments>(documents);
  }

  std::string run() {
    if (wants("lookahead")) lookahead();
    if (wants("specpc")) specpc();
    if (wants("sparse")) sparse();
    return "{\"settings\": {\"shape\": \"" + std::string(kLlama1B.name) + "\", \"draft\": \"" +
           kLlamaDraft.name + "\", \"draft_weights\": \"" + options_.draft_weights +
           "\", \"weights\": \"random\", \"documents\": " + std::to_string(options_.documents) +
           ", \"tokens_per_document\": " + std::to_string(options_.tokens_per_document) +
           ", \"rounds\": " + std::to_string(options_.rounds) +
           ", \"threads\": " + std::to_string(num_threads()) + "}, \"rows\": [" + rows_ + "]}";
  }

 private:
  /// Qwen2.5-0.5B with the target's vocabulary, so that ids mean the same.
  static constexpr ModelShape kLlamaDraft = {
      "Qwen2.5-0.5B, target's vocabulary",
      R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 24, )"
      R"("hidden_size": 896,
      "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2, )"
      R"("vocab_size": 128256, "rms_norm_eps": 1e-6,
      "max_position_embeddings": 32768, "rope_theta": 1000000.0, "tie_word_embeddings": true})"};

  bool wants(const std::string& part) const {
    return ("," + options_.parts + ",").find("," + part + ",") != std::string::npos;
  }
  std::int64_t longest() const {
    return *std::max_element(options_.tokens.begin(), options_.tokens.end());
  }

  struct Measured {
    std::vector<double> ttft, cpu;
    Answered last;
  };
  /// Measures with a new prompt every round, so that nothing is known from the last one.
  Measured plain(std::int64_t tokens, const CacheOptions& cache) {
    Measured out;
    cached_->set_answer_tokens(1);
    for (int round = 0; round < options_.rounds; ++round) {
      out.last = cached_->ask({}, random_ids(tokens, cached_->vocab_size(), ++seed_), cache);
      out.ttft.push_back(out.last.stats.ttft_ms);
      out.cpu.push_back(out.last.first_token_cpu_ms);
    }
    return out;
  }
  Measured over_documents(const CacheOptions& cache) {
    std::vector<std::size_t> order(static_cast<std::size_t>(options_.documents));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    Measured out;
    cached_->set_answer_tokens(64);
    for (int round = 0; round < options_.rounds; ++round) {
      out.last = cached_->ask(order, random_ids(24, cached_->vocab_size(), ++seed_), cache);
      out.ttft.push_back(out.last.stats.ttft_ms);
      out.cpu.push_back(out.last.first_token_cpu_ms);
    }
    return out;
  }
  void row(const std::string& name, const Measured& m, const std::string& more) {
    const QueryStats& s = m.last.stats;
    rows_ += (rows_.empty() ? "" : ", ") +
             ("{\"name\": \"" + name + "\", \"ttft_ms\": " + number(median(m.ttft))) +
             ", \"draft_ms\": " + number(s.draft_ms) + ", \"prompt_ms\": " + number(s.prompt_ms) +
             ", \"prefill_ms\": " + number(s.prefill_ms) +
             ", \"compress_ms\": " + number(s.compress_ms) +
             ", \"lookahead_tokens\": " + std::to_string(s.lookahead_tokens) +
             (m.cpu.empty() ? "" : ", \"cpu_ms\": " + number(median(m.cpu))) + more + "}";
    std::fprintf(stderr, "%s: %.0f ms\n", name.c_str(), median(m.ttft));
  }

  void lookahead() {
    std::vector<TokenIds> documents;
    for (int i = 0; i < options_.documents; ++i)
      documents.push_back(random_ids(options_.tokens_per_document, cached_->vocab_size(),
                                     static_cast<std::uint32_t>(i) + 7));
    cached_->ingest(std::move(documents));
    CacheOptions cache;
    cache.strategy = "samkv";
    (void)over_documents(cache);
    const Measured alone = over_documents(cache);
    row("samkv", alone, "");
    cache.compress = "speckv";
    for (const char* tokens : {"0", "8", "12", "16", "64"}) {
      cache.options = PlugOptions(
          Given{{"capacity", "512"}, {"drop_mode", "drop"}, {"lookahead", tokens}});
      const Measured m = over_documents(cache);
      row(std::string("samkv, speckv, look-ahead ") + tokens, m,
          ", \"added_to_samkv\": " + number(median(m.ttft) / median(alone.ttft) - 1) +
              ", \"cpu_added\": " + number(median(m.cpu) / median(alone.cpu) - 1));
    }
  }

  void specpc() {
    const std::int64_t tokens = options_.tokens.front();
    const Measured whole = dense(tokens);
    const std::string capacity = std::to_string(std::min<std::int64_t>(1024, tokens / 8));
    for (const auto& [name, given] : std::vector<std::pair<std::string, Given>>{
             {"by default", {}},
             {"everything read", {{"band", "0"}}},
             {"as published", {{"band", "0"}, {"lookahead", "1"}}},
             {"16 layers, no look-ahead", {{"layers", "16"}, {"lookahead", "1"}}}}) {
      CacheOptions cache;
      cache.strategy = "recompute";
      cache.prompt_compression = "specpc";
      Given settings = given;
      settings["capacity"] = capacity;
      cache.prompt_options = PlugOptions(settings);
      const Measured cut = plain(tokens, cache);
      if (!cut.last.plan.prompt_cut || !cut.last.plan.prompt_cut->note.empty())
        check(Status::internal("the prompt was not cut"));
      row("specpc, " + std::to_string(tokens) + " tokens, " + name, cut,
          ", \"kept_tokens\": " + std::to_string(cut.last.plan.prompt_cut->kept_tokens) +
              over(cut, whole));
    }
  }

  /// Returns the ratios to `whole`. CPU time of all threads until the first token is comparable
  /// even on a busy machine.
  static std::string over(const Measured& m, const Measured& whole) {
    return ", \"of_dense\": " + number(median(m.ttft) / median(whole.ttft)) +
           ", \"cpu_of_dense\": " + number(median(m.cpu) / median(whole.cpu));
  }

  Measured dense(std::int64_t tokens) {
    CacheOptions cache;
    cache.strategy = "recompute";
    const Measured m = plain(tokens, cache);
    row("dense, " + std::to_string(tokens) + " tokens", m, "");
    return m;
  }

  void sparse() {
    for (const std::int64_t tokens : options_.tokens) {
      const Measured whole = dense(tokens);
      for (const std::int64_t keys : {tokens / 8, tokens / 4}) {
        const std::string rows = std::to_string(keys / 64 * 64);
        CacheOptions cache;
        cache.strategy = "recompute";
        cache.compress = "speckv";
        cache.options = PlugOptions(Given{{"prefill", "sparse"},
                                          {"prefill_band", rows},
                                          {"prefill_columns", rows},
                                          {"lookahead", "0"},
                                          {"capacity", "1000000"}});
        const Measured m = plain(tokens, cache);
        if (!m.last.plan.sparse_prefill || m.last.plan.sparse_prefill->tokens == 0)
          check(Status::internal("the prompt was not sparse"));
        row("sparse, " + std::to_string(tokens) + " tokens, band and columns " + rows, m,
            ", \"attended_share\": " + number(m.last.plan.sparse_prefill->attended_share) +
                over(m, whole));
      }
    }
  }

  const Options options_;
  TempFolder folder_;
  std::unique_ptr<CachedDocuments> cached_;
  std::uint32_t seed_ = 1000;
  std::string rows_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const auto text = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    const auto count = [&] { return std::max(1, std::atoi(text().c_str())); };
    if (!std::strcmp(argv[i], "--quick")) {
      options.tokens = {2048};
      options.documents = 4;
      options.rounds = 1;
    } else if (!std::strcmp(argv[i], "--parts")) {
      options.parts = text();
    } else if (!std::strcmp(argv[i], "--tokens")) {
      options.tokens.clear();
      std::istringstream list(text());
      for (std::string one; std::getline(list, one, ',');)
        options.tokens.push_back(std::max(512, std::atoi(one.c_str())));
      if (options.tokens.empty()) return std::fprintf(stderr, "--tokens needs lengths\n"), 2;
    } else if (!std::strcmp(argv[i], "--documents")) {
      options.documents = count();
    } else if (!std::strcmp(argv[i], "--rounds")) {
      options.rounds = count();
    } else if (!std::strcmp(argv[i], "--draft-weights")) {
      options.draft_weights = text();
    } else if (!std::strcmp(argv[i], "--model-dir")) {
      options.tokenizer_dir = text();
    } else {
      return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
  }
  std::printf("%s\n", quire::bench::Bench(options).run().c_str());
  return 0;
}
