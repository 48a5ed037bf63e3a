/// Citations in the form of the API.
#pragma once

#include <boost/json/array.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text_mark.h"
#include "server/reply/reply.h"

namespace quire {

/// Positions are Unicode code points: answer_* in the answer, start and end in the document's text.
struct Citation {
  std::uint64_t answer_start = 0, answer_end = 0;
  std::string document_id;         ///< empty: an inline document
  std::size_t document_index = 0;  ///< index in the reply's documents
  std::int32_t chunk = 0;
  std::vector<std::string> block_ids;
  std::uint64_t start = 0, end = 0;
  std::string quote;      ///< the document's text from start to end
  TextPlace place;        ///< pages and heading of the quote
  double weight = 0;      ///< share of the support, 0 .. 1
  double confidence = 0;  ///< estimated probability that the document supports the answer
};

enum class QuoteUse : std::uint8_t { kShow, kHide };

/// NumberedCitation is a citation as a reply shows it. The citation must outlive it.
struct NumberedCitation {
  const Citation& citation;
  std::size_t number = 1;  ///< becomes the id, counted from 1 in the order of the answer
  QuoteUse quote = QuoteUse::kShow;
};

const Reply<NumberedCitation>& citation_reply();
boost::json::array citations_json(const std::vector<Citation>& citations, QuoteUse quote);

}  // namespace quire
