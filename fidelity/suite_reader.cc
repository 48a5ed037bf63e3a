#include "fidelity/suite_reader.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "base/json_parse.h"
#include "base/json_reader.h"

namespace quire {
namespace json = boost::json;

const std::string_view kAnswerInstruction =
    "Answer the question from the given passages. Give only the answer, in as few words as "
    "possible.";

namespace {

using Documents = std::vector<SuiteDocument>;

std::string_view text_of(const json::string& s) { return {s.data(), s.size()}; }

/// Says what is wrong with a member. Suites are long files, so their errors are short.
std::string member_words(const JsonMismatch& m) {
  if (m.kind == JsonMismatch::Kind::kMissing) return m.path + " is missing";
  return m.path + (m.wanted == JsonType::kArray ? " must be an array" : " must be a string");
}

/// Reads the members of one record and keeps the first error. Files of other projects have members
/// that no layout here needs, so unknown ones are accepted.
class Members {
 public:
  Members(const json::object& o, std::string path) : reader_(o, std::move(path), member_words) {}
  bool has(std::string_view name) { return reader_.has(name); }
  std::string text(std::string_view name, bool required) {
    std::string out;
    reader_.string(name, out, SIZE_MAX, need(required));
    return out;
  }
  const json::array* array(std::string_view name, bool required) {
    return reader_.array(name, 0, SIZE_MAX, need(required));
  }
  std::vector<std::string> texts(std::string_view name, bool required) {
    return reader_.strings(name, SIZE_MAX, need(required));
  }
  std::string path_of(std::string_view name) const { return reader_.path_of(name); }
  void fail(std::string_view name, const std::string& what) {
    reader_.fail(name, path_of(name) + " " + what);
  }
  void adopt(const Members& inner) { reader_.adopt(inner.reader_.error()); }
  bool ok() const { return reader_.ok(); }
  /// The first error, of which there must be one.
  const std::string& wrong() const { return reader_.error()->message; }

