// The document service takes documents in: results, errors, preconditions, concurrency,
// cancellation, failures of store and engine.
#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "cachestore/catalog/shared_catalog.h"
#include "ingest/document/chunker.h"
#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;
using testing::ElementsAre;

class ServiceTest : public IngestTest {
 protected:
  void SetUp() override { open(); }
  static std::string results(const JobSnapshot& job) {
    std::string out;
    for (const JobItem& i : job.results) {
      out += std::string(out.empty() ? "" : " ") + std::string(item_result_name(i.result));
      if (i.error) out += "(" + i.error->code + " " + i.error->param + ")";
    }
    return out;
  }
};

TEST_F(ServiceTest, CachesADocumentAndAnswersForIt) {
  const std::string text = prose(700, 1);
  const JobSnapshot job = put(one(doc("handbook-7", text, R"({"source":"hr"})", "Leave")));
  ASSERT_EQ(job.status, JobStatus::kSucceeded);
  EXPECT_EQ(results(job), "created");
  EXPECT_EQ(job.counts.completed, 1);
  EXPECT_EQ(job.usage.cache_write_tokens, job.usage.tokens);
  EXPECT_EQ(job.usage.tokens, engine_->prefilled_tokens());
  EXPECT_EQ(job.progress.ratio, 1.0);

  const auto d = service_->documents().get("default", "handbook-7");
  ASSERT_OK(d);
  EXPECT_EQ(d->status, DocumentStatus::kReady);
  EXPECT_EQ(d->title, "Leave");
  EXPECT_EQ(d->metadata_json, R"({"source":"hr"})");
  EXPECT_EQ(d->bytes, text.size());
  EXPECT_EQ(static_cast<std::int64_t>(d->tokens), job.usage.tokens);
  EXPECT_GT(d->num_chunks, 1u);
  EXPECT_EQ(d->cache.state, "resident");
  EXPECT_EQ(d->cache.dram, d->cache.blocks);
  EXPECT_EQ(d->cache.disk, d->cache.blocks);
  EXPECT_EQ(job.results[0].blocks, d->cache.blocks);
  EXPECT_EQ(*service_->documents().content("default", "handbook-7"), text);
  EXPECT_EQ(service_->documents().get("other", "handbook-7").code(), Code::kNotFound);
}

TEST_F(ServiceTest, EqualContentIsUnchangedAndComputesNothing) {
  put(one(doc("", prose(50, 1))));
  const auto before = engine_->prefills();
  const JobSnapshot again = put(one(doc("", prose(50, 1))));
  EXPECT_EQ(results(again), "unchanged");
  EXPECT_EQ(again.results[0].id.substr(0, 4), "doc_");
  EXPECT_EQ(again.results[0].id.size(), 36u);
  EXPECT_EQ(engine_->prefills(), before);
  EXPECT_EQ(again.usage.cache_write_tokens, 0);
  EXPECT_EQ(again.usage.deduplicated_tokens, again.usage.tokens);
  EXPECT_EQ(service_->documents().get("default", again.results[0].id)->version, 1u);
}

TEST_F(ServiceTest, OtherMetadataOrPinIsWrittenWithoutComputing) {
  put(one(doc("a", "some text", R"({"v":1})")));
  BatchOptions options;
  options.pinned = true;
  const JobSnapshot job = put(one(doc("a", "some text", R"({"v":2})")), options);
  EXPECT_EQ(results(job), "updated");
  EXPECT_EQ(engine_->prefills(), 1);
  const auto d = service_->documents().get("default", "a");
  EXPECT_EQ(d->metadata_json, R"({"v":2})");
  EXPECT_TRUE(d->pinned);
}

TEST_F(ServiceTest, OtherContentOrSettingsMakeANewVersion) {
  put(one(doc("a", prose(400, 1))));
  EXPECT_EQ(results(put(one(doc("a", prose(400, 2))))), "updated");
  EXPECT_EQ(*service_->documents().content("default", "a"), prose(400, 2));
  BatchOptions options;
  options.chunking.max_tokens = 64;
  EXPECT_EQ(results(put(one(doc("a", prose(400, 2))), options)), "updated");
  EXPECT_GT(service_->documents().get("default", "a")->num_chunks, 4u);
  EXPECT_EQ(service_->documents().get("default", "a")->version, 3u);
  options.cache_salt = "salty enough";
  EXPECT_EQ(results(put(one(doc("a", prose(400, 2))), options)), "updated");
}

