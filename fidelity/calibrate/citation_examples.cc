#include "fidelity/calibrate/citation_examples.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/index.h"
#include "engine/answer/cited_blocks.h"
#include "fidelity/answer_sink.h"

namespace quire {
namespace {

constexpr std::int32_t kMostTokens = 48;  ///< of an answer

bool supports(const SuiteRecord& r, std::size_t document) {
  return std::ranges::count(r.supporting_ids, (*r.documents)[document].id) > 0;
}

/// Returns whether some of its documents support the answer and others do not.
bool tells(const SuiteRecord& r) {
  std::size_t right = 0;
  for (std::size_t d = 0; d < r.documents->size(); ++d) right += supports(r, d);
  return right > 0 && right < r.documents->size();
}

/// Returns the bytes of the text that a block's tokens hold; both ends the same: only the header.
std::pair<std::size_t, std::size_t> bytes_of(const PlannedBlock& block,
                                             const DocumentTokens& tokens, std::size_t size) {
  std::size_t begin = size, end = 0;
  for (std::int32_t t = block.first_token; t < block.first_token + block.num_tokens; ++t) {
    const TokenSpan& span = tokens.spans.at(to_size(t));
    begin = std::min<std::size_t>(begin, span.begin);
    end = std::max<std::size_t>(end, span.end);
  }
  return {begin, std::max(begin, end)};
}

}  // namespace

Result<CitableAnswer> answer_over_texts(Engine& engine, const SuiteRecord& record) {
  const PromptFormat& format = engine.prompt_format();
  QueryRequest request;
  request.id = "citations";
  QUIRE_ASSIGN_OR_RETURN(request.prefix_ids, format.prefix());
  std::vector<DocumentTokens> tokens;
  for (const SuiteDocument& d : *record.documents) {
    QUIRE_ASSIGN_OR_RETURN(DocumentTokens document, format.document(d.title, d.text));
    QueryContext context;
    context.token_ids = document.ids;
    tokens.push_back(std::move(document));
    request.contexts.push_back(std::move(context));
  }
  QUIRE_ASSIGN_OR_RETURN(request.suffix_ids, format.suffix(record.question));
  request.attribute = true;
  request.sampling.max_tokens = kMostTokens;
  for (const auto& s : format.stop_strings()) request.sampling.stop.push_back(s);
  request.sampling.stop_token_ids = format.stop_ids();
  auto sink = std::make_shared<AnswerSink>(0);
  QUIRE_ASSIGN_OR_RETURN(QueryHandle handle, engine.query(std::move(request), sink));
  sink->wait(handle, nullptr);
  QUIRE_RETURN_IF_ERROR(sink->status);
  CitableAnswer out;
  out.text = sink->text;
  out.token_ends = sink->token_ends;
  out.attention = sink->attribution;
  out.plan = sink->plan;
  for (std::size_t c = 0; c < out.plan.contexts.size(); ++c) {
    const SuiteDocument& document = record.documents->at(c);
    CitedText& text = out.documents.emplace_back(CitedText{document.title, document.text, {}});
    for (const PlannedBlock& b : out.plan.contexts[c].blocks)
      text.blocks.push_back(bytes_of(b, tokens.at(c), document.text.size()));
  }
  return out;
}

void add_citation_examples(const SuiteRecord& record, const CitableAnswer& answer,
                           std::size_t question, std::string_view language,
                           std::vector<CitationExample>& out) {
  WordSupport words(answer.plan, answer.documents, record.question, language);
  std::size_t sentence = 0;
  for (const auto& [begin, end] : answer_sentences(answer.text, CitationRule().shortest_sentence)) {
    const auto evidence = words.evidence(std::string_view(answer.text).substr(begin, end - begin));
    for (std::size_t c = 0; c < evidence.size(); ++c)
      out.push_back({question, sentence, evidence[c], supports(record, c)});
    ++sentence;
  }
}

Result<std::vector<CitationExample>> citation_examples(
    const Suite& suite, Engine& engine, std::size_t most, std::string_view language,
    const std::function<void(std::size_t, std::size_t)>& progress) {
  std::vector<const SuiteRecord*> telling;
  for (const SuiteRecord& r : suite.records)
    if (tells(r)) telling.push_back(&r);
  const std::size_t count = std::min(most, telling.size());
  std::vector<CitationExample> out;
  std::size_t asked = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const SuiteRecord& record = *telling[i * telling.size() / count];
    const auto answer = answer_over_texts(engine, record);
    if (answer.ok()) {
      add_citation_examples(record, *answer, i, language, out);
      ++asked;
    } else if (answer.code() != Code::kInvalidArgument) {  // which is a prompt past the window
      return answer.status();
    }
    if (progress) progress(i + 1, count);
  }
  if (asked == 0)
    return Status::invalid("--questions",
                           "no question names supporting documents beside others and fits in the "
                           "model's window");
  return out;
}

}  // namespace quire