 private:
  static JsonNeed need(bool required) {
    return required ? JsonNeed::kRequired : JsonNeed::kOptional;
  }
  JsonReader reader_;
};

/// Says what is wrong with the text of a record.
std::string text_words(const JsonTextError& error) {
  using Kind = JsonTextError::Kind;
  if (error.kind == Kind::kUnfinished) return "the JSON value is not finished";
  const std::string place = " at byte " + std::to_string(error.byte + 1);
  if (error.kind == Kind::kTrailing) return "something follows the JSON value" + place;
  return "not valid JSON" + place + ": " + error.reason;
}

std::string at(std::string_view name, std::size_t i) {
  return std::string(name) + "[" + std::to_string(i) + "]";
}

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

/// Appends the objects of `list`, each read by `read_one(Members&)`.
template <class ReadOne>
void read_objects(Members& parent, std::string_view name, const json::array& list,
                  ReadOne&& read_one) {
  for (std::size_t i = 0; i < list.size() && parent.ok(); ++i) {
    const auto* o = list[i].if_object();
    if (!o) return parent.fail(at(name, i), "must be an object");
    Members m(*o, parent.path_of(at(name, i)));
    read_one(m, i);
    parent.adopt(m);
  }
}

Documents own_documents(Members& m) {
  Documents out;
  if (const auto* list = m.array("documents", true)) {
    read_objects(m, "documents", *list, [&](Members& d, std::size_t i) {
      SuiteDocument document{d.text("id", false), d.text("title", false), d.text("text", true)};
      if (d.ok() && trimmed(document.text).empty()) d.fail("text", "is empty");
      if (document.id.empty()) document.id = "d" + std::to_string(i + 1);
      out.push_back(std::move(document));
    });
  }
  return out;
}

/// The byte ranges of a document's sentences, [sentence] of [begin, end).
using Sentences = std::vector<std::pair<std::size_t, std::size_t>>;

/// Reads [[title, [sentence, ...]], ...]; `sentences` gets those of each document.
Documents titled_sentences(Members& m, std::vector<Sentences>& sentences_of) {
  Documents out;
  const auto* list = m.array("context", true);
  for (std::size_t i = 0; list && i < list->size() && m.ok(); ++i) {
    const auto* pair = (*list)[i].if_array();
    const json::array* sentences = pair && pair->size() == 2 ? (*pair)[1].if_array() : nullptr;
    if (!sentences || !(*pair)[0].is_string()) {
      m.fail(at("context", i), "must be [title, [sentences]]");
      break;
    }
    SuiteDocument d;
    d.title = d.id = std::string(text_of((*pair)[0].get_string()));
    Sentences ranges;
    for (const auto& s : *sentences) {
      if (!s.is_string()) {
        m.fail(at("context", i), "holds a sentence that is no string");
        break;
      }
      const std::string_view sentence = text_of(s.get_string());
      if (!d.text.empty() && !sentence.empty() && sentence.front() != ' ' && d.text.back() != ' ')
        d.text += ' ';
      ranges.emplace_back(d.text.size(), d.text.size() + sentence.size());
      d.text += sentence;
    }
    const std::size_t cut = std::min(d.text.find_first_not_of(" \t\r\n"), d.text.size());
    d.text = trimmed(d.text);
    for (auto& [begin, end] : ranges) {
      begin = std::min(begin - std::min(begin, cut), d.text.size());
      end = std::min(end - std::min(end, cut), d.text.size());
    }
    if (d.text.empty()) continue;
    out.push_back(std::move(d));
    sentences_of.push_back(std::move(ranges));
  }
  return out;
}

/// Splits passages that LongBench joins as "Passage 1:\nTitle\ntext"; a text without such lines is
/// one document. `before` returns the text before the first passage.
Documents passages_of(std::string_view text, std::string* before = nullptr) {
  struct Cut {
    std::size_t begin, body;
  };
  std::vector<Cut> cuts;
  for (std::size_t line = 0; line < text.size();) {
    const std::size_t end = std::min(text.find('\n', line), text.size());
    const std::string_view content = text.substr(line, end - line);
    for (const std::string_view word : {"Passage ", "文章"}) {
      if (!content.starts_with(word)) continue;
      std::size_t i = word.size();
      while (i < content.size() && content[i] >= '0' && content[i] <= '9') ++i;
      const std::string_view tail = content.substr(i);
      if (i > word.size() && (trimmed(tail) == ":" || trimmed(tail) == "："))
        cuts.push_back({line, std::min(end + 1, text.size())});
    }
    line = end + 1;
  }
  Documents out;
  if (before)
    *before = trimmed(cuts.empty() ? std::string_view() : text.substr(0, cuts.front().begin));
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const std::size_t end = i + 1 < cuts.size() ? cuts[i + 1].begin : text.size();
    const std::string body = trimmed(text.substr(cuts[i].body, end - cuts[i].body));
    if (!body.empty()) out.push_back({"p" + std::to_string(i + 1), "", body});
  }
  if (cuts.empty() && !trimmed(text).empty()) out.push_back({"p1", "", trimmed(text)});
  return out;
}

/// Cuts a whole prompt into documents and question. The question begins at its last line
/// "Question:", else it is the last paragraph (the last line of a prompt without paragraphs).
void cut_prompt(std::string_view prompt, SuiteRecord& record, Documents& documents) {
  std::size_t cut = std::string_view::npos;
  for (const std::string_view mark : {"\nQuestion:", "\n问题：", "\nQ: "}) {
    const auto found = prompt.rfind(mark);
    if (found != std::string_view::npos && (cut == std::string_view::npos || found > cut))
      cut = found;
  }
  const std::size_t end = prompt.find_last_not_of(" \t\r\n");
  if (cut == std::string_view::npos && end != std::string_view::npos) {
    cut = prompt.rfind("\n\n", end);
    if (cut == std::string_view::npos) cut = prompt.rfind('\n', end);
    if (cut == std::string_view::npos) cut = prompt.substr(0, end).rfind(". ");
  }
  if (cut == std::string_view::npos) cut = 0;
  documents = passages_of(prompt.substr(0, cut));
  record.question = trimmed(prompt.substr(cut));
}

/// Applies LongBench's longest answers (config/dataset2maxlen.json), and marks its tasks whose
/// answers end with the line.
void longbench_rules(SuiteRecord& record) {
  static constexpr std::pair<std::string_view, int> kTokens[] = {{"narrativeqa", 128},
                                                                 {"qasper", 128},
                                                                 {"multifieldqa_en", 64},
                                                                 {"multifieldqa_zh", 64},
                                                                 {"hotpotqa", 32},
                                                                 {"2wikimqa", 32},
                                                                 {"musique", 32},
                                                                 {"dureader", 128},
                                                                 {"gov_report", 512},
                                                                 {"qmsum", 512},
                                                                 {"multi_news", 512},
                                                                 {"vcsum", 512},
                                                                 {"trec", 64},
                                                                 {"triviaqa", 32},
                                                                 {"samsum", 128},
                                                                 {"lsht", 64},
                                                                 {"passage_count", 32},
                                                                 {"passage_retrieval_en", 32},
                                                                 {"passage_retrieval_zh", 32},
                                                                 {"lcc", 64},
                                                                 {"repobench-p", 64}};
  for (const auto& [name, tokens] : kTokens)
    if (record.kind == name) record.max_tokens = tokens;
  record.first_line = record.kind == "trec" || record.kind == "triviaqa" ||
                      record.kind == "samsum" || record.kind == "lsht";
}

class Reader {
 public:
  Reader(std::string name, const SuiteLimits& limits) : name_(std::move(name)), limits_(limits) {}

