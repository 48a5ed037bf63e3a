// Parses every JSON, NDJSON and multipart body that the service reads. Nothing may crash, and
// accepted values must be in range.
#include <cstdint>
#include <cstdlib>

#include "base/json_parse.h"
#include "server/json/admin_codec.h"
#include "server/json/document_request.h"
#include "server/json/document_upload.h"
#include "server/json/embedding_codec.h"
#include "server/json/openai_codec.h"
#include "server/json/query_request.h"
#include "server/json/retrieve_codec.h"
#include "server/json/text.h"
#include "server/json/vector_store_codec.h"
#include "server/vector_stores/file_batch_codec.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: {
      const auto value = parse_json(text, kOutsideJson);
      if (!value.ok()) break;
      const auto again = parse_json(to_text(*value));
      // The values may differ, because the library reads long decimals inexactly.
      if (!again.ok() || again->kind() != value->kind()) std::abort();
      QueryBody query;
      if (!read_query(*value, QueryDefaults{"auto", "auto", "auto", 64}, query) &&
          (query.sampling.max_tokens < 1 || query.document_ids.size() > 64 ||
           query.query.has_value() == !query.messages.empty()))
        std::abort();
      OpenAiBody chat, completion;
      if (!read_chat_completion(*value, QueryDefaults{"auto", "auto", "auto", 64}, 2048, chat) &&
          (chat.n < 1 || chat.n > kMaxChoices || chat.query.messages.empty() ||
           chat.query.messages.size() != chat.query.message_index.size() ||
           chat.query.document_ids.size() != chat.query.document_params.size()))
        std::abort();
      if (!read_completion(*value, QueryDefaults{"auto", "auto", "auto", 64}, 2048, completion) &&
          (completion.query.prompts.empty() || completion.n < 1 ||
           (completion.query.prompts.size() > 1 &&
            static_cast<std::int64_t>(completion.query.prompts.size()) * completion.n >
                kMaxChoices)))
        std::abort();
      DocumentBatch batch, put;
      if (!read_batch(*value, 8, batch) && batch.documents.empty()) std::abort();
      (void)read_put(*value, "id", put);
      DocumentPatch patch;
      (void)read_patch(*value, patch);
      BulkDelete bulk;
      (void)read_bulk_delete(*value, bulk);
      RetrieveBody body;
      const RetrieveRequest& retrieve = body.request;
      if (!read_retrieve(*value, body) && (retrieve.query.empty() || retrieve.k < 1 ||
                                           retrieve.k > static_cast<std::size_t>(kMostPassages) ||
                                           body.rerank.value_or(0) > kMostPassages))
        std::abort();
      VectorStoreBody store;
      if (!read_vector_store(*value, VectorStoreChange::kCreate, store) && store.metadata &&
          store.metadata->size() > 16)
        std::abort();
      VectorStoreFileBody file;
      (void)read_vector_store_file(*value, VectorStoreChange::kCreate, file);
      VectorStoreSearch search;
      if (!read_vector_store_search(*value, search) &&
          (search.queries.empty() || search.most < 1 || search.most > 50))
        std::abort();
      if (const auto stores = read_vector_stores(text);
          stores.ok() && !read_vector_stores(vector_stores_text(*stores)).ok())
        std::abort();
      FileBatch files;
      if (!read_file_batch(*value, files) &&
          (files.files.empty() || files.files.size() > kMostBatchFiles || files.ended()))
        std::abort();
      if (const auto saved = read_file_batch_record(text);
          saved.ok() && !read_file_batch_record(file_batch_text(*saved)).ok())
        std::abort();
      if (const auto unfinished = read_unfinished_batches(text);
          unfinished.ok() && !read_unfinished_batches(unfinished_batches_text(*unfinished)).ok())
        std::abort();
      EvictBody evict;
      if (!read_evict(*value, evict) && evict.older_than_seconds.value_or(0) < 0) std::abort();
      PinBody pin;
      if (!read_pin(*value, pin) && pin.document_ids.empty()) std::abort();
      std::vector<std::string> exported;
      (void)read_export(*value, exported);
      EmbeddingBody embedding;
      if (!read_embedding(*value, embedding) &&
          (embedding.inputs.empty() || embedding.inputs.size() > kMostEmbeddingInputs))
        std::abort();
      break;
    }
    case 1: {
      NdjsonReader reader([rest = text](std::span<char> out) mutable -> Result<std::size_t> {
        const std::size_t n = rest.copy(out.data(), std::min<std::size_t>(out.size(), 7));
        rest.remove_prefix(n);
        return n;
      });
      std::optional<DocumentInput> document;
      std::uint64_t documents = 0;
      while (!reader.next(document) && document) ++documents;
      if (documents != reader.num_documents() || documents > text.size()) std::abort();
      break;
    }
    default: {
      DocumentBatch batch;
      if (!read_multipart(text, "B", 8, batch) &&
          (batch.documents.empty() || batch.documents.size() > 8))
        std::abort();
      break;
    }
  }
  return 0;
}
