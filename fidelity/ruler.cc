#include "fidelity/ruler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "base/index.h"
#include "fidelity/random.h"

namespace quire {
namespace {

using Texts = std::vector<std::string>;

constexpr std::string_view kAdjectives[] = {
    "amber",    "ancient", "bitter",  "brave",   "bright", "broken", "calm",   "careful", "clever",
    "cold",     "crimson", "curious", "distant", "eager",  "early",  "empty",  "faint",   "famous",
    "fierce",   "frozen",  "gentle",  "golden",  "grand",  "green",  "happy",  "hidden",  "hollow",
    "humble",   "idle",    "jolly",   "keen",    "late",   "lively", "lonely", "lucky",   "mellow",
    "narrow",   "noble",   "patient", "plain",   "polite", "proud",  "quick",  "quiet",   "rapid",
    "restless", "rough",   "royal",   "scarlet", "secret", "sharp",  "silent", "silver",  "simple",
    "slow",     "solid",   "steady",  "strange", "sudden", "sweet",  "tall",   "tender",  "thin",
    "tired",    "vast",    "violet",  "warm",    "weary",  "wild",   "young"};
constexpr std::string_view kNouns[] = {
    "anchor", "apple",  "arrow",    "basket", "beacon",  "bell",    "boat",    "bridge", "candle",
    "canyon", "castle", "cloud",    "copper", "desert",  "drum",    "engine",  "falcon", "feather",
    "fence",  "field",  "flame",    "forest", "garden",  "glass",   "hammer",  "harbor", "hill",
    "island", "jacket", "kettle",   "ladder", "lantern", "letter",  "library", "lion",   "market",
    "meadow", "mirror", "mountain", "needle", "ocean",   "orchard", "palace",  "pepper", "piano",
    "pillow", "planet", "pocket",   "quartz", "rabbit",  "river",   "rocket",  "saddle", "shadow",
    "ship",   "stone",  "summer",   "table",  "temple",  "thunder", "ticket",  "tower",  "tunnel",
    "valley", "velvet", "village",  "violin", "wagon",   "window",  "winter"};
constexpr const char* kNoiseSentences[] = {"The grass is green.", "The sky is blue.",
                                           "The sun is yellow.", "Here we go.",
                                           "There and back again."};

template <class T, std::size_t N>
const T& pick(Random& r, const T (&list)[N]) {
  return list[r.below(N)];
}

std::string word(Random& r) {
  return std::string(pick(r, kAdjectives)) + "-" + std::string(pick(r, kNouns));
}
std::string number(Random& r) { return std::to_string(1000000 + r.below(9000000)); }
std::string uuid(Random& r) {
  char text[40];
  const std::uint64_t a = r.next(), b = r.next();
  std::snprintf(text, sizeof text, "%08x-%04x-4%03x-a%03x-%012llx", static_cast<unsigned>(a >> 32),
                static_cast<unsigned>(a >> 16) & 0xffff, static_cast<unsigned>(a) & 0xfff,
                static_cast<unsigned>(b >> 52),
                static_cast<unsigned long long>(b & 0xffffffffffffull));
  return text;
}
std::string letters(Random& r, int n, char first) {
  std::string out;
  for (int i = 0; i < n; ++i)
    out.push_back(static_cast<char>(first + static_cast<char>(r.below(26))));
  return out;
}

enum class Hay : std::uint8_t { kNoise, kEssay, kNeedles };

struct NiahTask {
  Hay hay = Hay::kEssay;
  bool uuid_keys = false, uuid_values = false;
  std::size_t keys = 1, values = 1, queries = 1;
};

NiahTask niah_task(std::string_view name) {
  if (name == "niah_single_1") return {.hay = Hay::kNoise};
  if (name == "niah_single_2") return {};
  if (name == "niah_single_3") return {.uuid_values = true};
  if (name == "niah_multikey_1") return {.keys = 4};
  if (name == "niah_multikey_2") return {.hay = Hay::kNeedles};
  if (name == "niah_multikey_3")
    return {.hay = Hay::kNeedles, .uuid_keys = true, .uuid_values = true};
  if (name == "niah_multivalue") return {.values = 4};
  return {.keys = 4, .queries = 4};  // niah_multiquery
}

/// Puts `inserts` at random places of `hay`, in their order if `ordered`.
Texts scatter(Random& r, Texts hay, Texts inserts, bool ordered) {
  if (!ordered) r.shuffle(inserts);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inserts.size(); ++i) places.push_back(r.below(hay.size() + 1));
  std::sort(places.begin(), places.end());
  Texts out;
  std::size_t next = 0;
  for (std::size_t i = 0; i <= hay.size(); ++i) {
    while (next < places.size() && places[next] == i) out.push_back(std::move(inserts[next++]));
    if (i < hay.size()) out.push_back(std::move(hay[i]));
  }
  return out;
}

std::string joined(const Texts& texts, std::string_view between) {
  std::string out;
  for (const auto& t : texts) out.append(out.empty() ? "" : between).append(t);
  return out;
}

std::string listed(const Texts& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 == names.size() ? ", and " : ", ") + names[i];
  return out;
}

