#include "server/json/citation_codec.h"

#include <cmath>

namespace quire {
namespace json = boost::json;

json::object citation_json(const Citation& c, std::size_t number, QuoteUse quote) {
  json::object o;
  o["id"] = std::to_string(number);
  o["answer_start"] = c.answer_start;
  o["answer_end"] = c.answer_end;
  o["document_id"] = c.document_id.empty() ? json::value(nullptr) : json::value(c.document_id);
  o["document_index"] = c.document_index;
  o["chunk"] = c.chunk;
  json::array blocks;
  for (const auto& id : c.block_ids) blocks.emplace_back(id);
  o["block_ids"] = std::move(blocks);
  o["start"] = c.start;
  o["end"] = c.end;
  if (quote == QuoteUse::kShow) o["quote"] = c.quote;
  o["weight"] = std::round(c.weight * 1e4) / 1e4;
  return o;
}

json::array citations_json(const std::vector<Citation>& citations, QuoteUse quote) {
  json::array out;
  for (std::size_t i = 0; i < citations.size(); ++i)
    out.push_back(citation_json(citations[i], i + 1, quote));
  return out;
}

}  // namespace quire
