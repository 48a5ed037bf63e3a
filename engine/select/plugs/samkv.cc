#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/index.h"
#include "engine/select/head_scores.h"
#include "engine/select/lexical_scores.h"
#include "engine/select/samkv_scores.h"
#include "engine/select/selector.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

enum class Anchors : std::uint8_t { kPublished, kFirst, kByLength, kNone };
enum class KeepRule : std::uint8_t { kRetrievedOverD, kTotalOverD, kBudget };
enum class Ranking : std::uint8_t { kAuto, kHeads, kHeadsAndWords, kMatches, kKeys, kWords, kBoth };

/// Fewest blocks of a document with which `anchors=by_length` keeps the published three: they are
/// at most a quarter of it.
constexpr std::int32_t kLongEnough = 12;

/// The share of the documents' tokens that heads keep unless a request says otherwise.
constexpr double kHeadShare = 0.2;

/// The match of a block without a word of the question: such blocks of a document that matches come
/// before those of one that does not.
constexpr float kLeastMatch = 0.1f;

struct SamkvOptions {
  bool select = true;
  bool bias = true;
  BiasCos bias_cos = BiasCos::kLayer;
  BiasFrame bias_frame = BiasFrame::kRaw;
  Extremes extremes = Extremes::kDocument;
  bool whole_documents = true;
  std::optional<KeepRule> keep_rule;  ///< none: kRetrievedOverD, or kBudget if one is requested
  std::int64_t token_budget = 0;
  Anchors anchors = Anchors::kPublished;
  bool shared_layers = false;
  Ranking ranking = Ranking::kAuto;
  SamkvScoreOptions::Frame frame = SamkvScoreOptions::Frame::kRotated;
  float boost = 0;
  std::int64_t unit = 32;
  float neighbours = 0.5f;
  float links = 0.5f;

  /// Returns whether an option is set that only the published form reads.
  bool published() const {
    const SamkvOptions usual;
    return select != usual.select || bias != usual.bias || bias_cos != usual.bias_cos ||
           bias_frame != usual.bias_frame || extremes != usual.extremes ||
           whole_documents != usual.whole_documents || keep_rule != usual.keep_rule ||
           anchors != usual.anchors || shared_layers != usual.shared_layers ||
           frame != usual.frame || boost != usual.boost;
  }
  /// Returns whether an option is set that only the heads' form reads.
  bool of_heads() const {
    const SamkvOptions usual;
    return unit != usual.unit || neighbours != usual.neighbours || links != usual.links;
  }
};