SuiteRecord record_of(std::string text, std::string question, Texts answers, std::string_view task,
                      std::int32_t max_tokens) {
  SuiteRecord out;
  out.documents = std::make_shared<const std::vector<SuiteDocument>>(
      std::vector<SuiteDocument>{{"text", "", std::move(text)}});
  out.question = std::move(question);
  out.answers = std::move(answers);
  out.kind = task;
  out.rule = ScoreRule::kRulerAll;
  out.max_tokens = max_tokens;
  return out;
}

class Maker {
 public:
  Maker(const Suite& source, const RulerOptions& options, const PromptTokens& tokens)
      : options_(options), tokens_(tokens) {
    std::set<const void*> seen;
    std::set<std::string> texts;
    for (const auto& record : source.records) {
      (record.supporting_ids.size() > 1 ? multi_ : single_).push_back(&record);
      if (!seen.insert(record.documents.get()).second) continue;
      for (const auto& d : *record.documents) {
        if (!texts.insert(d.text).second) continue;
        add_sentences(d.text);
        passages_.push_back(d);
      }
    }
  }
  bool has_text() const { return sentences_.size() >= 10; }

  Status add_task(std::string_view task, Suite& suite) {
    if (task.starts_with("qa")) {
      const auto& questions = task == "qa_1" ? single_ : multi_;
      const bool known = std::any_of(questions.begin(), questions.end(),
                                     [](const auto* q) { return !q->answers.empty(); });
      if (!known) {
        suite.skipped.push_back(
            {std::string(task), task == "qa_1"
                                    ? "the source has no question with known answers"
                                    : "the source has no question over several documents"});
        return {};
      }
    }
    std::int64_t units = 0;
    for (std::int64_t i = 0; i < options_.per_task; ++i) {
      const auto build = [&](std::int64_t n) { return make(task, i, n); };
      QUIRE_ASSIGN_OR_RETURN(std::optional<SuiteRecord> record,
                             fitted(build, task.starts_with("qa"), units));
      if (!record) {
        suite.skipped.push_back({std::string(task), "the question alone is longer than " +
                                                        std::to_string(options_.length_tokens) +
                                                        " tokens"});
        return {};
      }
      suite.records.push_back(std::move(*record));
    }
    return {};
  }

