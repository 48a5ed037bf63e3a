#include "server/handlers/handlers.h"
#include "server/protocols/protocols.h"
#include "server/service/route_table.h"

namespace quire {
namespace {

using enum Scope;
namespace h = handlers;

Route get(std::string_view pattern, std::string_view endpoint, Handler handler, Scope scope,
          std::string_view summary) {
  Route r;
  r.method = "GET";
  r.pattern = pattern;
  r.endpoint = endpoint;
  r.handler = handler;
  r.scope = scope;
  r.summary = summary;
  return r;
}

Route with_body(std::string_view method, std::string_view pattern, std::string_view endpoint,
                Handler handler, Scope scope, std::string_view summary,
                BodyUse body = BodyUse::kJson) {
  Route r = get(pattern, endpoint, handler, scope, summary);
  r.method = method;
  r.body = body;
  return r;
}

Route openai(Route r) {
  r.style = ErrorStyle::kOpenAi;
  return r;
}

Route anthropic(Route r) {
  r.style = ErrorStyle::kAnthropic;
  return r;
}

Route ollama(Route r) {
  r.style = ErrorStyle::kOllama;
  return r;
}

/// Returns the route of a probe: no key, always answered, on the I/O thread.
Route probe(std::string_view pattern, std::string_view endpoint, Handler handler,
            std::string_view summary) {
  Route r = get(pattern, endpoint, handler, kNone, summary);
  r.public_path = r.while_draining = true;
  r.needs_ready = false;
  r.run = RunOn::kIoThread;
  return r;
}

Route while_draining(Route r) {
  r.while_draining = true;
  return r;
}

/// Marks a route that concerns every namespace.
Route whole_service(Route r) {
  r.whole_service = true;
  return r;
}

Route long_running(Route r) {
  r.run = RunOn::kMaintenance;
  return r;
}

}  // namespace

std::vector<Route> all_routes() {
  std::vector<Route> routes = {
      with_body("POST", "/v1/documents", "documents", h::post_documents, kWrite,
                "Cache one document or a batch", BodyUse::kDocuments),
      get("/v1/documents", "documents", h::list_documents, kRead, "List documents"),
      with_body("POST", "/v1/documents/delete", "documents_delete", h::bulk_delete, kWrite,
                "Delete documents by ids or filter"),
      get("/v1/documents/{id}", "document", h::get_document, kRead,
          "One document and the state of its cache"),
      with_body("PUT", "/v1/documents/{id}", "document", h::put_document, kWrite,
                "Create or replace one document", BodyUse::kDocuments),
      with_body("PATCH", "/v1/documents/{id}", "document", h::patch_document, kWrite,
                "Change title, metadata, life or pin"),
      with_body("DELETE", "/v1/documents/{id}", "document", h::delete_document, kWrite,
                "Delete one document", BodyUse::kNone),
      get("/v1/documents/{id}/content", "document_content", h::document_content, kRead,
          "The stored text"),
      get("/v1/documents/{id}/chunks", "document_chunks", h::document_chunks, kRead,
          "Chunks with token and character ranges"),
      get("/v1/documents/{id}/blocks", "document_blocks", h::document_blocks, kRead,
          "Blocks with token and character ranges"),
      with_body("POST", "/v1/documents/{id}/warm", "document_warm", h::warm_document, kWrite,
                "Compute again what the cache lacks"),

      while_draining(get("/v1/jobs", "jobs", h::list_jobs, kRead, "List jobs")),
      while_draining(get("/v1/jobs/{id}", "job", h::get_job, kRead, "One job")),
      with_body("POST", "/v1/jobs/{id}/cancel", "job_cancel", h::cancel_job, kWrite,
                "Cancel what is not finished", BodyUse::kNone),
      get("/v1/jobs/{id}/events", "job_events", h::job_events, kRead,
          "Progress as server-sent events"),

      with_body("POST", "/v1/query", "query", h::query, kQuery, "Answer a question over documents"),
      with_body("POST", "/v1/query/plan", "query_plan", h::query_plan, kQuery,
                "What a query would use, without generating"),
      get("/v1/queries", "queries", h::list_queries, kQuery, "The last queries"),
      get("/v1/queries/{id}", "query_record", h::get_query, kQuery, "One of the last queries"),
      get("/v1/queries/{id}/explain", "query_explain", h::explain_query, kQuery,
          "The fate of every block"),
      with_body("POST", "/v1/retrieve", "retrieve", h::retrieve, kQuery,
                "Ranked passages without generating"),
      with_body("POST", "/v1/rerank", "rerank", h::rerank, kQuery,
                "Rank given texts for a question"),

      openai(get("/v1/models", "models", h::list_models, kRead, "Models served")),
      openai(get("/v1/models/{id}", "model", h::get_model, kRead, "One model")),
      openai(with_body("POST", "/v1/chat/completions", "chat_completions", h::chat_completions,
                       kQuery, "OpenAI-compatible chat")),
      openai(with_body("POST", "/v1/completions", "completions", h::completions, kQuery,
                       "OpenAI-compatible completion")),
      openai(with_body("POST", "/v1/embeddings", "embeddings", h::embeddings, kQuery,
                       "One vector a text, of the encoder or of the model's last hidden states")),
      openai(with_body("POST", "/tokenize", "tokenize", h::tokenize, kQuery, "Text to token ids")),
      openai(with_body("POST", "/detokenize", "detokenize", h::detokenize, kQuery,
                       "Token ids to text")),
      openai(with_body("POST", "/v1/responses", "responses", h::openai_responses, kQuery,
                       "OpenAI's Responses API")),
      openai(with_body("POST", "/v1/files", "files", h::create_file, kWrite,
                       "Upload a file, which becomes a document")),
      openai(get("/v1/files", "files", h::list_files, kRead, "List documents as OpenAI's files")),
      openai(get("/v1/files/{id}", "file", h::get_file, kRead, "One document as OpenAI's file")),
      openai(with_body("DELETE", "/v1/files/{id}", "file", h::delete_file, kWrite,
                       "Delete a document", BodyUse::kNone)),
      openai(get("/v1/files/{id}/content", "file_content", h::document_content, kRead,
                 "The stored text")),
      openai(with_body("POST", "/v1/vector_stores", "vector_stores", h::create_vector_store, kWrite,
                       "Make a vector store")),
      openai(get("/v1/vector_stores", "vector_stores", h::list_vector_stores, kRead,
                 "List vector stores")),
      openai(get("/v1/vector_stores/{id}", "vector_store", h::get_vector_store, kRead,
                 "One vector store")),
      openai(with_body("POST", "/v1/vector_stores/{id}", "vector_store", h::modify_vector_store,
                       kWrite, "Change its name or metadata")),
      long_running(openai(with_body("DELETE", "/v1/vector_stores/{id}", "vector_store",
                                    h::delete_vector_store, kWrite,
                                    "Delete a vector store; its documents stay", BodyUse::kNone))),
      openai(with_body("POST", "/v1/vector_stores/{id}/files", "vector_store_files", h::attach_file,
                       kWrite, "Attach a document")),
      openai(get("/v1/vector_stores/{id}/files", "vector_store_files", h::list_vector_store_files,
                 kRead, "List the documents of a vector store")),
      openai(get("/v1/vector_stores/{id}/files/{file}", "vector_store_file",
                 h::get_vector_store_file, kRead, "One document of a vector store")),
      openai(get("/v1/vector_stores/{id}/files/{file}/content", "vector_store_file_content",
                 h::vector_store_file_content, kRead, "The text of a document of a vector store")),
      openai(with_body("POST", "/v1/vector_stores/{id}/files/{file}", "vector_store_file",
                       h::modify_vector_store_file, kWrite, "Change the attributes of a document")),
      openai(with_body("DELETE", "/v1/vector_stores/{id}/files/{file}", "vector_store_file",
                       h::detach_file, kWrite, "Detach a document, which stays", BodyUse::kNone)),
      openai(with_body("POST", "/v1/vector_stores/{id}/search", "vector_store_search",
                       h::search_vector_store, kQuery, "Search the documents of a vector store")),
      openai(with_body("POST", "/v1/vector_stores/{id}/file_batches", "file_batches",
                       h::create_file_batch, kWrite, "Attach a batch of documents")),
      openai(get("/v1/vector_stores/{id}/file_batches/{batch}", "file_batch", h::get_file_batch,
                 kRead, "What has become of a batch")),
      openai(with_body("POST", "/v1/vector_stores/{id}/file_batches/{batch}/cancel",
                       "file_batch_cancel", h::cancel_file_batch, kWrite,
                       "Cancel what a batch has not begun", BodyUse::kNone)),
      openai(get("/v1/vector_stores/{id}/file_batches/{batch}/files", "file_batch_files",
                 h::list_file_batch_files, kRead, "List the documents of a batch")),
      with_body("POST", "/mcp", "mcp", h::mcp, kQuery, "A message of the Model Context Protocol"),
      anthropic(with_body("POST", "/v1/messages", "messages", h::anthropic_messages, kQuery,
                          "Anthropic's Messages API")),
      anthropic(with_body("POST", "/v1/messages/count_tokens", "messages_count_tokens",
                          h::anthropic_count_tokens, kQuery,
                          "Tokens that a message would have, as Anthropic's API counts them")),
      ollama(
          with_body("POST", "/api/chat", "ollama_chat", h::ollama_chat, kQuery, "Ollama's chat")),
      ollama(with_body("POST", "/api/generate", "ollama_generate", h::ollama_generate, kQuery,
                       "Ollama's completion of a prompt")),
      ollama(with_body("POST", "/api/embed", "ollama_embed", h::ollama_embed, kQuery,
                       "Ollama's embeddings")),
      ollama(with_body("POST", "/api/embeddings", "ollama_embeddings", h::ollama_embeddings, kQuery,
                       "Ollama's embedding of one text, in its older form")),
      ollama(
          get("/api/tags", "ollama_tags", h::ollama_tags, kRead, "Models, as Ollama lists them")),
      ollama(get("/api/ps", "ollama_ps", h::ollama_ps, kRead, "Models that are loaded")),
      ollama(with_body("POST", "/api/pull", "ollama_pull", h::ollama_pull, kRead,
                       "Say whether a model is here; the service fetches none")),
      ollama(with_body("POST", "/api/show", "ollama_show", h::ollama_show, kRead,
                       "One model, as Ollama describes it")),
      ollama(get("/api/version", "ollama_version", h::ollama_version, kRead,
                 "Version of the service, where Ollama's clients look for it")),
      get("/v1/info", "info", h::info, kRead, "What this service and its model can do"),

      probe("/livez", "livez", h::livez, "200 while the process turns"),
      probe("/readyz", "readyz", h::readyz, "200 when queries can be answered"),
      probe("/healthz", "healthz", h::healthz, "Ready state with its checks"),
      probe("/health", "health", h::healthz, "The same"),

      get("/v1/admin/cache/stats", "admin_cache_stats", h::cache_stats, kAdmin,
          "Tiers, bytes, savings"),
      with_body("POST", "/v1/admin/cache/evict", "admin_cache_evict", h::cache_evict, kAdmin,
                "Take KV out of a tier"),
      with_body("POST", "/v1/admin/cache/pin", "admin_cache_pin", h::cache_pin, kAdmin,
                "Keep the KV of documents"),
      with_body("POST", "/v1/admin/cache/unpin", "admin_cache_unpin", h::cache_unpin, kAdmin,
                "Let the KV of documents go when room is needed"),
      whole_service(while_draining(with_body("POST", "/v1/admin/cache/flush", "admin_cache_flush",
                                             h::cache_flush, kAdmin, "Write what waits to disk",
                                             BodyUse::kNone))),
      whole_service(long_running(
          with_body("POST", "/v1/admin/backup", "admin_backup", h::admin_backup, kAdmin,
                    "Make a backup of all documents and jobs", BodyUse::kNone))),
      whole_service(long_running(with_body("POST", "/v1/admin/cache/verify", "admin_cache_verify",
                                           h::cache_verify, kAdmin,
                                           "Read everything again and check it", BodyUse::kNone))),
      long_running(with_body("POST", "/v1/admin/cache/export", "admin_cache_export",
                             h::cache_export, kAdmin, "Documents with their KV as a pack")),
      long_running(with_body("POST", "/v1/admin/cache/import", "admin_cache_import",
                             h::cache_import, kAdmin, "A pack into the namespace", BodyUse::kPack)),
      while_draining(get("/v1/admin/requests", "admin_requests", h::admin_requests, kAdmin,
                         "Queries that run or wait")),
      while_draining(with_body("POST", "/v1/admin/requests/{id}/cancel", "admin_request_cancel",
                               h::admin_cancel_request, kAdmin, "Cancel a query", BodyUse::kNone)),
      whole_service(while_draining(get("/v1/admin/config", "admin_config", h::effective_config,
                                       kAdmin, "The effective configuration"))),
      whole_service(
          while_draining(with_body("POST", "/v1/admin/reload", "admin_reload", h::admin_reload,
                                   kAdmin, "Read keys and limits again", BodyUse::kNone))),
      whole_service(
          while_draining(with_body("POST", "/v1/admin/drain", "admin_drain", h::admin_drain, kAdmin,
                                   "Stop taking work", BodyUse::kNone))),
      get("/v1/admin/events", "admin_events", h::admin_events, kAdmin,
          "What happens, as server-sent events"),
  };
  for (const Route& r :
       {probe("/", "ui", h::ui_page, "The web page"),
        probe("/docs", "ui_docs", h::ui_page, "The web page, with this description for people"),
        probe("/ui/{version}/{file}", "ui_file", h::ui_file, "Scripts and styles of the page")})
    routes.push_back(r);
  Route version = get("/version", "version", h::version_info, kRead, "Version of the service");
  version.needs_ready = false;
  version.run = RunOn::kIoThread;
  version.while_draining = true;
  routes.push_back(version);
  Route openapi_json = get("/openapi.json", "openapi", h::openapi, kRead, "This description");
  openapi_json.needs_ready = false;
  openapi_json.while_draining = true;
  routes.push_back(openapi_json);
  Route metrics = get("/metrics", "metrics", h::metrics, kRead, "Prometheus metrics");
  metrics.needs_ready = false;
  metrics.while_draining = true;
  routes.push_back(metrics);
  return routes;
}

}  // namespace quire
