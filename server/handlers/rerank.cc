#include <algorithm>
#include <atomic>
#include <numeric>

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

/// Calls `score` for parts of the texts, as long as the client waits.
template <class Score>
Status in_parts(std::span<const std::string> texts, const std::atomic<bool>& gone, Score&& score) {
  for (std::size_t begin = 0; begin < texts.size(); begin += kTextsAtOnce) {
    if (gone) return Status::cancelled("the client left");
    QUIRE_RETURN_IF_ERROR(
        score(texts.subspan(begin, std::min(kTextsAtOnce, texts.size() - begin))));
  }
  return {};
}

Status score_by_pairs(const Services& s, const RerankBody& body, const std::atomic<bool>& gone,
                      std::vector<double>& scores, std::int64_t& tokens) {
  return in_parts(body.texts, gone, [&](std::span<const std::string> part) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const auto found,
                           s.reranker->score(body.query, part, s.encoder_threads));
    scores.insert(scores.end(), found.values.begin(), found.values.end());
    tokens += found.tokens;
    return {};
  });
}

Status score_by_vectors(const Services& s, const RerankBody& body, const std::atomic<bool>& gone,
                        std::vector<double>& scores, std::int64_t& tokens) {
  QUIRE_ASSIGN_OR_RETURN(const auto asked,
                         s.encoder->embed_texts({&body.query, 1}, EncoderRole::kQuestion, 1));
  tokens += asked.tokens;
  return in_parts(body.texts, gone, [&](std::span<const std::string> part) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const auto told,
                           s.encoder->embed_texts(part, EncoderRole::kText, s.encoder_threads));
    tokens += told.tokens;
    for (const auto& vector : told.vectors)
      scores.push_back(
          std::inner_product(vector.begin(), vector.end(), asked.vectors.front().begin(), 0.0));
    return {};
  });
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

}  // namespace

namespace handlers {

void rerank(std::shared_ptr<Call> call) {
  const auto value = body_json(*call);
  if (!value) return;
  RerankBody body;
  if (failed(*call, read_rerank(*value, body))) return;
  const Services& s = call->services;
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  call->exchange->on_disconnect([gone] { gone->store(true); });
  RankedTexts reply;
  reply.id = call->request_id;
  std::vector<double> scores;
  Status status;
  switch (ranker_of(s, body.model)) {
    case Ranker::kCrossEncoder:
      reply.model = s.reranker->info().name;
      reply.scorer = "cross_encoder";
      status = score_by_pairs(s, body, *gone, scores, reply.tokens);
      break;
    case Ranker::kEncoder:
      reply.model = s.encoder->info().name;
      reply.scorer = "encoder";
      status = score_by_vectors(s, body, *gone, scores, reply.tokens);
      break;
    case Ranker::kWords: {
      reply.model = reply.scorer = "bm25";
      auto found = word_scores(body.query, body.texts, s.config()->retrieve.language);
      status = found.status();
      if (found.ok()) scores = std::move(*found);
      break;
    }
    case Ranker::kNone:
      return call->fail(make_problem(
          "model_not_found",
          "no model '" + body.model + "' ranks texts here; there is " + names_of(s), "model"));
  }
  if (!status.ok()) return call->fail(problem_of(status));
  reply.results = ranked(body, scores);
  call->charge_tokens(reply.tokens);
  call->add_log("prompt_tokens", std::to_string(reply.tokens));
  call->reply_json(200, rerank_reply().json(reply));
}

}  // namespace handlers
}  // namespace quire