OptionTable<SamkvOptions> option_table() {
  using Frame = SamkvScoreOptions::Frame;
  return {
      flag_option("select", &SamkvOptions::select, "off: anchor blocks only"),
      flag_option("bias", &SamkvOptions::bias,
                  "bend each document's query towards what the others are about"),
      words_option("bias_cos", &SamkvOptions::bias_cos,
                   {{"layer", BiasCos::kLayer}, {"head", BiasCos::kHead}},
                   "similarity behind the bias: of whole layers, or the mean over heads"),
      words_option("bias_frame", &SamkvOptions::bias_frame,
                   {{"raw", BiasFrame::kRaw}, {"rotated", BiasFrame::kRotated}},
                   "queries behind the bias: before RoPE, or as the model multiplies them"),
      words_option("extremes", &SamkvOptions::extremes,
                   {{"document", Extremes::kDocument}, {"question", Extremes::kQuestion}},
                   "blocks whose scores bound a document's share: the most and the least important "
                   "by its own statistics, or those that the question likes best and least"),
      words_option("contexts", &SamkvOptions::whole_documents,
                   {{"documents", true}, {"chunks", false}},
                   "what shares anchors, a bias and a place in D: whole documents, or each chunk"),
      words_option("keep_rule", &SamkvOptions::keep_rule,
                   {{"retrieved_over_D", KeepRule::kRetrievedOverD},
                    {"total_over_D", KeepRule::kTotalOverD},
                    {"budget", KeepRule::kBudget}},
                   "how many of the retrieved blocks stay; keep_ratio asks for budget"),
      number_option("token_budget", &SamkvOptions::token_budget, {0, 1e9},
                    "document tokens per layer under keep_rule budget; 0: from keep_ratio"),
      words_option("anchors", &SamkvOptions::anchors,
                   {{"published", Anchors::kPublished},
                    {"first", Anchors::kFirst},
                    {"by_length", Anchors::kByLength},
                    {"none", Anchors::kNone}},
                   "blocks that every document keeps: the first and the last two; the first; the "
                   "first of those below 12 blocks; none"),
      words_option("layer_mode", &SamkvOptions::shared_layers,
                   {{"per_layer", false}, {"shared", true}},
                   "shared: one set of blocks for all layers"),
      words_option(
          "score", &SamkvOptions::ranking,
          {{"auto", Ranking::kAuto},
           {"heads", Ranking::kHeads},
           {"heads_words", Ranking::kHeadsAndWords},
           {"matches", Ranking::kMatches},
           {"keys", Ranking::kKeys},
           {"words", Ranking::kWords},
           {"both", Ranking::kBoth}},
          "what ranks blocks: the model's calibrated retrieval heads, one set for all layers and "
          "no block forced; these, times how well the question's words match the document; the "
          "match of the block in place of the heads, without a pass of the question; the "
          "question's mean query against mean keys, as published; its words in the text; the sum "
          "of both, standardised. auto: keys where an option of the published form is set, else "
          "heads_words, or matches where the model is not calibrated"),
      number_option("unit", &SamkvOptions::unit, {1, 4096},
                    "tokens that heads choose or leave together; at least a block"),
      number_option("neighbours", &SamkvOptions::neighbours, {0, 1},
                    "part of the scores of the blocks beside it that heads add to a block's"),
      number_option("links", &SamkvOptions::links, {0, 1},
                    "part of a document's match with the question's words that goes on to "
                    "documents whose titles it names; 0: none"),
      words_option("score_frame", &SamkvOptions::frame,
                   {{"rotated", Frame::kRotated}, {"raw", Frame::kRaw}},
                   "compare query and blocks at their distance, or without positions"),
      number_option(
          "boost", &SamkvOptions::boost, {0, 100},
          "weight of what a draft's reading pays to a block's tokens, beside its score, both "
          "standardised; 0: none"),
  };
}

/// Returns the blocks that each context keeps in any case.
Selection::ContextBlocks anchors_of(std::span<const SelectableContext> contexts,
                                    const SamkvOptions& options) {
  return blocks_of_documents(contexts, options.whole_documents, [&](std::int32_t blocks) {
    const bool few = options.anchors == Anchors::kFirst ||
                     (options.anchors == Anchors::kByLength && blocks < kLongEnough);
    if (options.anchors == Anchors::kNone || blocks == 0) return std::vector<std::int32_t>();
    return few ? std::vector<std::int32_t>{0} : anchor_blocks(blocks);
  });
}

/// Sets the blocks that are chosen from: those that are no anchors.
void set_middle(const Selection::ContextBlocks& anchors,
                std::vector<SamkvScores::Document>& documents) {
  for (SamkvScores::Document& d : documents) {
    d.middle.resize(at(d.sketch->num_blocks()));
    std::iota(d.middle.begin(), d.middle.end(), 0);
    for (const std::int32_t a : anchors[at(d.context)]) std::erase(d.middle, a);
  }
}

/// A block that may be kept in addition to the anchors.
struct Candidate {
  std::size_t document = 0;  ///< index into the documents
  std::int32_t block = 0;
  float score = 0;        ///< comparable between documents
  bool retrieved = true;  ///< in the pool T; with a budget, other blocks follow it
};

/// Orders blocks best first, NaN last, ties in prompt order.
bool before(const Candidate& a, const Candidate& b) {
  if (a.retrieved != b.retrieved) return a.retrieved;
  const float none = -std::numeric_limits<float>::infinity();
  const float x = std::isnan(a.score) ? none : a.score, y = std::isnan(b.score) ? none : b.score;
  if (x != y) return x > y;
  return a.document != b.document ? a.document < b.document : a.block < b.block;
}