TEST_F(ServiceTest, ItemsSucceedOrFailAlone) {
  DocumentInput bad;
  bad.chunks = {"Part one", " "};
  std::vector<DocumentInput> batch;
  batch.push_back(doc("good", "text one"));
  batch.push_back(std::move(bad));
  batch.push_back(doc("bad id", "text"));
  batch.push_back(doc("good", "another text"));
  batch.push_back(doc("", "same text"));
  batch.push_back(doc("", "same text"));
  batch.push_back(doc("utf", "ab\xFF"));
  const JobSnapshot job = put(std::move(batch));
  EXPECT_EQ(job.status, JobStatus::kPartial);
  EXPECT_EQ(results(job),
            "created failed(empty_document documents[1].chunks[1]) failed(invalid_value "
            "documents[2].id) failed(invalid_value documents[3].id) "
            "created unchanged failed(invalid_value documents[6].text)");
  EXPECT_EQ(job.counts.failed, 4);
  EXPECT_EQ(job.results[6].error->message, "documents[6].text is not valid UTF-8 at byte 2");
  EXPECT_EQ(*service_->documents().content("default", "good"), "text one");
}

TEST_F(ServiceTest, OfEqualDocumentsWithoutIdsTheLastOnesMetadataCount) {
  std::vector<DocumentInput> batch;
  batch.push_back(doc("", "same text", R"({"page":1})"));
  batch.push_back(doc("", "same text", R"({"page":2})"));
  batch.push_back(doc("", "same text", R"({"page":2})"));
  const JobSnapshot job = put(std::move(batch));
  EXPECT_EQ(results(job), "created updated unchanged");
  EXPECT_EQ(service_->documents().get("default", job.results.at(0).id)->metadata_json,
            R"({"page":2})");
}

TEST_F(ServiceTest, SingleDocumentErrorsHaveNoIndex) {
  BatchOptions options;
  options.in_batch = false;
  EXPECT_EQ(results(put(one(doc("a", "")), options)), "failed(empty_document text)");
}

TEST_F(ServiceTest, WholeCallsAreRefusedWithTheField) {
  BatchOptions o;
  const auto refuse = [&](std::vector<DocumentInput> docs, const std::string& ns = "default") {
    return service_->submit(ns, std::move(docs), o).status();
  };
  EXPECT_EQ(refuse({}).field(), "documents");
  EXPECT_EQ(refuse(std::vector<DocumentInput>(257)).field(), "documents");
  EXPECT_EQ(refuse(one(doc("a", "x")), "bad/ns").field(), "namespace");
  o.cache_salt = "short";
  EXPECT_EQ(refuse(one(doc("a", "x"))).field(), "cache_salt");
  o = {};
  o.ttl_seconds = 0;
  EXPECT_EQ(refuse(one(doc("a", "x"))).field(), "ttl_seconds");
  o = {};
  o.tier = "moon";
  EXPECT_EQ(refuse(one(doc("a", "x"))).field(), "tier");
  o = {};
  o.chunking.max_tokens = 0;
  EXPECT_EQ(refuse(one(doc("a", "x"))).field(), "chunking.max_tokens");
  EXPECT_EQ(service_->jobs().list_jobs("default", {})->jobs.size(), 0u);
}

TEST_F(ServiceTest, IfExistsSkipAndError) {
  put(one(doc("a", "old")));
  BatchOptions o;
  o.if_exists = IfExists::kSkip;
  EXPECT_EQ(results(put(one(doc("a", "new")), o)), "skipped");
  o.if_exists = IfExists::kError;
  EXPECT_EQ(results(put(one(doc("a", "new")), o)), "failed(document_exists documents[0].id)");
  EXPECT_EQ(*service_->documents().content("default", "a"), "old");
}

TEST_F(ServiceTest, PreconditionsOnTheContentHash) {
  BatchOptions o;
  o.if_match = "sha256:00";
  EXPECT_EQ(service_->submit("default", one(doc("a", "x")), o).code(), Code::kFailedPrecondition);
  o.if_match.reset();
  o.if_none_match_any = true;
  EXPECT_EQ(results(put(one(doc("a", "one")), o)), "created");
  const auto refused = service_->submit("default", one(doc("a", "two")), o);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.status().field(), "If-None-Match");
  o.if_none_match_any = false;
  o.if_match = service_->documents().get("default", "a")->content_hash;
  EXPECT_EQ(results(put(one(doc("a", "two")), o)), "updated");
  EXPECT_EQ(service_->submit("default", one(doc("a", "three")), o).status().field(), "If-Match");
}

TEST_F(ServiceTest, OfManyConditionalWritesAtOnceOneWins) {
  for (int round = 0; round < 40; ++round) {
    const bool fresh = round % 2 == 0;  // else the document is there
    const std::string id = "d" + std::to_string(round);
    BatchOptions o;
    if (fresh) {
      o.if_exists = IfExists::kError;
    } else {
      put(one(doc(id, "the first")));
      o.if_match = service_->documents().get("default", id)->content_hash;
    }
    std::vector<std::string> ends(6);
    {
      std::vector<std::jthread> clients;
      for (std::size_t i = 0; i < ends.size(); ++i)
        clients.emplace_back([&, i] {
          const auto job = service_->submit("default", one(doc(id, "text " + std::to_string(i))),
                                            o);
          ends[i] = job.ok() ? results(wait(job)) : "refused";
        });
    }
    const std::string won = fresh ? "created" : "updated";
    ASSERT_EQ(std::ranges::count(ends, won), 1) << round;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const bool has = *service_->documents().content("default", id) == "text " + std::to_string(i);
      EXPECT_EQ(has, ends[i] == won) << ends[i];
      EXPECT_TRUE(ends[i] == won || ends[i] == "refused" || ends[i].starts_with("failed("))
          << ends[i];
    }
  }
}

