#include "engine/encoder/text_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Must increase with every change in what a text's vector or score is.
constexpr std::uint64_t kRecipe = 1;
/// Tokens of the sequences that share a pass: enough rows for the products, few enough for caches.
constexpr std::int64_t kPassTokens = 512;
constexpr std::size_t kSpecialTokens = 2, kPairTokens = 3;

/// Runs passes over `inputs` on threads of its own. `take` gets the index of an input and its
/// states, [tokens, hidden], from any of them.
Status run_passes(const Bert& bert, std::span<const BertInput> inputs, int threads,
                  const std::function<void(std::size_t, const float*)>& take) {
  std::vector<std::pair<std::size_t, std::size_t>> passes;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t more = count_of(inputs[i].ids);
    if (passes.empty() || tokens + more > kPassTokens) {
      passes.emplace_back(i, i);
      tokens = 0;
    }
    passes.back().second = i + 1;
    tokens += more;
  }
  std::atomic<std::size_t> next{0};
  std::mutex mu;
  Status failed;
  const auto work = [&] {
    set_num_threads(1);
    std::vector<float> states;
    for (std::size_t p = next++; p < passes.size(); p = next++) {
      const auto [begin, end] = passes[p];
      if (const Status s = bert.run(inputs.subspan(begin, end - begin), states); !s.ok()) {
        const std::lock_guard lock(mu);
        if (failed.ok()) failed = s;
        return;
      }
      const float* at = states.data();
      for (std::size_t i = begin; i < end; ++i) {
        take(i, at);
        at += count_of(inputs[i].ids) * bert.config().hidden;
      }
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t wanted = std::min(passes.size(), to_size(std::max(threads, 1)));
  try {
    while (helpers.size() < wanted) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    if (helpers.empty()) work();  // fewer threads are slower but correct
  }
  helpers.clear();
  return failed;
}

/// Appends from[begin, end).
void append(std::vector<std::int32_t>& to, std::span<const std::int32_t> from, std::size_t begin,
            std::size_t end) {
  const auto part = from.subspan(begin, end - begin);
  to.insert(to.end(), part.begin(), part.end());
}

/// Scales to length 1; a vector of length 0 stays.
void normalize(std::vector<float>& v) {
  double squares = 0;
  for (const float x : v) squares += double{x} * x;
  const auto scale = static_cast<float>(squares > 0 ? 1 / std::sqrt(squares) : 0);
  for (float& x : v) x *= scale;
}

std::vector<float> pooled(const float* states, std::int64_t rows, std::int64_t hidden,
                          Pooling pooling) {
  if (pooling == Pooling::kFirst) return {states, states + hidden};
  std::vector<float> out(to_size(hidden), 0.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) out[at(c)] += states[r * hidden + c];
  }
  for (float& x : out) x /= static_cast<float>(rows);
  return out;
}

/// What both kinds of encoder read from a folder.
struct Parts {
  EncoderConfig config;
  EncoderInfo info;
  std::unique_ptr<WordPiece> words;
  std::unique_ptr<Bert> bert;
  BertTensors tensors;
  Sha256 hash;
};

