#include "server/json/embedding_codec.h"

#include <openssl/evp.h>

#include <boost/json/array.hpp>
#include <limits>
#include <string_view>
#include <utility>

#include "base/index.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostTokens = 1 << 20;

/// Reads token ids. The engine checks that the vocabulary has them.
bool read_ids(const json::array& list, const std::string& path, JsonReader& r,
              std::vector<std::int32_t>& out) {
  if (list.empty() || list.size() > kMostTokens) {
    r.fail(path, path + " has " + std::to_string(list.size()) + " token ids; 1 to " +
                     std::to_string(kMostTokens) + " are taken");
    return false;
  }
  for (const json::value& v : list) {
    const std::int64_t id = v.is_int64() ? v.get_int64() : -1;
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      r.fail(path, path +
                       " mixes token ids with something else; give a text, or an array of texts, "
                       "of token ids, or of arrays of token ids");
      return false;
    }
    out.push_back(static_cast<std::int32_t>(id));
  }
  return true;
}

void read_one(const json::value& v, const std::string& path, JsonReader& r, EmbeddingBody& out) {
  if (v.is_string()) {
    if (v.get_string().empty()) return r.fail(path, path + " is empty");
    out.inputs.emplace_back(std::string(v.get_string()));
  } else if (v.is_array()) {
    std::vector<std::int32_t> ids;
    if (read_ids(v.get_array(), path, r, ids)) out.inputs.emplace_back(std::move(ids));
  } else {
    r.fail(path, path + " must be a text or an array of token ids");
  }
}

void read_input(JsonReader& r, EmbeddingBody& out) {
  const json::value* input = r.raw("input");
  if (!input)
    return r.fail("input",
                  "input is missing; give a text, or an array of texts, of token ids, or of arrays "
                  "of token ids");
  const bool one = input->is_string() || (input->is_array() && !input->get_array().empty() &&
                                          input->get_array()[0].is_number());
  if (one || !input->is_array()) return read_one(*input, "input", r, out);
  const json::array& list = input->get_array();
  if (list.empty() || list.size() > kMostEmbeddingInputs) {
    return r.fail("input", "input has " + std::to_string(list.size()) + " texts; 1 to " +
                               std::to_string(kMostEmbeddingInputs) + " are taken");
  }
  for (std::size_t i = 0; i < list.size() && r.ok(); ++i)
    read_one(list[i], "input[" + std::to_string(i) + "]", r, out);
}

/// Refuses members of other servers that would change the vectors.
void refuse_other_vectors(JsonReader& r) {
  for (const auto& [member, same] : {std::pair<std::string_view, json::value>("normalize", true),
                                     {"add_special_tokens", true},
                                     {"truncate_prompt_tokens", nullptr},
                                     {"embd_normalize", 2}}) {
    const json::value* value = r.raw(member);
    if (value != nullptr && *value != same)
      r.fail(member, std::string(member) + " is not supported; leave it out",
             "unsupported_parameter");
  }
}

std::string base64_of(const std::vector<float>& vector) {
  static_assert(sizeof(float) == 4);
  // little-endian, as all supported machines are
  const auto* bytes = reinterpret_cast<const unsigned char*>(vector.data());
  const int size = static_cast<int>(vector.size() * sizeof(float));
  std::string out(to_size((size + 2) / 3 * 4) + 1, '\0');
  out.resize(to_size(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes, size)));
  return out;
}

}  // namespace

std::optional<JsonError> read_embedding(const json::value& body, EmbeddingBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_input(r, out);
  r.string("model", out.model, 256);
  std::string format = "float";
  r.one_of("encoding_format", format, {"float", "base64"});
  out.format = format == "base64" ? EmbeddingFormat::kBase64 : EmbeddingFormat::kFloat;
  if (r.ok() && r.has("dimensions"))
    r.fail("dimensions",
           "dimensions is not supported: vectors have the model's hidden size; leave it out",
           "unsupported_parameter");
  refuse_other_vectors(r);
  return r.error();
}

json::object embeddings_json(const std::vector<std::vector<float>>& vectors, EmbeddingFormat format,
                             const std::string& model, std::int64_t prompt_tokens) {
  json::array data;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    json::object o;
    o["object"] = "embedding";
    o["index"] = i;
    if (format == EmbeddingFormat::kBase64)
      o["embedding"] = base64_of(vectors[i]);
    else
      o["embedding"] = json::array(vectors[i].begin(), vectors[i].end());
    data.push_back(std::move(o));
  }
  json::object out;
  out["object"] = "list";
  out["data"] = std::move(data);
  out["model"] = model;
  out["usage"] = json::object{{"prompt_tokens", prompt_tokens}, {"total_tokens", prompt_tokens}};
  return out;
}

}  // namespace quire