std::int64_t total_tokens(const SelectionInput& input) {
  std::int64_t n = 0;
  for (const SelectableContext& c : input.contexts) n += c.num_blocks > 0 ? c.num_tokens : 0;
  return n;
}

/// Returns the budget in tokens per layer; nothing: no budget.
std::optional<std::int64_t> budget_of(const SelectionInput& input, const SamkvOptions& options) {
  const bool budget = options.keep_rule ? *options.keep_rule == KeepRule::kBudget
                                        : input.keep_ratio || options.token_budget > 0;
  if (!budget) return std::nullopt;
  if (options.token_budget > 0) return options.token_budget;
  return static_cast<std::int64_t>(
      std::floor(input.keep_ratio.value_or(0) * static_cast<double>(total_tokens(input)) + 1e-6));
}

/// Returns the first `count` blocks of the pool, or as many from its front as fit the budget.
class Filter {
 public:
  Filter(const SelectionInput& input, const SamkvOptions& options,
         const Selection::ContextBlocks& anchors, std::int32_t num_documents)
      : input_(input),
        total_over_documents_(options.keep_rule == KeepRule::kTotalOverD),
        num_documents_(to_size(num_documents)),
        budget_(budget_of(input, options)) {
    for (std::size_t i = 0; i < input.contexts.size(); ++i) {
      total_blocks_ += input.contexts[i].num_blocks;
      for (const std::int32_t b : anchors[i]) anchor_tokens_ += tokens_in(input.contexts[i], b);
    }
  }
  bool by_budget() const { return budget_.has_value(); }
  std::optional<std::int64_t> budget() const { return budget_; }
  std::int64_t anchor_tokens() const { return anchor_tokens_; }

  void cut(std::vector<Candidate>& pool,
           const std::vector<SamkvScores::Document>& documents) const {
    std::sort(pool.begin(), pool.end(), before);
    if (budget_) {
      std::int64_t used = anchor_tokens_;
      std::size_t n = 0;
      for (; n < pool.size(); ++n) {
        used += tokens_in(input_.contexts[at(documents[pool[n].document].context)], pool[n].block);
        if (used > *budget_) break;
      }
      pool.resize(n);
    } else if (num_documents_ > 1) {
      pool.resize(std::min(pool.size(), count_for(pool.size())));
    }
  }

 private:
  static std::int64_t tokens_in(const SelectableContext& c, std::int32_t block) {
    return std::min<std::int64_t>(c.block_tokens,
                                  c.num_tokens - std::int64_t{block} * c.block_tokens);
  }
  std::size_t count_for(std::size_t pool) const {
    if (total_over_documents_) return to_size(total_blocks_) / num_documents_;
    return (pool + num_documents_ - 1) / num_documents_;
  }
  const SelectionInput& input_;
  const bool total_over_documents_;
  const std::size_t num_documents_;
  const std::optional<std::int64_t> budget_;
  std::int64_t anchor_tokens_ = 0, total_blocks_ = 0;
};

/// Standardises scores to mean 0 and standard deviation 1 over the middle blocks of all documents;
/// equal scores become 0.
void standardise(const std::vector<SamkvScores::Document>& documents,
                 std::vector<std::vector<float>*> scores) {
  double count = 0, sum = 0, squares = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    for (const std::int32_t b : documents[i].middle) {
      const double s = (*scores[i])[at(b)];
      count += 1;
      sum += s;
      squares += s * s;
    }
  }
  const double mean = count > 0 ? sum / count : 0,
               variance = count > 0 ? squares / count - mean * mean : 0;
  const double scale = variance > 1e-12 ? 1 / std::sqrt(variance) : 0;
  for (auto* document : scores) {
    for (float& s : *document) s = static_cast<float>((s - mean) * scale);
  }
}