  Status read(LineSource& lines) {
    bool first = true;
    for (;;) {
      auto line = lines.next();
      if (!line.ok()) return Status(line.code(), name_ + ", " + line.status().message(), "suite");
      if (!line->has_value()) break;
      const auto begin = (*line)->find_first_not_of(" \t\xEF\xBB\xBF");
      if (begin == std::string::npos) continue;
      const std::int64_t number = lines.line_number();
      const char head = (**line)[begin];
      json::value value;
      const auto error = parse_json(std::string_view(**line).substr(begin), value);
      const bool unfinished = error && error->kind == JsonTextError::Kind::kUnfinished;
      if (first && (head == '[' || (head == '{' && unfinished)))
        return read_whole(lines, std::move(**line), begin, number);
      first = false;
      if (error) return wrong(number, text_words(*error));
      QUIRE_RETURN_IF_ERROR(add_line(value, number));
    }
    if (suite_.records.empty()) return Status::invalid("suite", name_ + " holds no question");
    return {};
  }
  Suite take() { return std::move(suite_); }

 private:
  Status wrong(std::int64_t line, const std::string& what) const {
    return Status::invalid("suite", name_ + ", line " + std::to_string(line) + ": " + what);
  }

  /// Reads a file that is one value: an array of records, or SQuAD's object over many lines.
  Status read_whole(LineSource& lines, std::string text, std::size_t begin,
                    std::int64_t first_line) {
    // The beginnings of lines, so that errors can name their line.
    std::vector<std::size_t> starts{0};
    for (;;) {
      auto line = lines.next();
      if (!line.ok()) return Status(line.code(), name_ + ", " + line.status().message(), "suite");
      if (!line->has_value()) break;
      text += '\n';
      starts.push_back(text.size());
      text += **line;
      if (text.size() > kMaxLineBytes)
        return Status::invalid("suite", name_ + " is one JSON value of more than " +
                                            std::to_string(kMaxLineBytes) +
                                            " bytes; write one record a line");
    }
    json::value value;
    if (const auto error = parse_json(std::string_view(text).substr(begin), value)) {
      const std::size_t byte = error->kind == JsonTextError::Kind::kUnfinished
                                   ? text.size()
                                   : begin + error->byte;
      const auto line = static_cast<std::int64_t>(
                            std::upper_bound(starts.begin(), starts.end(), byte) - starts.begin()) -
                        1;
      return wrong(first_line + line, text_words(*error));
    }
    if (const auto* list = value.if_array()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        const Status s = add_line((*list)[i], first_line);
        if (!s.ok())
          return Status(s.code(),
                        s.message() + " (record " + std::to_string(i + 1) + " of the array)",
                        "suite");
      }
    } else {
      QUIRE_RETURN_IF_ERROR(add_line(value, first_line));
    }
    if (suite_.records.empty()) return Status::invalid("suite", name_ + " holds no question");
    return {};
  }