TEST_F(ServiceTest, OfTwoConditionalWritesInFlightOneWins) {
  put(one(doc("a", "one")));
  BatchOptions o;
  o.if_match = service_->documents().get("default", "a")->content_hash;
  engine_->close();
  const auto first = service_->submit("default", one(doc("a", "two")), o);
  const auto second = service_->submit("default", one(doc("a", "three")), o);
  engine_->open();
  EXPECT_EQ(results(wait(first)), "updated");
  EXPECT_EQ(results(wait(second)), "failed(precondition_failed If-Match)");
  EXPECT_EQ(*service_->documents().content("default", "a"), "two");
}

TEST_F(ServiceTest, GivenChunksAreKeptApart) {
  DocumentInput d;
  d.id = "c";
  d.chunks = {"Part \xC3\xA9ne.", "Part two."};
  EXPECT_EQ(results(put(one(std::move(d)))), "created");
  EXPECT_EQ(*service_->documents().content("default", "c"), "Part \xC3\xA9ne.\n\nPart two.");
  const auto chunks = service_->documents().chunks("default", "c");
  ASSERT_OK(chunks);
  ASSERT_EQ(chunks->size(), 2u);
  EXPECT_EQ((*chunks)[1].byte_begin, 12u);
  EXPECT_EQ((*chunks)[1].char_begin, 11u);
  EXPECT_EQ((*chunks)[1].char_end, 20u);
  EXPECT_EQ((*chunks)[0].tier, Tier::kDram);
}

TEST_F(ServiceTest, ChunksSeeThoseBeforeThemAndAChangeCostsWhatSawIt) {
  const auto chunks = [](std::vector<std::string> parts) {
    DocumentInput d;
    d.id = "c";
    d.chunks = std::move(parts);
    return one(std::move(d));
  };
  const auto lengths = [&] {
    const auto r = service_->resolve("default", std::vector<std::string>{"c"}, {});
    EXPECT_OK(r);
    std::vector<std::int32_t> before;
    std::vector<std::size_t> left;
    for (const QueryContext& c : r->documents[0].contexts) {
      left.push_back(c.left_context.size());
      EXPECT_TRUE(std::equal(c.left_context.rbegin(), c.left_context.rend(), before.rbegin()));
      EXPECT_EQ(*c.key, engine_->names().context_key(c.token_ids, "default", {}, c.left_context));
      before.insert(before.end(), c.token_ids.begin(), c.token_ids.end());
    }
    return left;
  };
  const JobSnapshot first = put(chunks({"First part.", "Second part.", "Third part."}));
  const std::vector<std::size_t> left = lengths();
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0], 0u);
  EXPECT_GT(left[1], 0u);
  EXPECT_GT(left[2], left[1]);
  const JobSnapshot last = put(chunks({"First part.", "Second part.", "Other part."}));
  EXPECT_LT(last.usage.cache_write_tokens, first.usage.tokens / 2);
  EXPECT_EQ(static_cast<std::size_t>(last.usage.tokens - last.usage.cache_write_tokens), left[2]);
  const JobSnapshot begin = put(chunks({"Other part.", "Second part.", "Other part."}));
  EXPECT_EQ(begin.usage.cache_write_tokens, begin.usage.tokens);
  // Each by itself: a change costs its chunk alone.
  BatchOptions alone;
  alone.chunking.context_tokens = 0;
  put(chunks({"First part.", "Second part.", "Third part."}), alone);
  EXPECT_EQ(lengths(), (std::vector<std::size_t>{0, 0, 0}));
  const JobSnapshot one_of_them = put(chunks({"Another part.", "Second part.", "Third part."}),
                                      alone);
  EXPECT_LT(one_of_them.usage.cache_write_tokens, one_of_them.usage.tokens / 2);
}

TEST_F(ServiceTest, DocumentsAboveTheLimitsFailAndStayAsFailed) {
  service_->stop();
  options_.max_document_tokens = 200;
  make_service();
  EXPECT_EQ(results(put(one(doc("long", prose(600, 1))))),
            "failed(document_too_long documents[0].text)");
  const auto d = service_->documents().get("default", "long");
  ASSERT_OK(d);
  EXPECT_EQ(d->status, DocumentStatus::kFailed);
  EXPECT_EQ(d->error->code, "document_too_long");
  EXPECT_EQ(d->bytes, 0u);
  EXPECT_EQ(service_->documents().counts("default")->text_bytes, 0u);
  EXPECT_EQ(service_->documents().content("default", "long").code(), Code::kFailedPrecondition);
  EXPECT_EQ(results(put(one(doc("long", "short now")))), "created");
  BatchOptions none;
  none.chunking.strategy = ChunkStrategy::kNone;
  service_->stop();
  options_.max_document_tokens = 131072;
  make_service();
  EXPECT_EQ(results(put(one(doc("window", prose(3000, 1))), none)),
            "failed(document_too_long documents[0].text)");
}

