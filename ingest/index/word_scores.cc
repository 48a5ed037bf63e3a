#include "ingest/index/word_scores.h"

#include "base/index.h"
#include "base/words.h"
#include "ingest/index/lexical_index.h"

namespace quire {

Result<std::vector<double>> word_scores(std::string_view question,
                                        std::span<const std::string> texts,
                                        std::string_view language) {
  Stemmer stemmer(language);
  IndexedDocument all;
  all.version = 1;
  for (const std::string& text : texts) all.chunks.push_back(index_words(text, stemmer));
  LexicalIndex index;
  index.put(all);
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<ChunkHit> hits,
      index.search(split_words(question, stemmer), texts.size(), LexicalIndex::Unit::kChunk));
  std::vector<double> out(texts.size(), 0.0);
  for (const ChunkHit& hit : hits) out[at(hit.chunk)] = hit.score;
  return out;
}

}  // namespace quire