  Status add_line(const json::value& value, std::int64_t line) {
    const auto* o = value.if_object();
    if (!o) return wrong(line, "a record must be an object");
    if (o->contains("data")) return add_squad(*o, line);
    Members m(*o, "");
    SuiteRecord record;
    Documents documents;
    bool previous = false;
    if (m.has("documents")) {
      if (o->at("documents").is_string() &&
          text_of(o->at("documents").get_string()) == "previous") {
        previous = true;
        if (!previous_) m.fail("documents", "is \"previous\", but no line before has documents");
      } else {
        documents = own_documents(m);
      }
      if (m.has("turns")) {
        read_objects(m, "turns", *checked(m.array("turns", true)), [&](Members& t, std::size_t) {
          SuiteTurn turn{t.text("question", true), t.text("answer", true)};
          if (t.ok() && (trimmed(turn.question).empty() || trimmed(turn.answer).empty()))
            t.fail("question", "and answer must not be empty");
          record.turns.push_back(std::move(turn));
        });
      }
      record.question = m.text("question", true);
      record.answers = m.texts("answers", false);
      record.kind = m.text("kind", false);
      record.supporting_ids = m.texts(m.has("supporting_ids") ? "supporting_ids" : "supporting",
                                      false);
      if (m.has("support"))
        add_own_support(m, previous && previous_ ? *previous_ : documents, record);
      if (record.kind.empty()) record.kind = "questions";
    } else if (m.has("context") && o->at("context").is_array()) {
      instruction_ = true;
      std::vector<Sentences> sentences;
      documents = titled_sentences(m, sentences);
      record.question = m.text("question", true);
      record.answers = {m.text("answer", true)};
      record.kind = m.text("type", false);
      if (record.kind.empty()) record.kind = "multi_hop";
      record.max_tokens = 32;
      add_support(m, *o, documents, sentences, record);
    } else if (m.has("paragraphs")) {
      instruction_ = true;
      read_objects(
          m, "paragraphs", *checked(m.array("paragraphs", true)), [&](Members& p, std::size_t i) {
            SuiteDocument d{at("p", i), p.text("title", false), p.text("paragraph_text", true)};
            if (!trimmed(d.text).empty()) documents.push_back(std::move(d));
          });
      record.question = m.text("question", true);
      record.answers = {m.text("answer", true)};
      for (auto& alias : m.texts("answer_aliases", false))
        record.answers.push_back(std::move(alias));
      const std::string id = m.text("id", false);
      const auto hops = id.find("__");
      record.kind = hops == std::string::npos ? "multi_hop" : id.substr(0, hops);
      record.max_tokens = 32;
      add_steps(*o, documents, record);
    } else if (m.has("ctxs")) {
      instruction_ = true;
      read_objects(m, "ctxs", *checked(m.array("ctxs", true)), [&](Members& c, std::size_t i) {
        SuiteDocument d{at("c", i), c.text("title", false), c.text("text", true)};
        if (!trimmed(d.text).empty()) documents.push_back(std::move(d));
      });
      record.question = m.text("question", true);
      record.answers = m.texts("answers", true);
      record.kind = "questions";
      record.max_tokens = 32;
    } else if (m.has("chunks")) {
      for (auto& chunk : m.texts("chunks", true))
        if (!trimmed(chunk).empty())
          documents.push_back({at("c", documents.size()), "", std::move(chunk)});
      record.question = trimmed(m.text("query", true));
      record.kind = "questions";
      record.max_tokens = 32;
    } else if (m.has("input") && m.has("outputs")) {
      cut_prompt(m.text("input", true), record, documents);
      record.answers = m.texts("outputs", true);
      record.kind = m.has("task") ? m.text("task", false) : "ruler";
      record.rule = record.kind.starts_with("qa") ? ScoreRule::kRulerAny : ScoreRule::kRulerAll;
      record.max_tokens = 128;
    } else if (m.has("context")) {
      instruction_ = true;
      documents = passages_of(m.text("context", true));
      record.question = m.text("input", false);
      record.answers = m.texts("answers", true);
      record.kind = m.text("dataset", false);
      if (record.kind.empty()) record.kind = "longbench";
      if (trimmed(record.question).empty())
        record.question = "Write a one-page summary of the text.";
      longbench_rules(record);
    } else if (m.has("prompt")) {
      cut_prompt(m.text("prompt", true), record, documents);
      record.answers = m.has("label") ? m.texts("label", false) : m.texts("answers", true);
      record.kind = m.has("task") ? m.text("task", false) : "prompts";
      longbench_rules(record);
    } else {
      return wrong(line,
                   "no known layout: a record needs documents (or context, paragraphs, ctxs, "
                   "chunks, data, prompt) with a question");
    }
    if (!m.ok()) return wrong(line, m.wrong());
    if (previous) record.documents = previous_;
    return add(std::move(record), std::move(documents), line);
  }