Result<Parts> load_parts(const std::filesystem::path& folder, WeightFormat format) {
  Parts p;
  QUIRE_ASSIGN_OR_RETURN(p.config, read_encoder_config(folder));
  QUIRE_ASSIGN_OR_RETURN(const WordPieceFiles files, WordPieceFiles::read(folder));
  QUIRE_ASSIGN_OR_RETURN(WordPiece words, WordPiece::make(files));
  if (words.vocab_size() > p.config.bert.vocab)
    return Status::invalid("vocab_size", "the vocabulary has ids up to " +
                                             std::to_string(words.vocab_size() - 1) +
                                             ", but config.json says vocab_size is " +
                                             std::to_string(p.config.bert.vocab));
  p.words = std::make_unique<WordPiece>(std::move(words));
  QUIRE_ASSIGN_OR_RETURN(p.tensors, BertTensors::open(folder));
  QUIRE_ASSIGN_OR_RETURN(Bert bert, Bert::load(p.config.bert, format, p.tensors));
  p.bert = std::make_unique<Bert>(std::move(bert));
  p.info.name = std::filesystem::weakly_canonical(folder).filename().string();
  p.info.max_tokens = p.config.max_tokens;
  p.info.bytes = p.bert->bytes();
  p.info.weights = weight_format_name(format);
  const BertConfig& c = p.config.bert;
  p.hash.update_field("quire-encoder").update_u64(kRecipe).update_field(p.info.weights);
  p.hash.update_field(std::to_string(c.heads) + " " + std::to_string(c.layers) + " " +
                      std::to_string(c.eps * 1e12f) + " " + std::to_string(p.config.max_tokens) +
                      " " + std::to_string(static_cast<int>(p.config.pooling)));
  p.hash.update_field(p.config.question_prompt).update_field(p.config.text_prompt);
  for (const auto* file : {&files.tokenizer_json, &files.vocab_txt, &files.tokenizer_config})
    p.hash.update_field(file->value_or(""));
  return p;
}

Digest fingerprint_of(Parts& parts) {
  const auto tensors = parts.tensors.digest();
  return parts.hash.update(std::as_bytes(std::span(tensors))).finish();
}

}  // namespace

Result<std::unique_ptr<TextEncoder>> TextEncoder::load(const std::filesystem::path& folder,
                                                       WeightFormat format) {
  QUIRE_ASSIGN_OR_RETURN(Parts p, load_parts(folder, format));
  auto out = std::make_unique<TextEncoder>();
  p.info.fingerprint = fingerprint_of(p);
  p.info.dimension = p.config.bert.hidden;
  out->config_ = std::move(p.config);
  out->info_ = std::move(p.info);
  out->words_ = std::move(p.words);
  out->bert_ = std::move(p.bert);
  return out;
}

std::vector<std::int32_t> TextEncoder::encode(std::string_view text, EncoderRole role) const {
  const std::string& prompt = role == EncoderRole::kQuestion ? config_.question_prompt
                                                             : config_.text_prompt;
  std::vector<std::int32_t> out = {words_->cls()};
  const auto pieces = prompt.empty() ? words_->encode(text)
                                     : words_->encode(prompt + std::string(text));
  out.insert(out.end(), pieces.begin(), pieces.end());
  out.push_back(words_->sep());
  return out;
}

Result<std::vector<std::vector<float>>> TextEncoder::embed(
    std::span<const std::vector<std::int32_t>> sequences, int threads) const {
  std::vector<BertInput> inputs;
  for (const auto& ids : sequences) {
    if (count_of(ids) > info_.max_tokens)
      return Status::invalid("input", "a text has " + std::to_string(ids.size()) +
                                          " tokens; the encoder takes " +
                                          std::to_string(info_.max_tokens));
    inputs.push_back({ids});
  }
  std::vector<std::vector<float>> out(sequences.size());
  QUIRE_RETURN_IF_ERROR(run_passes(*bert_, inputs, threads, [&](std::size_t i, const float* at) {
    out[i] = pooled(at, count_of(inputs[i].ids), info_.dimension, config_.pooling);
    normalize(out[i]);
  }));
  return out;
}

