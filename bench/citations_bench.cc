// Measures citations on public questions whose supporting documents and sentences are known, with a
// model's own answers.
//   quire_citations_bench --data FOLDER [--model FOLDER] [--answers FILE] [--questions N]
//                         [--fit] [--quick]
// FOLDER holds hotpotqa_train100, musique_train100 and 2wikimultihop_train500 (.jsonl.gz). The
// first N questions of each are asked (200), all documents of a question in one prompt. Those of
// odd rank, counted from 0, are reported; --fit prints constants fitted to those of even rank
// instead, and what each least confidence gives there with four fifths fitted and one fifth tried.
// The model is SmolLM2 (scripts/get_model.sh smollm2) unless named. --answers keeps its answers, so
// that another run needs no model.
//
// Systems: the rule of the service; the same for documents without titles; BM25 of the answer
// alone, of question and answer, and attention alone, each by its own best scores and with as many
// citations as the rule made. "strangers" counts questions that got a citation although the
// documents are those of the next question.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/index.h"
#include "bench/cached_documents.h"
#include "bench/cited_answers.h"
#include "engine/answer/cited_blocks.h"
#include "engine/calibrate/citation_calibration.h"
#include "fidelity/calibrate/citation_examples.h"
#include "fidelity/suite_reader.h"

namespace quire::bench {
namespace {

constexpr std::array kSets = {"hotpotqa_train100", "musique_train100", "2wikimultihop_train500"};
/// Least confidences that --fit tries: of a sentence's first document and of further ones.
constexpr std::array<std::pair<double, double>, 12> kTried = {{{.60, .60},
                                                               {.60, .70},
                                                               {.60, .80},
                                                               {.65, .65},
                                                               {.65, .75},
                                                               {.65, .80},
                                                               {.70, .70},
                                                               {.70, .75},
                                                               {.70, .80},
                                                               {.75, .75},
                                                               {.75, .80},
                                                               {.80, .80}}};
constexpr std::string_view kLanguage = "english";

struct Options {
  std::string data, model = "models/smollm2", answers;
  std::size_t questions = 200;
  bool fit = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--fit") {
      o.fit = true;
      continue;
    }
    if (name == "--quick") {
      o.questions = 10;
      continue;
    }
    if (i + 1 == argc) check(Status::invalid(name, "needs a value, or is not known"));
    const std::string value = argv[++i];
    if (name == "--data")
      o.data = value;
    else if (name == "--model")
      o.model = value;
    else if (name == "--answers")
      o.answers = value;
    else if (name == "--questions" && std::atoll(value.c_str()) > 0)
      o.questions = static_cast<std::size_t>(std::atoll(value.c_str()));
    else
      check(Status::invalid(name, "is not known, or its value is wrong"));
  }
  if (o.data.empty()) check(Status::invalid("--data", "names the folder of the questions"));
  return o;
}

/// Question is one question with its answer.
struct Question {
  const SuiteRecord* record = nullptr;
  CitableAnswer answer;
};

/// Named is one citation of a system.
struct Named {
  std::size_t question = 0;
  CitedBlocks blocks;
  double score = 0;
};

bool is_gold(const SuiteRecord& r, std::int32_t context) {
  return std::ranges::count(r.supporting_ids, (*r.documents)[at(context)].id) > 0;
}

/// Returns the index in `r.support` of the sentences that the citation touches.
std::vector<std::size_t> gold_sentences(const Question& q, const CitedBlocks& cited) {
  std::vector<std::size_t> out;
  const auto& blocks = q.answer.documents[at(cited.context)].blocks;
  for (std::size_t i = 0; i < q.record->support.size(); ++i) {
    const SuiteSupport& s = q.record->support[i];
    if (s.document != at(cited.context)) continue;
    for (std::int32_t b = cited.first_block; b < cited.first_block + cited.num_blocks; ++b) {
      const auto& [begin, end] = blocks[at(b)];
      if (begin >= s.end || end <= s.begin) continue;
      out.push_back(i);
      break;
    }
  }
  return out;
}

