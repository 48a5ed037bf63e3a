#include "server/reply/reply_schemas.h"

#include "server/reply/admin_reply.h"
#include "server/reply/cache_reply.h"
#include "server/reply/citation_reply.h"
#include "server/reply/document_reply.h"
#include "server/reply/explain_reply.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"
#include "server/reply/query_reply.h"
#include "server/reply/retrieve_reply.h"
#include "server/reply/timings_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

using Named = std::vector<std::pair<std::string_view, json::object>>;

template <class... Replies>
void add(Named& out, const Replies&... replies) {
  (out.emplace_back(replies.name(), replies.schema()), ...);
}

}  // namespace

std::vector<std::pair<std::string_view, json::object>> reply_schemas() {
  Named out{{"DocumentStatus", document_status().schema}, {"JobStatus", job_status().schema}};
  add(out, item_error_reply(), document_reply(), document_counts_reply(), chunk_reply(),
      stored_block_reply(), bulk_deletion_reply());
  add(out, job_counts_reply(), job_item_reply(), ingest_usage_reply(), job_reply(), ingest_reply());
  add(out, fates_reply(), usage_reply(), timings_reply(), tier_use_reply(), sparse_prefill_reply(),
      cache_reply(), query_document_reply(), citation_reply());
  add(out, query_result_reply(), query_end_reply(), query_entry_reply(), plan_event_reply());
  add(out, policy_reply(), explained_block_reply(), kept_part_reply(), explanation_reply(),
      wording_reply(), query_plan_reply());
  add(out, passage_reply(), retrieve_reply(), ranked_text_reply(), rerank_reply());
  add(out, tier_stats_reply(), cache_stats_reply(), eviction_reply(), verification_reply(),
      pins_reply(), import_reply(), backup_reply(), running_request_reply());
  add(out, document_list_reply(), list_reply("JobList", job_reply().kind()),
      list_reply("QueryList", query_entry_reply().kind()),
      list_reply("RunningRequestList", running_request_reply().kind()),
      list_reply("ChunkList", chunk_reply().kind(), kind::whole_number()),
      list_reply("BlockList", stored_block_reply().kind()));
  return out;
}

}  // namespace quire