 private:
  void add_sentences(const std::string& text) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool end = (text[i] == '.' || text[i] == '!' || text[i] == '?') &&
                       (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\n');
      if (!end && i + 1 < text.size()) continue;
      std::string sentence = text.substr(begin, i + 1 - begin);
      std::replace(sentence.begin(), sentence.end(), '\n', ' ');
      const auto first = sentence.find_first_not_of(' ');
      if (first != std::string::npos) sentences_.push_back(sentence.substr(first));
      begin = i + 1;
    }
  }

  /// Returns the largest record within the length. `units` is the number that fitted the task's
  /// first question; 0 before it.
  template <class Build>
  Result<std::optional<SuiteRecord>> fitted(Build&& build, bool passages, std::int64_t& units) {
    const auto fits = [&](const SuiteRecord& r) -> Result<bool> {
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t n, tokens_(r));
      return n + r.max_tokens <= options_.length_tokens;
    };
    if (units == 0) {
      std::int64_t low = 0, high = 1;  // low fits, high does not
      for (; high < (std::int64_t{1} << 22); high *= 2) {
        QUIRE_ASSIGN_OR_RETURN(const bool ok, fits(build(high)));
        if (!ok) break;
        low = high;
      }
      while (high - low > std::max<std::int64_t>(1, low / 100)) {
        const std::int64_t middle = low + (high - low) / 2;
        QUIRE_ASSIGN_OR_RETURN(const bool ok, fits(build(middle)));
        (ok ? low : high) = middle;
      }
      units = low;
    }
    // Sizes of units differ between questions: those of whole passages much, those of sentences and
    // words little.
    for (std::int64_t n = units + (passages ? std::max<std::int64_t>(2, units / 4) : 0); n > 0;
         n -= std::max<std::int64_t>(1, n / 100)) {
      SuiteRecord record = build(n);
      QUIRE_ASSIGN_OR_RETURN(const bool ok, fits(record));
      if (ok) return std::optional<SuiteRecord>(std::move(record));
    }
    return std::optional<SuiteRecord>();
  }

  SuiteRecord make(std::string_view task, std::int64_t index, std::int64_t units) {
    Random r(options_.seed, std::string(task) + "/" + std::to_string(index));
    if (task.starts_with("niah")) return niah(r, task, units);
    if (task == "vt") return variable_tracking(r, units);
    if (task == "cwe") return common_words(r, units);
    if (task == "fwe") return frequent_words(r, units);
    return question_answering(r, task, index, units);
  }

  Texts essay(Random& r, std::int64_t sentences) const {
    Texts out;
    std::size_t at = r.below(sentences_.size());
    for (std::int64_t i = 0; i < sentences; ++i) {
      out.push_back(sentences_[at]);
      at = (at + 1) % sentences_.size();
    }
    return out;
  }

  SuiteRecord niah(Random& r, std::string_view task, std::int64_t units) const {
    const NiahTask t = niah_task(task);
    const std::string what = t.uuid_values ? "uuid" : "number";
    std::set<std::string> used;
    const auto key = [&] {
      for (;;) {
        std::string k = t.uuid_keys ? uuid(r) : word(r);
        if (used.insert(k).second) return k;
        // Every pair of words is used.
        if (used.size() > 4000) return k + "-" + std::to_string(used.size());
      }
    };
    const auto value = [&] { return t.uuid_values ? uuid(r) : number(r); };
    const auto needle = [&](const std::string& k, const std::string& v) {
      return "One of the special magic " + what + "s for " + k + " is: " + v + ".";
    };
    Texts keys, answers, needles;
    for (std::size_t k = 0; k < t.keys; ++k) {
      keys.push_back(key());
      for (std::size_t v = 0; v < t.values; ++v) {
        const std::string secret = value();
        if (k < t.queries) answers.push_back(secret);
        needles.push_back(needle(keys.back(), secret));
      }
    }
    Texts hay;
    if (t.hay == Hay::kEssay) hay = essay(r, units);
    for (std::int64_t i = 0; t.hay != Hay::kEssay && i < units; ++i)
      hay.push_back(t.hay == Hay::kNoise
                        ? joined(Texts(std::begin(kNoiseSentences), std::end(kNoiseSentences)), " ")
                        : needle(key(), value()));
    keys.resize(t.queries);
    const bool many = t.queries * t.values > 1;
    const std::string text =
        std::string(many ? "Some special magic " + what + "s are"
                         : "A special magic " + what + " is") +
        " hidden within the following text. Make sure to memorize it. I will quiz you about the " +
        what + (many ? "s" : "") + " afterwards.\n" +
        joined(scatter(r, std::move(hay), std::move(needles), false),
               t.hay == Hay::kNeedles ? "\n" : " ");
    const std::string question = many ? "What are all the special magic " + what + "s for " +
                                            listed(keys) + " mentioned in the provided text?"
                                      : "What is the special magic " + what + " for " +
                                            keys.front() + " mentioned in the provided text?";
    return record_of(text, question, answers, task, 128);
  }

  SuiteRecord variable_tracking(Random& r, std::int64_t units) const {
    constexpr int kHops = 4;
    const std::string value = std::to_string(10000 + r.below(90000));
    Texts names, lines;
    while (static_cast<int>(names.size()) <= kHops) {
      const std::string name = letters(r, 5, 'A');
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      lines.push_back(names.empty() ? "VAR " + name + " = " + value
                                    : "VAR " + name + " = VAR " + names.back());
      names.push_back(name);
    }
    Texts hay(to_size(units),
              joined(Texts(std::begin(kNoiseSentences), std::end(kNoiseSentences)), " "));
    const std::string text =
        "Memorize and track the chain of variable assignment hidden in the following text.\n" +
        joined(scatter(r, std::move(hay), std::move(lines), true), "\n");
    return record_of(
        text, "Find all variables that are assigned the value " + value + " in the text above.",
        names, "vt", 30);
  }

  /// Ten words occur thirty times each, the others three times.
  SuiteRecord common_words(Random& r, std::int64_t units) const {
    constexpr int kCommon = 10, kOften = 30, kRarely = 3;
    std::set<std::string> used;
    Texts answers, list;
    const auto fresh = [&] {
      for (;;) {
        std::string w = word(r);
        if (used.size() > 4000) w += "-" + std::to_string(used.size());
        if (used.insert(w).second) return w;
      }
    };
    for (int i = 0; i < kCommon; ++i) {
      answers.push_back(fresh());
      list.insert(list.end(), kOften, answers.back());
    }
    for (std::int64_t i = 0; i < units; ++i) list.insert(list.end(), kRarely, fresh());
    r.shuffle(list);
    std::string text =
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n";
    for (std::size_t i = 0; i < list.size(); ++i)
      text += (i ? " " : "") + std::to_string(i + 1) + ". " + list[i];
    return record_of(text, "What are the 10 most common words in the above list?", answers, "cwe",
                     120);
  }

  /// Coded words have counts of a zeta distribution with exponent 2. The most frequent is dots; the
  /// next three are the answer.
  SuiteRecord frequent_words(Random& r, std::int64_t units) const {
    constexpr double kAlpha = 2.0, kZeta2 = 1.6449340668482264;
    const double total = static_cast<double>(units) * 10;
    Texts list, answers;
    std::set<std::string> used;
    for (int rank = 1; rank <= 2000; ++rank) {
      const auto count = static_cast<std::int64_t>(total * std::pow(rank, -kAlpha) / kZeta2);
      if (count < 1 && rank > 4) break;
      std::string w = "....";
      while (rank > 1 && (w = letters(r, 6, 'a'), !used.insert(w).second)) {
      }
      if (rank >= 2 && rank <= 4) answers.push_back(w);
      // The counts of the three differ from each other and from the rest, also in short texts.
      list.insert(list.end(), to_size(std::max<std::int64_t>(count, rank <= 4 ? 6 - rank : 1)), w);
    }
    r.shuffle(list);
    const std::string text =
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words.\n" +
        joined(list, " ");
    return record_of(text,
                     "Please ignore the dots '....'. What are the three most frequently appeared "
                     "words in the above coded text?",
                     answers, "fwe", 50);
  }

  /// Returns an id that no document has: supporting_ids name documents of the question, and a
  /// passage of another file may be called the same.
  static std::string fresh_id(const std::vector<SuiteDocument>& documents, std::int64_t number) {
    for (std::string id = "passage " + std::to_string(number);; id += "'")
      if (std::ranges::find(documents, id, &SuiteDocument::id) == documents.end()) return id;
  }

  /// The question's own documents are placed among passages of other questions.
  SuiteRecord question_answering(Random& r, std::string_view task, std::int64_t index,
                                 std::int64_t units) const {
    std::vector<const SuiteRecord*> questions;
    for (const auto* q : task == "qa_1" ? single_ : multi_)
      if (!q->answers.empty()) questions.push_back(q);
    const SuiteRecord& q =
        *questions[(to_size(index) * 7919 + r.below(questions.size())) % questions.size()];
    std::vector<SuiteDocument> documents = *q.documents;
    std::size_t at = r.below(passages_.size()), in_front = 0;
    for (std::int64_t i = 1, tried = 0; i < units && tried < count_of(passages_); ++tried) {
      const SuiteDocument& p = passages_[at];
      at = (at + 1) % passages_.size();
      const bool own = std::any_of(q.documents->begin(), q.documents->end(), [&](const auto& d) {
        return d.text == p.text || (!d.title.empty() && d.title == p.title);
      });
      if (own) continue;
      // The order inside an article matters (parts refer back), so whole passages are only put in
      // front or at the end.
      const bool front = r.below(2) == 0;
      SuiteDocument passage = p;
      passage.id = fresh_id(documents, i);
      documents.insert(front ? documents.begin() : documents.end(), std::move(passage));
      in_front += front ? 1 : 0;
      ++i;
    }
    SuiteRecord out = q;
    for (SuiteSupport& s : out.support) s.document += in_front;
    out.documents = std::make_shared<const std::vector<SuiteDocument>>(std::move(documents));
    out.kind = task;
    out.rule = ScoreRule::kRulerAny;
    out.max_tokens = 32;
    return out;
  }

  const RulerOptions& options_;
  const PromptTokens& tokens_;
  Texts sentences_;
  std::vector<SuiteDocument> passages_;
  std::vector<const SuiteRecord*> single_, multi_;
};

}  // namespace