/// Replaces scores by the lexical match, or adds it to them, standardised within a layer.
void add_words(const SelectionInput& input, Ranking ranking,
               std::vector<SamkvScores::Document>& documents) {
  BlockScores words = lexical_scores(input.contexts, lexical_text(input));
  const auto all = [&](auto&& of) {
    std::vector<std::vector<float>*> scores;
    for (auto& doc : documents) scores.push_back(&of(doc));
    return scores;
  };
  standardise(documents, all([&](auto& doc) -> auto& { return words[at(doc.context)]; }));
  for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
    if (ranking == Ranking::kBoth)
      standardise(documents, all([&](auto& doc) -> auto& { return doc.comparable[at(layer)]; }));
    for (auto& doc : documents) {
      const std::vector<float>& match = words[at(doc.context)];
      std::vector<float>& comparable = doc.comparable[at(layer)];
      for (std::size_t b = 0; b < comparable.size(); ++b)
        comparable[b] = match[b] + (ranking == Ranking::kBoth ? comparable[b] : 0);
      doc.score[at(layer)] = comparable;
    }
  }
}

/// Computes ŝ' = z(ŝ) + boost * z(largest token score in the block), standardised within a layer
/// over the middle blocks of all documents. A block that the draft attends to becomes a candidate,
/// too.
void add_boost(const SelectionInput& input, float boost,
               std::vector<SamkvScores::Document>& documents) {
  std::vector<std::vector<float>> largest;
  std::vector<std::vector<float>*> pointers;
  for (const auto& doc : documents) {
    const SelectableContext& context = input.contexts[at(doc.context)];
    const std::span<const float> tokens = input.draft_scores[at(doc.context)];
    std::vector<float>& blocks = largest.emplace_back(at(context.num_blocks), 0.0f);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      float& block = blocks[t / at(context.block_tokens)];
      block = std::max(block, tokens[t]);
    }
  }
  for (auto& blocks : largest) pointers.push_back(&blocks);
  standardise(documents, pointers);
  for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
    pointers.clear();
    for (auto& doc : documents) pointers.push_back(&doc.comparable[at(layer)]);
    standardise(documents, pointers);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      std::vector<float>& comparable = documents[i].comparable[at(layer)];
      for (std::size_t b = 0; b < comparable.size(); ++b) comparable[b] += boost * largest[i][b];
      documents[i].score[at(layer)] = comparable;
    }
  }
}

/// Implements SamKV: it keeps the anchors of every document and the other blocks that score best
/// for the question's personalised query. Unless the published form is asked for, the model's
/// retrieval heads choose instead, without anchors, or words where it is not calibrated.
class SamkvSelector final : public Selector {
 public:
  explicit SamkvSelector(const SamkvOptions& options) : options_(options) {}

  bool needs_sketches(const SelectionInput& input) const override {
    return !chooses_one_set(input) && decides(input);
  }

  std::optional<Selection> query_pass_blocks(const SelectionInput& input) const override {
    if (wants_head_queries(input))
      return Selection::shared(input.num_layers, Selection::ContextBlocks(input.contexts.size()));
    if (chooses_one_set(input) || !decides(input)) return std::nullopt;
    return anchors(input);
  }

  bool wants_head_queries(const SelectionInput& input) const override {
    return by_heads(input) && input.heads != nullptr && head_budget(input) < total_tokens(input);
  }

  // Measured in docs/strategies.md.
  bool keeps_as_stored(const SelectionInput& input) const override {
    return chooses_one_set(input);
  }

  bool wants_draft_scores(const SelectionInput& input) const override {
    return options_.boost > 0 && !chooses_one_set(input) && decides(input) &&
           !input.question.empty();
  }