  static const json::array* checked(const json::array* list) {
    static const json::array kEmpty;
    return list ? list : &kEmpty;
  }

  /// Reads support[] of {"id", "text"}: the first place of that text in that document.
  static void add_own_support(Members& m, const Documents& documents, SuiteRecord& record) {
    read_objects(m, "support", *checked(m.array("support", true)), [&](Members& s, std::size_t) {
      const std::string id = s.text("id", true), text = s.text("text", true);
      if (!s.ok()) return;
      const auto d = std::ranges::find(documents, id, &SuiteDocument::id);
      const auto found = d == documents.end() || text.empty() ? std::string::npos
                                                              : d->text.find(text);
      if (d == documents.end()) return s.fail("id", "is no document of this record");
      if (found == std::string::npos) return s.fail("text", "is not in that document");
      record.support.push_back(
          {static_cast<std::size_t>(d - documents.begin()), found, found + text.size()});
    });
    sort_support(record);
  }

  static void sort_support(SuiteRecord& record) {
    const auto key = [](const SuiteSupport& s) { return std::tuple(s.document, s.begin, s.end); };
    std::ranges::sort(record.support, {}, key);
    const auto rest = std::ranges::unique(record.support);
    record.support.erase(rest.begin(), rest.end());
  }

  /// Marks the sentences of MuSiQue's paragraphs that hold the answer of a step.
  static void add_steps(const json::object& o, const Documents& documents, SuiteRecord& record) {
    const auto* list = o.if_contains("question_decomposition");
    const auto* steps = list ? list->if_array() : nullptr;
    for (std::size_t i = 0; steps && i < steps->size(); ++i) {
      const auto* step = (*steps)[i].if_object();
      const auto* index = step ? step->if_contains("paragraph_support_idx") : nullptr;
      const auto* answer = step ? step->if_contains("answer") : nullptr;
      if (!index || !index->is_int64() || !answer || !answer->is_string()) continue;
      const std::string id = at("p", static_cast<std::size_t>(index->get_int64()));
      const std::string_view word = text_of(answer->get_string());
      const auto d = std::ranges::find(documents, id, &SuiteDocument::id);
      if (d == documents.end()) continue;
      if (std::ranges::find(record.supporting_ids, id) == record.supporting_ids.end())
        record.supporting_ids.push_back(id);
      const auto place = word.empty() ? std::string::npos : d->text.find(word);
      if (place == std::string::npos) continue;
      const auto before = d->text.substr(0, place).rfind(". ");
      const auto after = d->text.find(". ", place + word.size());
      record.support.push_back({static_cast<std::size_t>(d - documents.begin()),
                                before == std::string::npos ? 0 : before + 2,
                                after == std::string::npos ? d->text.size() : after + 1});
    }
    sort_support(record);
  }

  static void add_support(Members& m, const json::object& o, const Documents& documents,
                          const std::vector<Sentences>& sentences, SuiteRecord& record) {
    if (!m.has("supporting_facts")) return;
    const auto* list = o.at("supporting_facts").if_array();
    for (std::size_t i = 0; list && i < list->size(); ++i) {
      const auto* fact = (*list)[i].if_array();
      if (fact && !fact->empty() && fact->front().is_string()) {
        const std::string title(text_of(fact->front().get_string()));
        if (std::find(record.supporting_ids.begin(), record.supporting_ids.end(), title) ==
            record.supporting_ids.end())
          record.supporting_ids.push_back(title);
        const auto d = std::ranges::find(documents, title, &SuiteDocument::id);
        if (d == documents.end() || fact->size() < 2 || !(*fact)[1].is_int64()) continue;
        const auto document = static_cast<std::size_t>(d - documents.begin());
        const std::int64_t number = (*fact)[1].get_int64();
        if (number < 0 || number >= std::ssize(sentences[document])) continue;
        const auto [begin, end] = sentences[document][static_cast<std::size_t>(number)];
        if (begin < end) record.support.push_back({document, begin, end});
      }
    }
    sort_support(record);
  }