TEST_F(ServiceTest, NamespaceQuotaIsChecked) {
  service_->stop();
  options_.namespace_bytes = 40'000;
  make_service();
  EXPECT_EQ(results(put(one(doc("a", prose(100, 1))))), "created");
  EXPECT_EQ(results(put(one(doc("b", prose(600, 2))))), "failed(cache_full documents[0])");
  EXPECT_EQ(service_->documents().get("default", "b").code(), Code::kNotFound);
  EXPECT_EQ(results(put(one(doc("a", prose(90, 3))))), "updated")
      << "the version replaced does not count";
  const JobSnapshot other = put(one(doc("a", prose(100, 1))), {}, "team-b");
  EXPECT_EQ(results(other), "created") << "a quota is a namespace's own";
}

TEST_F(ServiceTest, DocumentsInProgressCountInTheNamespaceQuota) {
  const std::string text = prose(100, 1);
  put(one(doc("a", text)));
  const auto d = service_->documents().get("default", "a");
  ASSERT_OK(d);
  const auto per_token = static_cast<std::uint64_t>(engine_->info().kv_bytes_per_token);
  const std::uint64_t bytes = d->bytes + d->tokens * per_token;
  service_->stop();
  options_.namespace_bytes = 2 * bytes + bytes / 2;
  make_service();
  engine_->close();
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 4; ++i)
    batch.push_back(doc("d" + std::to_string(i), text + std::to_string(i)));
  const auto job = service_->submit("team-b", std::move(batch), {});
  ASSERT_OK(job);
  // All of them are checked before the first is committed.
  const auto is_checked = [](const JobItem& item) {
    return item.finished() || item.status == DocumentStatus::kPrefilling;
  };
  while (!std::ranges::all_of(service_->jobs().job("team-b", job->id)->results, is_checked))
    std::this_thread::yield();
  engine_->open();
  const JobSnapshot end = wait(job, "team-b");
  ASSERT_EQ(end.counts.completed, 2);
  for (const JobItem& item : end.results)
    if (item.error) {
      EXPECT_EQ(item.error->code, "cache_full");
    }
  ASSERT_OK(service_->documents().remove(
      "team-b", std::ranges::find(end.results, ItemResult::kCreated, &JobItem::result)->id));
  EXPECT_EQ(results(put(one(doc("later", text)), {}, "team-b")), "created")
      << "what was reserved is released";
}

TEST_F(ServiceTest, ADocumentFromElsewhereIsAdmittedAsAPostIs) {
  put(one(doc("a", prose(100, 1))));
  auto document = store_->get_document("default", "a");
  ASSERT_OK(document);
  const std::uint64_t text = document->text_bytes;
  const std::uint64_t bytes = text + document->num_tokens * static_cast<std::uint64_t>(
                                                                engine_->info().kv_bytes_per_token);
  service_->stop();
  options_.namespace_bytes = 2 * bytes;
  make_service();
  document->id = "b";
  document->ns = "team-b";
  {
    const auto first = service_->admit(*document, text);
    ASSERT_OK(first);
    document->id = "c";
    const auto second = service_->admit(*document, text);
    ASSERT_OK(second);
    document->id = "d";
    EXPECT_EQ(service_->admit(*document, text).code(), Code::kResourceExhausted)
        << "what is held counts";
    EXPECT_EQ(results(put(one(doc("e", prose(100, 1))), {}, "team-b")),
              "failed(cache_full documents[0])");
  }
  EXPECT_OK(service_->admit(*document, text + bytes));
  EXPECT_EQ(service_->admit(*document, text + bytes + 1).code(), Code::kResourceExhausted);
  document->id = "a";
  document->ns = "default";
  EXPECT_OK(service_->admit(*document, text + bytes)) << "the version replaced does not count";
}

