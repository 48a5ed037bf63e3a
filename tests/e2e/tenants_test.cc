// Two teams with keys of their own: whatever route one asks for what the other has, it learns
// nothing, and changes nothing. Which keys reach which routes is route_access_test.cc's matter.
#include <algorithm>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <thread>

#include "cachestore/format/key.h"
#include "server/service/route_table.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

/// Begins every text, title, name and value that team-a makes up, so a reply that has one tells.
const std::string kMarker = "zq7xkv";

/// One request. In path and body "$document" and the like stand for ids (Teams::ids), most of them
/// of what team-a has; "$own_store" is team-b's.
struct Ask {
  std::string path, body;
  int status = 404;
  std::string holds;  ///< a part of the reply of team-b: which error, or that there is nothing
  std::string type = "application/json";
};

struct Row {
  std::string_view route;
  /// Why requests to the route name nothing of a namespace; empty: they do.
  std::string_view names_nothing;
  std::vector<Ask> asks;
};

const std::string kNoDocument = "document_not_found", kNoJob = "job_not_found",
                  kNoQuery = "query_expired", kNoStore = "vector_store_not_found",
                  kNone = R"("data":[])", kDenied = "namespace_denied",
                  kOnlyOwn = R"("first_id":"own","last_id":"own")";

/// By method and pattern, each route once. Rows stand in the order in which they are asked: lists
/// come before what adds to them, and what deletes comes late, as team-a asks the same afterwards.
const std::vector<Row>& rows() {
  static const std::string form =
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"own.txt\"\r\n\r\n"
      "A hill.\r\n--b--\r\n";
  static const std::string_view service = "is about the whole service",
                                model = "is about the models, which all share",
                                text = "takes what the caller sends, and nothing by id";
  static const std::vector<Row> all = {
      {"GET /v1/documents",
       "",
       {{"/v1/documents", "", 200, kOnlyOwn},
        {"/v1/documents?include=counts", "", 200, R"("counts":{"total":1,)"},
        {"/v1/documents?order=asc&after=$document", "", 200, kOnlyOwn},
        {"/v1/documents?order=desc&after=$document", "", 200, kNone},
        {"/v1/documents?metadata.team=zq7xkv-meta", "", 200, kNone}}},
      {"GET /v1/documents/{id}", "", {{"/v1/documents/$document", "", 404, kNoDocument}}},
      {"GET /v1/documents/{id}/content",
       "",
       {{"/v1/documents/$document/content", "", 404, kNoDocument}}},
      {"GET /v1/documents/{id}/chunks",
       "",
       {{"/v1/documents/$document/chunks", "", 404, kNoDocument}}},
      {"GET /v1/documents/{id}/blocks",
       "",
       {{"/v1/documents/$document/blocks", "", 404, kNoDocument}}},
      {"GET /v1/jobs",
       "",
       {{"/v1/jobs", "", 200, R"("first_id":"$own_job","last_id":"$own_job")"},
        {"/v1/jobs?order=asc&after=$job", "", 200},
        {"/v1/jobs?order=desc&after=$job", "", 200}}},
      {"GET /v1/jobs/{id}", "", {{"/v1/jobs/$job", "", 404, kNoJob}}},
      {"GET /v1/jobs/{id}/events", "", {{"/v1/jobs/$job/events", "", 404, kNoJob}}},
      {"GET /v1/queries",
       "",
       {{"/v1/queries", "", 200, kNone}, {"/v1/queries?after=$query", "", 404, kNoQuery}}},
      {"GET /v1/queries/{id}", "", {{"/v1/queries/$query", "", 404, kNoQuery}}},
      {"GET /v1/queries/{id}/explain",
       "",
       {{"/v1/queries/$query/explain?include=text", "", 404, kNoQuery}}},
      {"GET /v1/files",
       "",
       {{"/v1/files", "", 200, kOnlyOwn},
        {"/v1/files?purpose=assistants", "", 200, kNone},
        {"/v1/files?order=asc&after=$document", "", 200, kOnlyOwn}}},
      {"GET /v1/files/{id}",
       "",
       {{"/v1/files/$file", "", 404, kNoDocument}, {"/v1/files/$document", "", 404, kNoDocument}}},
      {"GET /v1/files/{id}/content", "", {{"/v1/files/$file/content", "", 404, kNoDocument}}},
      {"GET /v1/vector_stores",
       "",
       {{"/v1/vector_stores", "", 200, R"("first_id":"$own_store","last_id":"$own_store")"},
        {"/v1/vector_stores?after=$store", "", 404, kNoStore}}},
      {"GET /v1/vector_stores/{id}", "", {{"/v1/vector_stores/$store", "", 404, kNoStore}}},
      {"GET /v1/vector_stores/{id}/files",
       "",
       {{"/v1/vector_stores/$store/files", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files?order=asc&after=$document", "", 200, kNone}}},
      {"GET /v1/vector_stores/{id}/files/{file}",
       "",
       {{"/v1/vector_stores/$store/files/$file", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files/$file", "", 404, kNoDocument}}},
      {"GET /v1/vector_stores/{id}/files/{file}/content",
       "",
       {{"/v1/vector_stores/$store/files/$file/content", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files/$file/content", "", 404, kNoDocument}}},
      {"GET /v1/vector_stores/{id}/file_batches/{batch}",
       "",
       {{"/v1/vector_stores/$store/file_batches/$batch", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/file_batches/$batch", "", 404, "file_batch_not_found"}}},
      {"GET /v1/vector_stores/{id}/file_batches/{batch}/files",
       "",
       {{"/v1/vector_stores/$store/file_batches/$batch/files", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/file_batches/$batch/files", "", 404,
         "file_batch_not_found"}}},

      {"GET /v1/models", model, {{"/v1/models", "", 200}}},
      {"GET /v1/models/{id}", model, {{"/v1/models/default", "", 200}}},
      {"GET /api/tags", model, {{"/api/tags", "", 200}}},
      {"GET /api/ps", model, {{"/api/ps", "", 200}}},
      {"GET /api/version", service, {{"/api/version", "", 200}}},
      {"GET /v1/info", service, {{"/v1/info", "", 200, R"("namespace":"team-b")"}}},
      {"GET /livez", service, {{"/livez", "", 200}}},
      {"GET /readyz", service, {{"/readyz", "", 200}}},
      {"GET /healthz", service, {{"/healthz", "", 200}}},
      {"GET /health", service, {{"/health", "", 200}}},
      {"GET /", service, {{"/", "", 200}}},
      {"GET /docs", service, {{"/docs", "", 200}}},
      {"GET /ui/{version}/{file}", service, {{"/ui/v/app.js", "", 200}}},
      {"GET /version", service, {{"/version", "", 200}}},
      {"GET /openapi.json", service, {{"/openapi.json", "", 200}}},
      {"GET /metrics", service, {{"/metrics", "", 200, "quire_requests_total"}}},
      {"GET /v1/admin/cache/stats",
       "counts over all namespaces, and names the caller's",
       {{"/v1/admin/cache/stats", "", 200},
        {"/v1/admin/cache/stats?by=namespace", "", 200, R"("name":"team-b")"}}},
      {"GET /v1/admin/requests",
       "lists what runs now; expect_running_query_is_hidden() has one run",
       {{"/v1/admin/requests", "", 200, kNone}}},
      {"POST /v1/admin/requests/{id}/cancel",
       "names a query that runs now; expect_running_query_is_hidden() has one run",
       {}},
      {"GET /v1/admin/events", "does not end; expect_events_hide_jobs() reads it", {}},
      {"GET /v1/admin/config", service, {{"/v1/admin/config", "", 403, kDenied}}},

      {"POST /v1/query",
       "",
       {{"/v1/query", R"({"query":"velmora?","document_ids":["$document"],"max_tokens":2})", 404,
         kNoDocument},
        {"/v1/query", R"({"query":"velmora?","document_ids":["own","$file"],"max_tokens":2})", 404,
         kNoDocument},
        {"/v1/query",
         R"({"query":"velmora?","document_ids":["$document"],"retrieve":{"k":4},"max_tokens":2})",
         404, kNoDocument},
        {"/v1/query", R"({"query":"velmora?","retrieve":{"k":4},"max_tokens":2})", 404,
         kNoDocument},
        {"/v1/query",
         R"({"query":"velmora?","retrieve":{"k":4,"metadata":{"team":"zq7xkv-meta"}},)"
         R"("max_tokens":2})",
         404, kNoDocument},
        {"/v1/query", R"({"query":"velmora?","max_tokens":2})", 200, R"("documents":[])"},
        {"/v1/query",
         R"({"query":"velmora?","document_ids":["$document"],"on_missing":"skip","max_tokens":2})",
         200, R"("documents":[])"}}},
      {"POST /v1/query/plan",
       "",
       {{"/v1/query/plan", R"({"query":"velmora?","document_ids":["$document"]})", 404,
         kNoDocument},
        {"/v1/query/plan", R"({"query":"velmora?"})", 200, R"("documents":[])"}}},
      {"POST /v1/retrieve",
       "",
       {{"/v1/retrieve", R"({"query":"velmora"})", 200, kNone},
        {"/v1/retrieve", R"({"query":"velmora","metadata":{"team":"zq7xkv-meta"}})", 200, kNone},
        {"/v1/retrieve", R"({"query":"velmora","document_ids":["$document"]})", 404, kNoDocument}}},
      {"POST /v1/rerank", text, {{"/v1/rerank", R"({"query":"a","documents":["a","b"]})", 200}}},
      {"POST /v1/chat/completions",
       "",
       {{"/v1/chat/completions",
         R"({"messages":[{"role":"user","content":"velmora?"}],"document_ids":["$document"],)"
         R"("max_tokens":2})",
         404, kNoDocument},
        {"/v1/chat/completions",
         R"({"messages":[{"role":"user","content":"velmora?"}],"max_tokens":2})", 200}}},
      {"POST /v1/completions",
       "",
       {{"/v1/completions", R"({"prompt":"velmora","document_ids":["$document"],"max_tokens":2})",
         404, kNoDocument}}},
      {"POST /v1/embeddings", text, {{"/v1/embeddings", R"({"input":"velmora"})", 200}}},
      {"POST /tokenize", text, {{"/tokenize", R"({"prompt":"velmora"})", 200}}},
      {"POST /detokenize", text, {{"/detokenize", R"({"tokens":[300,301]})", 200}}},
      {"POST /v1/responses",
       "",
       {{"/v1/responses",
         R"({"input":"velmora?","max_output_tokens":2,)"
         R"("tools":[{"type":"file_search","vector_store_ids":["$store"]}]})",
         404, kNoStore}}},
      {"POST /mcp",
       "",
       {{"/mcp",
         R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search",)"
         R"("arguments":{"query":"velmora"}}})",
         200, "No passage was found."},
        {"/mcp",
         R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search",)"
         R"("arguments":{"query":"velmora","document_ids":["$document"]}}})",
         200, "there is no document"},
        {"/mcp",
         R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask",)"
         R"("arguments":{"question":"velmora?","max_tokens":2,"document_ids":["$document"]}}})",
         200, "there is no document"}}},
      {"POST /v1/messages",
       text,
       {{"/v1/messages",
         R"({"model":"default","max_tokens":2,"messages":[{"role":"user","content":"velmora?"}]})",
         200}}},
      {"POST /v1/messages/count_tokens",
       text,
       {{"/v1/messages/count_tokens",
         R"({"model":"default","messages":[{"role":"user","content":"velmora?"}]})", 200}}},
      {"POST /api/chat",
       text,
       {{"/api/chat",
         R"({"model":"default","stream":false,"options":{"num_predict":2},)"
         R"("messages":[{"role":"user","content":"velmora?"}]})",
         200}}},
      {"POST /api/generate",
       text,
       {{"/api/generate",
         R"({"model":"default","stream":false,"prompt":"velmora","options":{"num_predict":2}})",
         200}}},
      {"POST /api/embed", text, {{"/api/embed", R"({"model":"default","input":"velmora"})", 200}}},
      {"POST /api/embeddings",
       text,
       {{"/api/embeddings", R"({"model":"default","prompt":"velmora"})", 200}}},
      {"POST /api/pull", model, {{"/api/pull", R"({"model":"default","stream":false})", 200}}},
      {"POST /api/show", model, {{"/api/show", R"({"model":"default"})", 200}}},
      {"POST /v1/vector_stores/{id}/search",
       "",
       {{"/v1/vector_stores/$store/search", R"({"query":"velmora"})", 404, kNoStore},
        {"/v1/vector_stores/$own_store/search", R"({"query":"velmora"})", 200, kNone}}},

      {"PATCH /v1/documents/{id}",
       "",
       {{"/v1/documents/$document", R"({"title":"taken","metadata":{"team":"b"}})", 404,
         kNoDocument}}},
      {"POST /v1/documents/{id}/warm",
       "",
       {{"/v1/documents/$document/warm", "", 404, kNoDocument},
        {"/v1/documents/$document/warm", R"({"tier":"dram"})", 404, kNoDocument}}},
      {"POST /v1/jobs/{id}/cancel", "", {{"/v1/jobs/$job/cancel", "", 404, kNoJob}}},
      {"POST /v1/vector_stores",
       "",
       {{"/v1/vector_stores", R"({"name":"more","file_ids":["$file"]})", 404, kNoDocument}}},
      {"POST /v1/vector_stores/{id}",
       "",
       {{"/v1/vector_stores/$store", R"({"name":"taken","metadata":{}})", 404, kNoStore}}},
      {"POST /v1/vector_stores/{id}/files",
       "",
       {{"/v1/vector_stores/$store/files", R"({"file_id":"$document"})", 404, kNoStore},
        {"/v1/vector_stores/$store/files", R"({"file_id":"own"})", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files", R"({"file_id":"$document"})", 404, kNoDocument}}},
      {"POST /v1/vector_stores/{id}/files/{file}",
       "",
       {{"/v1/vector_stores/$store/files/$file", R"({"attributes":{"team":"b"}})", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files/$file", R"({"attributes":{"team":"b"}})", 404,
         kNoDocument}}},
      {"POST /v1/vector_stores/{id}/file_batches",
       "",
       {{"/v1/vector_stores/$store/file_batches", R"({"file_ids":["$file"]})", 404, kNoStore},
        {"/v1/vector_stores/$own_store/file_batches", R"({"file_ids":["own","$file"]})", 404,
         kNoDocument}}},
      {"POST /v1/vector_stores/{id}/file_batches/{batch}/cancel",
       "",
       {{"/v1/vector_stores/$store/file_batches/$batch/cancel", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/file_batches/$batch/cancel", "", 404,
         "file_batch_not_found"}}},
      {"POST /v1/admin/cache/evict",
       "",
       {{"/v1/admin/cache/evict", R"({"tier":"disk","document_ids":["$document"]})", 404,
         kNoDocument},
        {"/v1/admin/cache/evict", R"({"tier":"dram","force":true})", 200},
        {"/v1/admin/cache/evict", R"({"tier":"disk","force":true})", 200}}},
      {"POST /v1/admin/cache/pin",
       "",
       {{"/v1/admin/cache/pin", R"({"document_ids":["own","$document"]})", 404, kNoDocument}}},
      {"POST /v1/admin/cache/unpin",
       "",
       {{"/v1/admin/cache/unpin", R"({"document_ids":["$file"]})", 404, kNoDocument}}},
      {"POST /v1/admin/cache/export",
       "",
       {{"/v1/admin/cache/export", R"({"document_ids":["own","$document"]})", 404, kNoDocument},
        {"/v1/admin/cache/export", "", 200, "QPAK"}}},
      {"POST /v1/admin/cache/import",
       text,
       {{"/v1/admin/cache/import", "no pack", 400, "invalid_value", "application/vnd.quire.pack"}}},
      {"POST /v1/admin/cache/flush", service, {{"/v1/admin/cache/flush", "", 403, kDenied}}},
      {"POST /v1/admin/backup", service, {{"/v1/admin/backup", "", 403, kDenied}}},
      {"POST /v1/admin/cache/verify", service, {{"/v1/admin/cache/verify", "", 403, kDenied}}},
      {"POST /v1/admin/reload", service, {{"/v1/admin/reload", "", 403, kDenied}}},
      {"POST /v1/admin/drain", service, {{"/v1/admin/drain", "", 403, kDenied}}},

      {"POST /v1/documents",
       text,
       {{"/v1/documents?wait=true", R"({"id":"own-2","text":"A lamp."})", 200, "succeeded"}}},
      {"POST /v1/files",
       text,
       {{"/v1/files", form, 200, "own.txt", "multipart/form-data; boundary=b"}}},
      {"POST /v1/documents/delete",
       "",
       {{"/v1/documents/delete", R"({"ids":["$document","$file"]})", 200, R"("deleted":[])"},
        {"/v1/documents/delete", R"({"filter":{"metadata":{"team":"zq7xkv-meta"}}})", 200,
         R"("deleted":[])"}}},
      {"DELETE /v1/vector_stores/{id}/files/{file}",
       "",
       {{"/v1/vector_stores/$store/files/$file", "", 404, kNoStore},
        {"/v1/vector_stores/$own_store/files/$file", "", 404, kNoDocument}}},
      {"DELETE /v1/vector_stores/{id}", "", {{"/v1/vector_stores/$store", "", 404, kNoStore}}},
      {"DELETE /v1/files/{id}", "", {{"/v1/files/$file", "", 404, kNoDocument}}},
      {"DELETE /v1/documents/{id}", "", {{"/v1/documents/$document", "", 404, kNoDocument}}},
      {"PUT /v1/documents/{id}",
       "",
       {{"/v1/documents/$document?wait=true", R"({"text":"A text of the same id."})", 201,
         R"("result":"created")"}}},
  };
  return all;
}

TEST(Tenants, EveryRouteHasARow) {
  std::map<std::string, const Row*> left;
  for (const Row& row : rows()) {
    EXPECT_TRUE(left.emplace(row.route, &row).second) << row.route << " has two rows";
    const bool named = std::ranges::any_of(
        row.asks, [](const Ask& a) { return (a.path + a.body).find('$') != std::string::npos; });
    EXPECT_EQ(named, row.names_nothing.empty()) << row.route;
  }
  for (const Route& r : all_routes()) {
    const std::string name = std::string(r.method) + " " + std::string(r.pattern);
    EXPECT_EQ(left.erase(name), 1u) << name << " has no row: what might it tell of other tenants?";
  }
  for (const auto& [name, row] : left) ADD_FAILURE() << "there is no route " << name;
}

/// Returns a reply without where KV lies, which changes as it is copied to memory.
json::value without_tiers(const json::value& value) {
  if (const auto* o = value.if_object()) {
    json::object out;
    for (const auto& [name, member] : *o)
      if (name != "tier" && name != "tiers") out[name] = without_tiers(member);
    return out;
  }
  if (const auto* a = value.if_array()) {
    json::array out;
    for (const auto& member : *a) out.push_back(without_tiers(member));
    return out;
  }
  return value;
}

/// A service with two teams. Each has a key with all scopes for a namespace of its own.
class Teams {
  const TempFolder folder_;  // outlives the service

 public:
  void start(std::vector<std::string> flags) {
    const auto keys = folder_.path() / "keys.toml";
    std::ofstream file(keys);
    for (const std::string team : {"a", "b"})
      file << "[[keys]]\nname = \"key-of-team-" << team << "\"\nsha256 = \""
           << sha256("secret-" + team).hex() << "\"\nscopes = [\"admin\"]\nnamespaces = [\"team-"
           << team << "\"]\n";
    file.close();
    flags.push_back("--auth.keys_file=" + keys.string());
    service.start(folder_.path() / "store", std::move(flags));
  }

  /// Gives team-b something, since a namespace that has nothing may be answered by other ways.
  void fill_own() {
    ids["$own_job"] = made("b", "/v1/documents?wait=true",
                           R"({"id":"own","text":"A hill with a lighthouse."})", "job_id");
    ids["$own_store"] = made("b", "/v1/vector_stores", R"({"name":"own"})");
  }

  /// Makes one of each kind of thing for team-a.
  void fill() {
    ids["$document"] = "manual-velq9";
    const std::string once = "The " + kMarker + "-text is that velmora had a lighthouse. ";
    const std::string text = once + once + once + once;
    ids["$job"] = made("a", "/v1/documents?wait=true",
                       R"({"id":"manual-velq9","title":"zq7xkv-title","text":)" + quoted(text) +
                           R"(,"metadata":{"team":"zq7xkv-meta"}})",
                       "job_id");
    ids["$file"] = made("a", "/v1/files",
                        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n"
                        "assistants\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; "
                        "filename=\"zq7xkv-file.txt\"\r\n\r\nThe zq7xkv-content of velmora is a "
                        "harbour.\r\n--b--\r\n",
                        "id", "multipart/form-data; boundary=b");
    ids["$store"] = made("a", "/v1/vector_stores",
                         R"({"name":"zq7xkv-name","description":"zq7xkv-description",)"
                         R"("metadata":{"team":"zq7xkv-about"},"file_ids":[")" +
                             ids["$file"] + "\"]}");
    const std::string store = "/v1/vector_stores/" + ids["$store"];
    (void)made("a", store + "/files/" + ids["$file"], R"({"attributes":{"x":"zq7xkv-attribute"}})");
    ids["$batch"] = made("a", store + "/file_batches",
                         R"({"file_ids":["manual-velq9"],"attributes":{"y":"zq7xkv-batch"}})");
    const auto batch = [&] {
      return text_at(service.json("GET", store + "/file_batches/" + ids["$batch"], {}, key("a")),
                     "status");
    };
    for (int i = 0; i < 6000 && batch() == "in_progress"; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // polls a process
    ids["$query"] = made(
        "a", "/v1/query",
        R"({"query":"zq7xkv-question of velmora?","document_ids":["manual-velq9"],)"
        R"("max_tokens":2})");

    secrets = {kMarker, "team-a"};
    for (const auto& [name, id] : ids)
      if (!name.starts_with("$own")) secrets.push_back(id);
    const auto document = service.json("GET", "/v1/documents/" + ids["$document"], {}, key("a"));
    secrets.push_back(text_at(document, "content_hash").substr(7));
  }

  std::vector<std::string> key(const std::string& team) const {
    return {"Authorization: Bearer secret-" + team};
  }

  /// Returns the text with ids in the places of their names.
  std::string filled(std::string text) const {
    for (const auto& [name, id] : ids)
      for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += id.size())
        text.replace(at, name.size(), id);
    return text;
  }

  /// Sends a request. The form of the reply is checked elsewhere.
  RawResponse send(const std::string& team, std::string_view method, const Ask& ask) const {
    return testing::call(service.port(), std::string(method), filled(ask.path), filled(ask.body),
                         key(team), ask.type);
  }

  /// Checks that a reply to team-b has nothing of team-a but what the request itself names.
  void expect_no_secret(const std::string& sent, const std::string& reply) const {
    for (const std::string& secret : secrets) {
      if (sent.find(secret) != std::string::npos) continue;
      EXPECT_EQ(reply.find(secret), std::string::npos)
          << "the reply has '" << secret << "' of team-a:\n"
          << reply.substr(0, 2000);
    }
  }

  /// Returns what team-a sees of all that it has, by path.
  std::map<std::string, std::string> state() const {
    std::map<std::string, std::string> out;
    for (const char* path :
         {"/v1/documents?include=counts", "/v1/documents/$document",
          "/v1/documents/$document/content", "/v1/documents/$document/chunks",
          "/v1/documents/$document/blocks", "/v1/documents/$file", "/v1/jobs", "/v1/queries",
          "/v1/queries/$query/explain?include=text", "/v1/files", "/v1/files/$file/content",
          "/v1/vector_stores", "/v1/vector_stores/$store/files",
          "/v1/vector_stores/$store/file_batches/$batch",
          "/v1/vector_stores/$store/file_batches/$batch/files"}) {
      const auto r = send("a", "GET", {.path = path});
      EXPECT_EQ(r.status, 200) << path << ": " << r.body;
      out[path] = r.body.starts_with("{") ? json::serialize(without_tiers(parse(r.body))) : r.body;
    }
    return out;
  }

  ServiceProcess service;
  std::map<std::string, std::string> ids;
  std::vector<std::string> secrets;

 private:
  /// Posts a body and returns a member of the reply.
  std::string made(const std::string& team, const std::string& path, const std::string& body,
                   const std::string& member = "id",
                   const std::string& type = "application/json") const {
    const auto r = service.call("POST", path, body, key(team), type);
    EXPECT_EQ(r.status, 200) << path << ": " << r.body;
    return text_at(parse(r.body), member);
  }
};

/// Has a query of team-a run, which team-b neither sees nor cancels.
void expect_running_query_is_hidden(const Teams& teams) {
  const ServiceProcess& service = teams.service;
  const std::string body =
      R"({"query":"q","min_tokens":1900,"max_tokens":1900,"seed":5,"stream":true,)"
      R"("timeout_ms":600000})";
  const auto listed = [&](const std::string& team) {
    return service.json("GET", "/v1/admin/requests", {}, teams.key(team));
  };
  // On a busy machine an answer may complete before all has been asked; then the next one is tried.
  for (int attempt = 0; attempt < 30; ++attempt) {
    LoopbackClient c(service.port(), 120);
    ASSERT_TRUE(c.send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\n" + teams.key("a")[0] +
                       "\r\nContent-Type: application/json\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n" + body));
    ASSERT_NE(c.read_until("\"id\":\"qry_").find("\"id\":\"qry_"), std::string::npos);
    const json::value own = listed("a");
    if (at(own, "data").as_array().empty()) continue;
    EXPECT_EQ(text_at(own, "data.0.namespace"), "team-a");
    const json::value others = listed("b");
    EXPECT_TRUE(at(others, "data").as_array().empty()) << json::serialize(others);
    const std::string path = "/v1/admin/requests/" + text_at(own, "data.0.id") + "/cancel";
    EXPECT_EQ(service.call("POST", path, {}, teams.key("b")).status, 404);
    if (at(listed("a"), "data").as_array().empty()) continue;
    (void)service.call("POST", path, {}, teams.key("a"));
    return;
  }
  ADD_FAILURE() << "no query ran for long enough";
}

/// Has both teams post a document, of which the events of team-b tell its own only.
void expect_events_hide_jobs(const Teams& teams) {
  LoopbackClient c(teams.service.port(), 60);
  ASSERT_TRUE(c.send("GET /v1/admin/events HTTP/1.1\r\nHost: localhost\r\n" + teams.key("b")[0] +
                     "\r\n\r\n"));
  ASSERT_NE(c.read_until("event: stats").find("event: stats"), std::string::npos);
  std::map<std::string, std::string> job;
  for (const std::string team : {"a", "b"}) {
    const auto made = teams.service.json("POST", "/v1/documents?wait=true",
                                         R"({"id":"news","text":"A bell."})", teams.key(team));
    job[team] = text_at(made, "job_id");
  }
  // The whole of the second that tells of team-b's.
  std::string seen = c.read_until(job["b"]);
  seen += c.read_until("event: stats");
  EXPECT_NE(seen.find(job["b"]), std::string::npos);
  EXPECT_EQ(seen.find(job["a"]), std::string::npos) << seen;
  teams.expect_no_secret("", seen);
}

TEST(Tenants, NoRouteTellsOrChangesWhatAnotherHas) {
  Teams teams;
  teams.start({"--explain.keep_text=true", "--metrics.per_namespace=true"});
  teams.fill_own();
  const auto ranked = [&] {
    return teams.service.call("POST", "/v1/retrieve", R"({"query":"lighthouse"})", teams.key("b"))
        .body;
  };
  const std::string alone = ranked();
  teams.fill();
  EXPECT_EQ(ranked(), alone) << "how rare a word is goes by the documents of the caller only";
  auto before = teams.state();
  // Every mark can be seen by whoever may see it.
  std::string all;
  for (const auto& [path, reply] : before) all += reply;
  for (const char* what : {"title", "text", "meta", "file.txt", "content", "name", "description",
                           "about", "attribute", "batch", "question"})
    EXPECT_NE(all.find(kMarker + "-" + what), std::string::npos) << what;

  for (const Row& row : rows()) {
    const std::string_view method = row.route.substr(0, row.route.find(' '));
    for (const Ask& ask : row.asks) {
      SCOPED_TRACE(std::string(row.route) + ": " + ask.path + " " + ask.body);
      const auto reply = teams.send("b", method, ask);
      EXPECT_EQ(reply.status, ask.status) << reply.body.substr(0, 2000);
      EXPECT_NE(reply.body.find(teams.filled(ask.holds)), std::string::npos)
          << "'" << ask.holds << "' is not in " << reply.body.substr(0, 2000);
      teams.expect_no_secret(teams.filled(ask.path + ask.body), reply.head + reply.body);
      if (method == "GET") continue;
      auto now = teams.state();
      for (const auto& [path, was] : before) EXPECT_EQ(now[path], was) << path << " has changed";
      before = std::move(now);
    }
  }

  // The document that team-b has put under the id of team-a's is one of its own.
  const std::string same = "/v1/documents/" + teams.ids["$document"];
  EXPECT_EQ(teams.service.call("GET", same + "/content", {}, teams.key("b")).body,
            "A text of the same id.");
  EXPECT_EQ(teams.service.call("DELETE", same, {}, teams.key("b")).status, 200);
  EXPECT_EQ(teams.state(), before);

  expect_running_query_is_hidden(teams);
  expect_events_hide_jobs(teams);

  // What team-b was not given is there for team-a, so it was asked for rightly.
  for (const Row& row : rows()) {
    for (const Ask& ask : row.asks) {
      if (ask.status != 404 || (ask.path + ask.body).find("own") != std::string::npos) continue;
      const auto reply = teams.send("a", row.route.substr(0, row.route.find(' ')), ask);
      EXPECT_LT(reply.status, 300) << row.route << ": " << ask.path << " " << ask.body << "\n"
                                   << reply.body.substr(0, 2000);
    }
  }
  EXPECT_EQ(teams.service.stop(), 0);
}

TEST(Tenants, TeamsThatShareKvStillSeeAndReachTheirOwnOnly) {
  Teams teams;
  teams.start({"--cache.share_across_namespaces=true"});
  expect_running_query_is_hidden(teams);
  for (const auto& [team, text] : {std::pair("a", "A long bridge."), {"b", "A high tower."}})
    EXPECT_EQ(teams.service
                  .call("POST", "/v1/documents?wait=true",
                        R"({"id":"d","text":)" + quoted(text) + "}", teams.key(team))
                  .status,
              200);
  const auto state_of = [&](const std::string& team) {
    return text_at(teams.service.json("GET", "/v1/documents/d", {}, teams.key(team)),
                   "cache.state");
  };
  // KV stays while something holds it, as the memory tier does while it copies it.
  for (int i = 0; i < 600 && state_of("b") == "resident"; ++i) {
    const auto r = teams.service.call("POST", "/v1/admin/cache/evict",
                                      R"({"tier":"disk","force":true})", teams.key("b"));
    ASSERT_EQ(r.status, 200) << r.body;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_NE(state_of("b"), "resident");
  EXPECT_EQ(state_of("a"), "resident");
  EXPECT_EQ(teams.service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