  /// Reads {"data": [{"title", "paragraphs": [{"context", "qas": [{"question", "answers":
  /// [{"text"}]}]}]}]}.
  Status add_squad(const json::object& o, std::int64_t line) {
    instruction_ = true;
    Members top(o, "");
    Status failure;
    read_objects(
        top, "data", *checked(top.array("data", true)), [&](Members& article, std::size_t) {
          const std::string title = article.text("title", false);
          read_objects(
              article, "paragraphs", *checked(article.array("paragraphs", true)),
              [&](Members& p, std::size_t) {
                auto documents = std::make_shared<const Documents>(
                    Documents{{"p1", title, p.text("context", true)}});
                read_objects(
                    p, "qas", *checked(p.array("qas", true)), [&](Members& qa, std::size_t) {
                      SuiteRecord record;
                      record.documents = documents;
                      record.question = qa.text("question", true);
                      record.kind = "squad";
                      record.max_tokens = 32;
                      read_objects(qa, "answers", *checked(qa.array("answers", true)),
                                   [&](Members& a, std::size_t) {
                                     std::string text = a.text("text", true);
                                     if (std::find(record.answers.begin(), record.answers.end(),
                                                   text) == record.answers.end())
                                       record.answers.push_back(std::move(text));
                                   });
                      if (qa.ok() && failure.ok()) failure = add(std::move(record), {}, line);
                    });
              });
        });
    if (!top.ok()) return wrong(line, top.wrong());
    return failure;
  }

  Status add(SuiteRecord record, Documents documents, std::int64_t line) {
    if (!record.documents)
      record.documents = std::make_shared<const Documents>(std::move(documents));
    previous_ = record.documents;
    if (record.documents->empty()) return wrong(line, "the record has no document with text");
    if (record.documents->size() > limits_.max_documents) {
      return wrong(line, "the record has " + std::to_string(record.documents->size()) +
                             " documents; at most " + std::to_string(limits_.max_documents) +
                             " are taken");
    }
    if (trimmed(record.question).empty()) return wrong(line, "question is empty");
    for (const auto& a : record.answers)
      if (trimmed(a).empty()) return wrong(line, "answers holds an empty answer");
    record.line = line;
    bytes_ += record.question.size();
    for (const auto& t : record.turns) bytes_ += t.question.size() + t.answer.size();
    if (suite_.records.empty() || suite_.records.back().documents != record.documents) {
      for (const auto& d : *record.documents) bytes_ += d.text.size() + d.title.size();
    }
    if (bytes_ > limits_.max_bytes)
      return wrong(
          line, "the file holds more than " + std::to_string(limits_.max_bytes) + " bytes of text");
    if (suite_.records.size() >= limits_.max_records)
      return wrong(
          line, "the file holds more than " + std::to_string(limits_.max_records) + " questions");
    suite_.records.push_back(std::move(record));
    if (instruction_) suite_.instruction = std::string(kAnswerInstruction);
    return {};
  }

  const std::string name_;
  const SuiteLimits limits_;
  Suite suite_;
  std::shared_ptr<const Documents> previous_;
  std::size_t bytes_ = 0;
  bool instruction_ = false;
};

}  // namespace

Result<Suite> read_suite(LineSource& lines, const std::string& name, const SuiteLimits& limits) {
  Reader reader(name, limits);
  QUIRE_RETURN_IF_ERROR(reader.read(lines));
  Suite suite = reader.take();
  suite.name = name;
  return suite;
}

Result<Suite> read_suite(const std::string& path, const SuiteLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const auto lines, open_lines(path));
  return read_suite(*lines, path, limits);
}

}  // namespace quire