Result<TextEncoder::Vectors> TextEncoder::embed_texts(std::span<const std::string> texts,
                                                      EncoderRole role, int threads) const {
  const std::size_t room = to_size(info_.max_tokens) - kSpecialTokens;
  std::vector<std::vector<std::int32_t>> windows;
  std::vector<std::size_t> text_of;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<std::int32_t> ids = encode(texts[i], role);
    for (std::size_t begin = 1; begin == 1 || begin + 1 < ids.size(); begin += room) {
      const std::size_t end = std::min(begin + room, ids.size() - 1);
      auto& window = windows.emplace_back(1, words_->cls());
      append(window, ids, begin, end);
      window.push_back(words_->sep());
      text_of.push_back(i);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(auto vectors, embed(windows, threads));
  Vectors out;
  out.vectors.resize(texts.size());
  for (std::size_t w = 0; w < windows.size(); ++w) {
    std::vector<float>& sum = out.vectors[text_of[w]];
    out.tokens += count_of(windows[w]);
    const bool only = (w == 0 || text_of[w - 1] != text_of[w]) &&
                      (w + 1 == windows.size() || text_of[w + 1] != text_of[w]);
    if (only) {
      sum = std::move(vectors[w]);
      continue;
    }
    sum.resize(vectors[w].size(), 0.0f);
    for (std::size_t c = 0; c < sum.size(); ++c)
      sum[c] += vectors[w][c] * static_cast<float>(windows[w].size());
    if (w + 1 == windows.size() || text_of[w + 1] != text_of[w]) normalize(sum);
  }
  return out;
}

Result<std::unique_ptr<CrossEncoder>> CrossEncoder::load(const std::filesystem::path& folder,
                                                         WeightFormat format) {
  QUIRE_ASSIGN_OR_RETURN(Parts p, load_parts(folder, format));
  const std::int64_t h = p.config.bert.hidden;
  if (!p.tensors.has("classifier.weight"))
    return Status::invalid("classifier.weight",
                           "the weights have no classifier.weight: the folder holds no "
                           "cross-encoder (BertForSequenceClassification)");
  auto out = std::make_unique<CrossEncoder>();
  QUIRE_ASSIGN_OR_RETURN(out->pooler_, p.tensors.floats("pooler.dense.weight", {h, h}));
  QUIRE_ASSIGN_OR_RETURN(out->pooler_bias_, p.tensors.floats("pooler.dense.bias", {h}));
  QUIRE_ASSIGN_OR_RETURN(out->label_, p.tensors.floats("classifier.weight", {1, h}));
  QUIRE_ASSIGN_OR_RETURN(const auto bias, p.tensors.floats("classifier.bias", {1}));
  out->label_bias_ = bias.front();
  if (p.config.bert.types < 2)
    return Status::invalid("type_vocab_size", "a cross-encoder needs two types of tokens");
  p.info.fingerprint = fingerprint_of(p);
  out->config_ = std::move(p.config);
  out->info_ = std::move(p.info);
  out->words_ = std::move(p.words);
  out->bert_ = std::move(p.bert);
  return out;
}

Result<CrossEncoder::Scores> CrossEncoder::score(std::string_view question,
                                                 std::span<const std::string> texts,
                                                 int threads) const {
  const std::vector<std::int32_t> asked = words_->encode(question);
  const std::size_t room = to_size(info_.max_tokens) - kPairTokens;
  Scores out;
  out.values.resize(texts.size());
  std::vector<BertInput> inputs;
  for (const std::string& text : texts) {
    // The text may be a whole document, and what is cut off below need not be tokenized.
    std::vector<std::int32_t> told = words_->encode(text, std::max(room, asked.size()));
    std::size_t first = asked.size(), second = told.size();
    if (first + second > room) {
      const std::size_t shorter = std::min({first, second, room / 2});
      (first <= second ? first : second) = shorter;
      (first <= second ? second : first) = room - shorter;
    }
    BertInput& input = inputs.emplace_back();
    input.ids.push_back(words_->cls());
    append(input.ids, asked, 0, first);
    input.ids.push_back(words_->sep());
    input.second = input.ids.size();
    append(input.ids, told, 0, second);
    input.ids.push_back(words_->sep());
    out.tokens += count_of(input.ids);
  }
  const std::int64_t h = config_.bert.hidden;
  QUIRE_RETURN_IF_ERROR(run_passes(*bert_, inputs, threads, [&](std::size_t i, const float* first) {
    double label = label_bias_;
    for (std::int64_t r = 0; r < h; ++r) {
      double sum = pooler_bias_[at(r)];
      for (std::int64_t c = 0; c < h; ++c) sum += double{pooler_[at(r * h + c)]} * first[c];
      label += std::tanh(sum) * label_[at(r)];
    }
    out.values[i] = static_cast<float>(1 / (1 + std::exp(-label)));
  }));
  return out;
}

}  // namespace quire