  Result<Selection> select(const SelectionInput& input) const override {
    if (by_heads(input)) return select_by_heads(input);
    if (by_matches(input)) return select_by_matches(input);
    if (options_.of_heads())
      return Status::invalid(
          "cache.options",
          "unit, neighbours and links belong to score heads, heads_words or matches; this "
          "query is ranked by score keys");
    if (keeps_all(input)) return everything(input);
    if (!decides(input)) return anchors(input);
    if (input.query_pass == nullptr) return select_static(input);
    const SamkvScoreOptions options{.bias = options_.bias,
                                    .bias_cos = options_.bias_cos,
                                    .bias_frame = options_.bias_frame,
                                    .extremes = options_.extremes,
                                    .whole_documents = options_.whole_documents,
                                    .frame = options_.frame};
    QUIRE_ASSIGN_OR_RETURN(SamkvScores scores, samkv_scores(input, options));
    const Selection::ContextBlocks anchors = anchors_of(input.contexts, options_);
    set_middle(anchors, scores.documents);
    if (ranks_words()) add_words(input, options_.ranking, scores.documents);
    if (wants_draft_scores(input) && !input.draft_scores.empty())
      add_boost(input, options_.boost, scores.documents);
    const auto& documents = scores.documents;
    const Filter filter(input, options_, anchors, scores.num_documents());
    const std::vector<std::vector<float>> stable = stable_scores(input, documents);
    const Rest rest = !filter.by_budget() ? Rest::kOut
                      : ranks_words()     ? Rest::kEqual
                                          : Rest::kBehind;
    const auto pool_of = [&](auto&& own, auto&& comparable) {
      std::vector<Candidate> pool;
      for (std::size_t i = 0; i < documents.size();)
        i = add_candidates(documents, i, own, comparable, rest, pool);
      filter.cut(pool, documents);
      return pool;
    };
    Selection out;
    if (options_.shared_layers) {
      const auto mean = [&](std::size_t i) -> const std::vector<float>& { return stable[i]; };
      out = Selection::shared(input.num_layers,
                              with_chosen(anchors, documents, pool_of(mean, mean)));
    } else {
      std::vector<Selection::ContextBlocks> kept(at(input.num_layers));
      parallel_tasks(input.num_layers, [&](std::int64_t layer) {
        const auto own = [&](std::size_t i) -> const std::vector<float>& {
          return documents[i].score[at(layer)];
        };
        const auto comparable = [&](std::size_t i) -> const std::vector<float>& {
          return documents[i].comparable[at(layer)];
        };
        kept[at(layer)] = with_chosen(anchors, documents, pool_of(own, comparable));
      });
      out = Selection::per_layer(std::move(kept));
    }
    out.scores.resize(input.contexts.size());
    out.contexts.resize(input.contexts.size());
    for (std::size_t i = 0; i < documents.size(); ++i) {
      out.scores[at(documents[i].context)] = stable[i];
      auto& note = out.contexts[at(documents[i].context)];
      note.keep_share = static_cast<float>(documents[i].keep_share);
      if (options.bias && scores.num_documents() > 1) note.bias_weight = documents[i].bias_weight;
    }
    out.anchors = anchors;
    note_budget(filter, out);
    return out;
  }

 private:
  /// Returns whether the calibrated heads rank blocks. Without a question they have nothing to ask.
  bool by_heads(const SelectionInput& input) const {
    if (options_.ranking == Ranking::kHeads || options_.ranking == Ranking::kHeadsAndWords)
      return !input.question.empty();
    return options_.ranking == Ranking::kAuto && input.heads != nullptr &&
           !input.question.empty() && !options_.published();
  }
  /// Returns whether the question's words rank blocks alone.
  bool by_matches(const SelectionInput& input) const {
    if (input.question.empty()) return false;
    return options_.ranking == Ranking::kMatches ||
           (options_.ranking == Ranking::kAuto && input.heads == nullptr && !options_.published());
  }
  /// Returns whether one set of blocks is chosen for all layers, and none is forced.
  bool chooses_one_set(const SelectionInput& input) const {
    return by_heads(input) || by_matches(input);
  }
  std::int64_t head_budget(const SelectionInput& input) const {
    if (options_.token_budget > 0) return options_.token_budget;
    const double share = input.keep_ratio.value_or(kHeadShare);
    const auto tokens = static_cast<std::int64_t>(
        std::floor(share * static_cast<double>(total_tokens(input)) + 1e-6));
    return share > 0 ? std::max<std::int64_t>(tokens, 1) : tokens;
  }
  Result<Selection> select_by_heads(const SelectionInput& input) const {
    QUIRE_RETURN_IF_ERROR(check_one_set());
    if (options_.ranking == Ranking::kHeads && options_.links != SamkvOptions().links)
      return Status::invalid("cache.options.links",
                             "links passes matches of words on, which score heads does not read; "
                             "take score heads_words, or leave links out");
    if (input.heads == nullptr)
      return Status::invalid("cache.options.score",
                             "the retrieval heads of this model are not known: run 'quire model "
                             "calibrate' while the service is stopped, or take score keys");
    const std::int64_t budget = head_budget(input);
    if (budget >= total_tokens(input) || input.query_pass == nullptr) return everything(input);
    QUIRE_ASSIGN_OR_RETURN(BlockScores scores, head_scores(input));
    scores = smooth(input.contexts, scores, options_.neighbours);
    if (options_.ranking != Ranking::kHeads) {
      scores = weigh_by_words(input, std::move(scores), options_.links);
    }
    return best_blocks(input, std::move(scores), budget, options_.unit);
  }