TEST_F(ServiceTest, WaitingDocumentsAreShownAndAnsweredByTheOldVersion) {
  put(one(doc("old", "first version")));
  engine_->close();
  std::vector<DocumentInput> batch;
  batch.push_back(doc("old", "second version"));
  batch.push_back(doc("new", "fresh text", R"({"k":"v"})"));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  const auto fresh = service_->documents().get("default", "new");
  ASSERT_OK(fresh);
  EXPECT_LT(fresh->status, DocumentStatus::kReady);
  EXPECT_EQ(fresh->job_id, job->id);
  EXPECT_EQ(fresh->metadata_json, R"({"k":"v"})");
  EXPECT_EQ(*service_->documents().content("default", "new"), "fresh text");
  EXPECT_EQ(*service_->documents().content("default", "old"), "first version");
  EXPECT_EQ(service_->documents().get("default", "old")->status, DocumentStatus::kReady);
  EXPECT_TRUE(service_->documents().get("default", "old")->progress.has_value());

  const std::vector<std::string> ids = {"new", "old", "none"};
  auto resolved = service_->resolve("default", ids, {});
  ASSERT_OK(resolved);
  ASSERT_EQ(resolved->documents.size(), 1u);
  EXPECT_EQ(resolved->documents[0].id, "old");
  ASSERT_EQ(resolved->not_ready.size(), 1u);
  EXPECT_EQ(resolved->not_ready[0].job_id, job->id);
  EXPECT_THAT(resolved->missing, ElementsAre("none"));
  ResolveOptions inline_too;
  inline_too.compute_pending = true;
  resolved = service_->resolve("default", ids, inline_too);
  ASSERT_EQ(resolved->documents.size(), 2u);
  EXPECT_TRUE(resolved->documents[0].pending);
  EXPECT_FALSE(resolved->documents[0].contexts[0].key);

  std::promise<void> settled;
  const Subscription waiting = service_->jobs().when_synchronized("default", ids,
                                                                  [&] { settled.set_value(); });
  engine_->open();
  settled.get_future().get();
  EXPECT_EQ(*service_->documents().content("default", "old"), "second version");
  EXPECT_EQ(service_->resolve("default", ids, {})->documents.size(), 2u);
  bool at_once = false;
  (void)service_->jobs().when_synchronized("default", ids, [&] { at_once = true; });
  EXPECT_TRUE(at_once);
}

TEST_F(ServiceTest, ConcurrentUpsertsOfOneIdEndInTheLastOne) {
  std::vector<Result<JobSnapshot>> jobs;
  for (int i = 0; i < 20; ++i)
    jobs.push_back(service_->submit("default", one(doc("a", "version " + std::to_string(i))), {}));
  for (const auto& j : jobs) EXPECT_EQ(wait(j).status, JobStatus::kSucceeded);
  EXPECT_EQ(*service_->documents().content("default", "a"), "version 19");
  EXPECT_EQ(service_->documents().get("default", "a")->version, 20u);
  EXPECT_EQ(store_->stats().segments, 1u) << "replaced segments are freed";
}

TEST_F(ServiceTest, ManyThreadsSubmitDeleteAndRead) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const std::string id = "d" + std::to_string(i % 5);
        if (t == 3) {
          (void)service_->documents().remove("default", id);
        } else {
          const auto job = service_->submit(
              "default", one(doc(id, "text " + std::to_string(t * 100 + i))), {});
          EXPECT_OK(job);
        }
        const std::vector<std::string> ids = {id};
        EXPECT_OK(service_->resolve("default", ids, {}));
        EXPECT_OK(service_->documents().list("default", {}));
      }
    });
  }
  for (auto& t : threads) t.join();
  const std::vector<std::string> ids = {"d0", "d1", "d2", "d3", "d4"};
  std::promise<void> settled;
  const Subscription s = service_->jobs().when_synchronized("default", ids,
                                                            [&] { settled.set_value(); });
  settled.get_future().get();
  for (const std::string& id : ids) {
    const auto d = service_->documents().get("default", id);
    if (d.ok()) {
      EXPECT_EQ(d->cache.state, "resident");
    }
  }
}

TEST_F(ServiceTest, AResolvedDocumentOutlivesItsDeletion) {
  put(one(doc("a", prose(100, 1))));
  const std::vector<std::string> ids = {"a"};
  const auto resolved = service_->resolve("default", ids, {});
  ASSERT_OK(resolved);
  const QueryContext& context = resolved->documents[0].contexts[0];
  auto handle = store_->find_segment(*context.key);
  ASSERT_TRUE(handle);
  ASSERT_OK(service_->documents().remove("default", "a"));
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
  EXPECT_OK(store_->read_value(*handle, 0, 0)) << "a running query goes on";
  EXPECT_FALSE(context.token_ids.empty());
  EXPECT_EQ(service_->documents().remove("default", "a").code(), Code::kNotFound);
}