/// Prints a row: how many citations are right, and how much of what is right was cited.
std::string row(const char* set, const std::string& system, const std::vector<Question>& questions,
                const std::vector<Named>& named, double strangers) {
  std::size_t right = 0, right_sentences = 0, gold = 0, support = 0, first_right = 0;
  std::set<std::pair<std::size_t, std::int32_t>> found;
  std::set<std::pair<std::size_t, std::size_t>> found_sentences;
  std::map<std::size_t, const Named*> first;
  for (const Named& n : named) {
    const Question& q = questions[n.question];
    if (is_gold(*q.record, n.blocks.context)) {
      ++right;
      found.emplace(n.question, n.blocks.context);
    }
    const auto sentences = gold_sentences(q, n.blocks);
    right_sentences += !sentences.empty();
    for (const std::size_t s : sentences) found_sentences.emplace(n.question, s);
    const Named*& best = first[n.question];
    if (best == nullptr || n.score > best->score) best = &n;
  }
  for (const auto& [question, n] : first)
    first_right += is_gold(*questions[question].record, n->blocks.context);
  for (const Question& q : questions) {
    for (std::size_t d = 0; d < q.record->documents->size(); ++d)
      gold += is_gold(*q.record, static_cast<std::int32_t>(d));
    support += q.record->support.size();
  }
  const auto part = [](std::size_t a, std::size_t b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
  };
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(),
                "{\"set\": \"%s\", \"system\": \"%s\", \"questions\": %zu, \"cited_share\": %.3f, "
                "\"citations\": %zu, \"document_precision\": %.3f, \"document_recall\": %.3f, "
                "\"first_precision\": %.3f, \"sentence_precision\": %.3f, "
                "\"sentence_recall\": %.3f",
                set, system.c_str(), questions.size(), part(first.size(), questions.size()),
                named.size(), part(right, named.size()), part(found.size(), gold),
                part(first_right, first.size()), part(right_sentences, named.size()),
                part(found_sentences.size(), support));
  std::string out = text.data();
  if (strangers >= 0) {
    std::snprintf(text.data(), text.size(), ", \"strangers\": %.3f", strangers);
    out += text.data();
  }
  return out + "}";
}

std::vector<CitedText> without_titles(std::vector<CitedText> texts) {
  for (CitedText& t : texts) t.title.clear();
  return texts;
}

/// Returns what the rule cites of an answer.
std::vector<CitedBlocks> by_rule(const Question& q, const std::vector<CitedText>& documents,
                                 const CitationRule& rule) {
  WordSupport words(q.answer.plan, documents, q.record->question, kLanguage);
  return cite(q.answer.plan, q.answer.attention, q.answer.text, q.answer.token_ends, rule, &words)
      .blocks;
}

/// Returns the citations of the rule, for all questions.
std::vector<Named> rule_citations(const std::vector<Question>& questions, bool titles,
                                  const CitationRule& rule = {}) {
  std::vector<Named> out;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const auto& documents = questions[i].answer.documents;
    for (const CitedBlocks& b :
         by_rule(questions[i], titles ? documents : without_titles(documents), rule))
      out.push_back({i, b, b.confidence.value_or(0)});
  }
  return out;
}

/// Returns the share of questions that get a citation from the documents of the next one. Their
/// answer's attention belongs to other documents, and does not count.
double strangers(const std::vector<Question>& questions, bool titles) {
  std::size_t cited = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const CitableAnswer& next = questions[(i + 1) % questions.size()].answer;
    Question q{questions[i].record, next};
    q.answer.text = questions[i].answer.text;
    q.answer.token_ends = {q.answer.text.size()};
    q.answer.attention.num_tokens = 1;
    q.answer.attention.share.assign(to_size(next.attention.num_blocks), 0);
    cited += !by_rule(q, titles ? next.documents : without_titles(next.documents), {}).empty();
  }
  return static_cast<double>(cited) / static_cast<double>(questions.size());
}

enum class By : std::uint8_t { kAnswer, kQuestionAndAnswer, kAttention };

