#include "server/json/rerank_codec.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "base/index.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kLongestQuery = 64 << 10, kLongestText = 64 << 10;

void read_text(const json::value& value, const std::string& path, JsonReader& body,
               std::vector<std::string>& out) {
  if (value.is_string()) {
    if (value.get_string().size() > kLongestText)
      return body.fail(path, path + " has " + std::to_string(value.get_string().size()) +
                                 " bytes; at most " + std::to_string(kLongestText) +
                                 " are taken: rank its parts");
    out.emplace_back(value.get_string());
    return;
  }
  if (!value.is_object())
    return body.fail(path, path + " must be a text or an object with the member text");
  JsonReader r(value, path);
  std::string text;
  r.string("text", text, kLongestText, JsonNeed::kRequired);
  r.finish();
  body.adopt(r.error());
  out.push_back(std::move(text));
}

}  // namespace

std::optional<JsonError> read_rerank(const json::value& body, RerankBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  r.string("query", out.query, kLongestQuery, JsonNeed::kRequired);
  if (r.ok() && out.query.empty()) r.fail("query", "query is empty");
  const auto* texts = r.array("documents", 1, kMostRerankTexts, JsonNeed::kRequired);
  for (std::size_t i = 0; texts && i < texts->size() && r.ok(); ++i)
    read_text((*texts)[i], "documents[" + std::to_string(i) + "]", r, out.texts);
  std::int64_t top_n = std::max<std::int64_t>(1, count_of(out.texts));
  r.integer("top_n", top_n, 1, 1 << 30);
  out.top_n = std::min(to_size(top_n), out.texts.size());
  r.string("model", out.model, 256);
  r.boolean("return_documents", out.return_documents);
  r.finish();
  return r.error();
}

}  // namespace quire