const std::vector<std::string_view>& ruler_tasks() {
  static const std::vector<std::string_view> kTasks = {"niah_single_1",
                                                       "niah_single_2",
                                                       "niah_single_3",
                                                       "niah_multikey_1",
                                                       "niah_multikey_2",
                                                       "niah_multikey_3",
                                                       "niah_multivalue",
                                                       "niah_multiquery",
                                                       "vt",
                                                       "cwe",
                                                       "fwe",
                                                       "qa_1",
                                                       "qa_2"};
  return kTasks;
}

Result<Suite> make_ruler(const Suite& source, const RulerOptions& options,
                         const PromptTokens& prompt_tokens) {
  if (options.length_tokens < 256)
    return Status::invalid("suite", "ruler@" + std::to_string(options.length_tokens) +
                                        ": the shortest length is 256 tokens");
  Suite suite;
  suite.name = "ruler@" + std::to_string(options.length_tokens);
  if (options.window_tokens > 0 && options.length_tokens > options.window_tokens) {
    for (const auto task : ruler_tasks()) {
      suite.skipped.push_back({std::string(task), "needs " + std::to_string(options.length_tokens) +
                                                      " tokens; the model's window holds " +
                                                      std::to_string(options.window_tokens)});
    }
    return suite;
  }
  Maker maker(source, options, prompt_tokens);
  if (!maker.has_text())
    return Status::invalid(
        "suite", "the source of RULER's texts has fewer than ten sentences; name a larger file");
  for (const auto task : ruler_tasks()) QUIRE_RETURN_IF_ERROR(maker.add_task(task, suite));
  return suite;
}

}  // namespace quire