  Result<Selection> select_by_matches(const SelectionInput& input) const {
    QUIRE_RETURN_IF_ERROR(check_one_set());
    const std::int64_t budget = head_budget(input);
    if (budget >= total_tokens(input)) return everything(input);
    BlockScores scores = lexical_scores(input.contexts, lexical_text(input));
    for (auto& blocks : scores)
      for (float& score : blocks) score += kLeastMatch;
    scores = smooth(input.contexts, scores, options_.neighbours);
    scores = weigh_by_words(input, std::move(scores), options_.links);
    Selection out = best_blocks(input, std::move(scores), budget, options_.unit);
    if (options_.ranking == Ranking::kAuto)
      out.note =
          "words choose, as the retrieval heads of this model are not known: run 'quire model "
          "calibrate' while the service is stopped";
    return out;
  }
  Status check_one_set() const {
    if (!options_.published()) return {};
    const std::string_view name = options_.ranking == Ranking::kHeads     ? "heads"
                                  : options_.ranking == Ranking::kMatches ? "matches"
                                                                          : "heads_words";
    return Status::invalid("cache.options",
                           "score " + std::string(name) +
                               " takes keep_ratio, token_budget, unit, neighbours and links; the "
                               "other options belong to score keys");
  }

  bool keeps_all(const SelectionInput& input) const {
    const auto budget = budget_of(input, options_);
    return budget && *budget >= total_tokens(input) && options_.select;
  }
  /// Returns whether there is anything to choose.
  bool decides(const SelectionInput& input) const {
    if (!options_.select || keeps_all(input)) return false;
    const Selection::ContextBlocks anchors = anchors_of(input.contexts, options_);
    for (std::size_t i = 0; i < anchors.size(); ++i)
      if (input.contexts[i].num_blocks > std::ssize(anchors[i])) return true;
    return false;
  }

  bool ranks_words() const {
    return options_.ranking == Ranking::kWords || options_.ranking == Ranking::kBoth;
  }

  Selection anchors(const SelectionInput& input) const {
    Selection::ContextBlocks kept = anchors_of(input.contexts, options_);
    Selection out = Selection::shared(input.num_layers, kept);
    out.anchors = std::move(kept);
    return out;
  }
  static Selection everything(const SelectionInput& input) {
    Selection::ContextBlocks kept;
    for (const SelectableContext& c : input.contexts) {
      kept.emplace_back();
      for (std::int32_t b = 0; b < c.num_blocks; ++b) kept.back().push_back(b);
    }
    return Selection::shared(input.num_layers, std::move(kept));
  }
  static Selection::ContextBlocks with_chosen(const Selection::ContextBlocks& anchors,
                                              const std::vector<SamkvScores::Document>& documents,
                                              const std::vector<Candidate>& chosen) {
    Selection::ContextBlocks kept = anchors;
    for (const Candidate& c : chosen) kept[at(documents[c.document].context)].push_back(c.block);
    for (auto& blocks : kept) std::sort(blocks.begin(), blocks.end());
    return kept;
  }

