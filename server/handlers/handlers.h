/// The handlers of every route. Each replies to its call exactly once, at once or later.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/service/call.h"

namespace quire {

/// Returns a sink that writes an uploaded pack to a temporary file.
std::shared_ptr<BodySink> make_pack_sink(Call& call);

namespace handlers {
void post_documents(std::shared_ptr<Call> call);
void list_documents(std::shared_ptr<Call> call);
void get_document(std::shared_ptr<Call> call);
void put_document(std::shared_ptr<Call> call);
void patch_document(std::shared_ptr<Call> call);
void delete_document(std::shared_ptr<Call> call);
void bulk_delete(std::shared_ptr<Call> call);
void document_content(std::shared_ptr<Call> call);
void document_chunks(std::shared_ptr<Call> call);
void document_blocks(std::shared_ptr<Call> call);
void warm_document(std::shared_ptr<Call> call);

void create_file(std::shared_ptr<Call> call);
void list_files(std::shared_ptr<Call> call);
void get_file(std::shared_ptr<Call> call);
void delete_file(std::shared_ptr<Call> call);
void create_vector_store(std::shared_ptr<Call> call);
void list_vector_stores(std::shared_ptr<Call> call);
void get_vector_store(std::shared_ptr<Call> call);
void modify_vector_store(std::shared_ptr<Call> call);
void delete_vector_store(std::shared_ptr<Call> call);
void attach_file(std::shared_ptr<Call> call);
void list_vector_store_files(std::shared_ptr<Call> call);
void get_vector_store_file(std::shared_ptr<Call> call);
void vector_store_file_content(std::shared_ptr<Call> call);
void modify_vector_store_file(std::shared_ptr<Call> call);
void detach_file(std::shared_ptr<Call> call);
void search_vector_store(std::shared_ptr<Call> call);
void create_file_batch(std::shared_ptr<Call> call);
void get_file_batch(std::shared_ptr<Call> call);
void cancel_file_batch(std::shared_ptr<Call> call);
void list_file_batch_files(std::shared_ptr<Call> call);

void list_jobs(std::shared_ptr<Call> call);
void get_job(std::shared_ptr<Call> call);
void cancel_job(std::shared_ptr<Call> call);
void job_events(std::shared_ptr<Call> call);

void query(std::shared_ptr<Call> call);
void embeddings(std::shared_ptr<Call> call);
void rerank(std::shared_ptr<Call> call);
void retrieve(std::shared_ptr<Call> call);
void query_plan(std::shared_ptr<Call> call);
void list_queries(std::shared_ptr<Call> call);
void get_query(std::shared_ptr<Call> call);
void explain_query(std::shared_ptr<Call> call);
void chat_completions(std::shared_ptr<Call> call);
void completions(std::shared_ptr<Call> call);

void list_models(std::shared_ptr<Call> call);
void get_model(std::shared_ptr<Call> call);
void info(std::shared_ptr<Call> call);
void version_info(std::shared_ptr<Call> call);
void tokenize(std::shared_ptr<Call> call);
void detokenize(std::shared_ptr<Call> call);

void livez(std::shared_ptr<Call> call);
void readyz(std::shared_ptr<Call> call);
void healthz(std::shared_ptr<Call> call);
void metrics(std::shared_ptr<Call> call);
void openapi(std::shared_ptr<Call> call);
void cache_stats(std::shared_ptr<Call> call);
void cache_evict(std::shared_ptr<Call> call);
void cache_pin(std::shared_ptr<Call> call);
void cache_unpin(std::shared_ptr<Call> call);
void cache_flush(std::shared_ptr<Call> call);
void admin_backup(std::shared_ptr<Call> call);
void cache_verify(std::shared_ptr<Call> call);
void cache_export(std::shared_ptr<Call> call);
void cache_import(std::shared_ptr<Call> call);
void effective_config(std::shared_ptr<Call> call);
void admin_reload(std::shared_ptr<Call> call);
void admin_drain(std::shared_ptr<Call> call);
void admin_requests(std::shared_ptr<Call> call);
void admin_cancel_request(std::shared_ptr<Call> call);
void admin_events(std::shared_ptr<Call> call);
void ui_page(std::shared_ptr<Call> call);
void ui_file(std::shared_ptr<Call> call);
}  // namespace handlers
}  // namespace quire
