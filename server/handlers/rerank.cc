#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/index.h"
#include "engine/encoder/text_encoder.h"
#include "ingest/index/word_scores.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/rerank_codec.h"
#include "server/reply/retrieve_reply.h"

namespace quire {
namespace {

constexpr std::size_t kTextsAtOnce = 32;  ///< between looks at whether the client is still there

enum class Ranker : std::uint8_t { kCrossEncoder, kEncoder, kWords, kNone };

/// Returns what the name stands for: the best there is, or what it names.
Ranker ranker_of(const Services& s, const std::string& name) {
  const bool free = name.empty() || name == "default";
  if (s.reranker && (free || name == s.reranker->info().name)) return Ranker::kCrossEncoder;
  if (s.encoder && (free || name == s.encoder->info().name)) return Ranker::kEncoder;
  return free || name == "bm25" ? Ranker::kWords : Ranker::kNone;
}

std::string names_of(const Services& s) {
  std::string out;
  if (s.reranker) out += "'" + s.reranker->info().name + "', ";
  if (s.encoder) out += "'" + s.encoder->info().name + "', ";
  return out + "'bm25'";
}

struct Scores {
  std::vector<double> values;  // in the order of the texts
  std::int64_t tokens = 0;
};

/// Calls `score` for parts of the texts until `why_stop` has a reason.
template <class Score>
Status in_parts(std::span<const std::string> texts, const WhyStop& why_stop, Score&& score) {
  for (std::size_t begin = 0; begin < texts.size(); begin += kTextsAtOnce) {
    if (const auto problem = why_stop()) return Status::cancelled(problem->detail);
    QUIRE_RETURN_IF_ERROR(
        score(texts.subspan(begin, std::min(kTextsAtOnce, texts.size() - begin))));
  }
  return {};
}

Result<Scores> score_by_pairs(const Services& s, const RerankBody& body, const WhyStop& why_stop) {
  Scores out;
  const auto score = [&](std::span<const std::string> part) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const auto found,
                           s.reranker->score(body.query, part, s.encoder_threads));
    out.values.insert(out.values.end(), found.values.begin(), found.values.end());
    out.tokens += found.tokens;
    return {};
  };
  QUIRE_RETURN_IF_ERROR(in_parts(body.texts, why_stop, score));
  return out;
}

Result<Scores> score_by_vectors(const Services& s, const RerankBody& body,
                                const WhyStop& why_stop) {
  QUIRE_ASSIGN_OR_RETURN(const auto asked,
                         s.encoder->embed_texts({&body.query, 1}, EncoderRole::kQuestion, 1));
  Scores out;
  out.tokens = asked.tokens;
  const auto score = [&](std::span<const std::string> part) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const auto told,
                           s.encoder->embed_texts(part, EncoderRole::kText, s.encoder_threads));
    out.tokens += told.tokens;
    for (const auto& vector : told.vectors)
      out.values.push_back(
          std::inner_product(vector.begin(), vector.end(), asked.vectors.front().begin(), 0.0));
    return {};
  };
  QUIRE_RETURN_IF_ERROR(in_parts(body.texts, why_stop, score));
  return out;
}

Result<Scores> score_by_words(const Services& s, const RerankBody& body) {
  Scores out;
  QUIRE_ASSIGN_OR_RETURN(out.values,
                         word_scores(body.query, body.texts, s.config()->retrieve.language));
  return out;
}

std::vector<RankedText> ranked(const RerankBody& body, const std::vector<double>& scores) {
  std::vector<RankedText> out;
  for (std::size_t i = 0; i < scores.size(); ++i) out.push_back({i, scores[i], std::nullopt});
  std::stable_sort(out.begin(), out.end(),
                   [](const RankedText& a, const RankedText& b) { return a.score > b.score; });
  out.resize(body.top_n);
  for (RankedText& r : out) {
    if (body.return_documents) r.text = body.texts[r.index];
  }
  return out;
}

void reply_ranked(Call& call, const RerankBody& body, const std::string& model,
                  const std::string& scorer, const Result<Scores>& found) {
  if (!found.ok()) return call.fail(problem_of(found.status()));
  RankedTexts reply;
  reply.id = call.request_id;
  reply.model = model;
  reply.scorer = scorer;
  reply.tokens = found->tokens;
  reply.results = ranked(body, found->values);
  call.charge_tokens(reply.tokens);
  call.add_log("prompt_tokens", std::to_string(reply.tokens));
  call.reply_json(200, rerank_reply().json(reply));
}

}  // namespace

namespace handlers {

void rerank(std::shared_ptr<Call> call) {
  const auto value = body_json(*call);
  if (!value) return;
  RerankBody body;
  if (failed(*call, read_rerank(*value, body))) return;
  const Services& s = call->services;
  switch (ranker_of(s, body.model)) {
    case Ranker::kCrossEncoder:
      return post_encoding(call, [call, body = std::move(body), &s] {
        reply_ranked(*call, body, s.reranker->info().name, "cross_encoder",
                     score_by_pairs(s, body, when_left(call)));
      });
    case Ranker::kEncoder:
      return post_encoding(call, [call, body = std::move(body), &s] {
        reply_ranked(*call, body, s.encoder->info().name, "encoder",
                     score_by_vectors(s, body, when_left(call)));
      });
    case Ranker::kWords:
      return reply_ranked(*call, body, "bm25", "bm25", score_by_words(s, body));
    case Ranker::kNone:
      return call->fail(make_problem(
          "model_not_found",
          "no model '" + body.model + "' ranks texts here; there is " + names_of(s), "model"));
  }
}

}  // namespace handlers
}  // namespace quire
