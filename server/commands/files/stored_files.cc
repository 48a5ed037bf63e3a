#include "server/commands/files/stored_files.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <charconv>

#include "server/commands/files/file_documents.h"

namespace quire {
namespace json = boost::json;
namespace {

std::string text_of(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  return v && v->is_string() ? std::string(v->as_string()) : std::string();
}

StoredFile stored_of(const json::object& o) {
  StoredFile out;
  out.id = text_of(o, "id");
  out.ready = text_of(o, "status") == "ready";
  if (const auto* m = o.if_contains("metadata"); m && m->is_object()) {
    const json::object& metadata = m->as_object();
    out.source = text_of(metadata, metadata.contains(kSourceFileKey) ? kSourceFileKey : kSourceKey);
    out.root = text_of(metadata, kSourceRootKey);
    out.hash = text_of(metadata, kSourceHashKey);
    if (const auto plus = out.hash.find('+'); plus != std::string::npos) {
      const char* const end = out.hash.data() + out.hash.size();
      (void)std::from_chars(out.hash.data() + plus + 1, end, out.documents);
      out.hash.erase(plus);
    }
  }
  return out;
}

}  // namespace

Result<std::vector<StoredFile>> stored_under(const ClientFlags& flags,
                                             const std::filesystem::path& root) {
  std::vector<StoredFile> out;
  for (std::string after;;) {
    ClientRequest request;
    request.target = "/v1/documents?limit=100&order=asc&metadata." + std::string(kSourceRootKey) +
                     "=" + percent_encode(root.string()) +
                     (after.empty() ? "" : "&after=" + percent_encode(after));
    const auto page = client_json(flags, std::move(request));
    if (!page.ok()) return page.status();
    const auto& o = page->as_object();
    for (const auto& d : o.at("data").as_array()) out.push_back(stored_of(d.as_object()));
    if (!o.at("has_more").as_bool()) return out;
    after = std::string(o.at("last_id").as_string());
  }
}

Result<std::optional<StoredFile>> stored_document(const ClientFlags& flags, const std::string& id) {
  ClientRequest request;
  request.target = "/v1/documents/" + percent_encode(id);
  const auto reply = client_json(flags, std::move(request));
  if (reply.code() == Code::kNotFound) return std::optional<StoredFile>();
  if (!reply.ok()) return reply.status();
  return std::optional<StoredFile>(stored_of(reply->as_object()));
}

}  // namespace quire
