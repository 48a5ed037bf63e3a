/// A document service over a real store in a fresh folder and a fake engine. A test can replace
/// both to simulate a restart.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/store.h"
#include "ingest/ingest_service.h"
#include "tests/support/fake_engine.h"
#include "tests/support/faulty_store.h"
#include "tests/support/status_matchers.h"

namespace quire::test {

/// Returns words of a small made-up language in sentences and paragraphs.
inline std::string prose(std::size_t words, std::uint64_t seed) {
  static constexpr std::string_view kParts[] = {"ka", "lo",  "mi", "ren",       "dor",
                                                "sa", "vel", "tu", "\xC3\xA9t", "\xE4\xB8\xAD"};
  std::mt19937_64 rng(seed);
  std::string out;
  for (std::size_t i = 0; i < words; ++i) {
    for (std::size_t n = 1 + rng() % 3; n > 0; --n) out += kParts[rng() % std::size(kParts)];
    const auto r = rng() % 40;
    out += r == 0 ? ".\n\n" : r < 4 ? ". " : r == 4 ? "\n" : " ";
  }
  return out + "end.";
}

inline DocumentInput doc(std::string id, std::string text, std::string metadata = "",
                         std::string title = "") {
  DocumentInput d;
  if (!id.empty()) d.id = std::move(id);
  d.text = std::move(text);
  d.metadata_json = std::move(metadata);
  d.title = std::move(title);
  return d;
}

inline std::vector<DocumentInput> one(DocumentInput d) {
  std::vector<DocumentInput> v;
  v.push_back(std::move(d));
  return v;
}

class IngestTest : public ::testing::Test {
 protected:
  IngestTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_ingest_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    options_.maintenance_interval_ms = 0;  // tests call run_maintenance()
    options_.clock_ms = [this] { return clock_ms_.load(); };
  }
  ~IngestTest() override {
    shut();
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void open(const std::string& fingerprint = "m-00000001") {
    StoreOptions so;
    so.path = root_ + "/store";
    so.dram_bytes = 16 << 20;
    so.clock_ms = [this] { return clock_ms_.load(); };
    auto opened = open_store(std::move(so));
    ASSERT_OK(opened);
    store_ = std::move(*opened);
    faulty_ = std::make_unique<FaultyStore>(store_);
    engine_ = std::make_unique<FakeEngine>(*faulty_, fingerprint);
    make_service();
  }
  void make_service() {
    auto made = create_ingest_service(options_, *faulty_, *engine_);
    ASSERT_OK(made);
    service_ = std::move(*made);
    ASSERT_OK(service_->start());
  }
  void shut() {
    if (service_) service_->stop();
    service_.reset();
    engine_.reset();
    faulty_.reset();
    store_.reset();
  }

  /// Waits until the job has ended and returns it.
  JobSnapshot wait(const Result<JobSnapshot>& job, const std::string& ns = "default") {
    EXPECT_OK(job);
    if (!job.ok()) return {};
    auto promise = std::make_shared<std::promise<JobSnapshot>>();
    auto future = promise->get_future();
    auto subscription = service_->jobs().subscribe(ns, job->id,
                                                   [promise](JobEvent event, const JobSnapshot& s) {
                                                     if (event == JobEvent::kDone)
                                                       promise->set_value(s);
                                                   });
    EXPECT_OK(subscription);
    if (!subscription.ok()) return {};
    return future.get();
  }
  JobSnapshot put(std::vector<DocumentInput> documents, const BatchOptions& options = {},
                  const std::string& ns = "default") {
    return wait(service_->submit(ns, std::move(documents), options), ns);
  }

  std::string root_;
  std::atomic<std::int64_t> clock_ms_{1'750'000'000'000};
  IngestOptions options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FaultyStore> faulty_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<IngestService> service_;
};

}  // namespace quire::test
