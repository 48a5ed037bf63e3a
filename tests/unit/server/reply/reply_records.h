/// Values of which every reply can be made: full ones, in which every member is set, and bare ones,
/// whose optional members are absent or null.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cachestore/store_admin.h"
#include "ingest/document/job.h"
#include "ingest/search/retrieval.h"
#include "server/reply/query_record.h"

namespace quire::testing {

inline PlannedBlock planned_block(std::int32_t first, Fate action, Tier tier) {
  PlannedBlock b;
  b.first_token = first;
  b.num_tokens = 16;
  b.action = action;
  b.kept_layers = 3;
  b.recomputed_tokens = action == Fate::kRecomputed ? 5 : 0;
  b.score = 0.12345678f;
  b.tier = tier;
  b.load_ms = 1.23456;
  b.id = {0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde};
  return b;
}

/// Fills each number of a retriever's statistics with another one.
inline RetrieveStats full_retrieve_stats() {
  RetrieveStats s;
  s.sparse_steps = 1;
  s.selections = 2;
  s.heads_corrected = 3;
  s.heads_kept = 4;
  s.pages_wanted = 5;
  s.pages_copied = 6;
  s.rows_wanted = 7;
  s.rows_copied = 8;
  s.rows_scored = 9;
  s.rows_attended = 10;
  s.bytes_copied = 11;
  s.bytes_appended = 12;
  s.bytes_offloaded = 13;
  s.copies = 14;
  s.waits = 15;
  s.copy_ms = 16.12345;
  s.wait_ms = 7.98765;
  s.choose_ms = 18.5555;
  s.device_bytes = 19;
  s.choosing_bytes = 20;
  s.layers_offloaded = 21;
  s.note = "the layers are few";
  return s;
}

inline Plan full_plan() {
  Plan p;
  p.strategy_asked = "auto";
  p.strategy = "exact";
  p.selector = "samkv";
  p.recomputer = "epic";
  p.compress = "speckv";
  p.decode = "quest";
  p.options = PlugOptions({{"bias", "off"}, {"token_budget", "550"}});
  p.fallback = "no certificate";
  p.reason = "the prompt is short";
  p.decode_reason = "the context is short";
  p.selection_pending = true;
  p.num_layers = 4;
  p.prefix_tokens = 12;
  p.suffix_tokens = 9;
  p.document_tokens = 70;
  p.prompt_tokens = 100;
  p.fates = {60, 10, 25, 5};
  PlannedContext whole, cut, evicted, copied;
  whole.document_id = evicted.document_id = "d";
  whole.num_tokens = 32;
  whole.block_tokens = 16;
  whole.cached = true;
  whole.keep_share = 0.123456f;
  whole.bias_weight = 0.654321f;
  whole.blocks = {planned_block(0, Fate::kReused, Tier::kGpu),
                  planned_block(16, Fate::kRecomputed, Tier::kDisk)};
  whole.kept_in = {true, true, false, true, true, true, true, false};
  whole.blocks[0].hot_share = 0.33333f;
  evicted.index = 1;
  evicted.chunk = 1;
  evicted.num_tokens = 8;
  evicted.block_tokens = 32;
  evicted.keep_share = 0.5f;
  evicted.miss = MissReason::kEvicted;
  evicted.blocks = {planned_block(0, Fate::kComputed, Tier::kNone)};
  cut.index = 2;
  cut.num_tokens = 16;
  cut.cut = CutText{100, {{4, 10}, {90, 100}}};
  cut.blocks = {planned_block(0, Fate::kDropped, Tier::kDram)};
  cut.kept_in = {true, false, true, true};
  copied.index = 3;
  copied.document_id = "e";
  copied.num_tokens = 7;
  copied.duplicate = true;
  copied.miss = MissReason::kCorrupt;
  p.contexts = {whole, evicted, cut, copied};
  p.prompt_cut = PromptCut{.by = "specpc",
                           .tokens = 200,
                           .kept_tokens = 51,
                           .removed_tokens = 149,
                           .lookahead_tokens = 3,
                           .read_before = true,
                           .note = "the draft was late",
                           .parts = {{PromptCut::Part::kPrefix, -1, {7, {{1, 2}}}},
                                     {PromptCut::Part::kContext, 2, *cut.cut},
                                     {PromptCut::Part::kQuestion, -1, {9, {{0, 9}}}}}};
  p.sparse_prefill = SparsePrefill{
      .band = 2048, .columns = 1024, .tokens = 5000, .attended_share = 0.25555, .note = "a note"};
  p.compression = Compression{.by = "speckv",
                              .dropped = true,
                              .rows = 300,
                              .hot_rows = 100,
                              .lookahead_tokens = 7,
                              .note = "no draft"};
  p.keep_ratio = 0.77777;
  p.recompute_ratio = 0.11111;
  p.predicted_load_ms = 1.23456;
  p.predicted_prefill_ms = 6.54321;
  p.spans = {{"load", 0.12345, 1.98765}, {"prefill", 2, 3}};
  return p;
}

/// A query in which everything happened that a reply can report.
inline QueryRecord full_record() {
  QueryRecord r;
  r.id = "qry_1";
  r.ns = "default";
  r.model = "demo";
  r.question = "How?";
  r.answer = "So \"it\" is.";
  r.created_ms = 1'740'823'200'123;
  r.finished = true;
  r.plan = full_plan();
  QueryStats& s = r.stats;
  s.queue_ms = 1.11119;
  s.lookup_ms = 2.22229;
  s.load_ms = 3.33339;
  s.prefill_ms = 4.44449;
  s.recompute_ms = 5.55559;
  s.ttft_ms = 99;
  s.decode_ms = 30.12345;
  s.total_ms = 98;
  s.completion_tokens = 4;
  s.written_tokens = 8;
  s.query_pass_ms = 6.66669;
  s.select_ms = 7.77779;
  s.compress_ms = 8.88889;
  s.prompt_ms = 9.99999;
  s.draft_ms = 10.10109;
  s.lookahead_tokens = 7;
  s.sketch_bytes = 77;
  s.sketch_misses = 1;
  s.attribution_ms = 11.11119;
  s.retrieve = full_retrieve_stats();
  for (int i = 0; i < 5; ++i) {
    s.tier_blocks[i] = i + 1;
    s.tier_tokens[i] = 10 * i + 1;
    s.tier_bytes[i] = 100 * i + 1;
  }
  QueryDocument stored, given, other;
  stored.id = "d";
  stored.title = "not shown";
  stored.content_hash = "abc";
  stored.num_contexts = 2;
  stored.read_behind = {ReadBehind::Kind::kLeadIn, {}};
  stored.score = 1.23456789;
  given.title = "Inline";
  given.first_context = 2;
  given.num_contexts = 1;
  other.id = "e";
  other.miss = MissReason::kModelChanged;
  other.first_context = 3;
  other.num_contexts = 1;
  r.documents = {stored, given, other};
  r.finish_reason = "stop";
  r.tool_calls = {{"call_1", "add", "{\"a\":1}"}};
  r.token_ms = {1, 2, 4};
  Citation c;
  c.answer_start = 0;
  c.answer_end = 3;
  c.document_id = "d";
  c.chunk = 1;
  c.block_ids = {"b-1", "b-2"};
  c.start = 5;
  c.end = 9;
  c.quote = "it is";
  c.place = {3, 4, "A > B"};
  c.weight = 0.123456;
  c.confidence = 0.875;
  Citation inline_one;
  inline_one.document_index = 1;
  r.citations = {c, inline_one};
  r.unsupported = {{30, 44}};
  r.wording = {.intro = "Read.\n", .document = "{title}\n{text}\n", .question = "Q: "};
  r.citation_style = *CitationStyle::parse("[{n}]");
  r.tokenize_ms = 0.12345;
  r.resolve_ms = 0.23456;
  r.total_ms = 97.65432;
  r.ttft_ms = 21.98765;
  r.exact_note = "the certificate is old";
  return r;
}

/// A query of which nothing is to be said beyond what each reply has.
inline QueryRecord bare_record() {
  QueryRecord r;
  r.id = "qry_2";
  r.plan.strategy = "reuse";
  PlannedContext c;
  c.blocks = {planned_block(0, Fate::kReused, Tier::kDisk)};
  r.plan.contexts = {c};
  QueryDocument d;
  d.num_contexts = 1;
  r.documents = {d};
  return r;
}

inline DocumentInfo full_document() {
  DocumentInfo d;
  d.id = "d";
  d.ns = "default";
  d.title = "Title";
  d.metadata_json = R"({"k":[1,2.5,null]})";
  d.content_hash = "abc";
  d.tag = "abc.5f0a1b2c3d4e5f60";
  d.version = 2;
  d.bytes = 3;
  d.tokens = 4;
  d.num_chunks = 5;
  d.status = DocumentStatus::kFailed;
  d.error = ItemError{"empty_document", "it is empty", "text"};
  d.pinned = true;
  d.hits = 6;
  d.created_ms = 1'740'823'200'123;
  d.updated_ms = 1'740'823'200'124;
  d.last_used_ms = 1'740'823'200'125;
  d.expires_at_ms = 1'740'823'200'126;
  d.job_id = "job_1";
  d.progress = 0.123456;
  d.read_behind = ReadBehind{ReadBehind::Kind::kLeadIn, {}};
  d.cache.state = "partial";
  d.cache.fingerprint = "fp";
  d.cache.kv_dtype = "f16";
  d.cache.bytes = 7;
  d.cache.blocks = 8;
  d.cache.gpu = 9;
  d.cache.dram = 10;
  d.cache.disk = 11;
  d.cache.remote = 12;
  return d;
}

inline JobSnapshot full_job() {
  JobSnapshot j;
  j.id = "job_1";
  j.ns = "default";
  j.type = JobType::kWarm;
  j.status = JobStatus::kPartial;
  j.counts = {5, 1, 2, 3, 4};
  j.progress.tokens_done = 6;
  j.progress.tokens_total = 7;
  j.progress.ratio = 0.857142;
  j.progress.tokens_per_second = 123.456;
  j.progress.eta_ms = 8;
  j.usage = {9, 10, 11};
  j.created_ms = 1'740'823'200'123;
  j.started_ms = 1'740'823'200'124;
  j.finished_ms = 1'740'823'200'125;
  JobItem made, failed;
  made.id = "d";
  made.result = ItemResult::kCreated;
  made.status = DocumentStatus::kReady;
  made.tokens = 12;
  made.blocks = 13;
  failed.index = 1;
  failed.error = ItemError{"empty_document", "it is empty", ""};
  j.results = {made, failed};
  j.error = ItemError{"internal", "it broke", ""};
  return j;
}

inline ChunkInfo full_chunk() {
  ChunkInfo c;
  c.index = 1;
  c.char_begin = 2;
  c.char_end = 3;
  c.byte_begin = 4;
  c.byte_end = 5;
  c.tokens = 6;
  c.blocks = 7;
  c.block_tokens = 16;
  c.key = "not shown";
  c.tier = Tier::kDram;
  c.place = {3, 4, "A > B"};
  return c;
}

inline BlockInfo full_block() {
  BlockInfo b;
  b.index = 1;
  b.block_id = "b-123456789abc";
  b.chunk = 2;
  b.token_begin = 3;
  b.token_end = 4;
  b.char_begin = 5;
  b.char_end = 6;
  b.tier = Tier::kDisk;
  return b;
}

inline EvictReport full_evict_report() { return {1, 2, 3, 4, 5}; }

inline VerifyReport full_verify_report() {
  VerifyReport v;
  v.documents = 1;
  v.segments = 2;
  v.values = 3;
  v.bytes = 4;
  v.bad_documents = 5;
  v.bad_segments = 6;
  v.problems = {"one", "two"};
  v.complete = true;
  return v;
}

inline std::vector<Passage> passages() {
  Passage full, bare;
  full.document_id = "d";
  full.title = "Title";
  full.metadata_json = R"({"k":1})";
  full.chunk = 1;
  full.text = "words";
  full.start = 2;
  full.end = 3;
  full.score = 1.23456789;
  full.place = {3, 4, "A > B"};
  bare.document_id = "e";
  return {full, bare};
}

}  // namespace quire::testing