/// Returns the `count` citations with the best scores of a system without a threshold of its own.
std::vector<Named> best_citations(const std::vector<Question>& questions, By by,
                                  std::size_t count) {
  std::vector<Named> all;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    const CitableAnswer& a = q.answer;
    WordSupport words(a.plan, a.documents,
                      by == By::kQuestionAndAnswer ? q.record->question : std::string(), kLanguage);
    for (const auto& [begin, end] : answer_sentences(a.text, CitationRule().shortest_sentence)) {
      const std::string_view sentence = std::string_view(a.text).substr(begin, end - begin);
      std::vector<double> weights = words.of(sentence);
      const std::vector<ContextEvidence> evidence = words.evidence(sentence);
      if (by == By::kAttention) {
        std::ranges::fill(weights, 0);
        for (std::int64_t t = 0; t < a.attention.num_tokens; ++t) {
          const std::size_t last = a.token_ends[to_size(t)];
          if (last <= begin || last > end) continue;
          for (std::size_t b = 0; b < weights.size(); ++b)
            weights[b] += double{a.attention.share[to_size(t) * weights.size() + b]};
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        if (sum > 0)
          for (double& w : weights) w /= sum;
      }
      std::vector<Named> own;
      std::size_t block = 0;
      for (std::size_t c = 0; c < a.plan.contexts.size(); ++c) {
        Named n{i, {begin, end, static_cast<std::int32_t>(c), 0, 1, 0, std::nullopt}, 0};
        double best = -1;
        for (std::size_t b = 0; b < a.plan.contexts[c].blocks.size(); ++b, ++block) {
          n.score += weights[block];
          if (weights[block] <= best) continue;
          best = weights[block];
          n.blocks.first_block = static_cast<std::int32_t>(b);
        }
        if (by != By::kAttention) n.score = evidence[c].score;
        own.push_back(n);
      }
      std::ranges::stable_sort(own, std::greater(), &Named::score);
      own.resize(std::min(own.size(), to_size(CitationRule().most_per_sentence)));
      all.insert(all.end(), own.begin(), own.end());
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Named::score);
  all.resize(std::min(all.size(), count));
  return all;
}

/// Prints fitted constants, and precision and reach by least confidence, each question tried with
/// the constants that the other four fifths of the questions gave.
void print_fit(const std::vector<std::vector<Question>>& sets) {
  constexpr std::size_t kFolds = 5;
  std::array<std::vector<CitationExample>, kFolds> without;
  std::vector<CitationExample> all;
  for (const auto& questions : sets) {
    for (std::size_t i = 0; i < questions.size(); ++i) {
      std::vector<CitationExample> own;
      add_citation_examples(*questions[i].record, questions[i].answer, i, kLanguage, own);
      all.insert(all.end(), own.begin(), own.end());
      for (std::size_t f = 0; f < kFolds; ++f)
        if (i % kFolds != f) without[f].insert(without[f].end(), own.begin(), own.end());
    }
  }
  const CitationConfidence c = fit_citation_confidence(all);
  std::array<CitationConfidence, kFolds> folds;
  for (std::size_t f = 0; f < kFolds; ++f) folds[f] = fit_citation_confidence(without[f]);
  std::printf(
      "{\"settings\": {\"by_words\": [%.2f, %.2f, %.2f, %.2f], \"by_title\": [%.2f, %.2f, %.2f, "
      "%.2f]}, \"rows\": [",
      c.by_words.constant, c.by_words.share, c.by_words.lead, c.by_words.question,
      c.by_title.constant, c.by_title.share, c.by_title.question, c.by_title.title);
  const char* comma = "\n";
  for (const bool titles : {true, false}) {
    for (const auto& [least, further] : kTried) {
      for (std::size_t s = 0; s < sets.size(); ++s) {
        std::vector<Named> named;
        for (std::size_t i = 0; i < sets[s].size(); ++i) {
          const auto& documents = sets[s][i].answer.documents;
          CitationRule rule;
          rule.least_confidence = least;
          rule.least_further = further;
          rule.confidence = folds[i % kFolds];
          for (const CitedBlocks& b :
               by_rule(sets[s][i], titles ? documents : without_titles(documents), rule))
            named.push_back({i, b, b.confidence.value_or(0)});
        }
        std::array<char, 64> system{};
        std::snprintf(system.data(), system.size(), "%s%.2f, further %.2f",
                      titles ? "" : "without titles, ", least, further);
        std::printf("%s%s", comma, row(kSets[s], system.data(), sets[s], named, -1).c_str());
        comma = ",\n";
      }
    }
  }
  std::printf("\n]}\n");
}

void print_report(const Options& o, const std::vector<std::vector<Question>>& sets) {
  std::printf(
      "{\"settings\": {\"questions\": %zu, \"least_confidence\": %.2f, \"least_further\": %.2f}, "
      "\"rows\": [",
      o.questions, CitationRule().least_confidence, CitationRule().least_further);
  const char* comma = "\n";
  const auto print = [&](const std::string& text) {
    std::printf("%s%s", comma, text.c_str());
    comma = ",\n";
  };
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const auto& q = sets[s];
    const auto named = rule_citations(q, true);
    print(row(kSets[s], "rule", q, named, strangers(q, true)));
    const auto untitled = rule_citations(q, false);
    print(row(kSets[s], "rule, documents without titles", q, untitled, strangers(q, false)));
    for (const auto& [name, by] : {std::pair{"bm25 of the answer", By::kAnswer},
                                   std::pair{"bm25 of question and answer", By::kQuestionAndAnswer},
                                   std::pair{"attention", By::kAttention}})
      print(row(kSets[s], name, q, best_citations(q, by, named.size()), -1));
  }
  std::printf("\n]}\n");
}

int run(const Options& o) {
  const TempFolder folder("quire-answers");
  CitedAnswers answers(o.answers.empty() ? (folder.path() / "answers").string() : o.answers,
                       o.model);
  std::vector<Suite> suites;
  suites.reserve(kSets.size());
  std::vector<std::vector<Question>> sets;
  for (const char* name : kSets) {
    suites.push_back(take(read_suite(o.data + "/" + name + ".jsonl.gz")));
    auto& records = suites.back().records;
    records.resize(std::min(records.size(), o.questions));
    auto& questions = sets.emplace_back();
    for (std::size_t i = o.fit ? 0 : 1; i < records.size(); i += 2)
      questions.push_back({&records[i], answers.answer(records[i])});
    std::fprintf(stderr, "%s: %zu questions\n", name, questions.size());
    if (questions.empty()) check(Status::invalid("--questions", "leaves no question of a half"));
  }
  if (o.fit)
    print_fit(sets);
  else
    print_report(o, sets);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(quire::bench::parse(argc, argv)); }
