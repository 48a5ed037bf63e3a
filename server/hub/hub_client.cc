#include "server/hub/hub_client.h"

#include <boost/json.hpp>
#include <charconv>

#include "base/json_object.h"
#include "base/json_parse.h"

namespace quire::hub {
namespace {

namespace json = boost::json;

std::string text_at(const json::object& object, std::string_view key) {
  return string_at(object, key).value_or("");
}

std::uint64_t size_at(const json::object& object, std::string_view key) {
  const json::value* v = object.if_contains(key);
  if (v == nullptr) return 0;
  boost::system::error_code error;
  const auto n = v->to_number<std::uint64_t>(error);
  return error ? 0 : n;
}

bool is_hex(const std::string& s, std::size_t size) {
  return s.size() == size && s.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Returns the address of rel="next" in a Link header; empty: there is none.
std::string next_page(const std::string& link) {
  const std::size_t rel = link.find("rel=\"next\"");
  if (rel == std::string::npos) return {};
  const std::size_t open = link.rfind('<', rel), close = link.find('>', open);
  return open == std::string::npos || close == std::string::npos
             ? std::string()
             : link.substr(open + 1, close - open - 1);
}

std::string unquoted(std::string s) {
  if (s.starts_with("W/")) s.erase(0, 2);
  if (s.size() >= 2 && s.front() == '"' && s.back() == '"') s = s.substr(1, s.size() - 2);
  return s;
}

}  // namespace

Status HubClient::refusal(const TransferReply& reply, const ModelReference& r,
                          const std::string& file) const {
  const std::string name = "hf:" + r.repo, code = reply.header("x-error-code");
  const std::string page = options_.endpoint + "/" + r.repo;
  if (reply.status == 401 || reply.status == 403) {
    const std::string token = options_.token.empty() ? "set HF_TOKEN to a token that may read it"
                                                     : "the token in HF_TOKEN may not read it";
    return Status::invalid("model", name + ": the hub says " + std::to_string(reply.status) +
                                        "; there is no such model, or " + token +
                                        "; gated models have terms to accept at " + page);
  }
  if (reply.status == 404) {
    if (code == "RevisionNotFound")
      return Status::not_found(name + " has no revision '" + r.revision + "' (see " + page + ")");
    if (!file.empty())
      return Status::not_found(name + " at " + r.revision + " has no file '" + file + "' (see " +
                               page + ")");
    return Status::not_found("there is no model " + name + " at " + options_.endpoint +
                             ", or no revision '" + r.revision + "'");
  }
  std::string words = reply.body.substr(0, 200);
  for (char& c : words) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  const std::string message = name + (file.empty() ? "" : ", " + file) + ": the hub says " +
                              std::to_string(reply.status) + (words.empty() ? "" : ": " + words);
  const bool later = reply.status == 429 || reply.status == 408 || reply.status >= 500;
  return later ? Status::unavailable(message) : Status::io(message);
}

Result<std::vector<HubFile>> HubClient::files(const ModelReference& r) const {
  std::vector<HubFile> all;
  const std::string revision = url_path(r.revision);
  std::string url = options_.endpoint + "/api/models/" + url_path(r.repo) + "/tree/";
  for (const char c : revision) url += c == '/' ? std::string("%2F") : std::string(1, c);
  url += "?recursive=true";
  for (int page = 0; !url.empty(); ++page) {
    if (page > 200) return Status::io("hf:" + r.repo + ": the hub's list of files has no end");
    TransferRequest request;
    request.url = url;
    if (url.starts_with(options_.endpoint + "/")) request.token = options_.token;
    QUIRE_ASSIGN_OR_RETURN(const TransferReply reply, transfer(request));
    if (reply.status != 200) return refusal(reply, r, "");
    json::value list;
    if (parse_json(reply.body, list) || !list.is_array())
      return Status::io("hf:" + r.repo + ": " + options_.endpoint +
                        " sent no list of files; is it a hub?");
    for (const json::value& item : list.get_array()) {
      const json::object* entry = item.if_object();
      if (entry == nullptr || text_at(*entry, "type") != "file") continue;
      HubFile file{.path = text_at(*entry, "path"),
                   .size = size_at(*entry, "size"),
                   .git_sha1 = text_at(*entry, "oid")};
      if (const json::value* lfs = entry->if_contains("lfs"); lfs != nullptr && lfs->is_object()) {
        file.sha256 = text_at(lfs->get_object(), "oid");
        file.size = size_at(lfs->get_object(), "size");
      }
      if (!file.sha256.empty() ? is_hex(file.sha256, 64) : is_hex(file.git_sha1, 40))
        all.push_back(std::move(file));
    }
    const std::string next = next_page(reply.header("link"));
    url = next.starts_with('/') ? options_.endpoint + next : next;
  }
  return all;
}

Status HubClient::fetch(const ModelReference& r, const HubFile& file, std::uint64_t from,
                        std::string& etag, const std::function<Status(std::uint64_t)>& on_start,
                        const std::function<Status(std::string_view)>& on_body) const {
  TransferRequest request;
  request.url = options_.endpoint + "/" + url_path(r.repo) + "/resolve/";
  for (const char c : url_path(r.revision))
    request.url += c == '/' ? std::string("%2F") : std::string(1, c);
  request.url += "/" + url_path(file.path);
  request.token = options_.token;
  request.headers.push_back("Accept-Encoding: identity");
  if (from > 0) {
    request.headers.push_back("Range: bytes=" + std::to_string(from) + "-");
    if (!etag.empty()) request.headers.push_back("If-Range: \"" + etag + "\"");
  }
  request.on_headers = [&](const TransferReply& reply) -> Status {
    etag = unquoted(reply.header("etag"));
    if (etag.find_first_of("\"\r\n") != std::string::npos || etag.size() > 200) etag.clear();
    std::uint64_t begin = 0;
    if (reply.status == 206) {
      const std::string range = reply.header("content-range");  // bytes 100-199/200
      const std::size_t digits = range.find_first_of("0123456789");
      const auto [end, ec] = std::from_chars(range.data() + std::min(digits, range.size()),
                                             range.data() + range.size(), begin);
      if (ec != std::errc() || begin != from)
        return Status::io("the hub sent another part of " + file.path + " than was asked for");
    }
    return on_start(begin);
  };
  request.on_body = on_body;
  QUIRE_ASSIGN_OR_RETURN(const TransferReply reply, transfer(request));
  if (reply.status == 416 && from > 0)
    return on_start(0);  // the file no longer has that size, so the caller starts again
  if (reply.status != 200 && reply.status != 206) return refusal(reply, r, file.path);
  return {};
}

}  // namespace quire::hub
