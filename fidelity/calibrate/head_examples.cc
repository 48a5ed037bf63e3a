#include "fidelity/calibrate/head_examples.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/index.h"
#include "engine/chat/question_words.h"
#include "fidelity/random.h"

namespace quire {
namespace {

constexpr std::size_t kPassages = 10;
/// Paragraphs of this many bytes become passages; longer texts are cut at sentences.
constexpr std::size_t kLeastParagraph = 200, kMostParagraph = 700;

struct Passage {
  std::string title, text;
  std::vector<std::pair<std::size_t, std::size_t>> support;  ///< bytes of `text`
};

Result<HeadExample> make_example(const PromptFormat& format, const std::vector<Passage>& passages,
                                 const std::string& instruction, const std::string& question) {
  HeadExample out;
  QUIRE_ASSIGN_OR_RETURN(out.prefix_ids, format.prefix());
  const std::string before = instruction.empty() ? "" : instruction + "\n\n";
  const ChatMessage asked{"user", before + question};
  const std::span messages(&asked, 1);
  QUIRE_ASSIGN_OR_RETURN(out.suffix_ids, format.suffix(messages));
  QUIRE_ASSIGN_OR_RETURN(const auto words,
                         question_words(format, messages, before.size(), out.suffix_ids));
  std::tie(out.words_begin, out.words_end) = words;
  for (const Passage& p : passages) {
    QUIRE_ASSIGN_OR_RETURN(DocumentTokens tokens, format.document(p.title, p.text));
    HeadExample::Passage passage;
    for (const auto& [begin, end] : p.support) {
      std::int64_t first = -1, last = -1;
      for (std::size_t t = 0; t < tokens.spans.size(); ++t) {
        const TokenSpan& span = tokens.spans[t];
        if (span.begin >= span.end || span.end <= begin || span.begin >= end) continue;
        if (first < 0) first = static_cast<std::int64_t>(t);
        last = static_cast<std::int64_t>(t) + 1;
      }
      if (first >= 0) passage.support.emplace_back(first, last);
    }
    passage.token_ids = std::move(tokens.ids);
    out.passages.push_back(std::move(passage));
  }
  return out;
}

std::int64_t tokens_of(const HeadExample& e) {
  std::int64_t n = count_of(e.prefix_ids) + count_of(e.suffix_ids);
  for (const auto& p : e.passages) n += count_of(p.token_ids);
  return n;
}

/// Cuts texts into paragraphs of kLeastParagraph to about kMostParagraph bytes that end with a
/// sentence.
std::vector<std::string> paragraphs_of(std::span<const std::string> texts) {
  std::vector<std::string> out;
  for (const std::string& text : texts) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t most = std::min(text.size(), begin + kMostParagraph);
      std::size_t end = text.find("\n\n", begin);
      if (end == std::string::npos || end > most) {
        end = most == text.size() ? most : text.rfind(". ", most);
        if (end == std::string::npos || end <= begin) break;
        if (end < text.size()) end += 1;
      }
      if (end - begin >= kLeastParagraph) out.push_back(text.substr(begin, end - begin));
      begin = text.find_first_not_of(" \n\r\t", end);
    }
  }
  return out;
}

/// Made-up facts: sentences that no text holds, and the questions that they answer.
class Facts {
 public:
  explicit Facts(Random& random) : random_(random) {}

  /// Returns a fact about the thing and the person with these numbers.
  std::pair<std::string, std::string> about(std::size_t thing, std::size_t person) {
    const std::string what(kThings[thing % kThings.size()]),
        who = std::string(kFirst[person % kFirst.size()]) + " " +
              std::string(kLast[person / kFirst.size() % kLast.size()]),
        value(kValues[random_.below(kValues.size())]);
    return {"The " + what + " of " + who + " is " + value + ".",
            "What is the " + what + " of " + who + "?"};
  }
  std::size_t any_thing() { return random_.below(kThings.size()); }
  std::size_t any_person() { return random_.below(kFirst.size() * kLast.size()); }