TEST_F(ServiceTest, DocumentsAreTakenInTheOrderOfTheirSubmission) {
  service_->stop();
  options_.max_documents_in_flight = 1;
  make_service();
  std::mutex mu;
  std::vector<std::string> order;
  store_->watch_documents([&](std::string_view, std::string_view id) {
    const std::lock_guard lock(mu);
    order.emplace_back(id);
  });
  engine_->close();
  std::vector<Result<JobSnapshot>> jobs;
  for (const auto& [id, text] : std::vector<std::pair<std::string, std::string>>{
           {"a", "one"}, {"b", "two"}, {"a", "three"}, {"c", "four"}, {"b", "five"}, {"d", "six"}})
    jobs.push_back(service_->submit("default", one(doc(id, text)), {}));
  engine_->wait_for_one();
  EXPECT_EQ(service_->stats().documents_waiting, 5);
  EXPECT_EQ(service_->jobs().cancel_job("default", jobs[2]->id)->status, JobStatus::kCancelled);
  engine_->open();
  for (const std::size_t i : {0u, 1u, 3u, 4u, 5u})
    EXPECT_EQ(wait(jobs[i]).status, JobStatus::kSucceeded) << i;
  store_->watch_documents({});
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_THAT(order, ElementsAre("a", "b", "c", "b", "d"));
  EXPECT_EQ(*service_->documents().content("default", "a"), "one");
  EXPECT_EQ(*service_->documents().content("default", "b"), "five");
  EXPECT_EQ(service_->stats().documents_waiting, 0);
}

TEST_F(ServiceTest, ADeletionEndsEqualDocumentsOfOneCall) {
  engine_->close();
  std::vector<DocumentInput> batch;
  batch.push_back(doc("", "same text"));
  batch.push_back(doc("", "same text"));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  ASSERT_EQ(job->results[0].id, job->results[1].id);
  EXPECT_OK(service_->documents().remove("default", job->results[0].id));
  engine_->open();
  EXPECT_EQ(results(wait(job)), "cancelled cancelled");
  EXPECT_OK(service_->run_maintenance());
  EXPECT_EQ(service_->documents().get("default", job->results[0].id).code(), Code::kNotFound);
}

TEST_F(ServiceTest, CancelKeepsWhatIsFinished) {
  engine_->close();
  engine_->permit(1);
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 10; ++i)
    batch.push_back(doc("d" + std::to_string(i), "text " + std::to_string(i)));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  engine_->permit(0);
  const auto cancelled = service_->jobs().cancel_job("default", job->id);
  ASSERT_OK(cancelled);
  const JobSnapshot end = wait(job);
  EXPECT_EQ(end.status, JobStatus::kCancelled);
  EXPECT_EQ(end.counts.completed + end.counts.cancelled, 10);
  EXPECT_GE(end.counts.cancelled, 8);
  engine_->open();
  for (const JobItem& item : end.results)
    EXPECT_EQ(service_->documents().get("default", item.id).ok(),
              item.result == ItemResult::kCreated)
        << item.id;
  EXPECT_EQ(service_->jobs().cancel_job("default", job->id)->status, JobStatus::kCancelled)
      << "again is harmless";
  EXPECT_EQ(service_->jobs().cancel_job("other", job->id).code(), Code::kNotFound);
}

TEST_F(ServiceTest, ACancelBetweenTheStartAndTheFirstPrefillEndsTheItem) {
  std::promise<std::string> posted;
  auto id = posted.get_future().share();
  std::once_flag once;
  faulty_->on_read_head([&] {
    std::call_once(once, [&] { EXPECT_OK(service_->jobs().cancel_job("default", id.get())); });
  });
  const auto job = service_->submit("default", one(doc("a", "text")), {});
  ASSERT_OK(job);
  posted.set_value(job->id);
  EXPECT_EQ(wait(job).status, JobStatus::kCancelled);
  EXPECT_EQ(put(one(doc("a", "text"))).status, JobStatus::kSucceeded) << "the worker is free again";
}

TEST_F(ServiceTest, DeletingADocumentInFlightCancelsIt) {
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "text")), {});
  engine_->wait_for_one();
  EXPECT_OK(service_->documents().remove("default", "a"));
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
  engine_->open();
  EXPECT_EQ(wait(job).status, JobStatus::kCancelled);
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
}

TEST_F(ServiceTest, ADeletionThatItsConditionRefusesCancelsNoPost) {
  std::promise<void> committing, go;
  const auto may_go = go.get_future().share();
  std::atomic<int> commits{0};
  faulty_->before_commit = [&] {
    if (++commits != 2) return;
    committing.set_value();
    may_go.wait();
  };
  put(one(doc("a", "one")));
  const std::string tag = service_->documents().get("default", "a")->tag;
  const auto first = service_->submit("default", one(doc("a", "two")), {});
  committing.get_future().wait();
  const auto second = service_->submit("default", one(doc("a", "three")), {});
  Status deleted;
  {
    const std::jthread deleting([&] {
      deleted = service_->documents().remove("default", "a", {tag, {}});
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it now waits for the commit
    go.set_value();
  }
  EXPECT_EQ(deleted.field(), "If-Match") << deleted.to_string();
  EXPECT_EQ(results(wait(first)), "updated");
  EXPECT_EQ(results(wait(second)), "updated");
  EXPECT_EQ(*service_->documents().content("default", "a"), "three");
}

TEST_F(ServiceTest, ADeletionThatFailsCancelsNoPost) {
  put(one(doc("a", "one")));
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "two")), {});
  engine_->wait_for_one();
  faulty_->fail_at(0, Status::io("injected"));
  EXPECT_EQ(service_->documents().remove("default", "a").code(), Code::kIo);
  engine_->open();
  EXPECT_EQ(results(wait(job)), "updated");
}

