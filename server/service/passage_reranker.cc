#include "server/service/passage_reranker.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace quire {

Status rerank_passages(const CrossEncoder& reranker, int threads, const std::string& question,
                       std::span<Passage> passages) {
  // The texts may be whole documents, so they are lent and not copied.
  std::vector<std::string> texts;
  texts.reserve(passages.size());
  for (Passage& p : passages) {
    std::string& text = texts.emplace_back(std::move(p.text));
    if (!p.title.empty()) text.insert(0, p.title + "\n");
  }
  const auto scores = reranker.score(question, texts, threads);
  for (std::size_t i = 0; i < passages.size(); ++i) {
    Passage& p = passages[i];
    if (!p.title.empty()) texts[i].erase(0, p.title.size() + 1);
    p.text = std::move(texts[i]);
    if (scores.ok()) p.score = scores->values[i];
  }
  QUIRE_RETURN_IF_ERROR(scores.status());
  std::ranges::stable_sort(passages, std::ranges::greater(), &Passage::score);
  return {};
}

}  // namespace quire
