#include "server/service/passage_reranker.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace quire {

Status rerank_passages(const CrossEncoder& reranker, int threads, const std::string& question,
                       std::span<Passage> passages) {
  std::vector<std::string> texts;
  texts.reserve(passages.size());
  for (const Passage& p : passages)
    texts.push_back(p.title.empty() ? p.text : p.title + "\n" + p.text);
  QUIRE_ASSIGN_OR_RETURN(const CrossEncoder::Scores scores,
                         reranker.score(question, texts, threads));
  for (std::size_t i = 0; i < passages.size(); ++i) passages[i].score = scores.values[i];
  std::ranges::stable_sort(passages, std::ranges::greater(), &Passage::score);
  return {};
}

}  // namespace quire