TEST_F(ServiceTest, AnExceptionEndsItsDocumentAlone) {
  std::atomic<int> reads{0};  // until one runs out of memory
  faulty_->on_read_head([&] {
    if (reads > 0 && --reads == 0) throw std::bad_alloc();
  });
  std::atomic<bool> breaks{false};
  faulty_->before_commit = [&] {
    if (breaks.exchange(false)) throw std::runtime_error("secret detail");
  };
  reads = 1;
  const JobSnapshot job = put(one(doc("a", "text one")));
  EXPECT_EQ(results(job), "failed(cache_full documents[0])");
  EXPECT_THAT(job.results[0].error->message, testing::HasSubstr("not enough memory"));
  breaks = true;
  EXPECT_EQ(results(put(one(doc("b", "text two")))), "failed(internal documents[0])");
  EXPECT_EQ(service_->stats().documents_in_flight, 0);
  EXPECT_EQ(results(put(one(doc("a", "text one")))), "created");
  EXPECT_EQ(results(put(one(doc("b", "text two")))), "created");
}

TEST_F(ServiceTest, AFailedPrefillIsNamedAndCanBeRepeated) {
  engine_->fail_at(1, Status::exhausted("pins leave no room"));
  BatchOptions o;
  o.chunking.max_tokens = 64;
  EXPECT_EQ(results(put(one(doc("a", prose(200, 1))), o)), "failed(cache_full documents[0])");
  EXPECT_EQ(service_->documents().get("default", "a")->status, DocumentStatus::kFailed);
  const std::vector<std::string> ids = {"a"};
  EXPECT_EQ(service_->resolve("default", ids, {})->not_ready[0].error->code, "cache_full");
  EXPECT_EQ(results(put(one(doc("a", prose(200, 1))), o)), "created");
  engine_->fail_at(0, Status::internal("secret detail"));
  const JobSnapshot job = put(one(doc("b", "text")));
  EXPECT_EQ(job.results[0].error->code, "internal");
  EXPECT_THAT(job.results[0].error->message, testing::Not(testing::HasSubstr("secret")));
}

TEST_F(ServiceTest, TheTextOfAFailedDocumentThatIsPostedAgainIsTheOneThatWaits) {
  engine_->fail_at(0, Status::io("disk"));
  put(one(doc("a", "first text")));
  ASSERT_EQ(service_->documents().get("default", "a")->status, DocumentStatus::kFailed);
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "second text")), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  const auto text = service_->documents().content("default", "a");
  ASSERT_OK(text);
  EXPECT_EQ(*text, "second text");
  engine_->open();
  wait(job);
}

TEST_F(ServiceTest, AFailedUpdateLeavesTheOldVersion) {
  put(one(doc("a", "old text")));
  engine_->fail_at(0, Status::io("disk"));
  EXPECT_EQ(results(put(one(doc("a", "new text")))), "failed(storage_unavailable documents[0])");
  EXPECT_EQ(*service_->documents().content("default", "a"), "old text");
  EXPECT_EQ(service_->documents().get("default", "a")->cache.state, "resident");
}

TEST_F(ServiceTest, EveryStoreFailureHasAFaceAndLosesNothing) {
  put(one(doc("keep", "kept text")));
  for (int n = 0; n < 12; ++n) {
    SCOPED_TRACE(n);
    const std::string id = "n" + std::to_string(n);
    faulty_->fail_at(n, Status::io("injected"));
    const auto job = service_->submit("default", one(doc(id, "text of " + id)), {});
    if (job.ok()) {
      const JobSnapshot end = wait(job);
      ASSERT_TRUE(end.finished());
      const auto d = service_->documents().get("default", id);
      EXPECT_EQ(end.results[0].result == ItemResult::kCreated,
                d.ok() && d->status == DocumentStatus::kReady);
      if (end.results[0].error) {
        EXPECT_EQ(end.results[0].error->code, "storage_unavailable");
      }
    } else {
      EXPECT_EQ(job.code(), Code::kIo);
    }
    faulty_->fail_at(1 << 20, Status());
    EXPECT_EQ(*service_->documents().content("default", "keep"), "kept text");
    EXPECT_EQ(put(one(doc(id, "text of " + id))).status, JobStatus::kSucceeded);
  }
}