 private:
  static constexpr std::array<std::string_view, 12> kThings = {
      "favourite dish", "home town",     "first job",     "middle name",
      "lucky number",   "oldest friend", "secret hobby",  "native language",
      "boat",           "former school", "street number", "holiday island"};
  static constexpr std::array<std::string_view, 12> kFirst = {
      "Mira", "Tobias", "Lena", "Oskar", "Ingrid", "Pavel",
      "Nora", "Emil",   "Vera", "Anton", "Salome", "Jonas"};
  static constexpr std::array<std::string_view, 12> kLast = {
      "Hallberg", "Quint", "Osterman",  "Varga",   "Dellow", "Ruskin",
      "Tamblyn",  "Ferro", "Abendroth", "Nyqvist", "Calder", "Winslow"};
  static constexpr std::array<std::string_view, 12> kValues = {
      "barley soup",  "Lindenau", "a lighthouse",  "Augustine",     "forty-one",    "Hester",
      "wood carving", "Occitan",  "the Albatross", "Saint Brannoc", "ninety-three", "Farrow"};
  Random& random_;
};

/// Puts a sentence behind one of the text's sentences, and returns where it begins.
std::size_t hide(std::string& text, const std::string& sentence, Random& random) {
  auto place = text.find(". ", random.below(text.size()));
  place = place == std::string::npos ? 0 : place + 2;
  text.insert(place, sentence + " ");
  return place;
}

}  // namespace

Result<std::vector<HeadExample>> labelled_examples(const Suite& suite, const PromptFormat& format,
                                                   std::size_t most, std::int64_t longest) {
  std::vector<const SuiteRecord*> usable;
  for (const SuiteRecord& r : suite.records) {
    if (!r.support.empty()) usable.push_back(&r);
  }
  if (usable.empty())
    return Status::invalid("--questions",
                           suite.name +
                               " names no text that supports an answer: give \"support\" "
                               "[{\"id\", \"text\"}], or HotpotQA's supporting_facts");
  std::vector<HeadExample> out;
  const std::size_t count = std::min(most, usable.size());
  for (std::size_t i = 0; i < count; ++i) {
    const SuiteRecord& r = *usable[i * usable.size() / count];
    std::vector<Passage> passages;
    for (const SuiteDocument& d : *r.documents) passages.push_back({d.title, d.text, {}});
    for (const SuiteSupport& s : r.support)
      passages[s.document].support.emplace_back(s.begin, s.end);
    QUIRE_ASSIGN_OR_RETURN(HeadExample example,
                           make_example(format, passages, suite.instruction, r.question));
    if (tokens_of(example) <= longest) out.push_back(std::move(example));
  }
  return out;
}

Result<std::vector<HeadExample>> hidden_sentence_examples(std::span<const std::string> texts,
                                                          const PromptFormat& format,
                                                          std::size_t count, std::int64_t longest) {
  const std::vector<std::string> paragraphs = paragraphs_of(texts);
  if (paragraphs.size() < kPassages)
    return Status::invalid("--documents", "the texts have " + std::to_string(paragraphs.size()) +
                                              " paragraphs of at least " +
                                              std::to_string(kLeastParagraph) +
                                              " bytes; ten are needed to hide a sentence in");
  Random random(1, "hidden sentences");
  std::vector<HeadExample> out;
  for (std::size_t e = 0; e < count; ++e) {
    std::vector<Passage> passages;
    const std::size_t first = random.below(paragraphs.size());
    for (std::size_t i = 0; i < kPassages; ++i)
      passages.push_back({"", paragraphs[(first + i) % paragraphs.size()], {}});
    // Every other passage hides a fact about the same thing or the same person, so that finding
    // such sentences is not enough.
    Facts facts(random);
    const std::size_t asked = random.below(kPassages), thing = facts.any_thing(),
                      person = facts.any_person();
    std::string question;
    for (std::size_t i = 0; i < kPassages; ++i) {
      const bool same_thing = i % 2 == 0;
      const auto fact = i == asked   ? facts.about(thing, person)
                        : same_thing ? facts.about(thing, person + 1 + i)
                                     : facts.about(thing + 1 + i, person);
      const std::size_t begin = hide(passages[i].text, fact.first, random);
      if (i != asked) continue;
      passages[i].support.emplace_back(begin, begin + fact.first.size());
      question = fact.second;
    }
    QUIRE_ASSIGN_OR_RETURN(HeadExample example, make_example(format, passages, "", question));
    if (tokens_of(example) <= longest) out.push_back(std::move(example));
  }
  return out;
}

}  // namespace quire