  /// Returns the mean of the comparable scores over the stable layers, [document][block].
  static std::vector<std::vector<float>> stable_scores(
      const SelectionInput& input, const std::vector<SamkvScores::Document>& documents) {
    std::vector<std::vector<float>> means;
    for (const auto& doc : documents) {
      std::vector<float>& mean = means.emplace_back(at(doc.sketch->num_blocks()));
      const auto layers = static_cast<float>(input.stable_layers.last - input.stable_layers.first +
                                             1);
      for (std::int32_t layer = input.stable_layers.first; layer <= input.stable_layers.last;
           ++layer) {
        for (std::size_t b = 0; b < mean.size(); ++b)
          mean[b] += doc.comparable[at(layer)][b] / layers;
      }
    }
    return means;
  }

  /// Selects how middle blocks that are no candidates are treated: dropped, or under a budget
  /// ranked after the candidates or equal to them.
  enum class Rest : std::uint8_t { kOut, kBehind, kEqual };

  /// Splits the middle blocks of the document that entry `first` belongs to into T_i, the best
  /// ceil(P_i |M_i|) by their own score, and the rest. Returns the first entry of the next
  /// document.
  template <class Own, class Comparable>
  static std::size_t add_candidates(const std::vector<SamkvScores::Document>& documents,
                                    std::size_t first, const Own& own, const Comparable& comparable,
                                    Rest rest, std::vector<Candidate>& pool) {
    std::vector<float> scores;
    std::vector<Candidate> middle;
    std::size_t i = first;
    for (; i < documents.size() && documents[i].document == documents[first].document; ++i) {
      for (const std::int32_t b : documents[i].middle) {
        scores.push_back(own(i)[at(b)]);
        middle.push_back({i, b, comparable(i)[at(b)], rest == Rest::kEqual});
      }
    }
    const auto count = static_cast<std::int64_t>(
        std::ceil(documents[first].keep_share * static_cast<double>(middle.size()) - 1e-9));
    for (const std::int32_t n : top_k(scores, count)) middle[at(n)].retrieved = true;
    for (const Candidate& c : middle)
      if (c.retrieved || rest != Rest::kOut) pool.push_back(c);
    return i;
  }

  /// Chooses blocks without a question: those with attention over the longest distance in their own
  /// document (smallest alpha), a quarter of an even share.
  Selection select_static(const SelectionInput& input) const {
    std::vector<SamkvScores::Document> documents = samkv_documents(input, options_.whole_documents);
    const Selection::ContextBlocks anchors = anchors_of(input.contexts, options_);
    set_middle(anchors, documents);
    const std::int32_t num_documents = documents.empty() ? 0 : documents.back().document + 1;
    const Filter filter(input, options_, anchors, num_documents);
    std::size_t middle = 0;
    for (const auto& d : documents) middle += d.middle.size();
    const std::size_t parts = 4 * to_size(num_documents);
    const std::size_t count = parts == 0 ? 0 : (middle + parts - 1) / parts;
    std::vector<Selection::ContextBlocks> kept;
    for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
      std::vector<Candidate> pool;
      for (std::size_t i = 0; i < documents.size(); ++i) {
        if (!documents[i].sketch->has(kSketchStats)) continue;
        for (const std::int32_t b : documents[i].middle)
          pool.push_back({i, b, -documents[i].sketch->stats(layer, b).alpha});
      }
      std::sort(pool.begin(), pool.end(), before);
      if (filter.by_budget())
        filter.cut(pool, documents);
      else
        pool.resize(std::min(pool.size(), count));
      kept.push_back(with_chosen(anchors, documents, pool));
    }
    Selection out = Selection::per_layer(std::move(kept));
    out.anchors = anchors;
    note_budget(filter, out);
    return out;
  }

  static void note_budget(const Filter& filter, Selection& out) {
    if (filter.by_budget() && filter.anchor_tokens() > *filter.budget()) {
      out.note = "first and last blocks are always kept: " +
                 std::to_string(filter.anchor_tokens()) + " tokens, more than the budget of " +
                 std::to_string(*filter.budget());
    }
  }

  const SamkvOptions options_;
};

}  // namespace

void register_samkv(PlugRegistry<Selector>& selectors) {
  selectors.add("samkv", option_table(), [](const SamkvOptions& options) {
    return std::make_unique<SamkvSelector>(options);
  });
}

}  // namespace quire