TEST_F(ServiceTest, WhileTheSharedCatalogIsAwayNothingIsTakenAndWhatWasTakenWaits) {
  faulty_->set_catalog(true);
  put(one(doc("keep", "kept text")));
  std::promise<void> tried;
  std::atomic<int> commits{0};
  faulty_->before_commit = [&] {
    if (commits++ > 0) return;
    faulty_->set_catalog(false);
    tried.set_value();
  };
  const auto job = service_->submit("default", one(doc("d", "text that waits")), {});
  ASSERT_OK(job);
  tried.get_future().get();
  while (service_->jobs().job("default", job->id)->results[0].status != DocumentStatus::kQueued)
    std::this_thread::yield();
  for (const Status& refused :
       {service_->submit("default", one(doc("e", "not taken")), {}).status(),
        service_->documents().remove("default", "d"),
        service_->documents().remove("default", "keep"),
        service_->documents().patch("default", "keep", {}).status()}) {
    EXPECT_TRUE(catalog_is_away(refused)) << refused.to_string();
  }
  EXPECT_OK(service_->run_maintenance());
  EXPECT_FALSE(service_->jobs().job("default", job->id)->finished());
  EXPECT_EQ(*service_->documents().content("default", "keep"), "kept text");
  faulty_->set_catalog(true);
  while (!service_->jobs().job("default", job->id)->finished()) {
    ASSERT_OK(service_->run_maintenance());
    std::this_thread::yield();
  }
  const JobSnapshot end = wait(job);
  EXPECT_EQ(end.results[0].result, ItemResult::kCreated);
  EXPECT_EQ(commits, 2);
  EXPECT_EQ(*service_->documents().content("default", "d"), "text that waits");
}

TEST_F(ServiceTest, ACommitThatWasMadeAndSeemedLostIsFoundAndNotRepeated) {
  faulty_->set_catalog(true);
  std::atomic<int> commits{0};
  faulty_->before_commit = [&] { ++commits; };
  faulty_->lose_commit_answer();
  const auto job = service_->submit("default", one(doc("d", "a text")), {});
  ASSERT_OK(job);
  while (!service_->jobs().job("default", job->id)->finished()) {
    ASSERT_OK(service_->run_maintenance());
    std::this_thread::yield();
  }
  EXPECT_EQ(wait(job).results[0].result, ItemResult::kCreated);
  EXPECT_EQ(commits, 1);
  EXPECT_EQ(service_->documents().get("default", "d")->version, 1u);
}

TEST_F(ServiceTest, AFullQueueIsRefusedAndNothingIsKept) {
  service_->stop();
  options_.max_queued_documents = 3;
  options_.max_documents_in_flight = 1;
  make_service();
  engine_->close();
  std::vector<Result<JobSnapshot>> jobs;
  jobs.push_back(service_->submit("default", one(doc("w", "at work")), {}));
  engine_->wait_for_one();
  for (int i = 0; i < 3; ++i)
    jobs.push_back(service_->submit("default", one(doc("q" + std::to_string(i), "x")), {}));
  const auto full = service_->submit("default", one(doc("full", "x")), {});
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(service_->documents().get("default", "full").code(), Code::kNotFound);
  EXPECT_EQ(service_->stats().documents_waiting, 3);
  engine_->open();
  for (const auto& j : jobs) EXPECT_EQ(wait(j).status, JobStatus::kSucceeded);
  EXPECT_EQ(service_->stats().documents_ready, 4);
}

TEST_F(ServiceTest, ProgressComesBeforeDoneAndEndsWhole) {
  engine_->close();
  BatchOptions o;
  o.chunking.max_tokens = 64;
  const auto job = service_->submit("default", one(doc("a", prose(800, 1))), o);
  std::mutex mu;
  std::vector<JobEvent> events;
  std::int64_t last_done = -1;
  std::promise<void> progress, done;
  const auto s = service_->jobs().subscribe("default", job->id,
                                            [&](JobEvent event, const JobSnapshot& snapshot) {
                                              const std::lock_guard lock(mu);
                                              if (events.empty()) progress.set_value();
                                              events.push_back(event);
                                              EXPECT_GE(snapshot.progress.tokens_done, last_done);
                                              last_done = snapshot.progress.tokens_done;
                                              if (event == JobEvent::kDone) {
                                                EXPECT_EQ(snapshot.results.size(), 1u);
                                                done.set_value();
                                              }
                                            });
  ASSERT_OK(s);
  progress.get_future().get();
  engine_->open();
  done.get_future().get();
  const std::lock_guard lock(mu);
  EXPECT_EQ(std::count(events.begin(), events.end(), JobEvent::kDone), 1);
  EXPECT_EQ(events.back(), JobEvent::kDone);
  EXPECT_EQ(events.front(), JobEvent::kProgress);
}

TEST_F(ServiceTest, StoppedServicesRefuse) {
  service_->stop();
  EXPECT_EQ(service_->submit("default", one(doc("a", "x")), {}).code(), Code::kUnavailable);
  EXPECT_FALSE(service_->stats().accepting);
  service_->stop();  // a second stop is harmless
}

}  // namespace
}  // namespace quire
